"""What the package shows, and what it does not load to show it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trtfuse

HEAVY = ["torch", "onnx", "onnxruntime", "onnxsim", "cv2", "tensorrt", "PIL"]


def loaded_by(code: str) -> set[str]:
    """Heavy packages that are loaded after `code`, in a fresh interpreter."""
    script = f"import sys\n{code}\nprint([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(eval(done.stdout.splitlines()[-1]))


def test_all_is_exactly_what_is_public_and_sorted() -> None:
    assert trtfuse.__all__ == sorted(trtfuse.__all__)
    for name in trtfuse.__all__:
        assert getattr(trtfuse, name) is not None


def test_every_public_name_has_an_example() -> None:
    for name in trtfuse.__all__:
        # A report is shown where it is made; tests/test_doctests.py runs them all.
        if not name.endswith(("Report", "__")):
            assert ">>> " in (getattr(trtfuse, name).__doc__ or ""), name


def test_functions_keep_their_names_when_rooms_of_the_same_name_are_loaded() -> None:
    code = (
        "import trtfuse.build.build, trtfuse.infer\nfrom trtfuse.build import store\n"
        "assert callable(trtfuse.build) and callable(trtfuse.infer) and store.read"
    )
    loaded_by(code)


@pytest.mark.parametrize(
    "code",
    [
        "import trtfuse",
        "from typer.testing import CliRunner\nfrom trtfuse.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0",
        "import trtfuse.testing",
    ],
    ids=["import trtfuse", "trtfuse --help", "import trtfuse.testing"],
)
def test_importing_and_asking_for_help_load_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == set()


@pytest.mark.parametrize("command", ["export", "build", "infer"])
def test_every_command_has_help_that_names_its_exit_codes(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trtfuse", command, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "130 interrupted" in " ".join(done.stdout.split())
