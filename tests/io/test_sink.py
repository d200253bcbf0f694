from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.io.pictures import grey, item, save
from trtfuse.core.errors import ItemError, UsageError
from trtfuse.core.flow import (
    Answer,
    ArrayFile,
    ArraysFile,
    Attached,
    Entry,
    Failure,
    Item,
    Json,
    Outcome,
    PictureFile,
)
from trtfuse.core.specs import Array
from trtfuse.io.annotate import draw
from trtfuse.io.decode import read
from trtfuse.io.sink import FolderSink

FACE = {"box": [1.0, 1.0, 6.0, 5.0], "score": 0.9, "label": "face"}


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def store(sink: FolderSink, one: Item, answer: Answer) -> Json:
    return sink.store(one, Attached(), answer).line


def commit(sink: FolderSink, key: str, entry: Json | Failure = None) -> None:
    """Add a line, by default one that is only its key; or a failure."""
    if not isinstance(entry, Failure):
        entry = Entry(line=entry or {"key": key})
    sink.commit(Outcome(item=item(key), entry=entry))


def photo(height: int = 40, width: int = 50) -> Array:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_a_picture_is_kept_bit_for_bit_where_the_input_tree_has_it(tmp_path: Path) -> None:
    with FolderSink(tmp_path) as sink:
        line = store(sink, item("sub/a.png"), Answer(file=PictureFile(pixels=photo())))
    assert line == {"key": "sub/a.png", "output": "sub/a.png"}
    np.testing.assert_array_equal(read(tmp_path / "sub/a.png").pixels, photo())


def test_arrays_are_kept_as_they_are(tmp_path: Path) -> None:
    vector = np.array([1, np.pi], np.float32)
    arrays: dict[str, Array] = {"file": vector, "model/out:0": np.array([[7]], np.int64)}
    with FolderSink(tmp_path) as sink:
        one = store(sink, item("a.png"), Answer(file=ArrayFile(array=vector)))
        many = store(sink, item("a.png"), Answer(file=ArraysFile(arrays=arrays)))
    assert (one["output"], many["output"]) == ("a.png.npy", "a.png.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "a.png.npy"), vector, strict=True)
    with np.load(tmp_path / "a.png.npz") as kept:
        assert set(kept) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(kept[name], array, strict=True)


def test_a_line_has_the_key_first_then_the_answers_fields(tmp_path: Path) -> None:
    with FolderSink(tmp_path) as sink:
        line = store(sink, item("é\n.png"), Answer(fields={"detections": [FACE]}))
        commit(sink, line["key"], line)
        commit(sink, "b.png", Failure(kind="ItemError", message="empty", traceback="…"))
    assert (tmp_path / "results.jsonl").read_text(encoding="utf-8") == (
        '{"key": "é\\n.png", "detections": [{"box": [1.0, 1.0, 6.0, 5.0], "score": 0.9, '
        '"label": "face"}]}\n'
        '{"key": "b.png", "error": {"kind": "ItemError", "message": "empty"}}\n'
    )
    assert files(tmp_path) == ["results.jsonl"]


def test_a_message_with_a_name_that_is_not_utf8_is_still_a_line_of_json(tmp_path: Path) -> None:
    message = os.fsdecode(b"no \xff.png")
    with FolderSink(tmp_path) as sink:
        commit(sink, "a.png", Failure(kind="ItemError", message=message))
    assert lines(tmp_path / "results.jsonl")[0]["error"]["message"] == message


def test_pictures_of_one_stem_do_not_overwrite_each_other(tmp_path: Path) -> None:
    keys = ["a.png", "a.jpg", "a.jpg.png", "sub/a.png", "./\\xff.png"]
    with FolderSink(tmp_path) as sink:
        written = [
            store(sink, item(key), Answer(file=PictureFile(pixels=grey(n))))["output"]
            for n, key in enumerate(keys)
        ]
    assert len(set(written)) == len(files(tmp_path)) - 1 == len(keys)
    assert (read(tmp_path / os.fsdecode(b"\xff.png")).pixels == 4).all()
    assert written[-1] == "./\\xff.png"


def test_detections_are_drawn_on_a_copy_under_the_pictures_own_name(tmp_path: Path) -> None:
    black = np.zeros((64, 64, 3), np.uint8)
    answer = Answer(fields={"detections": [FACE | {"box": [8.0, 30.0, 50.0, 60.0]}]})
    with FolderSink(tmp_path, annotate=draw) as sink:
        for key in ("a.png", "sub/a.jpg", "a.webp"):
            line = store(sink, item(key, black), answer)
            assert set(line) == {"key", "detections"}
    assert files(tmp_path) == ["a.png", "a.webp.png", "results.jsonl", "sub/a.jpg"]
    np.testing.assert_array_equal(
        read(tmp_path / "a.png").pixels, draw(black, answer.fields["detections"])
    )
    assert (tmp_path / "sub/a.jpg").read_bytes().startswith(b"\xff\xd8")
    assert not black.any()


def test_without_annotate_or_detections_no_copy_is_written(tmp_path: Path) -> None:
    with FolderSink(tmp_path / "plain") as sink:
        store(sink, item("a.png"), Answer(fields={"detections": [FACE]}))
    with FolderSink(tmp_path / "classes", annotate=draw) as sink:
        store(sink, item("a.png"), Answer(fields={"classes": []}))
    assert files(tmp_path) == ["classes/results.jsonl", "plain/results.jsonl"]


def test_lines_have_their_final_name_only_after_a_whole_run(tmp_path: Path) -> None:
    with FolderSink(tmp_path) as sink:
        commit(sink, "a")
        assert files(tmp_path) == ["results.jsonl.part"]
        # Each line is there as soon as it is committed, should the process be killed.
        assert lines(tmp_path / "results.jsonl.part") == [{"key": "a"}]
    assert files(tmp_path) == ["results.jsonl"]


def interrupted(output: Path, *keys: str) -> None:
    """A run that Ctrl-C ends after these items."""
    with suppress(KeyboardInterrupt), FolderSink(output) as sink:
        for key in keys:
            commit(sink, key)
        raise KeyboardInterrupt


def test_an_interrupted_run_leaves_its_lines_and_no_list_that_looks_whole(tmp_path: Path) -> None:
    with FolderSink(tmp_path) as sink:
        commit(sink, "old")
    interrupted(tmp_path, "a", "b")
    assert files(tmp_path) == ["results.jsonl.part"]
    assert lines(tmp_path / "results.jsonl.part") == [{"key": "a"}, {"key": "b"}]


def test_a_run_that_fails_before_its_first_item_costs_no_older_results(tmp_path: Path) -> None:
    with FolderSink(tmp_path) as sink:
        commit(sink, "old")
    interrupted(tmp_path)
    assert lines(tmp_path / "results.jsonl") == [{"key": "old"}]


def test_after_an_interruption_the_next_run_takes_the_folder_over(tmp_path: Path) -> None:
    interrupted(tmp_path, "a")
    with FolderSink(tmp_path) as sink:
        commit(sink, "new")
    assert files(tmp_path) == ["results.jsonl"]
    assert lines(tmp_path / "results.jsonl") == [{"key": "new"}]


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    save(tmp_path / "holiday.png")
    with pytest.raises(UsageError, match=r"'holiday.png'.*no results.jsonl"):
        FolderSink(tmp_path).__enter__()
    assert files(tmp_path) == ["holiday.png"]


def test_a_folder_with_hidden_files_only_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").touch()
    with FolderSink(tmp_path) as sink:
        commit(sink, "a")
    assert files(tmp_path) == [".DS_Store", "results.jsonl"]


@pytest.mark.parametrize("below", ["", "sub"])
def test_an_output_that_cannot_be_a_folder_is_a_usage_error(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        FolderSink(tmp_path / "file" / below).__enter__()


def test_a_file_that_cannot_be_written_fails_its_item_and_leaves_nothing(tmp_path: Path) -> None:
    with FolderSink(tmp_path) as sink:
        (tmp_path / "sub").touch()
        with pytest.raises(ItemError, match=r"sub/a\.png cannot be written: \w+"):
            store(sink, item("sub/a.png"), Answer(file=PictureFile(pixels=grey())))
        with pytest.raises(ItemError, match=r"1 x 70000 pixels cannot be kept as JPEG"):
            store(
                FolderSink(tmp_path, annotate=lambda pixels, _: pixels),
                item("a.jpg", grey(size=(70000, 1))),
                Answer(fields={"detections": []}),
            )
    assert files(tmp_path) == ["results.jsonl", "sub"]


def test_the_same_answers_give_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for output in (tmp_path / "one", tmp_path / "two"):
        with FolderSink(output, annotate=draw) as sink:
            answer = Answer(fields={"detections": [FACE]})
            commit(sink, "a.jpg", store(sink, item("a.jpg", photo()), answer))
            for file in (PictureFile(pixels=photo()), ArraysFile(arrays={"y": photo()})):
                commit(sink, "b.png", store(sink, item("b.png"), Answer(file=file)))
        contents.append({name: (output / name).read_bytes() for name in files(output)})
    assert len(contents[0]) == 4
    assert contents[0] == contents[1]
