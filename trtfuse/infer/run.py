"""A folder through the pool: the map of the program.

    source ─► Stream's feeders ─► slots ─► Pool ─► Stream's writers ─► Order ─► sink

What stands here opens these in order, lets the outcomes run from one end to the other, and has what
happened written down. How each of them works is in the module of its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trtfuse.build.backends import metered
from trtfuse.core.events import Hear
from trtfuse.core.flow import Outcome, Sink
from trtfuse.core.options import InferOptions
from trtfuse.core.report import Progress, RunReport, Tally
from trtfuse.infer import summary
from trtfuse.infer.observing import Observer, observing
from trtfuse.infer.plan import Plan, decide
from trtfuse.io.opening import open_sink
from trtfuse.observe.eventlog import telling
from trtfuse.pool.pool import Pool
from trtfuse.pool.slots import created
from trtfuse.pool.stream import Stream
from trtfuse.tasks.picture import one_thread_each
from trtfuse.tasks.table import codec

Watch = Callable[[Progress], None]


def infer(options: InferOptions, *, watch: Watch, command: tuple[str, ...] = ()) -> RunReport:
    """Run every item of `options.source`: results, results.jsonl and run.json in the output folder.

    `watch` is called after every item, in this thread; `command` goes into the report. Raises
    UsageError, CardError, EngineError or PoolError where the run cannot start or go on; an item
    that fails is in the report.
    """
    with telling(options.observing.log_json) as hear:
        plan = decide(options)
        observed = _carry_out(plan, watch, hear)
        report = summary.report(plan, observed, command)
        summary.write(report, observed, options.observing)
        hear(summary.ended(report))
    return report


def _carry_out(plan: Plan, watch: Watch, hear: Hear) -> Observer:
    """Run it; who has observed it, once the pool has closed."""
    options = plan.options
    with (
        one_thread_each(),
        open_sink(
            plan.output, source=options.source, writing=options.writing, run=plan.run
        ) as sink,
        created(plan.layout) as ring,
        Pool(
            plan.seats,
            ring,
            restarts=options.restarts,
            batch_s=options.batch_timeout_s,
            hear=hear,
        ) as pool,
        metered(seat.device for seat in plan.seats) as meters,
    ):
        remaining = sink.remaining(plan.source)
        tally = Tally(total=lambda: remaining.count, records=pool.records)
        meaning = codec(plan.card, depth=options.writing.depth)
        with (
            observing(plan, tally, meters, hear) as observer,
            Stream(remaining, meaning, sink, pool, ring) as stream,
        ):
            for outcome in stream.run(plan.threads):
                watch(observer.count(_committed(sink, outcome)))
            tally.end()
    return observer


def _committed(sink: Sink, outcome: Outcome) -> Outcome:
    began = time.monotonic_ns()
    committed = sink.commit(outcome)
    committed.times.commit = time.monotonic_ns() - began
    return committed
