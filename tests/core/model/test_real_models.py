"""Models from elsewhere, taken as they are."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framefit.core.model import Model
from framefit.errors import InputError
from networks import Runner, difference, random_inputs

pytestmark = pytest.mark.data

ARGUMENTS: dict[str, dict[str, Any]] = {
    "face-slim-320": {},
    "vad-16k": {"shapes": {"input": (1, 512)}, "constants": {"sr": 16000}},
    "resnet20-cifar10": {},
}
every_model = pytest.mark.parametrize("name", ARGUMENTS)


@functools.cache
def runner(path: Path) -> Runner:
    """One runner a model, so that sessions are made once."""
    return Runner(Model.load(path, **ARGUMENTS[path.stem]))


@every_model
def test_legal_cuts_keep_the_outputs(shared_models: Path, name: str) -> None:
    """A dozen legal cuts all over the model, each alone, and all that there are together, give its outputs."""
    run = runner(shared_models / f"{name}.onnx")
    feeds = random_inputs(run.model, 0)
    expected = run.whole(feeds)
    legal = [cut.position for cut in run.model.legal_cuts]
    assert len(legal) == len(run.model.layers) - 1
    for positions in [*([position] for position in legal[:: max(len(legal) // 12, 1)]), legal]:
        assert difference(expected, run.cut(feeds, positions)) <= 1e-4, positions


@every_model
@given(data=st.data())
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_legal_cuts_keep_the_outputs(shared_models: Path, name: str, data: st.DataObject) -> None:
    """Any few legal cuts give the whole model's outputs."""
    run = runner(shared_models / f"{name}.onnx")
    legal = [cut.position for cut in run.model.legal_cuts]
    positions = data.draw(st.sets(st.sampled_from(legal), max_size=8))
    feeds = random_inputs(run.model, data.draw(st.integers(0, 99)))
    assert difference(run.whole(feeds), run.cut(feeds, positions)) <= 1e-4


@every_model
def test_outputs_are_those_of_the_file(shared_models: Path, name: str) -> None:
    """What reading changes (constants, shapes, branches) does not change what the file computes."""
    import onnxruntime as ort

    path = shared_models / f"{name}.onnx"
    run = runner(path)
    feeds = random_inputs(run.model, 3)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # the face detector's initializers among its inputs
    session = ort.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    given = feeds | {key: np.asarray(value) for key, value in ARGUMENTS[name].get("constants", {}).items()}
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, given), strict=True))
    assert difference(expected, run.whole(feeds)) <= 1e-4


def test_figures_of_the_resnet(shared_models: Path) -> None:
    """ResNet-20's known size: about 41 M multiply-accumulates, 0.27 M parameters; the batch is assumed."""
    model = runner(shared_models / "resnet20-cifar10.onnx").model
    assert model.macs == pytest.approx(41e6, rel=0.02)
    assert model.parameters == pytest.approx(0.275e6, rel=0.02)
    assert model.defaulted_dims == ("input 'input': leading dimension batch assumed to be 1",)


def test_the_voice_detector_keeps_no_branch(shared_models: Path) -> None:
    """With the sampling rate constant no ``If`` is left, and the state is an input and an output."""
    model = runner(shared_models / "vad-16k.onnx").model
    assert all(layer.op != "If" for layer in model.layers)
    assert [tensor.name for tensor in model.inputs] == ["input", "state"]
    assert [tensor.name for tensor in model.outputs] == ["output", "stateN"]
    assert model.inputs[1].shape == model.outputs[1].shape == (2, 1, 128)


def test_the_voice_detector_needs_a_shape(shared_models: Path) -> None:
    """Its dynamic sequence is refused with the shape to write."""
    with pytest.raises(InputError) as error:
        Model.load(shared_models / "vad-16k.onnx", constants={"sr": 16000})
    assert error.value.remedy is not None
    assert "shapes = { input" in error.value.remedy


@every_model
def test_truncated_files_are_refused(shared_models: Path, tmp_path: Path, name: str) -> None:
    """A file cut off at any twentieth of its length is an input error and nothing else."""
    whole = (shared_models / f"{name}.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    for part in range(20):
        path.write_bytes(whole[: len(whole) * part // 20])
        with pytest.raises(InputError, match=r"m\.onnx"):
            Model.load(path, **ARGUMENTS[name])
