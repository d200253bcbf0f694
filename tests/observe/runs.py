"""Reports of runs: made up, as rich as they get."""

from __future__ import annotations

import io
from math import sin

from PIL import Image

from trtfuse.core.report import (
    Column,
    DeviceReport,
    ItemFailure,
    Line,
    MemoryReport,
    RunReport,
    Samples,
    StageReport,
    Verdict,
)
from trtfuse.core.times import STAGES

HOSTILE = '<script>document.title="taken"</script><img src=x onerror=alert(1)>"\'&.png'
ROWS = 512
SECONDS = tuple(70.0 * n for n in range(ROWS))
WORKERS = tuple(f"worker {n} (cuda:{n})" for n in range(8))


def jpeg() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (176, 99), (30, 120, 90)).save(data, "JPEG")
    return data.getvalue()


def rich() -> RunReport:
    """Ten hours on eight GPUs: 100,000 items, deaths, a leak, failures with names of any kind."""
    keys = [HOSTILE, "x" * 250, "شريط/é中文 😀.png", *(f"clip.mp4/{n:06d}" for n in range(97))]
    return RunReport(
        command=("trtfuse", "infer", f"'{HOSTILE}'"),
        model="face",
        engine=", ".join(f"cuda-tensorrt-fp16-{n:08x}" for n in range(8)),
        source="a-folder-with-a-long-name/" * 5,
        output="out",
        items=100_000,
        failures=tuple(ItemFailure(key=key, kind="ItemError", message="cut " * 9) for key in keys),
        failed=2_500,
        skipped=("3 hidden",),
        began="2026-01-01T00:00:00+00:00",
        seconds=SECONDS[-1],
        start_seconds=12.5,
        batch=16,
        slots=40,
        ring_bytes=1 << 30,
        feeders=16,
        writers=16,
        devices=tuple(_device(n) for n in range(8)),
        stages=tuple(_stage(name) for name in STAGES),
        verdict=Verdict(
            bound="encode",
            share=0.71,
            text="encode-bound at 71%: another GPU will not help; try --codec.",
            shares={"decode": 0.4, "copy": 0.1, "compute": 0.6, "encode": 0.71, "dispatch": 0.01},
        ),
        memory=(
            MemoryReport(
                name="parent",
                peak_bytes=9 << 30,
                last_bytes=9 << 30,
                bytes_per_hour=1e8,
                leaks=True,
            ),
            *(
                MemoryReport(
                    name=name,
                    peak_bytes=2 << 30,
                    last_bytes=1 << 30,
                    bytes_per_hour=0.0,
                    leaks=False,
                )
                for name in WORKERS
            ),
        ),
        samples=_samples(),
        versions={"trtfuse": "0.1.0", "python": "3.11", "tensorrt": "10.0"},
        notes=("NVIDIA L4 (cuda:8) takes no part: no engine is for it.",),
    )


def _device(number: int) -> DeviceReport:
    deaths = (f"worker {number} (cuda:{number}) was killed by SIGKILL",) if number == 3 else ()
    return DeviceReport(
        device=f"cuda:{number}",
        items=12_500,
        batches=782,
        busy_share=0.6,
        median_batch_ms=11.0,
        peak_memory_bytes=3 << 30,
        deaths=deaths,
    )


def _stage(name: str) -> StageReport:
    return StageReport(
        name=name, count=100_000, seconds=123_456.7, median_ms=8.0, p95_ms=99.0, longest_ms=61_000.0
    )


def _samples() -> Samples:
    wave = [1 + sin(n / 20) for n in range(ROWS)]
    so_far = [sum(wave[: n + 1]) for n in range(ROWS)]
    # Worker 3 was dead for a while.
    memory = [None if 100 < n < 120 else 1e9 * (1 + n / ROWS) for n in range(ROWS)]
    lines = [
        Line(column=Column("items"), values=tuple(98 * n for n in so_far)),
        *(Line(column=Column("busy", w), values=tuple(35 * n for n in so_far)) for w in WORKERS),
        *(Line(column=Column("memory", w), values=tuple(memory)) for w in ("parent", *WORKERS)),
    ]
    return Samples(seconds=SECONDS, lines=tuple(lines))
