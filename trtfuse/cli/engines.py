"""How engines are shown by `trtfuse inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from trtfuse.build.inspect import EngineInspection


def inspect_engines(path: Path, *, as_json: bool) -> None:
    """Every engine at `path`: where it runs here, or what differs and the command that mends it."""
    from trtfuse.build.inspect import inspect

    found = inspect(path)
    if as_json:
        from trtfuse.core.record import to_json

        typer.echo(json.dumps(to_json(found), indent=2))
    else:
        _show(found)


def _show(found: tuple[EngineInspection, ...]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from trtfuse.build.store import profile_text

    wide = (Column(name, overflow="fold") for name in ("engine", "built for", "profile"))
    table = Table(*wide, "runs here")
    for one in found:
        about = one.manifest
        table.add_row(
            f"{one.folder.parent.name}/ {one.folder.name}",
            f"{about.request.device_name}, {about.request.runtime} {about.request.runtime_version}"
            if about
            else "?",
            profile_text(about.request) if about else "?",
            ", ".join(one.runs_on) or "no",
        )
    Console().print(table)
    for one in found:
        if one.faults:
            typer.echo(str(one.folder))
        for fault in one.faults:
            typer.echo(f"  {fault}")
        if one.manifest and not one.runs_on:
            typer.echo(f"  Build it again with: {one.command}")
    running = sum(bool(one.runs_on) for one in found)
    typer.echo(f"trtfuse inspect: {running} of {len(found)} engines run here")
