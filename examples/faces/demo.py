"""The main job on real photographs: export, build, infer, and a contact sheet to look at.

    python examples/faces/demo.py [FOLDER]

Every command is printed as one would type it, then run. FOLDER is demo/ by default; a second run
replaces what the first one left there.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(os.path.relpath(Path(__file__).parent))


def run(*words: str | Path) -> None:
    """Print and run a command; end the program with its exit code where that is not 0.

    `trtfuse` and `python` are those of the environment that this program runs in.
    """
    program, *arguments = map(str, words)
    print(f"\n$ {shlex.join([program, *arguments])}", flush=True)
    module = ["-m", "trtfuse"] if program == "trtfuse" else []
    code = subprocess.run([sys.executable, *module, *arguments], check=False).returncode
    if code:
        sys.exit(code)


def main() -> None:
    """Run the five commands, one after the other."""
    parser = argparse.ArgumentParser(description="Find the faces on real photographs.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("demo"))
    demo = parser.parse_args().folder
    photos, out, engines = demo / "photos", demo / "out", demo / "engines"
    model, sheet = demo / "face.onnx", demo / "contact_sheet.png"
    run("python", HERE / "photos.py", photos, "--model", demo / "centerface.onnx")
    run("trtfuse", "export", demo / "centerface.onnx", "--card", HERE / "card.json", "-o", model)
    run("trtfuse", "build", model, "--engines", engines)
    run("trtfuse", "infer", photos, "-o", out, "--engines", engines, "--annotate")
    run("python", HERE / "contact_sheet.py", out, "-o", sheet)
    print(f"\nDone. Look at {sheet.resolve()}")


if __name__ == "__main__":
    main()
