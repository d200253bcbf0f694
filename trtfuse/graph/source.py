"""Where a graph comes from, and the witness that says what its answers are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx

from trtfuse.core import card as cards
from trtfuse.core.card import Card
from trtfuse.core.errors import UsageError
from trtfuse.core.extras import require
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import TensorSpec
from trtfuse.graph.check import Reference, Run
from trtfuse.graph.model import get_card, load, signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A graph as it came, and `run`, which answers rightly by definition."""

    model: onnx.ModelProto
    run: Run
    takes: tuple[TensorSpec, ...]
    """The shapes that `run` takes; not always those that the graph declares."""
    batches: tuple[int, ...]
    """Sizes of the batches that a proof runs; 1 is one of them."""
    traced_at: int
    """The batch that constants of the graph may hold though its inputs are open."""
    card: Card | None
    shapes: tuple[tuple[int, ...], ...] = ()
    """Sizes for open axes, one an input without the batch; empty: ours to choose."""
    notes: tuple[str, ...] = ()


def is_factory(model: str) -> bool:
    """Whether "package.module:factory" is meant, and not a path."""
    return ":" in model and not model.endswith(".onnx") and not Path(model).exists()


@contextmanager
def opened(options: ExportOptions) -> Iterator[Source]:
    """The source that `options.model` names, usable inside the block.

    Raises `UsageError` (no such file or factory, a card that cannot be read) or `ExportFailed`.
    """
    card = _read_card(options.card) if options.card else None
    if is_factory(options.model):
        with _from_pytorch(options, card) as source:
            yield source
    else:
        yield _from_onnx(options, card)


def _from_onnx(options: ExportOptions, card: Card | None) -> Source:
    model = load(Path(options.model))
    return Source(
        model=model,
        run=Reference(model),
        takes=signature(model).inputs,
        batches=(1, 4),
        traced_at=1,
        card=card or get_card(model, source=options.model),
        shapes=options.shapes,
    )


@contextmanager
def _from_pytorch(options: ExportOptions, card: Card | None) -> Iterator[Source]:
    require("torch", extra="torch", purpose="exporting from PyTorch")
    from trtfuse.graph.pytorch import TRACED_BATCH, traced

    with traced(
        options.model, shapes=options.shapes, opset=options.opset, seed=options.seed
    ) as trace:
        yield Source(
            model=trace.model,
            run=trace.run,
            takes=trace.inputs,
            # 2 is the batch that was traced, 1 and 5 lie on either side of it.
            batches=(1, 2, 5),
            traced_at=TRACED_BATCH,
            card=card,
            notes=trace.notes,
        )


def _read_card(path: Path) -> Card:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--card {path}: cannot be read ({error}).") from error
    return cards.loads(text, source=str(path))
