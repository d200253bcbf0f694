"""Optional packages: asked for where they are used, by name."""

from __future__ import annotations

from importlib.util import find_spec

from trtfuse.core.errors import MissingExtra


def require(package: str, *, extra: str, purpose: str) -> None:
    """Raise `MissingExtra` unless `package` can be imported.

    `purpose` completes the sentence "… needs <package>", for example "exporting from PyTorch".
    """
    if find_spec(package) is None:
        raise MissingExtra(
            f"{purpose} needs the package {package}, which is not installed. "
            f"Install it with: pip install 'trtfuse[{extra}]'"
        )
