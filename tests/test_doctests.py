"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "trtfuse"
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run_and_give_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    text = inspect.getsource(module)
    runner = doctest.DocTestRunner()
    examples = [one for one in doctest.DocTestFinder().find(module) if one.examples]
    # In the order of the source: one may go on with the files of the one before.
    for example in sorted(examples, key=lambda one: text.index(one.docstring or "")):
        runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0
