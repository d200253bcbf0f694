"""One picture of a whole output folder of `trtfuse infer --annotate`.

python examples/faces/contact_sheet.py demo/out -o demo/contact_sheet.png
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from trtfuse.io import names

GROUND, CARD = "#0f1216", "#1a1f26"
BRIGHT, DIM, FOUND, BAD = "#f2f4f7", "#8b95a3", "#3dd6ff", "#ff7a6b"
TILE = (480, 360)
CAPTION = 84
GAP = 28
HEAD = 132
# More would be no overview, and a picture that no viewer opens.
MOST = 60
DOT = " \N{MIDDLE DOT} "


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own, so that the sheet looks the same everywhere."""
    return ImageFont.load_default(size)


def main() -> None:
    """Read results.jsonl, lay its pictures out, save."""
    parser = argparse.ArgumentParser(description="Draw a contact sheet of an output folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("contact_sheet.png"))
    options = parser.parse_args()
    text = (options.folder / names.RESULTS).read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    sheet(options.folder, lines).save(options.output)
    print(f"{min(len(lines), MOST)} of {len(lines)} pictures on {options.output}")


def sheet(folder: Path, lines: list[Any]) -> Image.Image:
    """The first items of `lines`, the annotated pictures read from `folder`."""
    placed = lines[:MOST]
    columns = min(len(placed), ceil(sqrt(1.6 * len(placed)))) or 1
    rows = ceil(len(placed) / columns)
    width, height = TILE[0] + GAP, TILE[1] + CAPTION + GAP
    page = Image.new("RGB", (GAP + columns * width, HEAD + rows * height), GROUND)
    pen = ImageDraw.Draw(page)
    pen.text((GAP, 30), "trtfuse infer", font=font(44), fill=BRIGHT)
    pen.text((GAP, 84), summary(lines), font=font(24), fill=DIM)
    for n, line in enumerate(placed):
        left, top = GAP + n % columns * width, HEAD + n // columns * height
        page.paste(tile(folder, line), (left, top))
    return page


def summary(lines: list[Any]) -> str:
    """For example "8 pictures · face: 2"."""
    found = Counter(one["label"] for line in lines for one in line.get("detections", ()))
    failed = sum("error" in line for line in lines)
    parts = [f"{len(lines)} pictures"]
    parts += [f"{label}: {count}" for label, count in found.most_common()]
    return DOT.join(parts + [f"{failed} failed"] * bool(failed))


def tile(folder: Path, line: Any) -> Image.Image:
    """One picture in its frame, its name and what was found on it below."""
    frame = Image.new("RGB", (TILE[0], TILE[1] + CAPTION), CARD)
    pen = ImageDraw.Draw(frame)
    if "error" not in line:
        with Image.open(folder / names.annotated_path(line["key"])) as picture:
            small = ImageOps.contain(picture.convert("RGB"), TILE, Image.Resampling.LANCZOS)
        frame.paste(small, ((TILE[0] - small.width) // 2, (TILE[1] - small.height) // 2))
    pen.text((20, TILE[1] + 14), shortened(line["key"], 34), font=font(24), fill=BRIGHT)
    text, colour = caption(line)
    pen.text((20, TILE[1] + 46), shortened(text, 48), font=font(20), fill=colour)
    return frame


def caption(line: Any) -> tuple[str, str]:
    """What was found, and in which colour to say it."""
    if "error" in line:
        return line["error"]["message"], BAD
    found = line["detections"]
    if not found:
        return "nothing found", DIM
    counts = Counter(one["label"] for one in found)
    labels = ", ".join(f"{count} {label}" for label, count in counts.most_common())
    scores = "  ".join(f"{one['score']:.3f}" for one in found[:4])
    return f"{labels}{DOT}{scores}", FOUND


def shortened(text: str, length: int) -> str:
    """At most `length` characters of `text` on one line."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


if __name__ == "__main__":
    main()
