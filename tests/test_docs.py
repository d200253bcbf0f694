"""Every block of the pages runs and prints what the page says; option lists are complete."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.io.films import film, greys
from tests.models import centerface, photo
from tests.pages import ROOT, Reader, blocks, blurred, numbers
from trtfuse.cli.main import app
from trtfuse.cli.panels import PANELS

main: Any = typer.main.get_command(app)

README = ROOT / "README.md"
DOCS = ROOT / "docs"
# In the order in which they are read: what one has made, the next may use.
WRITTEN = "README export build infer inspect your-model int8 long-videos mixed-gpus verify bench"
PAGES = [README, *(DOCS / f"{name}.md" for name in f"{WRITTEN} doctor docker api".split())]
# Blocks that need what is not here, by reason.
NOT_RUN = {"sh": 1, "gpu": 2, "docker": 3, "ci": 1, "machine": 1}


@dataclass
class Reading:
    """Somebody who reads the pages in their order, in the folder that they speak of."""

    reader: Reader
    faults: dict[Path, list[str]] = field(default_factory=dict)

    def up_to(self, page: Path) -> list[str]:
        """Read on, if need be, to the end of `page`; what it shows otherwise than it is."""
        for one in PAGES[len(self.faults) : PAGES.index(page) + 1]:
            self.faults[one] = self.reader.follow(one)
        return self.faults[page]


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    home = tmp_path_factory.mktemp("pages")
    shutil.copy(centerface(), home)
    shutil.copy(ROOT / "examples" / "faces" / "card.json", home)
    (home / "photos").mkdir()
    for name in ("astronaut.png", "china.jpg", "coffee.png"):
        shutil.copy(photo(name), home / "photos")
    film(home / "holiday.mp4", greys(50))
    return Reading(Reader(home))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_what_a_page_shows_is_what_its_commands_print(reading: Reading, page: Path) -> None:
    faults = reading.up_to(page)
    assert not faults, "\n".join(faults)


def test_blocks_that_are_not_run_are_counted(reading: Reading) -> None:
    reading.up_to(PAGES[-1])
    assert reading.reader.skipped == NOT_RUN


def test_the_result_shown_is_the_one_found(reading: Reading) -> None:
    reading.up_to(README)
    (shown,) = (json.loads(one.text) for one in blocks(README) if one.language == "json")
    lines = (reading.reader.home / "photos-out" / "results.jsonl").read_text().splitlines()
    (same,) = [line for line in map(json.loads, lines) if line["key"] == shown["key"]]
    assert blurred(json.dumps(same)) == blurred(json.dumps(shown))
    assert numbers(same) == pytest.approx(numbers(shown), abs=0.02)


def test_every_page_is_read_and_every_command_has_one() -> None:
    results = {DOCS / "export_matrix.md"}
    assert set(DOCS.glob("*.md")) - results == set(PAGES) - {README}
    assert {name for name, *_ in leaves()} <= {page.stem for page in PAGES}


def leaves() -> Iterator[tuple[str, ...]]:
    """The commands, as words."""
    for name, command in main.commands.items():
        for inner in getattr(command, "commands", {"": None}):
            yield (name, inner) if inner else (name,)


@pytest.mark.parametrize("words", list(leaves()), ids=" ".join)
def test_a_commands_options_are_those_of_its_page(words: tuple[str, ...]) -> None:
    text = (DOCS / f"{words[0]}.md").read_text()
    if len(words) > 1:  # a section of its own: "Options of bench compare"
        title = " ".join(words).removesuffix(" run")
        text = text.partition(f"## Options of {title}\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `-")]
    shown = {cells[1].strip(): cells[2].strip() for cells in rows}
    command: Any = main
    for word in words:
        command = command.commands[word]
    assert shown == dict(map(row, options(command)))


@pytest.mark.parametrize("name", PANELS)
def test_the_groups_of_a_help_name_options_that_are_there_once_each(name: str) -> None:
    command = main.commands[name]
    command = command.commands["run"] if name == "bench" else command
    grouped = " ".join(PANELS[name].values()).split()
    assert len(set(grouped)) == len(grouped)
    shown = {one.name: one.rich_help_panel for one in command.params}
    assert {n: shown[n] for n in grouped} == {
        n: title for title, names in PANELS[name].items() for n in names.split()
    }


def options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option"]


def row(option: Any) -> tuple[str, str]:
    """An option's names and its default, as a page's table has them."""
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    plain = isinstance(option.default, bool) or option.default in (None, "")
    return names, "" if plain else f"`{option.default}`"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_local_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
