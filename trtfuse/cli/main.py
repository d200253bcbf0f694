"""The `trtfuse` command: a table of commands, and what their errors and signals become."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from trtfuse import __version__
from trtfuse.cli.bench import ModelFirst, bench, compare
from trtfuse.cli.build import build
from trtfuse.cli.doctor import doctor
from trtfuse.cli.export import export
from trtfuse.cli.infer import infer
from trtfuse.cli.inspect import inspect
from trtfuse.cli.panels import Paneled
from trtfuse.cli.streams import CLOSED, OutputLost, prepare
from trtfuse.cli.verify import verify
from trtfuse.core.errors import TrtfuseError

app = typer.Typer(
    name="trtfuse",
    help="From a PyTorch or ONNX image model to every device in the box: export, build, infer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EXIT_CODES = """
Exit codes: 0 done. 1 finished, with failed items or faults. 2 usage. 3 export, engine or gate.
4 device or pool. 130 interrupted. 141 the reader of the output has left.
"""


class Terminated(BaseException):
    """SIGTERM, as an exception: leaves through the same doors as Ctrl-C."""


def guarded(command: Callable[..., Any], name: str | None = None) -> Callable[..., None]:
    """`command`, whose errors become one message and an exit code, and whose int is its exit code.

    `name` is what it is called after "trtfuse"; None: as the function. Errors that are not ours
    keep their traceback: they are faults of trtfuse.
    """
    called = f"trtfuse {name or command.__name__}"

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            code = command(*args, **kwargs)
        except TrtfuseError as error:
            sys.stderr.write(f"{called}: {error}\n")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _no_more_interrupts()
            sys.stderr.write(f"{called}: interrupted\n")
            raise typer.Exit(130) from None
        except Terminated:
            raise typer.Exit(143) from None
        except OutputLost as error:
            # Who has left needs to hear nothing.
            if error.code != CLOSED:
                sys.stderr.write(f"{called}: {error}\n")
            raise typer.Exit(error.code) from None
        except MemoryError:
            sys.stderr.write(f"{called}: there is not enough memory here.\n")
            raise typer.Exit(4) from None
        raise typer.Exit(code or 0)

    return run


for _command in (export, build, infer, inspect, verify, doctor):
    app.command(cls=Paneled, epilog=EXIT_CODES)(guarded(_command))

_bench = typer.Typer(
    cls=ModelFirst,
    help="Measure a model's engines, or hold two results against each other.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)
_bench.command("run", cls=Paneled, epilog=EXIT_CODES)(guarded(bench))
_bench.command("compare", epilog=EXIT_CODES)(guarded(compare, "bench compare"))
app.add_typer(_bench, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trtfuse {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    del version


def main() -> None:
    """Entry point of the console script."""
    prepare()
    # ONNX Runtime would keep an identifier at home, and tell its makers of the run.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    logging.basicConfig(level=logging.WARNING, format="trtfuse: %(message)s", stream=sys.stderr)
    # What Pillow warns of (odd EXIF, large pictures) is either an item's failure or harmless.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except OutputLost as error:  # outside of any command: in its help
        sys.exit(error.code)
    finally:
        _no_more_interrupts()


def _no_more_interrupts() -> None:
    """Leave as one is leaving: a second Ctrl-C would change the exit code, or show a traceback."""
    if signal.getsignal(signal.SIGTERM) is _terminate:  # this process is the command's own
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _terminate(*_: object) -> None:
    raise Terminated
