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
