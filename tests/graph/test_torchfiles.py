"""Files and arguments from which modules come, and those that must not be opened."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tests.graph import nets
from tests.graph.graphs import graph, run, weights
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.options import ExportOptions
from trtfuse.graph.export import ExportReport, export
from trtfuse.graph.model import load, opset, save

X = weights(3, 3, 8, 8)


def exported(model: Path | str, folder: Path, **options: object) -> ExportReport:
    given = ExportOptions(
        model=str(model),
        output=folder / "out" / "net.onnx",
        **options,  # type: ignore[arg-type]
    )
    return export(given, lambda _: None)


def answer(folder: Path, **feeds: NDArray[np.generic]) -> NDArray[np.float32]:
    """What the exported graph says, in ONNX's own evaluator; its only output."""
    (output,) = run(load(folder / "out" / "net.onnx"), **feeds).values()  # type: ignore[arg-type]
    return output


def expected(module: nn.Module, *arrays: NDArray[np.generic]) -> NDArray[np.float32]:
    with torch.no_grad():
        found: NDArray[np.float32] = module.eval()(*map(torch.from_numpy, arrays)).numpy()
    return found


def test_a_factory_is_called_with_its_arguments(tmp_path: Path) -> None:
    arguments = (("width", "5"), ("gain", "0.5"), ("name", "a plain text"))
    exported("tests.graph.nets:ScaledNet", tmp_path, shapes=((3, 8, 8),), arguments=arguments)
    want = expected(nets.ScaledNet(5, 0.5), X)
    np.testing.assert_allclose(answer(tmp_path, x=X), want, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), r"missing a required argument: 'width'\. Give its arguments with --arg"),
        ((("width", "5"), ("depth", "1")), "got an unexpected keyword argument 'depth'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    tmp_path: Path, arguments: tuple[tuple[str, str], ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        exported("tests.graph.nets:ScaledNet", tmp_path, shapes=((3, 8, 8),), arguments=arguments)


def test_whole_numbers_and_flags_are_inputs_too(tmp_path: Path) -> None:
    report = exported(
        "tests.graph.nets:TokenNet", tmp_path, shapes=((7,), (7,)), dtypes=("int64", "bool")
    )
    assert [(one.dtype, one.shape) for one in report.model.inputs] == [
        ("int64", ("batch", 7)),
        ("bool", ("batch", 7)),
    ]
    words, masked = np.arange(14).reshape(2, 7) % 10, np.eye(2, 7, dtype=bool)
    want = expected(nets.TokenNet(), words, masked)
    np.testing.assert_allclose(answer(tmp_path, words=words, masked=masked), want, atol=1e-6)


def test_float64_becomes_float32_and_the_report_says_where(tmp_path: Path) -> None:
    report = exported("tests.graph.nets:DoubleNet", tmp_path, shapes=((3, 8, 8),))
    assert "float64 was made float32: conv.weight, conv.bias" in report.notes
    assert "Cast 'node__to_copy'" in report.notes[-1]
    model = load(tmp_path / "out" / "net.onnx")
    assert onnx.TensorProto.DOUBLE not in {one.data_type for one in model.graph.initializer}
    want = expected(nets.DoubleNet(), X)
    np.testing.assert_allclose(answer(tmp_path, x=X), want, atol=1e-5)


def test_an_onnx_of_float64_is_brought_down_and_held_against_itself(tmp_path: Path) -> None:
    wide = graph(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["m"]),
            onnx.helper.make_node("Cast", ["m"], ["c"], to=onnx.TensorProto.DOUBLE, name="again"),
            onnx.helper.make_node("Add", ["c", "w0"], ["y"]),
        ],
        {"x": [1, 40]},
        {"y": [1, 40]},
        {"w": weights(40, 40).astype(np.float64), "w0": np.full(1, 0.1)},
    )
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    save(wide, tmp_path / "in.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path)
    assert report.notes == (
        "float64 was made float32: input 'x', output 'y', constant 'w', constant 'w0' and 1 more",
    )
    assert report.model.inputs[0].dtype == report.model.outputs[0].dtype == "float32"
    x = weights(2, 40)
    want = run(wide, x=x.astype(np.float64))["y"]
    np.testing.assert_allclose(answer(tmp_path, x=x), want, rtol=1e-4, atol=1e-5)


def test_a_named_size_is_traced_open(tmp_path: Path) -> None:
    report = exported("tests.graph.nets:SizedNet", tmp_path, shapes=((3, "height", "width"),))
    assert report.model.inputs[0].shape == ("batch", 3, "height", "width")
    x = weights(1, 3, 5, 7)
    assert answer(tmp_path, x=x).shape == (1, 3, 10, 14)


@pytest.mark.parametrize(("target", "version"), [("any", 17), ("rtx", 19), ("ort", 21)])
def test_the_target_decides_the_operator_set(tmp_path: Path, target: str, version: int) -> None:
    exported("tests.graph.nets:SizedNet", tmp_path, shapes=((3, 8, 8),), target=target)
    assert opset(load(tmp_path / "out" / "net.onnx")) == version


def test_a_target_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"--target 'tensorrt9': not known\. Did you mean"):
        exported("tests.graph.nets:SizedNet", tmp_path, shapes=((3, 8, 8),), target="tensorrt9")


def program(path: Path, *, dynamic: bool) -> Path:
    shapes = {"x": {0: torch.export.Dim("n")}} if dynamic else None
    made = torch.export.export(nets.ConvNet().eval(), (torch.from_numpy(X),), dynamic_shapes=shapes)
    torch.export.save(made, str(path))
    return path


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_program_brings_its_sizes_with_it(tmp_path: Path, dynamic: bool) -> None:
    report = exported(program(tmp_path / "net.pt2", dynamic=dynamic), tmp_path)
    assert report.model.inputs[0].shape == ("batch", 3, 8, 8)
    x = weights(5, 3, 8, 8)
    want = expected(nets.ConvNet(), x)
    np.testing.assert_allclose(answer(tmp_path, x=x), want, atol=1e-5)


def test_a_program_with_a_pickle_inside_is_not_opened(tmp_path: Path) -> None:
    path = program(tmp_path / "net.pt2", dynamic=True)
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{root}/data/constants/opaque_obj_0", pickle.dumps(Trap()))
    with pytest.raises(UsageError, match=r"opaque_obj_0 is a custom object .* it is not loaded"):
        exported(path, tmp_path)


class Trap:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (Path("sprung"),)


def scripted(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nets.SizedNet()), str(path))
    return path


def test_torchscript_is_traced_like_a_module(tmp_path: Path) -> None:
    report = exported(scripted(tmp_path / "net.pt"), tmp_path, shapes=((3, 8, 8),))
    assert [one.name for one in report.model.inputs] == ["x"]
    np.testing.assert_allclose(answer(tmp_path, x=X), expected(nets.SizedNet(), X), atol=1e-6)


def trace(example: torch.Tensor, net: nn.Module) -> torch.jit.ScriptModule:
    made: torch.jit.ScriptModule = torch.jit.trace(net, example)  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize("kind", ["script", "trace"])
def test_torchscript_with_layers_of_its_own_is_exported(tmp_path: Path, kind: str) -> None:
    net = nets.ConvNet().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make = torch.jit.script if kind == "script" else partial(trace, torch.from_numpy(X))
        made = make(net)
        torch.jit.save(made, str(tmp_path / "net.pt"))
    report = exported(tmp_path / "net.pt", tmp_path, shapes=((3, 8, 8),))
    assert report.model.outputs[0].shape == ("batch", 4, 6, 6)
    assert report.notes[0].startswith("exported with TorchScript; torch.export failed: ")
    np.testing.assert_allclose(answer(tmp_path, x=X), expected(nets.ConvNet(), X), atol=1e-5)


def test_a_pickled_module_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(nets.SizedNet(), "net.pt")
    torch.save({"model": Trap()}, "trap.pt")
    for name in ("net.pt", "trap.pt"):
        with pytest.raises(UsageError, match=r"is a pickled module\. .*--weights, or save the"):
            exported(name, tmp_path, shapes=((3, 8, 8),))
        with pytest.raises(UsageError, match="holds more than tensors, and is not loaded"):
            exported(
                "tests.graph.nets:SizedNet",
                tmp_path,
                shapes=((3, 8, 8),),
                weights=Path(name),
            )
    assert not Path("sprung").exists()


def test_weights_without_a_module_are_refused_with_the_way_out(tmp_path: Path) -> None:
    torch.save(nets.ConvNet().state_dict(), tmp_path / "net.pt")
    with pytest.raises(UsageError, match=r"holds weights and no module\. Give a factory"):
        exported(tmp_path / "net.pt", tmp_path, shapes=((3, 8, 8),))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"hello"])
@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_a_file_that_is_none_of_these_is_refused(
    tmp_path: Path, content: bytes, suffix: str
) -> None:
    path = tmp_path / f"net{suffix}"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"not a (whole )?(file of PyTorch|program)"):
        exported(path, tmp_path, shapes=((3, 8, 8),))
    path.unlink()
    with pytest.raises(UsageError, match="does not exist"):
        exported(path, tmp_path, shapes=((3, 8, 8),))


def other_state() -> dict[str, torch.Tensor]:
    state = nets.ConvNet().state_dict()
    return {name: t * 2 if t.is_floating_point() else t for name, t in state.items()}


def save_safe(path: Path, state: dict[str, torch.Tensor]) -> None:
    """The format as its page describes it."""
    kinds = {torch.float32: "F32", torch.int64: "I64"}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in state.items():
        raw = tensor.numpy().tobytes()
        header[name] = {
            "dtype": kinds[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("kind", [".pt", ".safetensors", "key"])
def test_weights_fill_the_module(tmp_path: Path, kind: str) -> None:
    state = other_state()
    path = tmp_path / f"w{kind if kind != 'key' else '.pth'}"
    if kind == ".safetensors":
        save_safe(path, state)
    else:
        torch.save({"params": state, "epoch": 3} if kind == "key" else state, path)
    exported(
        "tests.graph.nets:ConvNet",
        tmp_path,
        shapes=((3, 8, 8),),
        weights=path,
        weights_key="params" if kind == "key" else None,
    )
    module = nets.ConvNet()
    module.load_state_dict(state)
    np.testing.assert_allclose(answer(tmp_path, x=X), expected(module, X), atol=1e-5)


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    state = other_state()
    state["neck.weight"] = state.pop("conv.weight")
    state["norm.bias"] = torch.zeros(7)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(UsageError) as error:
        exported(
            "tests.graph.nets:ConvNet",
            tmp_path,
            shapes=((3, 8, 8),),
            weights=tmp_path / "w.pt",
        )
    for words in (
        "missing: conv.weight",
        "unexpected: neck.weight",
        "of another shape: norm.bias [7], needs [4]",
    ):
        assert words in str(error.value)


def test_a_checkpoint_says_where_its_weights_are(tmp_path: Path) -> None:
    torch.save({"params": other_state(), "epoch": 3}, tmp_path / "w.pt")
    given = {"shapes": ((3, 8, 8),), "weights": tmp_path / "w.pt"}
    with pytest.raises(UsageError, match=r"is no state dict, it holds params, epoch\. Name the"):
        exported("tests.graph.nets:ConvNet", tmp_path, **given)
    with pytest.raises(UnknownName, match="Did you mean params"):
        exported("tests.graph.nets:ConvNet", tmp_path, **given, weights_key="param")


@pytest.mark.parametrize("cut", [0, 4, 60, -8])
def test_safetensors_that_are_cut_short_are_refused(tmp_path: Path, cut: int) -> None:
    save_safe(tmp_path / "w.safetensors", other_state())
    whole = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(whole[:cut])
    with pytest.raises(UsageError, match="not a safetensors file, or cut short"):
        exported(
            "tests.graph.nets:ConvNet",
            tmp_path,
            shapes=((3, 8, 8),),
            weights=tmp_path / "w.safetensors",
        )


def test_options_of_pytorch_do_not_go_with_an_onnx(tmp_path: Path) -> None:
    save(graph([], {"x": ["n", 3]}, {"x": ["n", 3]}, {}), tmp_path / "in.onnx")
    with pytest.raises(UsageError, match="are for PyTorch factories"):
        exported(tmp_path / "in.onnx", tmp_path, arguments=(("a", "1"),))


def test_an_onnx_has_its_own_types(tmp_path: Path) -> None:
    save(graph([], {"x": ["n", 3]}, {"x": ["n", 3]}, {}), tmp_path / "in.onnx")
    with pytest.raises(UsageError, match=r"--shape int64:…: input 'x' is float32"):
        exported(tmp_path / "in.onnx", tmp_path, shapes=((3,),), dtypes=("int64",))
