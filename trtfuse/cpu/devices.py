"""The CPU as a device: its name and what an engine may rely on.

Linux only, as all of trtfuse: /proc and cgroups are read, and nothing is run.
"""

from __future__ import annotations

import platform
from pathlib import Path

from trtfuse.core.specs import DeviceSpec

# What MLAS, the kernels of ONNX Runtime, choose by (onnxruntime/core/mlas/lib/platform.cpp). An
# optimized file holds weights in blocks of the width of these, so they name its device.
_FEATURES = {
    *("sse4_1", "avx", "f16c", "fma", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "asimdhp", "asimdfhm", "bf16", "i8mm", "sve", "sve2", "sme"),
}


def describe() -> DeviceSpec:
    """The CPU of this machine."""
    name, features = parse_cpuinfo(Path("/proc/cpuinfo").read_text())
    machine = platform.machine()
    return DeviceSpec(name=name or machine, kind="cpu", features=" ".join((machine, *features)))


def parse_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """Name ("" where the kernel gives none, as on ARM) and relevant features, sorted."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    listed = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name", ""), tuple(sorted(_FEATURES & set(listed.split())))
