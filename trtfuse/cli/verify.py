"""`trtfuse verify`: whether what a run has left is what it recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trtfuse.verify import Proof

# A video that was cut has thousands; what these are is in the first ones.
_MOST_SHOWN = 20


def verify(
    output: Annotated[Path, typer.Argument(help="Output folder of trtfuse infer.")],
    source: Annotated[
        Path | None, typer.Option(help="Where the source lies now. Default: where it was.")
    ] = None,
    no_source: Annotated[
        bool, typer.Option("--no-source", help="Leave the source out: results and files only.")
    ] = False,
) -> int:
    """Prove what a run has left: count, order, times and hashes, of results, files and source.

    Finds what is swapped, repeated, missing or altered, and names it; the exit code is then 1. A
    video is decoded, and each of its frames held against the packet that was written for it.
    """
    from trtfuse.verify import verify as run

    proof = run(output, source=source, reads_source=not no_source)
    _show(proof)
    state = "FAILED" if proof.faults else "OK"
    typer.echo(
        f"trtfuse verify: {state} {proof.items} items, {proof.files} files, "
        f"{len(proof.faults)} faults"
    )
    return 1 if proof.faults else 0


def _show(proof: Proof) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(soft_wrap=True)
    table = Table(show_header=False)
    failed = f", {proof.failed} of them failed in the run" if proof.failed else ""
    table.add_row("items", f"{proof.items} results in order{failed}")
    table.add_row("files", f"{proof.files}, by their hashes")
    if proof.frames:
        table.add_row("video frames", f"{proof.frames}, by their packets' hashes and times")
    table.add_row("source", escape(proof.source) or "not read")
    for engine, count in proof.items_by_engine:
        table.add_row("engine", f"{escape(engine)}: {count} items")
    table.add_row("faults", str(len(proof.faults)))
    console.print(table)
    for fault in proof.faults[:_MOST_SHOWN]:
        # repr: a file's name may hold a newline, or what the terminal obeys.
        console.print(f"{fault.key!r} {fault.what}", markup=False, highlight=False)
    if len(proof.faults) > _MOST_SHOWN:
        console.print(f"… and {len(proof.faults) - _MOST_SHOWN} more")
