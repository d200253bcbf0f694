"""report.html: a run on one page that needs nothing else, no script and no network.

A pure function of the report and of small pictures of what failed.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files

from trtfuse.core.report import ItemFailure, Line, MemoryReport, RunReport, StageReport
from trtfuse.core.times import STAGES
from trtfuse.core.units import mib
from trtfuse.observe.plot import duration, line_plot, steps, strip
from trtfuse.observe.rates import known, rates

# Failures that are shown, each with its picture; results.jsonl has all.
MOST_SHOWN = 24

_WAITS = ("room", "slot", "queue", "handover", "order")
_MIB = 1 << 20


def page(report: RunReport, pictures: Mapping[str, bytes]) -> str:
    """The page as HTML. `pictures` are JPEG files, by the keys of failed items."""
    sections = (
        _head(report),
        _verdict(report),
        _tiles(report),
        _throughput(report),
        _busy(report),
        _stages(report),
        _memory(report),
        _failures(report, pictures),
        _conditions(report),
    )
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # What a key may hold cannot load anything, even if escaping had a fault.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape(report.model)}: {report.items} items</title>"
        f"<style>{_css()}</style></head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + "\n</body>"
        "</html>\n"
    )


def _css() -> str:
    return files("trtfuse.observe").joinpath("page.css").read_text(encoding="utf-8")


def _head(report: RunReport) -> str:
    return (
        f"<header><h1>{escape(report.source)}</h1>"
        f'<p class="soft">through {escape(report.model)} ({escape(report.engine)}), '
        f"begun {escape(_when(report.began))}</p></header>"
    )


def _when(began: str) -> str:
    return began.replace("T", " ").replace("+00:00", " UTC")


def _verdict(report: RunReport) -> str:
    bars = "".join(
        f"<span>{bound}</span>{_bar(share)}<span class=share>{share:.0%}</span>"
        for bound, share in report.verdict.shares.items()
    )
    warnings = "".join(f'<p class="warning">{escape(one)}</p>' for one in report.warnings)
    return (
        f'<section class="verdict"><p>{escape(report.verdict.text)}</p>'
        f'<div class="bars">{bars}</div></section>{warnings}'
    )


def _bar(share: float, kind: str = "") -> str:
    return f'<div class="bar"><i class="{kind}" style="width:{100 * share:.1f}%"></i></div>'


def _tiles(report: RunReport) -> str:
    deaths = sum(len(device.deaths) for device in report.devices)
    tiles = [
        (f"{report.items:,}", "items", False),
        (f"{report.failed:,}", "failed", report.failed > 0),
        (f"{report.items_per_s:,.4g}", "items a second", False),
        (duration(report.seconds), "run", False),
        (duration(report.start_seconds), "start", False),
        (str(deaths), "workers died", deaths > 0),
    ]
    return (
        '<section class="tiles">'
        + "".join(
            f'<div class="tile{" bad" if bad else ""}"><b>{value}</b><span>{name}</span></div>'
            for value, name, bad in tiles
        )
        + "</section>"
    )


def _throughput(report: RunReport) -> str:
    plots = "".join(
        line_plot(
            steps(rates(report.samples, line)),
            title="items a second over time",
            unit="/s",
            seconds=report.seconds,
        )
        for line in report.samples.of("items")
    )
    return _section("Throughput", "Items a second that left the run, in order.", plots)


def _busy(report: RunReport) -> str:
    rows = "".join(_busy_row(report, line) for line in report.samples.of("busy"))
    return _section(
        "Busy",
        "Workers with a batch in hand, and GPUs that compute at all: the fuller, the busier.",
        f'<div class="strips">{rows}</div>' if rows else "",
    )


def _busy_row(report: RunReport, line: Line) -> str:
    shares = rates(report.samples, line)
    total = (line.values[-1] or 0.0) / (report.seconds or 1.0)
    name = escape(line.column.name)
    drawn = strip(shares, title=f"how busy {line.column.name} was", seconds=report.seconds)
    return f'<span class="key">{name}</span>{drawn}<span class="share">{min(total, 1):.0%}</span>'


_COLUMNS = {
    "stage": "",
    "what": "meaning",
    "count": "",
    "in all": "",
    "share": "share",
    "median": "",
    "95 %": "",
    "longest": "longest",
}
"""Headings, and the class of each column's cells."""


def _stages(report: RunReport) -> str:
    if not report.stages:
        return ""
    whole = sum(stage.seconds for stage in report.stages) or 1.0
    head = _row("th", list(_COLUMNS))
    rows = "".join(_row("td", _cells(stage, whole)) for stage in report.stages)
    return _section(
        "Stages",
        "Where time went, in all threads and workers together. Grey is waiting.",
        f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>',
    )


def _cells(stage: StageReport, whole: float) -> list[str]:
    return [
        stage.name,
        STAGES[stage.name],
        f"{stage.count:,}",
        duration(stage.seconds),
        _bar(stage.seconds / whole, "wait" if stage.name in _WAITS else ""),
        _ms(stage.median_ms),
        _ms(stage.p95_ms),
        _ms(stage.longest_ms),
    ]


def _row(tag: str, cells: list[str]) -> str:
    pairs = zip(cells, _COLUMNS.values(), strict=True)
    inside = "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for cell, kind in pairs)
    return f"<tr>{inside}</tr>"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else duration(milliseconds / 1000)


def _memory(report: RunReport) -> str:
    lines = {line.column.name: line for line in report.samples.of("memory")}
    plots = "".join(
        _memory_plot(report, one, lines[one.name]) for one in report.memory if one.name in lines
    )
    return _section(
        "Memory",
        "Resident memory of each process that it shares with nobody; of devices, what all hold.",
        f'<div class="smalls">{plots}</div>' if plots else "",
    )


def _memory_plot(report: RunReport, one: MemoryReport, line: Line) -> str:
    points = [(seconds, value / _MIB) for seconds, value in known(report.samples, line)]
    slope = "too short a run for a slope"
    if one.bytes_per_hour is not None:
        slope = f"{one.bytes_per_hour / _MIB:+,.0f} MiB an hour"
    if one.leaks:
        slope = f'<span class="bad">{slope}: a leak</span>'
    drawn = line_plot(
        points, title=f"memory of {one.name} over time", unit="MiB", seconds=report.seconds
    )
    return (
        f'<figure class="panel small">{drawn}<figcaption><b>{escape(one.name)}</b><br>'
        f"peak {mib(one.peak_bytes)}, at the end {mib(one.last_bytes)}, {slope}"
        "</figcaption></figure>"
    )


def _failures(report: RunReport, pictures: Mapping[str, bytes]) -> str:
    shown = report.failures[:MOST_SHOWN]
    cards = "".join(_failure(one, pictures.get(one.key)) for one in shown)
    more = report.failed - len(shown)
    rest = f'<p class="note">And {more:,} more, in results.jsonl.</p>' if more else ""
    return _section(
        "Failed", "", f'<div class="failures">{cards}</div>{rest}' if report.failed else ""
    )


def _failure(one: ItemFailure, jpeg: bytes | None) -> str:
    picture = '<div class="none">cannot be shown</div>'
    if jpeg is not None:
        data = base64.b64encode(jpeg).decode()
        picture = f'<img src="data:image/jpeg;base64,{data}" alt="{escape(one.key)}">'
    return (
        f'<div class="panel failure">{picture}<div><p class="key">{escape(one.key)}</p>'
        f'<p class="message soft">{escape(one.kind)}: {escape(one.message)}</p></div></div>'
    )


def _conditions(report: RunReport) -> str:
    deaths = [death for device in report.devices for death in device.deaths]
    pairs: list[tuple[str, Iterable[str]]] = [
        ("command", [" ".join(report.command)]),
        ("results", [report.output]),
        ("devices", [device.device for device in report.devices]),
        ("batch", [f"{report.batch} items, {report.slots} slots, {mib(report.ring_bytes)} in all"]),
        ("threads", [f"{report.feeders} feeders, {report.writers} writers"]),
        ("versions", [f"{name} {version}" for name, version in report.versions.items()]),
        ("deaths", deaths),
        ("skipped", report.skipped),
        ("notes", report.notes),
    ]
    rows = "".join(
        f"<dt>{name}</dt><dd class=mono>{'<br>'.join(map(escape, values))}</dd>"
        for name, values in pairs
        if any(values)
    )
    return _section("Conditions", "", f"<dl>{rows}</dl>")


def _section(title: str, note: str, body: str) -> str:
    """Empty where there is nothing to show."""
    if not body:
        return ""
    said = f'<p class="note">{note}</p>' if note else ""
    return f"<section><h2>{title}</h2>{said}{body}</section>"
