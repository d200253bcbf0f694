"""What the facts mean: every rule is a function from facts to findings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trtfuse.core.units import mib
from trtfuse.doctor import gpus, packages
from trtfuse.doctor.facts import Facts, Space
from trtfuse.doctor.finding import Finding, note, ok, problem

# What pyproject.toml says.
_PYTHON = ((3, 10), (3, 13))
# The default of --memory: no ring is larger.
_RING = 512 << 20
# What Docker gives.
_DOCKER_SHM = 64 << 20
# A worker takes about six, and every file that is read or written one.
_FEW_FILES = 1024
_LITTLE_DISK = 2 << 30


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Everything there is to say, the machine first."""
    return tuple(finding for rule in RULES for finding in rule(facts))


def python(facts: Facts) -> Iterator[Finding]:
    """The version of Python."""
    found, (oldest, newest) = facts.machine.python, _PYTHON
    text = ".".join(map(str, found))
    if oldest <= found <= newest:
        yield ok("Python", text)
    else:
        yield problem("Python", f"{text}; trtfuse is made for 3.10 to 3.13", "use one of these")


def cpu(facts: Facts) -> Iterator[Finding]:
    """Cores and memory."""
    machine = facts.machine
    cores = "core" if machine.cores == 1 else "cores"
    says = f"{machine.cpu}, {machine.cores} {cores} to use, {mib(machine.memory_bytes)}"
    gpu_count = len(facts.gpus)
    if machine.cores < 2 * gpu_count:
        yield note(
            "CPU",
            f"{says}: fewer than two cores for each of {gpu_count} GPUs to decode and to write",
            "give the container more CPUs, or fuse pre-processing: trtfuse export --fuse pre,post",
        )
    else:
        yield ok("CPU", says)


def shm(facts: Facts) -> Iterator[Finding]:
    """Room for the ring."""
    space = facts.machine.shm
    way_out = "docker run --shm-size=2g (or --ipc=host); Kubernetes: an emptyDir of medium Memory"
    if space.free <= _DOCKER_SHM:
        says = f"{_told(space)}: rings of pictures do not fit"
        yield problem(space.path, says, way_out)
    elif space.free < _RING:
        yield note(space.path, f"{_told(space)}, less than --memory takes at most", way_out)
    else:
        yield ok(space.path, _told(space))


def disk(facts: Facts) -> Iterator[Finding]:
    """Room for engines and results."""
    space = facts.machine.disk
    if space.free < _LITTLE_DISK:
        yield problem("disk", f"{_told(space)} in {space.path}", "make room, or choose another -o")
    else:
        yield ok("disk", f"{_told(space)} in {space.path}")


def limits(facts: Facts) -> Iterator[Finding]:
    """What the system lets a process have."""
    files, locked = facts.machine.open_files, facts.machine.locked_bytes
    if files is not None and files < _FEW_FILES:
        yield note("open files", f"{files} at most", "ulimit -n 4096")
    else:
        yield ok("open files", "no limit" if files is None else f"{files} at most")
    told = "no limit" if locked is None else f"{mib(locked)} at most"
    if facts.gpus and locked is not None and locked < _RING:
        yield note(
            "locked memory",
            f"{told}: where the driver keeps to it, the ring is not pinned and copies are slower",
            "ulimit -l unlimited; docker run --ulimit memlock=-1",
        )
    else:
        yield ok("locked memory", told if facts.gpus else f"{told}; only GPUs need it")


def container(facts: Facts) -> Iterator[Finding]:
    """Whether it is one."""
    if facts.machine.container:
        yield ok("container", facts.machine.container)


def environment(facts: Facts) -> Iterator[Finding]:
    """Variables that change what CUDA and NCCL do."""
    for name, value in sorted(facts.machine.environment.items()):
        if name == "CUDA_LAUNCH_BLOCKING" and value not in ("", "0"):
            yield problem(
                name, f"{value}: every launch waits for the GPU", "unset CUDA_LAUNCH_BLOCKING"
            )
        elif name.startswith("NCCL_"):
            yield note(name, f"{value}. trtfuse does not use NCCL; torchrun does")
        else:
            yield ok(name, value)


def _told(space: Space) -> str:
    return f"{mib(space.free)} free of {mib(space.total)}"


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    python,
    cpu,
    shm,
    disk,
    limits,
    container,
    environment,
    packages.always,
    packages.twice,
    gpus.driver,
    packages.for_gpus,
    packages.fits_driver,
    packages.fits_gpus,
    gpus.listed,
    gpus.kinds,
    gpus.speed,
    gpus.links,
    gpus.settings,
    gpus.memory,
    gpus.between,
    gpus.mps,
)
