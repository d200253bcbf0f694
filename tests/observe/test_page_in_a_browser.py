"""report.html as headless Chromium shows it: wide and narrow, light and dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.observe.runs import HOSTILE, jpeg, rich
from trtfuse.observe.page import page

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason=f"no Chromium here: none of {', '.join(NAMES)} is installed"
)

LOOK = """
const visible = e => e.getClientRects().length > 0;
const all = [...document.body.querySelectorAll("*")].filter(visible);
const name = e => `${e.tagName} ${e.getAttribute("class")}: ${e.textContent.slice(0, 40)}`;
const channels = colour => colour.match(/[0-9.]+/g).map(Number);
const light = colour => channels(colour).slice(0, 3)
  .map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
const behind = e => {
  const found = getComputedStyle(e).backgroundColor;
  return channels(found)[3] !== 0 || !e.parentElement ? found : behind(e.parentElement);
};
const contrast = e => {
  const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => x - y);
  return (b + 0.05) / (a + 0.05);
};
const says = all.filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
const box = e => e.getBoundingClientRect();
const found = {
  width: innerWidth,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  wider: all.filter(e => !e.closest(".scroll, svg") && box(e).right > innerWidth + 0.5).map(name),
  cut: says.filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map(name),
  empty: all.filter(e => e.matches("h1,h2,p,b,span,td,th,dt,dd,figcaption")
    && !e.textContent.trim() && !e.children.length).map(name),
  faint: says.filter(e => contrast(e) < 4.5).map(name),
  flat: [...document.querySelectorAll("svg")].filter(e => box(e).width < 50 || box(e).height < 15)
    .map(name),
  lines: [...document.querySelectorAll("path.line")].map(e => e.getTotalLength()),
  cells: document.querySelectorAll(".cell").length,
  images: [...document.images].map(e => e.naturalWidth),
  headings: [...document.querySelectorAll("h2")].map(e => e.textContent),
  title: document.title,
};
document.body.innerHTML = "<pre></pre>";
document.querySelector("pre").textContent = JSON.stringify(found);
"""


def shown(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",  # for root, as in a container
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
            f"--user-data-dir={file.parent / 'profile'}",
            *arguments,
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page(rich(), {HOSTILE: jpeg()}), encoding="utf-8")
    return file


def looked_at(written: Path, *arguments: str) -> dict[str, Any]:
    """What a script finds on a copy of the page that lets one script in."""
    text = written.read_text(encoding="utf-8")
    text = text.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    copy = written.with_name("open.html")
    copy.write_text(text.replace("</body>", f"<script>{LOOK}</script></body>"), encoding="utf-8")
    match = re.search(r"<pre>(.*)</pre>", shown(copy, *arguments).stdout, re.DOTALL)
    assert match, "the script did not run"
    found: dict[str, Any] = json.loads(unescape(match[1]))
    return found


@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (360, False), (1280, True)], ids=["wide", "narrow", "dark"]
)
def test_the_page_shows_all_of_itself(written: Path, width: int, dark: bool) -> None:
    scheme = ("--blink-settings=preferredColorScheme=0",) if dark else ()
    found = looked_at(written, f"--window-size={width},900", *scheme)
    assert (found["width"], found["dark"]) == (width, dark)
    nothing = {name: found[name] for name in ("wider", "cut", "empty", "faint", "flat")}
    assert nothing == {name: [] for name in nothing}
    # Throughput, the parent and eight workers; a cell for each stretch of each worker.
    assert len(found["lines"]) == 10
    assert min(found["lines"]) > 500
    assert found["cells"] == 8 * 511
    assert found["images"] == [176]
    assert found["headings"] == [
        "Throughput", "Busy", "Stages", "Memory", "Failed", "Conditions"
    ]  # fmt: skip
    assert found["title"] == "face: 100000 items"


def test_the_browser_has_nothing_to_complain_of(written: Path) -> None:
    said = shown(written).stderr
    assert [line for line in said.splitlines() if "CONSOLE" in line] == []
