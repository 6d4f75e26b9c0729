"""Which stream feeds which input of which model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framefit.core.workload import load_workload
from framefit.errors import InputError, UnsupportedError
from framefit.runtime.wiring import WiredModel, streams_of, wire
from networks import NETWORKS, write_dynamic

STREAMS = '[[streams]]\nname = "camera"\n[[streams]]\nname = "other"\n'


def wired(folder: Path, models: str, streams: str = "") -> list[WiredModel]:
    """A workload's models, connected."""
    for name in ("plain", "two_ends", "lstm", "passed_through"):
        NETWORKS[name]().save(folder / f"{name}.onnx", force=True)
    write_dynamic(folder / "dynamic.onnx")
    (folder / "app.toml").write_text(f"rate_hz = 30\n{streams}\n{models}")
    return wire(load_workload(folder / "app.toml"), folder / "app.toml")


def model(name: str, keys: str = "", priority: str = "background") -> str:
    """An entry."""
    return f'[[models]]\nname = "{name}"\npath = "{name}.onnx"\npriority = "{priority}"\n{keys}\n'


def test_the_only_stream_feeds_everything(tmp_path: Path) -> None:
    """Inputs that are not mentioned read the only stream, or the synthetic one where there is none."""
    for streams, source in (("", "synthetic"), ('[[streams]]\nname = "camera"\n', "camera")):
        (found,) = wired(tmp_path, model("two_ends"), streams)
        assert found.sources == {"image": source, "bias": source}


def test_named_streams(tmp_path: Path) -> None:
    """With several streams each input says which it reads."""
    (found,) = wired(tmp_path, model("two_ends", 'inputs = { image = "other", bias = "camera" }'), STREAMS)
    assert found.sources == {"image": "other", "bias": "camera"}
    with pytest.raises(InputError, match="input 'bias' has no source") as error:
        wired(tmp_path, model("two_ends", 'inputs = { image = "other" }'), STREAMS)
    assert "model 'two_ends'" in str(error.value.where)


def test_priority_models_come_first(tmp_path: Path) -> None:
    """They are served first; else the order of the file stays."""
    models = model("two_ends") + model("plain", priority="every-window") + model("lstm")
    assert [found.entry.name for found in wired(tmp_path, models)] == ["plain", "two_ends", "lstm"]


def test_state_and_constants_are_no_streams(tmp_path: Path) -> None:
    """Recurrent and constant inputs are not fed; a constant one is no input any more."""
    recurrent, constant = wired(
        tmp_path,
        model("lstm", 'state = { hidden = "next_hidden" }') + model("passed_through", "constants = { stamp = 5 }"),
    )
    assert recurrent.sources == {"sound": "synthetic", "cell": "synthetic"}
    assert [tensor.name for tensor in recurrent.model.inputs] == ["sound", "hidden", "cell"]
    assert constant.sources == {"image": "synthetic"}
    assert [tensor.name for tensor in constant.model.inputs] == ["image"]


@pytest.mark.parametrize("key", ["inputs", "shapes", "state", "constants"])
def test_inputs_that_do_not_exist(tmp_path: Path, key: str) -> None:
    """Each key that names no input of the model is refused beside those that exist."""
    value = {"inputs": '"camera"', "shapes": "[1]", "state": '"next_cell"', "constants": "1"}[key]
    with pytest.raises(InputError, match=f"{key} names no input 'nose'; inputs: sound, hidden, cell"):
        wired(tmp_path, model("lstm", f"{key} = {{ nose = {value} }}"), '[[streams]]\nname = "camera"\n')


def test_another_models_output(tmp_path: Path) -> None:
    """Reading another model is refused by name until it is built."""
    with pytest.raises(UnsupportedError, match=r"reads another model \('plain\.classes'\)"):
        wired(tmp_path, model("plain") + model("two_ends", 'inputs = { bias = "plain.classes" }'))


@pytest.mark.parametrize(("frames", "batch"), [((7, 2, 6, 6), 1), ((7, 1, 2, 6, 6), 1), ((7, 4, 2, 6, 6), 4)])
def test_stored_frames_fix_dynamic_dimensions(tmp_path: Path, frames: tuple[int, ...], batch: int) -> None:
    """A dynamic batch follows the frames' shape; a frame may leave the leading 1 out."""
    np.savez(tmp_path / "frames.npz", np.zeros(frames, np.float32))
    streams = '[[streams]]\nname = "camera"\nsource = "frames.npz"\n'
    (found,) = wired(tmp_path, model("dynamic"), streams)
    assert found.model.inputs[0].shape == (batch, 2, 6, 6)


def test_shapes_given_go_before_the_streams(tmp_path: Path) -> None:
    """A shape in the model's entry decides."""
    streams = '[[streams]]\nname = "camera"\nshape = [1, 2, 6, 6]\n'
    (found,) = wired(tmp_path, model("dynamic", "shapes = { image = [3, 2, 6, 6] }"), streams)
    assert found.model.inputs[0].shape == (3, 2, 6, 6)


def test_frames_that_do_not_fit(tmp_path: Path) -> None:
    """Frames of another shape are refused with the input's name."""
    np.savez(tmp_path / "frames.npz", np.zeros((7, 9), np.float32))
    with pytest.raises(InputError, match="input 'image'"):
        wired(tmp_path, model("dynamic"), '[[streams]]\nname = "camera"\nsource = "frames.npz"\n')


def test_streams_of_a_workload(tmp_path: Path) -> None:
    """Those of the file, else one synthetic stream."""
    wired(tmp_path, model("plain"))
    assert [entry.name for entry in streams_of(load_workload(tmp_path / "app.toml"))] == ["synthetic"]
