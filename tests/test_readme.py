"""What the README says of make, CI and numbers is so. tests/test_docs.py runs its blocks."""

from __future__ import annotations

import json
import re

from tests.pages import ROOT, blocks, numbers

README = (ROOT / "README.md").read_text()


def test_the_make_targets_that_are_named_exist() -> None:
    shown = [one.text for one in blocks(ROOT / "README.md") if one.language == "sh"]
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", "\n".join(shown), re.MULTILINE)
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
