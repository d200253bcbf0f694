"""`trtfuse doctor`: what this machine can do, line by line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trtfuse.core.errors import DeviceError

_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="All of it, as JSON.")] = False,
) -> int:
    """Look at driver, GPUs, packages, memory and limits, and say what to mend, and how.

    The exit code is 4 where there is a problem.
    """
    from trtfuse.doctor.judge import judge
    from trtfuse.doctor.probe import gather

    facts = gather(os.environ, Path.cwd())
    findings = judge(facts)
    problems = sum(one.level == "problem" for one in findings)
    if as_json:
        import json

        from trtfuse.core.record import to_json

        typer.echo(json.dumps({"findings": to_json(findings), "facts": to_json(facts)}, indent=2))
    else:
        for one in findings:
            typer.echo(f"{_MARKS[one.level]:8} {one.subject}: {one.says}")
            if one.way_out:
                typer.echo(f"{'':8} way out: {one.way_out}")
        notes = sum(one.level == "note" for one in findings)
        state = "FAILED" if problems else "OK"
        typer.echo(f"trtfuse doctor: {state} {problems} problems, {notes} notes")
    return DeviceError.exit_code if problems else 0
