"""What several files of tests build once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import brighter
from trtfuse.build.build import build
from trtfuse.core.options import BuildOptions

SIZES = ((1, 1), (24, 32), (64, 64))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with brighter.onnx and its engine for the CPU in engines/; not to be changed."""
    home = tmp_path_factory.mktemp("brighter")
    model = brighter(home / "brighter.onnx")
    build(
        BuildOptions(model=model, engines=home / "engines", devices="cpu", sizes=SIZES),
        lambda *_: None,
    )
    return home
