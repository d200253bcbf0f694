"""Rules on what is installed, and whether it fits together and to the GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trtfuse.doctor.facts import Facts, Package
from trtfuse.doctor.finding import Finding, note, ok, problem

# Oldest drivers by major version of CUDA:
# docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
_DRIVERS = {11: 450, 12: 525, 13: 580}
# TensorRT 10 is compiled for compute capability 7.0 and later (its support matrix), and its later
# releases for 7.5 and later.
_TENSORRT_10, _OLDEST, _AGEING = 10, 70, 75

# Distributions that write to one folder: what is installed last overwrites the other in part.
_RIVALS = (
    ("onnxruntime", "onnxruntime-gpu"),
    ("opencv-python", "opencv-python-headless"),
    ("opencv-contrib-python", "opencv-python-headless"),
)
_ALWAYS = ("onnxruntime", "onnx", "numpy")
_FOR_GPUS = ("tensorrt", "polygraphy", "pycuda", "nvidia-ml-py")


def always(facts: Facts) -> Iterator[Finding]:
    """What every run needs, and PyTorch, which only some do."""
    for name in _ALWAYS:
        found = facts.packages.get(name)
        if found is None and name == "onnxruntime" and "onnxruntime-gpu" in facts.packages:
            found = facts.packages["onnxruntime-gpu"]
        yield from _installed(name, found, "pip install trtfuse")
    if "torch" in facts.packages:
        yield from _installed("torch", facts.packages["torch"], "")
    else:
        yield ok("torch", "not installed; only exporting from PyTorch needs it (trtfuse[torch])")


def twice(facts: Facts) -> Iterator[Finding]:
    """Packages that overwrite each other."""
    for pair in _RIVALS:
        if all(name in facts.packages for name in pair):
            one, two = pair
            yield problem(
                f"{one}, {two}",
                "both are installed, into the same folder: which one is loaded is chance",
                f"pip uninstall -y {one} {two}, then pip install the one that is wanted",
            )


def for_gpus(facts: Facts) -> Iterator[Finding]:
    """What GPUs are used through."""
    for name in _FOR_GPUS:
        found = facts.packages.get(name)
        if found is not None or facts.gpus:
            yield from _installed(name, found, "pip install 'trtfuse[gpu]'")
        elif name == "tensorrt":
            yield ok(name, "not installed; only GPUs need it (trtfuse[gpu])")
    if rtx := facts.packages.get("tensorrt-rtx"):
        yield from _installed(rtx.name, rtx, "")


def fits_driver(facts: Facts) -> Iterator[Finding]:
    """Whether the driver is new enough for the CUDA of each package."""
    if facts.driver is None:
        return
    have = int(facts.driver.version.partition(".")[0])
    for package in facts.packages.values():
        needs = _DRIVERS.get(package.cuda or 0)
        if needs is not None and have < needs:
            yield problem(
                f"{package.name} and the driver",
                f"{package.version} is made for CUDA {package.cuda}, which needs driver {needs} "
                f"or later; here is {facts.driver.version}",
                f"update the driver, or install a release of {package.name} for CUDA "
                f"{facts.driver.cuda[0]}",
            )


def fits_gpus(facts: Facts) -> Iterator[Finding]:
    """Whether TensorRT still knows the GPUs."""
    tensorrt = facts.packages.get("tensorrt")
    if tensorrt is None or int(tensorrt.version.partition(".")[0]) < _TENSORRT_10:
        return
    for gpu in facts.gpus:
        subject, capability = f"cuda:{gpu.spec.index}", gpu.capability / 10
        says = f"{gpu.spec.name} has compute capability {capability}, and TensorRT "
        if gpu.capability < _OLDEST:
            way_out = "pip install 'tensorrt<9'"
            yield problem(subject, f"{says}{tensorrt.version} is for 7.0 and later", way_out)
        elif gpu.capability < _AGEING:
            yield note(
                subject,
                f"{says}10 gave up what is below 7.5 on its way",
                "pip install 'tensorrt<9'",
            )


def _installed(name: str, found: Package | None, way_out: str) -> Iterator[Finding]:
    if found is None:
        yield problem(name, "is not installed", way_out)
    elif found.broken:
        yield problem(
            name,
            f"{found.version} cannot be loaded: {found.broken}",
            f"pip install --force-reinstall {found.name}=={found.version}",
        )
    else:
        cuda = f", for CUDA {found.cuda}" if found.cuda else ""
        yield ok(name, f"{found.version}{cuda}")
