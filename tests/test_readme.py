"""Every block of the README runs, and prints what the README says it prints."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.models import centerface, photo

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks() -> Iterator[Block]:
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE):
        yield Block(match[1], match[2])


def of(language: str) -> list[str]:
    return [block.text for block in blocks() if block.language == language]


def blurred(line: str) -> str:
    """A line without what differs from one machine to the next: numbers and fingerprints."""
    return re.sub(r"[0-9a-f]{8}\b|\d+(\.\d+)?(e-\d+)?", "#", line)


def numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [n for one in value.values() for n in numbers(one)]
    if isinstance(value, list):
        return [n for one in value for n in numbers(one)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the README's reader stands in."""
    home = tmp_path_factory.mktemp("readme")
    shutil.copy(centerface(), home)
    shutil.copy(ROOT / "examples" / "faces" / "card.json", home)
    (home / "photos").mkdir()
    for name in ("astronaut.png", "china.jpg", "coffee.png"):
        shutil.copy(photo(name), home / "photos")
    for text in of("python"):
        first = re.match(r"# (\w+\.py)\n", text)
        assert first, f"a python block needs its file's name as its first line: {text}"
        (home / first[1]).write_text(text)
    for text in of("console"):
        session(home, text)
    return home


def session(home: Path, text: str) -> None:
    """Run each "$ command" of the block; the line below it is the last that the command prints."""
    for command, *shown in (part.splitlines() for part in text.split("$ ")[1:]):
        program, *words = shlex.split(command)
        assert program == "trtfuse"
        done = subprocess.run(
            [sys.executable, "-m", program, *words],
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert blurred(done.stdout.splitlines()[-1]) == blurred(shown[-1])


def test_the_console_blocks_run_and_end_with_the_lines_shown(home: Path) -> None:
    assert len(of("console")) == 5
    assert (home / "photos-out" / "run.json").exists()


def test_the_result_shown_is_the_one_found(home: Path) -> None:
    (shown,) = map(json.loads, of("json"))
    found = map(json.loads, (home / "photos-out" / "results.jsonl").read_text().splitlines())
    (same,) = [line for line in found if line["key"] == shown["key"]]
    assert blurred(json.dumps(same)) == blurred(json.dumps(shown))
    assert numbers(same) == pytest.approx(numbers(shown), abs=0.02)


def test_the_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", "\n".join(of("sh")), re.MULTILINE)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_ci_runs_exactly_the_test_command() -> None:
    commands = [
        line
        for line in (ROOT / ".ci" / "run").read_text().splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["make test"]


def test_every_number_of_the_measured_table_is_in_the_result_file_it_links() -> None:
    table = README.partition("## Measured")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert rows
    for row in rows:
        link = re.search(r"\]\((benchmarks/results/[\w.]+\.json)\)", row)
        assert link, f"no result file: {row}"
        written = numbers(json.loads((ROOT / link[1]).read_text()))
        for text in re.findall(r"\*\*([\d.,]+)", row):
            digits = len(text.partition(".")[2])
            said = float(text.replace(",", ""))
            assert any(round(n, digits) == said for n in written), f"{said} is not in {link[1]}"


def test_every_local_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
