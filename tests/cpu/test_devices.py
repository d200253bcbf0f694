from __future__ import annotations

from trtfuse.cpu import devices

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse sse4_1 avx avx2 fma avx512f avx512_vnni hypervisor
bugs\t\t: spectre_v1

processor\t: 1
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm asimddp i8mm
CPU implementer\t: 0x41
"""


def test_an_x86_cpu_has_a_name_and_the_features_that_kernels_are_chosen_by() -> None:
    name, features = devices.parse_cpuinfo(X86)
    assert name == "Intel(R) Xeon(R) Processor"
    assert features == ("avx", "avx2", "avx512_vnni", "avx512f", "fma", "sse4_1")


def test_an_arm_cpu_has_features_and_no_name() -> None:
    assert devices.parse_cpuinfo(ARM) == ("", ("asimd", "asimddp", "i8mm"))


def test_this_machine_has_a_cpu() -> None:
    here = devices.describe()
    assert here.kind == "cpu"
    assert here.name
    assert here == devices.describe()
