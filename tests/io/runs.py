"""One run after the other into an output folder, without a pool: source, model, sink."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, ArrayFile, Entry, Failure, Item, Outcome, Picture, PictureFile
from trtfuse.core.options import WritingOptions
from trtfuse.io.folder import FolderSource
from trtfuse.io.journal import Identity
from trtfuse.io.sink import FolderSink, Run

RUN = {"model": "brighter", "engine": "cpu-1234"}
Model = Callable[[Picture], Answer]


class PowerCut(BaseException):
    """Ends a run as nothing that it catches."""


def picture(given: Picture) -> Answer:
    return Answer(file=PictureFile(pixels=255 - given.pixels))


def array(given: Picture) -> Answer:
    return Answer(file=ArrayFile(array=given.pixels.mean(axis=(0, 1))))


def mean(given: Picture) -> Answer:
    return Answer(fields={"mean": float(given.pixels.mean())})


class Once:
    """One run after the other over `source` into `output`; counts what the model is asked."""

    def __init__(
        self,
        source: Path,
        output: Path,
        *,
        model: Model = picture,
        writing: WritingOptions = WritingOptions(segment=6),  # noqa: B008 - frozen
        bad: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self.output = output
        self.model = model
        self.writing = writing
        self.bad = bad
        self.asked: list[str] = []
        self.failed: list[str] = []

    def run(self, *, stop_after: int | None = None, identity: Identity = RUN) -> None:
        """To the end, or so many items far and then cut off."""
        self.asked, self.failed = [], []
        run = Run(identity=identity, engines=("cpu-1234",))
        with suppress(PowerCut), FolderSink(self.output, self.writing, run=run) as sink:
            for item in sink.remaining(FolderSource(self.source)):
                if item.seq == stop_after:
                    raise PowerCut
                entry = self._entry(sink, item)
                worker = 0 if isinstance(entry, Entry) else -1
                outcome = sink.commit(Outcome(item=item, entry=entry, worker=worker))
                if isinstance(outcome.entry, Failure):
                    self.failed.append(item.key)

    def _entry(self, sink: FolderSink, item: Item) -> Entry | Failure:
        if item.known is not None:
            return item.known.entry
        self.asked.append(item.key)
        if item.key in self.bad:
            return Failure(kind="ItemError", message="bad")
        try:
            given = item.load()
            return sink.store(item, given.attached, self.model(given))
        except ItemError as error:
            return Failure(kind="ItemError", message=str(error))


def contents(output: Path) -> dict[str, bytes]:
    """All files but the journal, which says how it went."""
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in output.rglob("*")
        if path.is_file() and path.name != "journal.jsonl"
    }
