"""The house of trtfuse/DESIGN.md, checked. Nothing is imported: the sources are only parsed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "trtfuse"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Who may import whom. `cli` may import all, `__init__` and `__main__` only what they re-export.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "graph": {"core"},
    "cpu": {"core"},
    "gpu": {"core"},
    "calibrate": {"core", "graph"},
    "pool": {"core"},
    "io": {"core"},
    "tasks": {"core"},
    "bench": {"core", "build", "graph", "cpu", "gpu", "pool"},
    "doctor": {"core", "cpu", "gpu", "pool"},
    "testing": {"core"},
    "build": {"core", "graph", "calibrate", "cpu", "gpu", "pool", "io", "tasks"},
    "observe": {"core"},
    "infer": {"core", "build", "pool", "io", "tasks", "observe"},
    "verify": {"core", "io"},
    "api": {"core", "graph", "build", "infer", "pool"},
    "cli": {"core", "api", "graph", "build", "infer", "verify", "bench", "doctor", "pool"},
    "__main__": {"cli"},
    "__init__": {"core", "graph", "build", "api"},
}
# Each foreign package has its rooms; elsewhere its name does not occur.
ONLY_IN: dict[str, set[str]] = {
    "onnx": {"graph"},
    "onnxsim": {"graph"},
    "torch": {"graph"},
    "onnxruntime": {"graph", "cpu"},
    "tensorrt": {"gpu"},
    "tensorrt_rtx": {"gpu"},
    "polygraphy": {"gpu"},
    "pycuda": {"gpu"},
    "pynvml": {"gpu"},
    "cv2": {"io", "tasks"},
    "PIL": {"io"},
    "av": {"io"},
    "multiprocessing": {"pool"},
    "subprocess": {"pool"},
    "mmap": {"graph", "pool"},
    "threading": {"pool", "observe", "testing"},
    "typer": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"observe"},
    "filelock": {"build"},
}
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
MOST_PARAMETERS = 6


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Dotted names that the file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def functions(path: Path) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]


by_source = pytest.mark.parametrize(
    "path", SOURCES, ids=[str(path.relative_to(PACKAGE)) for path in SOURCES]
)


@by_source
def test_imports_follow_the_table(path: Path) -> None:
    here = room(path)
    for name in imported(path):
        first, *rest = name.split(".")
        if first == "trtfuse" and rest[0] not in (here, "__version__"):
            assert rest[0] in MAY_IMPORT[here], f"{here} may not import {name}"
        assert here in ONLY_IN.get(first, {here}), f"{first} belongs in {ONLY_IN[first]} only"


@by_source
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@by_source
def test_no_function_is_long(path: Path) -> None:
    for function in functions(path):
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        if room(path) != "cli":  # a command's flags are its parameters, a line or two each
            assert lines <= LONGEST_FUNCTION, f"{function.name}: {lines} lines"


@by_source
def test_no_signature_has_many_parameters(path: Path) -> None:
    for function in functions(path):
        args = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        count = len([arg for arg in args if arg.arg not in ("self", "cls")])
        if room(path) != "cli":
            assert count <= MOST_PARAMETERS, f"{function.name}: {count} parameters"


@by_source
def test_only_the_command_line_reads_the_environment(path: Path) -> None:
    # The NVIDIA driver and Polygraphy take their switches from there and from nowhere else.
    if room(path) not in ("cli", "gpu"):
        assert "os.environ" not in path.read_text()


def test_every_room_of_the_table_exists() -> None:
    assert {room(path) for path in SOURCES} == set(MAY_IMPORT)


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "manager"])
def test_no_file_has_a_name_that_says_nothing(word: str) -> None:
    assert [path for path in SOURCES if word in path.stem.lower()] == []
