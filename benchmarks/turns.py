"""Ways to run the same thing, measured in turn, so that a busy machine is busy for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtfuse.bench.figures import quartiles, ratio
from trtfuse.core.record import to_json

Path = Callable[[float], float]
"""Runs for at least so many seconds; items per second."""


def steady(run: Callable[[], int], wait: Callable[[], None] = lambda: None) -> Path:
    """`run` again and again; it returns how many items it did. `wait` until they are done."""

    def path(seconds: float) -> float:
        items, started = 0, time.perf_counter()
        while True:
            items += run()
            if time.perf_counter() - started >= seconds:
                wait()
                return items / (time.perf_counter() - started)

    return path


def in_turn(paths: Mapping[str, Path], *, repeats: int, seconds: float) -> dict[str, list[float]]:
    """Items per second of every path, one value a repeat; each ran once before, to warm up."""
    names = list(paths)
    for name in names:
        paths[name](seconds / 4)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in (*names[first:], *names[:first]):
            rates[name].append(paths[name](seconds))
    return rates


def table(rates: Mapping[str, Sequence[float]], over: str) -> dict[str, Any]:
    """Print and give back, for each path, its rate and how many times that of `over` it is."""
    rows = {}
    for name, values in rates.items():
        rate, times = quartiles(values), ratio(values, rates[over])
        print(
            f"{name:28} {rate.median:10,.1f} items/s ({rate.low:,.1f} to {rate.high:,.1f})   "
            f"{times.value:5.2f} times {over} ({times.low:.2f} to {times.high:.2f})",
            flush=True,
        )
        rows[name] = {"items_per_s": to_json(rate), f"times_{over}": to_json(times)}
    return rows
