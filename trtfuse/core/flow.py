"""What flows: items in, tasks to workers, results back, answers out; and the seams they cross.

Every border of the program is one of the protocols below. Their public doubles are in
`trtfuse.testing`, and pass the same contract suites as the real parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from trtfuse.core.specs import Array, Arrays, TensorSpec
from trtfuse.core.times import ItemTimes

Json = Any
"""Plain JSON data: dict, list, str, int, float, bool, None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What goes with a picture beside its colours, up to the sink."""

    alpha: Array | None = None
    """uint8 (height, width), upright as the pixels; None: opaque."""
    profile: bytes = b""
    """ICC profile of the RGB pixels; empty: none."""
    sha256: str = ""
    """Of the picture's file; of a video's frame, its packet; of an animation's, its pixels (RGBA).
    Empty: the source does not say."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture, upright. `pixels` is uint8 (height, width, 3), RGB."""

    pixels: Array
    attached: Attached = Attached()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A file of several frames. Each of them is an item; they come in order, one by one."""

    key: str
    """As an item's: its path below the source's root."""
    kind: str
    """What holds the frames: "GIF", "PNG", "WEBP" or "video"."""
    tick: Fraction
    """Seconds that 1 is, in the times of its frames."""
    promised: int = 0
    """Frames that its header speaks of; 0: none."""
    loop: int | None = None
    """How often an animation repeats, 0 for ever; None: the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """An item's place in its clip. `start` and `duration` are in the clip's ticks."""

    clip: Clip
    index: int
    start: int
    duration: int
    last: bool
    """Whether it is known that no other follows."""

    @property
    def seconds(self) -> float:
        """When it is shown, from the clip's own zero, to the microsecond."""
        return round(float(self.start * self.clip.tick), 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What tells whether a file has changed, without reading it."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a sink has made of an answer: the item's line, and what is left to do in order."""

    line: Json
    rest: Any = None
    """The sink's own business."""
    source_sha256: str = ""
    """Of what the answer was made of, as `Attached.sha256`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as data: exceptions do not always survive pickling, text does."""

    kind: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What an earlier run has made of an item."""

    entry: Entry | Failure
    shown: bool
    """Whether its clip shows something for it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing of the source, not yet decoded.

    `key` names it for the sink (a path below the source's root, with forward slashes; a frame's is
    its clip's and its number). `load` decodes it, in whatever thread calls it, as often as it is
    called; it raises `ItemError`.
    """

    seq: int
    key: str
    load: Callable[[], Picture]
    frame: Frame | None = None
    """Its place in a clip; None: it is a file of its own."""
    held_bytes: int = 0
    """Memory that it holds from now until it is dropped: a frame is decoded in passing."""
    stamp: Stamp = Stamp(size=0, mtime_ns=0)
    """Of its file, or its clip's, before it was opened."""
    known: Known | None = None
    """Set: it is done, and never loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How one picture was laid into its input, and the way back. All sizes in pixels.

    A point (x, y) of the network's input lies at ((x - left) / scale_x, (y - top) / scale_y) of
    the picture. `left` and `top` are negative where resize "crop" cut.
    """

    picture: tuple[int, int]
    """(height, width) of the picture."""
    input: tuple[int, int]
    """(height, width) of the input tensor."""
    scale_x: float
    scale_y: float
    left: int
    top: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A part of a picture, in whole pixels; `bottom` and `right` lie outside."""

    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFile:
    """An answer to be kept as a picture. `pixels` is uint8 or uint16 (height, width, 3), RGB."""

    pixels: Array
    shows: Box | None = None
    """The part of the source picture that it shows, in pixels of that; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFile:
    """An answer to be kept as one array (.npy)."""

    array: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraysFile:
    """An answer to be kept as named arrays (.npz)."""

    arrays: Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a task says of one item: the fields of its line in results.jsonl, or a file, or both.

    Owns its data: nothing in it is a view of a slot.
    """

    fields: Mapping[str, Json] = field(default_factory=dict)
    file: PictureFile | ArrayFile | ArraysFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one item: its entry, or why there is none."""

    item: Item
    entry: Entry | Failure
    worker: int = -1
    """The worker that answered; -1: none did."""
    times: ItemTimes = field(default_factory=ItemTimes, compare=False)
    """Where its time went; whoever has the outcome may add to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What crosses to a worker: numbers only. The pixels lie in the slot.

    A task is the batch in `slot`, or the part of it that starts at `start`; `count` items of
    batch `seq`. `attempt` is how many workers have died on it.
    """

    seq: int
    slot: int
    count: int
    start: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where one task's time went inside the runner; 0 where the runner cannot tell."""

    copy_in_ns: int = 0
    compute_ns: int = 0
    copy_out_ns: int = 0
    began_ns: int = 0
    """When the worker took it up, and when its outputs were there, by `time.monotonic_ns`: the
    worker says it, for all runners alike."""
    ended_ns: int = 0
    idle_ns: int = 0
    """How long the worker had nothing in hand before; it says this too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A task and what became of it. Exactly one for every item of every submitted task."""

    task: Task
    worker: int
    """The worker that answered; -1 where none did."""
    outcome: Timing | Failure


Claim = Callable[[str, tuple[int, ...]], Array]
"""(output name, shape with batch axis) -> the memory to write that output to.

Raises ShapeMismatch where the output does not fit its region. Lent until the task is answered.
"""


class Pending(Protocol):
    """A batch on its way through a runner."""

    def result(self) -> Timing:
        """Wait until the outputs are written to the claimed memory. Call once."""
        ...


class Runner(Protocol):
    """A loaded engine on one device. Host arrays in, host arrays out; no pointer leaves it."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What `launch` takes."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What `launch` claims memory for."""
        ...

    @property
    def lanes(self) -> int:
        """How many batches may be launched before the first is waited for."""
        ...

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Start one batch. `inputs` and the claimed memory must stay until `result` returns.

        Every input has the same batch size, 1 up to the profile's maximum, and is C-contiguous.
        Raises ShapeMismatch for any other shape or dtype, naming tensor, got and needs.
        """
        ...


class OpenRunner(Protocol):
    """Opens a runner inside the worker; picklable, so that it can cross to it.

    `device` is the worker's device ("cuda:0", "cpu:1"). `ring` is all of the shared memory that
    tasks will point into (uint8), for a runner that pins it; lent until the context closes.
    """

    def __call__(self, device: str, ring: Array) -> AbstractContextManager[Runner]:
        """The runner, open until the context closes."""
        ...


class Source(Protocol):
    """Items in order. Iterated once, by one thread at a time."""

    @property
    def count(self) -> int | None:
        """How many items there are, as far as is known now; None where only the end will tell."""
        ...

    def __iter__(self) -> Iterator[Item]: ...


class Codec(Protocol):
    """What a card means: pixels to tensors, tensors to answers. Stateless, any thread."""

    def fit(self, height: int, width: int) -> Geometry:
        """Where a picture of this size goes. Raises ItemError where it cannot."""
        ...

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape of the input tensor of one such picture, without the batch axis."""
        ...

    def encode(self, picture: Picture, geometry: Geometry, into: Array) -> None:
        """Write the input tensor of one picture to `into`, without the batch axis."""
        ...

    def decode(self, outputs: Arrays, geometry: Geometry) -> Answer:
        """Read one item's outputs, without the batch axis. They are lent: copy what is kept.

        Raises ItemError where the outputs make no sense (NaN or Inf).
        """
        ...


class Sink(Protocol):
    """Where answers go."""

    def store(self, item: Item, attached: Attached, answer: Answer) -> Entry:
        """Write what can be written out of order. Any thread, any order.

        Raises ItemError where a file cannot be written.
        """
        ...

    def commit(self, outcome: Outcome) -> Outcome:
        """Add the next item, stored or failed, and do what is left. One thread, in input order.

        The outcome given back is another one where what was left has failed.
        """
        ...
