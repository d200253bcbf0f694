"""Where a graph comes from, and the witness that says what its answers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx

from trtfuse.core import card as cards
from trtfuse.core.card import Card
from trtfuse.core.errors import UsageError
from trtfuse.core.extras import require
from trtfuse.core.options import ExportOptions, Sizes
from trtfuse.core.specs import TensorSpec
from trtfuse.graph.check import Reference, Run
from trtfuse.graph.doubles import in_float32, narrow
from trtfuse.graph.model import get_card, set_dims, signature
from trtfuse.graph.tidy import open_empty_axes, require_distinct, tidied
from trtfuse.graph.weights import gather
from trtfuse.graph.wire import outline

# One is what everybody runs; two and five are on either side of what exporters and users fix.
BATCHES = (1, 2, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A graph as it came, and a witness, which answers rightly by definition."""

    model: onnx.ModelProto
    folder: Path | None
    """Where its large tensors are."""
    witness: Callable[[], Run]
    """Opens what runs the source. It holds a session or a module: let go of it soon."""
    takes: tuple[TensorSpec, ...]
    """The shapes that the witness takes; not always those that the graph declares."""
    traced_at: int
    """The batch that constants of the graph may hold though its inputs are open."""
    remedy: str
    """What to do at home where its batch cannot be made dynamic; goes on with ", or"."""
    card: Card | None
    shapes: tuple[Sizes, ...] = ()
    """Sizes for open axes, one an input without the batch; empty: ours to choose."""
    notes: tuple[str, ...] = ()


def is_factory(model: object) -> bool:
    """Whether a callable or "package.module:factory" is meant, and not a path."""
    if not isinstance(model, str):
        return callable(model)
    return ":" in model and not model.endswith(".onnx") and not Path(model).exists()


@contextmanager
def opened(options: ExportOptions, scratch: Path) -> Iterator[Source]:
    """The source that `options.model` names, usable inside the block; its weights in `scratch`.

    Raises `UsageError` (no such file or factory, a card that cannot be read) or `ExportFailed`.
    """
    _require_once(options)
    _refuse_path_of_python(options)
    card = _read_card(options.card) if isinstance(options.card, Path) else options.card
    if is_factory(options.model) or Path(options.name).suffix in (".pt", ".pt2", ".pth"):
        _refuse_onnx_options(options)
        with _from_pytorch(options, card, scratch) as source:
            yield source
    else:
        _refuse_torch_options(options)
        yield _from_onnx(options, card, scratch)


def _from_onnx(options: ExportOptions, card: Card | None, scratch: Path) -> Source:
    path = Path(options.name)
    original = outline(path)
    require_distinct(original, source=options.name)
    opened_axes = open_empty_axes(original)
    _declare_shapes(original, options)
    gather(original, path.parent, scratch, source=options.name)
    takes = signature(original).inputs
    for tensor, dtype in zip(takes, options.dtypes, strict=False):
        if tensor.dtype != dtype:
            raise UsageError(f"--shape {dtype}:…: input {tensor.name!r} is {tensor.dtype}.")
    model = tidied(original, source=options.name)
    notes = narrow(model, scratch)
    return Source(
        model=model,
        folder=scratch,
        witness=lambda: in_float32(Reference(original, scratch), takes),
        takes=takes,
        traced_at=1,
        remedy="export it from its training framework with a dynamic first axis",
        card=card or get_card(original, source=options.name),
        shapes=options.shapes,
        notes=(*opened_axes, *notes),
    )


def _declare_shapes(model: onnx.ModelProto, options: ExportOptions) -> None:
    """Give inputs without a shape that of --shape and an open batch, in place.

    Raises `UsageError` where none is said: no shape would read as no axes.
    """
    names = [one.name for one in signature(model).inputs]
    given = dict(zip(names, options.shapes, strict=False))
    for value in model.graph.input:
        if value.name not in names or value.type.tensor_type.HasField("shape"):
            continue
        if value.name not in given:
            raise UsageError(
                f"{options.name}: input {value.name!r} declares no shape. Give it with --shape, "
                f"without the batch, one for each input: {', '.join(names)}."
            )
        set_dims(value, [f"{value.name}_batch", *given[value.name]])


@contextmanager
def _from_pytorch(options: ExportOptions, card: Card | None, scratch: Path) -> Iterator[Source]:
    require("torch", extra="torch", purpose="exporting from PyTorch")
    require("onnxscript", extra="torch", purpose="exporting from PyTorch")
    from trtfuse.graph.pytorch import TRACED_BATCH, traced

    with traced(options, card.input if card else None, scratch) as trace:
        model = outline(trace.path)
        gather(model, trace.path.parent, scratch, source=options.name)
        model = tidied(model, source=options.name)
        notes = narrow(model, scratch)
        yield Source(
            model=model,
            folder=scratch,
            witness=lambda: in_float32(trace.run, trace.inputs),
            takes=trace.inputs,
            traced_at=TRACED_BATCH,
            remedy=(
                "look in forward for what goes over the first axis (a mean over all axes, a layer "
                "without batch_first=True) and for a loop, an int() or an if that keeps what it "
                "was traced with"
            ),
            card=card,
            shapes=trace.shapes,
            notes=(*trace.notes, *notes),
        )


def _refuse_path_of_python(options: ExportOptions) -> None:
    """Raise `UsageError` where a module's file is given for its name."""
    if not isinstance(options.model, str):
        return
    module, _, factory = options.model.partition(":")
    path = Path(module)
    if path.suffix == ".py" or (is_factory(options.model) and len(path.parts) > 1):
        raise UsageError(
            f"{options.model}: a module is given by its name, as `import` has it: "
            f"{path.name.removesuffix('.py')}:{factory or 'Net, with its class for Net'}"
            f", in its folder: {path.absolute().parent}."
        )


def _refuse_torch_options(options: ExportOptions) -> None:
    if options.arguments or options.weights:
        raise UsageError(
            f"{options.name}: --arg and --weights are for PyTorch factories; an .onnx has its own."
        )


def _refuse_onnx_options(options: ExportOptions) -> None:
    if options.constants or options.batch_axes:
        raise UsageError(
            f"{options.name}: --constant and --batch-axis are for an .onnx. Wrap the module in one "
            f"that has such inputs as attributes, and permutes."
        )


def _require_once(options: ExportOptions) -> None:
    """Raise `UsageError` where a flag says two things of one name: the last would win unsaid."""
    for flag, pairs in (
        ("--constant", options.constants),
        ("--batch-axis", options.batch_axes),
        ("--arg", options.arguments),
    ):
        said: dict[str, object] = {}
        for name, value in pairs:
            if name in said:
                raise UsageError(
                    f"{flag} {name}={value}: {flag} {name}={said[name]} is given too. "
                    f"Leave one out."
                )
            said[name] = value


def _read_card(path: Path) -> Card:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--card {path}: cannot be read ({error}).") from error
    return cards.loads(text, source=str(path))
