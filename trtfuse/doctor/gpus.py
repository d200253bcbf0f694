"""Rules on the driver and the GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trtfuse.core.units import mib
from trtfuse.doctor.facts import Facts, Gpu
from trtfuse.doctor.finding import Finding, note, ok, problem

# A branch with long-term support; guides to this kind of work ask for no older one.
_DRIVER = 535
# These are set by people, and only slow a GPU down to what they chose.
_CHOSEN = {"power limit", "clocks set by somebody", "kept in step with another GPU"}
# More than this of a GPU's memory in other hands.
_MUCH = 0.25


def driver(facts: Facts) -> Iterator[Finding]:
    """Whether there is one, and how old it is."""
    if facts.driver is None:
        if facts.machine.kernel_module:
            yield problem(
                "NVIDIA driver",
                f"is there in part: {facts.no_gpu}",
                "after an update: reboot. In a container: docker run --gpus all, with the NVIDIA "
                "container toolkit and NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
            )
        else:
            yield note("NVIDIA driver", "none: everything runs on the CPU, through ONNX Runtime")
        return
    major, minor = facts.driver.cuda
    says = f"{facts.driver.version}, runs CUDA up to {major}.{minor}"
    if int(facts.driver.version.partition(".")[0]) < _DRIVER:
        yield problem("NVIDIA driver", f"{says}; needs {_DRIVER} or later", "update the driver")
    else:
        yield ok("NVIDIA driver", says)
    if not facts.gpus:
        yield problem("GPUs", f"none to use: {facts.no_gpu}", "see CUDA_VISIBLE_DEVICES")


def listed(facts: Facts) -> Iterator[Finding]:
    """One line a GPU."""
    for gpu in facts.gpus:
        spec = gpu.spec
        yield ok(_name(gpu), f"{spec.name}, {mib(spec.memory_bytes)}, {spec.features}, {spec.uuid}")


def kinds(facts: Facts) -> Iterator[Finding]:
    """What GPUs of several kinds mean for engines."""
    if len(facts.gpus) < 2:
        return
    names = sorted({gpu.spec.name for gpu in facts.gpus})
    capabilities = {gpu.capability for gpu in facts.gpus}
    if len(names) == 1 and len(capabilities) == 1:
        yield ok("kinds of GPU", f"one: an engine serves all {len(facts.gpus)}")
        return
    shared = (
        "one engine for all: --hardware ampere+, somewhat slower"
        if min(capabilities) >= 80
        else "those before Ampere (below 8.0) always need engines of their own"
    )
    yield note(
        "kinds of GPU",
        f"{len(names)} ({', '.join(names)}): each kind needs an engine of its own; the pool gives "
        f"the faster ones more batches",
        f"trtfuse build MODEL --gpus all builds them side by side; {shared}",
    )


def speed(facts: Facts) -> Iterator[Finding]:
    """Clocks, heat and power."""
    for gpu in facts.gpus:
        health = gpu.health
        held = ", ".join(health.slowdowns)
        told = [
            f"{health.clock_mhz} of {health.most_clock_mhz} MHz" if health.clock_mhz else "",
            f"{health.temperature_c} C" if health.temperature_c is not None else "",
            f"{health.power_w:.0f} of {health.power_limit_w:.0f} W"
            if health.power_w is not None and health.power_limit_w
            else "",
        ]
        says = ", ".join(filter(None, told)) or "not told"
        if set(health.slowdowns) - _CHOSEN:
            yield problem(
                _name(gpu),
                f"is held down by {held}: {says}",
                "look after its cooling and its power supply; nvidia-smi -q -d PERFORMANCE",
            )
        elif health.slowdowns:
            yield note(_name(gpu), f"is held at what was chosen, {held}: {says}", "nvidia-smi -q")
        else:
            yield ok(_name(gpu), says)
        limit, default = health.power_limit_w, health.default_power_limit_w
        if limit and default and limit < default:
            yield note(
                _name(gpu),
                f"may draw {limit:.0f} W, its maker's limit is {default:.0f}",
                f"nvidia-smi -i {gpu.spec.index} -pl {default:.0f}",
            )


def links(facts: Facts) -> Iterator[Finding]:
    """PCIe, now against possible."""
    for gpu in facts.gpus:
        link = gpu.health.link
        if link is None:
            continue
        says = (
            f"PCIe {link.generation} x{link.width}, "
            f"{link.most_generation} x{link.most_width} possible"
        )
        if link.width < link.most_width:
            yield problem(
                _name(gpu),
                f"{says}: fewer lanes than it has",
                "another slot, or without the riser; see the board's manual for shared lanes",
            )
        elif link.generation < link.most_generation:
            yield note(_name(gpu), f"{says}: it may rest while idle; look again under load")
        else:
            yield ok(_name(gpu), says)


def settings(facts: Facts) -> Iterator[Finding]:
    """Persistence, ECC, compute mode and MIG."""
    for gpu in facts.gpus:
        health, index = gpu.health, gpu.spec.index
        if health.persistent is False:
            way_out = f"nvidia-smi -i {index} -pm 1, or nvidia-persistenced"
            yield note(_name(gpu), "no persistence: every run waits for its start", way_out)
        if health.ecc_errors:
            yield problem(
                _name(gpu),
                f"{health.ecc_errors} uncorrected memory errors since the driver was loaded",
                f"nvidia-smi -i {index} -r, and have it replaced if they come back",
            )
        elif health.ecc is not None:
            yield ok(_name(gpu), "ECC is on, no errors" if health.ecc else "ECC is off")
        if health.compute_mode == "prohibited":
            yield problem(_name(gpu), "compute is prohibited", f"nvidia-smi -i {index} -c 0")
        elif health.compute_mode != "default":
            yield note(
                _name(gpu),
                f"compute mode {health.compute_mode}: one worker, no --instances",
                f"nvidia-smi -i {index} -c 0",
            )
        if health.mig:
            yield note(_name(gpu), "is a MIG instance: a device like any other, without P2P")


def memory(facts: Facts) -> Iterator[Finding]:
    """What others hold."""
    for gpu in facts.gpus:
        total, free = gpu.spec.memory_bytes, gpu.health.free_bytes
        if free < (1 - _MUCH) * total:
            yield note(
                _name(gpu), f"others hold {mib(total - free)} of its {mib(total)}", "nvidia-smi"
            )


def between(facts: Facts) -> Iterator[Finding]:
    """What lies between GPUs."""
    for pair in facts.pairs:
        how = "NVLink" if pair.nvlink else "P2P over PCIe" if pair.peers else "through host memory"
        says = f"{how}, {pair.path}"
        subject = f"cuda:{pair.one} to cuda:{pair.two}"
        if pair.peers is False:
            yield note(subject, f"{says}. trtfuse moves nothing between GPUs; NCCL would")
        else:
            yield ok(subject, says)


def mps(facts: Facts) -> Iterator[Finding]:
    """NVIDIA's multi-process service."""
    if facts.machine.mps:
        yield note("MPS", "is running: workers on one GPU share its context, and its crash")


def _name(gpu: Gpu) -> str:
    return f"cuda:{gpu.spec.index}"
