"""One frozen object of options per command. Defaults stand here and nowhere else.

Paths given as text, by callers without type checkers, become `Path`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trtfuse.core.card import Card
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.given import check_choice, require_three, settle
from trtfuse.core.specs import Precision, ShapeRange, TrtSettings

FUSE_PARTS = ("pre", "post", "resize")

Runtime = Literal["rtx"]
PictureFormat = Literal["png", "jpeg", "webp"]
OnError = Literal["keep", "skip", "fail"]
Against = Literal["naive", "ort", "pytorch"]
Sizes = tuple["int | str", ...]
"""Sizes of one input; a name stands for a size that stays open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """`trtfuse export`.

    >>> ExportOptions(model="net:make", output=Path("net.onnx"), shapes=((3, "h", "w"),)).target
    'any'
    """

    model: str | Path | Callable[..., Any]
    """An .onnx, .pt2 or TorchScript .pt path, or "package.module:factory": a callable that returns
    a torch Module. From Python, the callable or the module itself will do."""
    output: Path
    card: Path | Card | None = None
    """A JSON card to put into the graph, or its file; None keeps the one it has."""
    shapes: tuple[Sizes, ...] = ()
    """One per input, without the batch axis where it has one; needed for PyTorch only. A size that
    is a name becomes a dynamic axis."""
    dtypes: tuple[str, ...] = ()
    """Of the inputs in `shapes`; empty: float32 for PyTorch, its own for an ONNX."""
    batch_inputs: tuple[str, ...] = ()
    """The inputs that carry the batch; empty: the card's, or found by running."""
    batch_axes: tuple[tuple[str, int], ...] = ()
    """Inputs and outputs of an .onnx whose batch is on another axis than the first, which is where
    it is moved to."""
    constants: tuple[tuple[str, str], ...] = ()
    """Inputs that become constants of the graph: a number, or a .npy file, for each."""
    static_batch: bool = False
    """Leave the batch as the graph has it, and prove only that rewrites change nothing."""
    arguments: tuple[tuple[str, str], ...] = ()
    """What the factory is called with: names and values, as JSON or plain text."""
    weights: Path | None = None
    """A .pt or .safetensors file of a state dict for the factory's module."""
    weights_key: str | None = None
    """Where in a .pt file the state dict is; None: it is the file."""
    fuse: tuple[str, ...] = ()
    """Parts of the host's work to bring into the graph: "pre", "post", "resize"."""
    simplify: bool = True
    simplify_s: float = 300.0
    """Seconds until the simplifier is ended, and its work left out."""
    simplify_bytes: int = 16 << 30
    """Memory that the simplifier may ask for. What it maps counts too: libraries are 1 GiB."""
    tolerance: float = 1e-4
    """Largest difference allowed after a rewrite, relative to the largest output value."""
    target: str = "any"
    """The runtime that has to read the graph; a name of `trtfuse.graph.target`."""
    opset: int | None = None
    """None: the target's, to which older graphs are raised where that can be proven."""
    external_data_bytes: int = 2_000_000_000
    """Weights beyond this go to a file of their own. protobuf ends at 2 GiB, nodes included."""
    seed: int = 0

    def __post_init__(self) -> None:
        settle(self)
        if not 0 < self.tolerance < float("inf"):
            raise UsageError(f"--tolerance {self.tolerance}: needs a number above 0.")
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed}: needs a whole number, 0 or above.")
        if not self.simplify_s > 0 or self.simplify_bytes <= 0:
            raise UsageError("--simplify-timeout and --simplify-memory need values above 0.")
        if self.dtypes and len(self.dtypes) != len(self.shapes):
            raise UsageError(f"{len(self.dtypes)} dtypes for {len(self.shapes)} shapes.")
        if self.static_batch and (self.batch_inputs or self.fuse):
            raise UsageError("--static-batch excludes --batch-input and --fuse.")
        if unknown := [part for part in self.fuse if part not in FUSE_PARTS]:
            raise UnknownName.among("--fuse", unknown[0], FUSE_PARTS)

    @property
    def name(self) -> str:
        """What the model is called in messages."""
        if isinstance(self.model, str | Path):
            return str(self.model)
        return getattr(self.model, "__name__", type(self.model).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """What a build may use to write a precision, and what has to come of it.

    >>> CalibrationOptions(data=Path("photos"), method="percentile:99.99").held_out
    0.2
    """

    data: Path | None = None
    """A folder of pictures, a .npy file, or a data-loader script in Polygraphy's form."""
    method: str = "entropy"
    """entropy, percentile:SHARE, minmax or mse."""
    count: int = 512
    """At most so many inputs."""
    seed: int = 0
    """Of the choice among them."""
    held_out: float = 0.2
    """The share of them that judges instead of calibrating."""
    few: bool = False
    """Accept fewer than 32 inputs."""
    cache: Path | None = None
    """TensorRT's calibration cache: read if it is there, else written."""
    ranges: Path = Path("calibration")
    """Folder of range files."""
    keep: tuple[str, ...] = ()
    """Layers that stay out of the precision; ("auto",): find them."""
    limits: tuple[str, ...] = ()
    """As "psnr=35"."""
    gate: bool = True
    """Whether answers are held against FP32 before an engine is published."""
    budget_min: float = 10.0
    """Minutes that the search for layers to keep may take."""

    def __post_init__(self) -> None:
        settle(self)
        if self.count < 2 or not 0 < self.held_out < 1:
            raise UsageError(
                f"--calib-count {self.count}: needs 2 or more, and a held-out share above 0 and "
                f"below 1 (it is {self.held_out:g})."
            )
        if self.budget_min <= 0:
            raise UsageError(f"--budget {self.budget_min:g}: needs minutes above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """`trtfuse build`.

    >>> BuildOptions(model=Path("net.onnx"), batch=(8, 4, 16))
    Traceback (most recent call last):
        ...
    trtfuse.core.errors.UsageError: --batch 8:4:16: needs 0 < min <= opt <= max.
    """

    model: Path
    devices: str | None = None
    """As `--devices` says it; None: all usable GPUs, else the CPU."""
    gpus: str | None = None
    """As `--gpus` says it: "all", "0,1" or UUIDs. Excludes `devices`."""
    runtime: Runtime | None = None
    """None: TensorRT on GPUs, ONNX Runtime on CPUs. rtx: TensorRT-RTX, for GPUs that need not be
    here."""
    settings: TrtSettings = field(default_factory=TrtSettings)
    """For GPUs."""
    precision: Precision | Literal["best"] = Precision.FP32
    """best: the fastest of those that pass their gates."""
    calibration: CalibrationOptions = CalibrationOptions()
    batch: tuple[int, int, int] | None = None
    """min, opt and max items of one batch; None: 1, 4 and 8, or what the graph is fixed to."""
    sizes: tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None = None
    """min, opt and max (height, width); needed where the graph leaves them open."""
    shapes: tuple[tuple[str, ShapeRange], ...] = ()
    """The profile of every input, by name, in the place of `batch` and `sizes`."""
    engines: Path = Path("engines")
    rebuild: bool = False

    def __post_init__(self) -> None:
        settle(self)
        require_three("batch", self.batch, example="(1, 4, 8)")
        require_three("sizes", self.sizes, example="((64, 64), (256, 256), (512, 512))")
        low, best, high = self.batch or (1, 1, 1)
        if not 0 < low <= best <= high:
            raise UsageError(f"--batch {low}:{best}:{high}: needs 0 < min <= opt <= max.")
        check_choice(self.devices, self.gpus)
        if self.runtime is not None and self.runtime not in get_args(Runtime):
            raise UnknownName.among("--runtime", self.runtime, get_args(Runtime))
        if self.runtime == "rtx" and (self.gpus or self.devices):
            raise UsageError(
                "--runtime rtx: builds for GPUs that need not be here. "
                "Name them with --compute-capability, and leave --gpus and --devices out."
            )
        if self.settings.compute_capabilities and self.runtime != "rtx":
            raise UsageError("--compute-capability: is for --runtime rtx; TensorRT builds for one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How sources are read."""

    max_pixels: int = 178_956_970
    """Of one picture. The default is 512 MiB of RGB, where Pillow speaks of a bomb."""
    hwaccel: str | None = None
    """Where videos are decoded, in FFmpeg's words: "cuda", "cuda:1"; None: on the CPU."""
    keep_rotation: bool = False
    """Give a turned video to the model as it is stored, and write the turn into the result."""

    def __post_init__(self) -> None:
        if self.max_pixels < 1:
            raise UsageError(f"--max-pixels {self.max_pixels}: needs a whole number above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingOptions:
    """How answers that are pictures are written; all of it is in the bytes of the results.

    >>> WritingOptions(format="webp", quality=90).depth
    8
    """

    format: PictureFormat = "png"
    """Of still pictures. PNG loses nothing; an animation stays what it was."""
    quality: int = 95
    """Of JPEG and WebP, 1 to 100; WebP of 100 is lossless. 95 cannot be told by eye."""
    depth: int = 8
    """Bits of a channel, 8 or 16; 16 is for PNG."""
    codec: str | None = None
    """FFmpeg's name of a video encoder; None: H.264, and VP9 in WebM."""
    crf: int | None = None
    """Of the encoder's own scale, where less is better; None: what cannot be told by eye."""
    encoder_args: tuple[tuple[str, str], ...] = ()
    """Further options of the encoder, by FFmpeg's names."""
    on_error: OnError = "keep"
    """What a clip shows for a frame that failed. keep: the source's own, or the frame before;
    skip: nothing; fail: the clip is not written."""
    segment: int = 250
    """Frames of a video that are encoded apart: what an interruption can cost. About ten seconds;
    each begins with a whole picture, so that many short ones take more bytes."""
    annotate: bool = False
    """Also draw detections on copies of the pictures."""

    def __post_init__(self) -> None:
        if self.format not in get_args(PictureFormat):
            raise UnknownName.among("--format", self.format, get_args(PictureFormat))
        if self.on_error not in get_args(OnError):
            raise UnknownName.among("--on-error", self.on_error, get_args(OnError))
        if self.encoder_args and self.codec is None:
            raise UsageError("--encoder-args: are an encoder's own. Say which, with --codec.")
        if self.segment < 1:
            raise UsageError(f"--segment {self.segment}: needs a whole number above 0.")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"--quality {self.quality}: needs a whole number from 1 to 100.")
        if self.depth not in (8, 16) or (self.depth == 16 and self.format != "png"):
            raise UsageError(
                f"--depth {self.depth} with --format {self.format}: needs 8, or 16 with png."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservingOptions:
    """What a run says of itself, beside its results."""

    every_s: float = 1.0
    """Seconds from one sample of memory and counts to the next."""
    log_json: Path | None = None
    """Where events go, a line of JSON each; "-" is stderr."""
    timings: bool = False
    """Whether timings.jsonl holds the stages of every item."""
    metrics: str | None = None
    """A file for Prometheus, or [HOST]:PORT that answers it."""
    report: Literal["html"] | None = None
    """html: report.html, a page that shows the run."""

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise UsageError(f"--sample-every {self.every_s}: needs seconds above 0.")
        if self.report not in (None, "html"):
            raise UnknownName.among("--report", self.report, ["html"])


@dataclass(frozen=True, slots=True, kw_only=True)
class InferOptions:
    """`trtfuse infer`.

    >>> InferOptions(source=Path("photos"), writing=WritingOptions(format="jpeg")).batch
    """

    source: Path
    output: Path | None = None
    """Where results go; None: `source` with "-out" added."""
    model: str | None = None
    """Name of the model under `engines`; None: the only one there."""
    engine: str | None = None
    """Name of one engine's folder; None: the only one that fits the device."""
    precision: Precision | None = None
    """Of the engines; None: whatever there is."""
    engines: Path = Path("engines")
    devices: str | None = None
    """As `--devices` says it; None: all usable GPUs that have an engine, else the CPU."""
    gpus: str | None = None
    """As `--gpus` says it: "all", "0,1" or UUIDs. Excludes `devices`."""
    workers: int | Literal["auto"] | None = None
    """Workers per device; None: one. auto: as many as find room in a GPU's memory."""
    lanes: int | None = None
    """Batches in flight inside a worker on a GPU; None: four, or as many as find room."""
    cuda_graph: bool = True
    """Whether a GPU's work on a shape that comes again is recorded, and replayed."""
    batch: int | None = None
    """Items in one batch; None: the profile's opt."""
    memory_bytes: int = 512 << 20
    """Upper limit of the shared ring."""
    feeders: int | None = None
    """Threads that decode; None: one a usable core, at most 16."""
    writers: int | None = None
    """Threads that write; None: as many as feeders."""
    reading: ReadingOptions = ReadingOptions()
    writing: WritingOptions = WritingOptions()
    observing: ObservingOptions = ObservingOptions()
    restart: bool = False
    """Begin anew, whatever the output folder says has been done."""
    batch_timeout_s: float = 300.0
    """Seconds after which a worker that has work and answers nothing is ended."""
    restarts: int = 16
    """Workers that may be started again in one run, all together."""

    def __post_init__(self) -> None:
        settle(self)
        check_choice(self.devices, self.gpus)
        for name in ("workers", "lanes", "batch", "feeders", "writers"):
            value = getattr(self, name)
            if value not in (None, "auto") and not (isinstance(value, int) and value > 0):
                raise UsageError(f"--{name} {value}: needs a whole number above 0.")
        if not self.batch_timeout_s > 0:
            raise UsageError(f"--batch-timeout {self.batch_timeout_s}: needs seconds above 0.")
        if self.restarts < 0 or self.memory_bytes < 1:
            raise UsageError("--restarts and --memory need values that are not negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """`trtfuse bench`."""

    model: str
    """An .onnx file, whose engines are built where they are not there, or a model's name under
    `engines`."""
    engines: Path = Path("engines")
    engine: str | None = None
    """One engine's folder name; None: the only one that fits."""
    devices: str | None = None
    gpus: str | None = None
    """Both as the commands have them."""
    precision: Precision | None = None
    """Of the engines; None: FP32 for an .onnx file, whatever there is for a name."""
    sizes: tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None = None
    """As in `BuildOptions`, for an engine that is built here."""
    workers: int | None = None
    """Workers per device in the pool; None: one."""
    lanes: int | None = None
    """Batches in flight inside a worker on a GPU; None: four, or as many as find room."""
    cuda_graph: bool = True
    batches: tuple[int, ...] = (1, 8, 32)
    """Items of one batch, one size after the other."""
    against: tuple[Against, ...] = ()
    """What else is measured. naive: the runner called batch after batch from one thread; ort: a
    plain loop over ONNX Runtime; pytorch: the module in eager mode."""
    module: str | None = None
    """For pytorch: "package.module:factory", the one that was exported."""
    repeats: int = 7
    seconds: float = 0.5
    """Of one repeat of one path at one batch size, at least."""

    def __post_init__(self) -> None:
        settle(self)
        check_choice(self.devices, self.gpus)
        sizes = ",".join(map(str, self.batches))
        if not self.batches or min(self.batches) < 1:
            raise UsageError(f"--batch {sizes}: needs sizes above 0, as 1,8,32.")
        if len(set(self.batches)) < len(self.batches):
            raise UsageError(f"--batch {sizes}: names a size twice.")
        if unknown := [one for one in self.against if one not in get_args(Against)]:
            raise UnknownName.among("--against", unknown[0], get_args(Against))
        if ("pytorch" in self.against) is not (self.module is not None):
            raise UsageError(
                "--against pytorch and --module package.module:factory belong together: the "
                "module is measured that the graph was exported from."
            )
        if self.repeats < 3 or self.seconds <= 0:
            raise UsageError(
                f"--repeats {self.repeats}, --seconds {self.seconds:g}: need 3 or more, and more "
                "than 0. A spread of fewer says nothing."
            )
