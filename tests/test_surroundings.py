"""Strange surroundings, with real processes: the run works, or says in one sentence why not."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

# Case K02 is a small /dev/shm, K04 output that is no terminal, or whose reader has left.


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for n, name in enumerate(("a.png", "é中.png")):
        Image.new("RGB", (32, 24), (n, n, n)).save(folder / name)
    (folder / "bad中.png").touch()
    return folder


def infer(home: Path, source: Path, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """The command over `source`, into out/ beside it; `how` is for subprocess.

    `before` are words before it, `shell` is what a shell is to read behind it.
    """
    words = [*how.pop("before", ()), sys.executable, "-m", "trtfuse", "infer", str(source)]
    words += ["-o", str(source.parent / "out"), "--engines", str(home / "engines")]
    if shell := how.pop("shell", ""):
        words = ["bash", "-c", f'"$@" {shell}', "bash", *words]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    done: subprocess.CompletedProcess[Any] = subprocess.run(words, timeout=120, check=False, **how)
    return done


def is_done(source: Path) -> bool:
    """Whether the two pictures are there, and results and report are whole."""
    output = source.parent / "out"
    lines = (output / "results.jsonl").read_text().splitlines()
    found = [json.loads(line).get("output") for line in lines]
    return found == ["a.png", None, "é中.png"] and (output / "run.json").exists()


def one_sentence(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    """The only line of the errors, where the command ended with this code."""
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("trtfuse infer: ")
    return line


def surroundings(**changes: str | None) -> dict[str, str]:
    """The environment of the tests, with some of it changed or (None) taken away."""
    wanted = {**os.environ, **changes}
    return {name: text for name, text in wanted.items() if text is not None}


def limit(kind: int, value: int) -> Callable[[], None]:
    def set_it() -> None:
        resource.setrlimit(kind, (value, value))

    return set_it


@pytest.mark.parametrize("home", [None, "/proc/nowhere"], ids=["no home", "read-only home"])
def test_a_dumb_terminal_ascii_no_home_and_low_limits_are_enough(
    built: Path, pictures: Path, home: str | None
) -> None:
    environment = surroundings(
        HOME=home, TERM="dumb", NO_COLOR="1", PYTHONIOENCODING="ascii", LC_ALL="C"
    )

    def limits() -> None:
        limit(resource.RLIMIT_NOFILE, 64)()
        limit(resource.RLIMIT_MEMLOCK, 0)()

    done = infer(built, pictures, env=environment, preexec_fn=limits)
    assert (done.returncode, done.stderr) == (1, b""), done.stderr
    assert is_done(pictures)
    assert rb"failed: 'bad\u4e2d.png': the file is empty" in done.stdout
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout
    assert b"\r" not in done.stdout


def test_no_standard_stream_at_all_is_enough(built: Path, pictures: Path) -> None:
    done = infer(built, pictures, shell="<&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert is_done(pictures)


@contextmanager
def without_reader() -> Iterator[int]:
    """A pipe whose reader has left, as `| head` has."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


def test_a_reader_of_the_output_that_has_left_is_no_news(built: Path, pictures: Path) -> None:
    with without_reader() as stream:
        done = infer(built, pictures, stdout=stream)
    assert (done.returncode, done.stderr) == (141, b"")
    assert is_done(pictures)


def test_a_reader_of_the_help_that_has_left_is_no_news() -> None:
    words = [sys.executable, "-m", "trtfuse", "export", "--help"]
    with without_reader() as stream:
        done = subprocess.run(words, stdout=stream, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_errors_that_nobody_reads_change_no_exit_code(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "trtfuse", "verify", str(tmp_path)]
    with without_reader() as stream:
        assert subprocess.run(words, stderr=stream, check=False).returncode == 2


def test_an_output_that_is_full_is_said_and_costs_no_result(built: Path, pictures: Path) -> None:
    done = infer(built, pictures, shell="> /dev/full")
    assert "standard output cannot be written (No space left on device)" in one_sentence(done, 1)
    assert is_done(pictures)


@pytest.mark.parametrize(
    ("files", "what"), [(8, "no shared memory of 2 MiB can be made"), (16, "worker 0 (cpu:0)")]
)
def test_too_few_open_files_are_one_sentence(
    built: Path, pictures: Path, files: int, what: str
) -> None:
    done = infer(built, pictures, preexec_fn=limit(resource.RLIMIT_NOFILE, files))
    line = one_sentence(done, 4)
    assert what in line
    assert "Too many open files" in line
    assert "ulimit -n" in line


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("size=64k", "/dev/shm has 0 MiB free, the ring needs 2 MiB. Use a smaller --memory"),
        ("size=64k,ro", "Mount a writable tmpfs there"),
    ],
    ids=["small", "read-only"],
)
def test_a_small_or_read_only_dev_shm_is_one_sentence(
    built: Path, pictures: Path, options: str, what: str
) -> None:
    mounted = f"mount -t tmpfs -o {options} tmpfs /dev/shm"
    alone = ("unshare", "--mount", "sh", "-c")
    if subprocess.run([*alone, mounted], capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system of its own")
    done = infer(built, pictures, before=(*alone, f'{mounted} && exec "$@"', "sh"))
    assert what in one_sentence(done, 4)
