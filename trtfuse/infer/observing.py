"""Who looks on while a run goes: counts, samples, events, timings, metrics, failures' pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trtfuse import __version__
from trtfuse.core.events import Hear, ItemFailed, RunStarted
from trtfuse.core.flow import Failure, Item, Outcome
from trtfuse.core.report import Meters, Progress, Tally
from trtfuse.infer.plan import Plan
from trtfuse.io.names import TIMINGS
from trtfuse.io.thumbnail import thumbnail
from trtfuse.observe.page import MOST_SHOWN
from trtfuse.observe.sampler import Readings, Sampler
from trtfuse.observe.timings import Note, noting


@dataclass
class Observer:
    """Hears of every outcome, in order, in one thread."""

    tally: Tally
    sampler: Sampler
    note: Note
    hear: Hear
    wanted: int = 0
    """Failures that are still to be shown. Each is decoded once more, here."""
    pictures: dict[str, bytes] = field(default_factory=dict)
    """JPEG files by key: of failed items, those that can be read."""

    def count(self, outcome: Outcome) -> Progress:
        """Another item is committed."""
        self.note(outcome)
        if isinstance(why := outcome.entry, Failure):
            self.hear(ItemFailed(key=outcome.item.key, kind=why.kind, message=why.message))
            self._show(outcome.item)
        return self.tally.count(outcome)

    def _show(self, item: Item) -> None:
        if self.wanted > 0:
            self.wanted -= 1
            if (picture := thumbnail(item)) is not None:
                self.pictures[item.key] = picture


@contextmanager
def observing(plan: Plan, tally: Tally, meters: Meters, hear: Hear) -> Iterator[Observer]:
    """An observer of the run that starts now and ends with the context.

    Raises UsageError where what it is to write cannot be written.
    """
    options = plan.options.observing
    hear(
        RunStarted(
            model=plan.engines[0].manifest.model,
            engine=plan.engine_names,
            source=str(plan.options.source),
            output=str(plan.output),
            workers=tally.workers,
        )
    )
    with (
        noting(plan.output / TIMINGS if options.timings else None) as note,
        Sampler(Readings(tally, meters), every_s=options.every_s) as sampler,
        _exposed(plan, tally, sampler),
    ):
        yield Observer(
            tally, sampler, note, hear, wanted=MOST_SHOWN if options.report == "html" else 0
        )


@contextmanager
def _exposed(plan: Plan, tally: Tally, sampler: Sampler) -> Iterator[None]:
    """The run's metrics, where they are asked for."""
    target = plan.options.observing.metrics
    if target is None:
        yield
        return
    from trtfuse.observe.metrics import RunCollector, exposing

    about = {
        "version": __version__,
        "model": plan.engines[0].manifest.model,
        "engine": plan.engine_names,
    }
    with exposing(target, RunCollector(tally, sampler.latest, about)) as sampled:
        sampler.then = sampled
        yield
