"""Every error trtfuse raises on purpose, and the exit code each one becomes.

    TrtfuseError
    ├── UsageError (ValueError)            the caller can mend it; exit 2
    │   ├── UnknownName                    lists what exists, closest first
    │   ├── CardError                      a card that is missing, malformed or of another model
    │   ├── ShapeMismatch                  tensor, got, what the engine takes
    │   └── MissingExtra (ImportError)     names the package and the pip line
    ├── EngineError                        exit 3
    │   ├── ExportFailed (RuntimeError)    the graph could not be proven; no file was written
    │   ├── EngineNotFound (LookupError)   names the build command
    │   ├── EngineMismatch                 what the manifest says, what was found
    │   ├── BuildFailed (RuntimeError)     the builder's own last words
    │   │   └── GateFailed                 the numbers that missed their limits
    │   └── CalibrationError               inputs or ranges that INT8 may not rest on
    ├── DeviceError (RuntimeError)         the call, the device, the status; exit 4
    │   ├── OutOfMemory                    the device had no room; with less it may go on
    │   └── DeviceLost                     nothing runs on it any more in this process
    └── PoolError (RuntimeError)           exit 4
        ├── StartFailed                    worker, device, the child's traceback
        ├── ChildDied                      name, exit code or signal, how long it may take
        └── WorkersLost                    exit codes, how many items are unanswered

A class exists only where an `except` or an exit code tells it apart. A failed *item* is none of
these: it is a `Failure`, counted and reported (`ItemError` is how a reader says so in its thread).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Names in one message; of more, the nearest. The layers of a model may be thousands.
_MOST_NAMED = 20


class TrtfuseError(Exception):
    """Root of the tree; `exit_code` is what the command line returns for it.

    >>> error = UnknownName.among("--precision", "int4", ["int8", "fp16"])
    >>> isinstance(error, TrtfuseError), error.exit_code
    (True, 2)
    >>> print(error)
    --precision 'int4': not known. Did you mean int8? Known: fp16, int8.
    """

    exit_code = 1


class UsageError(TrtfuseError, ValueError):
    """The caller can mend it: an option, a path, a name."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that does not exist. Build it with `UnknownName.among`."""

    @classmethod
    def among(cls, what: str, name: str, known: Iterable[str]) -> UnknownName:
        """`what` is the option or noun, `name` what was given, `known` all that exist."""
        names = sorted(known)
        if not names:
            return cls(f"{what} {name!r}: not known, and none exist.")
        close = difflib.get_close_matches(name, names)
        question = f" Did you mean {' or '.join(close)}?" if close else ""
        if len(names) > _MOST_NAMED:
            nearest = difflib.get_close_matches(name, names, n=5, cutoff=0.3) or names[:5]
            return cls(
                f"{what} {name!r}: not known.{question} Nearest of {len(names)}: "
                f"{', '.join(nearest)}."
            )
        return cls(f"{what} {name!r}: not known.{question} Known: {', '.join(names)}.")


class CardError(UsageError):
    """A card that is missing, malformed, or does not fit its model."""


class ShapeMismatch(UsageError):
    """An array whose shape or dtype the engine does not take."""


class MissingExtra(UsageError, ImportError):
    """An optional package is needed here; the message holds the pip line."""


class EngineError(TrtfuseError):
    """Export, build or store: no engine, or not the right one."""

    exit_code = 3


class ExportFailed(EngineError, RuntimeError):
    """The exported graph could not be proven. No file was written."""


class EngineNotFound(EngineError, LookupError):
    """No engine for this model and device; the message holds the build command."""


class EngineMismatch(EngineError):
    """The manifest and what was found disagree; both values are in the message."""


class BuildFailed(EngineError, RuntimeError):
    """The builder gave up, or a gate refused the engine."""


class GateFailed(BuildFailed):
    """An engine was built and answers too differently; another choice of layers may not."""


class CalibrationError(EngineError):
    """Inputs that teach nothing, or ranges of another model, card, recipe or method."""


class DeviceError(TrtfuseError, RuntimeError):
    """A device call failed: the call, the device and the status by name."""

    exit_code = 4


class OutOfMemory(DeviceError):
    """The device's memory did not do for this; a smaller batch may fit."""


class DeviceLost(DeviceError):
    """The device no longer answers this process: the process has to end and be started again."""


class PoolError(TrtfuseError, RuntimeError):
    """The pool could not start or could not go on."""

    exit_code = 4


class StartFailed(PoolError):
    """A worker did not become ready; holds the child's own words."""


class ChildDied(PoolError):
    """A child process ended, or was ended at its deadline, without an answer."""


class WorkersLost(PoolError):
    """Every worker is gone and the restart budget is used up."""


class ItemError(Exception):
    """One item cannot be read, prepared or written; becomes that item's `Failure`."""
