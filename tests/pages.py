"""Markdown pages whose blocks run, in one folder, one page after the other.

    ```console            each "$ command" is run; the lines below it are the last that it prints,
                          a line "…" stands for lines left out; numbers and fingerprints may differ
    ```console gpu        not run here, for the reason named; the reasons are counted
    ```python             begins with "# name.py", and is that file from then on
    ```json name.json     is that file from then on

What a command printed on one page is known on the next: it is run again only where a page has it
more often. An exit code that is not 0 has to be shown, by "$ echo $?".
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from typer.testing import CliRunner

from trtfuse.cli.main import app

ROOT = Path(__file__).parents[1]
GAP = "…"


@dataclass(frozen=True)
class Block:
    language: str
    info: str
    """What stands behind the language: why it is not run, or a file's name."""
    text: str


def blocks(page: Path) -> Iterator[Block]:
    pattern = r"^```(\w+)(?: ([\w.]+))?\n(.*?)^```$"
    for match in re.finditer(pattern, page.read_text(), re.DOTALL | re.MULTILINE):
        yield Block(match[1], match[2] or "", match[3])


@dataclass(frozen=True)
class Command:
    line: str
    shown: tuple[str, ...]


def commands(text: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *shown = part.rstrip().splitlines()
        yield Command(line, tuple(shown))


@dataclass
class Reader:
    """Somebody who types what the pages say, in `home`."""

    home: Path
    skipped: Counter[str] = field(default_factory=Counter)
    _known: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    _code: int = 0

    def follow(self, page: Path) -> list[str]:
        """Do all that the page says; what came out otherwise."""
        typed: Counter[str] = Counter()
        faults: list[str] = []
        for block in blocks(page):
            if block.language == "console" and not block.info:
                faults += self._session(list(commands(block.text)), typed)
            elif block.language == "python":
                self._write(re.match(r"# (\w+\.py)\n", block.text), block)
            elif block.language == "json" and block.info:
                (self.home / block.info).write_text(block.text)
            elif block.language != "json":
                self.skipped[block.info or block.language] += 1
        return faults

    def _write(self, name: re.Match[str] | None, block: Block) -> None:
        assert name, f"a python block needs its file's name as its first line: {block.text}"
        (self.home / name[1]).write_text(block.text)

    def _session(self, session: list[Command], typed: Counter[str]) -> Iterator[str]:
        for command, after in zip(session, [*session[1:], None], strict=True):
            typed[command.line] += 1
            key = command.line, typed[command.line]
            if command.line == "echo $?":
                printed = str(self._code)
            else:
                if key not in self._known:
                    self._known[key] = self.type(command.line)
                printed, self._code = self._known[key]
                if self._code and (after is None or after.line != "echo $?"):
                    yield f"$ {command.line}\nends with {self._code}, and the page does not say so"
            if not ends_with(printed, command.shown):
                yield f"$ {command.line}\n{printed}"

    def type(self, line: str) -> tuple[str, int]:
        """Run a command; what it prints, and its exit code."""
        program, *words = shlex.split(line)
        with standing_in(self.home):
            if program == "trtfuse":
                # In this process: to import everything anew is most of a command's time.
                done = CliRunner(env={"COLUMNS": "100"}).invoke(app, words, prog_name=program)
                forget(self.home)
                if done.exception and not isinstance(done.exception, SystemExit):
                    raise done.exception
                return done.output, done.exit_code
            if program == "python":
                line = shlex.join([sys.executable, *words])
            ran = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
            return ran.stdout + ran.stderr, ran.returncode


def forget(folder: Path) -> None:
    """Have the next command import the folder's modules anew, as a new process would."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def ends_with(printed: str, shown: tuple[str, ...]) -> bool:
    """Whether the lines shown are the last of those printed, but for gaps and numbers."""
    lines = [blurred(line) for line in printed.rstrip().splitlines()]
    chunks: list[list[str]] = [[]]
    for line in shown:
        if line == GAP:
            chunks.append([])
        else:
            chunks[-1].append(blurred(line))
    end = len(lines)
    for n, chunk in enumerate(reversed(chunks)):
        places = range(end - len(chunk), -1, -1)
        found = (at for at in places if lines[at : at + len(chunk)] == chunk)
        at = next(found, None)
        if at is None or (n == 0 and at + len(chunk) != end):
            return False
        end = at
    return True


def blurred(line: str) -> str:
    """A line without what differs from one machine to the next: numbers, fingerprints, widths."""
    line = re.sub(r"\b[0-9a-f]{8}\b|\d+(\.\d+)?(e-\d+)?", "#", line)
    return re.sub(r"[\s─━]+", " ", line).strip()


@contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def numbers(value: object) -> list[float]:
    """All numbers of JSON data, in order."""
    if isinstance(value, dict):
        return [n for one in value.values() for n in numbers(one)]
    if isinstance(value, list):
        return [n for one in value for n in numbers(one)]
    return [float(value)] if isinstance(value, int | float) else []
