"""Models with several inputs: examples as rows of all their numbers, and states as the model itself makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

import networks
from framefit import InputError
from framefit.core.model import Model
from framefit.core.model.builder import GraphBuilder
from framefit.errors import MismatchError, UnsupportedError
from framefit.training.data import Feeds, open_together
from framefit.training.joined import InSequence, joined_examples
from framefit.training.network import to_torch

STATES = {"hidden": "next_hidden", "cell": "next_cell"}


def test_rows_give_what_each_example_gives_alone() -> None:
    """The batch lies on the second axis of sound and states; outputs have it first."""
    model = networks.lstm()
    assert model.example_shape == (4 * 10 + 8 + 8,)
    feeds = [networks.random_inputs(model, seed) for seed in range(5)]
    rows = np.stack([np.concatenate([feed[t.name].ravel() for t in model.inputs]) for feed in feeds])
    made = to_torch(model).eval()(torch.from_numpy(rows))
    run = networks.Runner(model)
    for place, feed in enumerate(feeds):
        alone = run.whole(feed)
        for tensor, output in zip(model.outputs, made, strict=True):
            np.testing.assert_allclose(
                output[place].detach().numpy().ravel(), alone[tensor.name].ravel(), rtol=1e-4, atol=1e-6
            )


def test_states_are_those_of_a_run(tmp_path: Path) -> None:
    """Each example's states are what ONNX Runtime's outputs were one example before; a tenth is set aside."""
    model = networks.lstm()
    sound = np.random.default_rng(0).standard_normal((30, 4, 10)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=sound)
    train, test = joined_examples(model, tmp_path / "x.npz", STATES)
    rows = np.concatenate([train, test])
    assert (len(train), len(test)) == (27, 3)
    run = networks.Runner(model)
    hidden = cell = np.zeros((1, 1, 8), np.float32)
    spoken = []
    for row, block in zip(rows, sound, strict=True):
        np.testing.assert_allclose(row[40:48], hidden.ravel(), rtol=1e-4, atol=1e-6)
        made = run.whole({"sound": block[:, None], "hidden": hidden, "cell": cell})
        hidden, cell = made["next_hidden"], made["next_cell"]
        spoken.append(made["speech"].ravel())
    again = InSequence.of(to_torch(model), STATES)
    parts = [again(np.where(np.arange(56) < 40, part, 0).astype(np.float32))[0] for part in (rows[:7], rows[7:])]
    np.testing.assert_allclose(np.concatenate(parts).reshape(30, -1), spoken, rtol=1e-4, atol=1e-6)


def test_the_voice_detector_is_read_whole(shared_models: Path, tmp_path: Path) -> None:
    """Its data give the open length; its outputs in a sequence are those of ONNX Runtime on the file."""
    path = shared_models / "vad-16k.onnx"
    sound = (0.1 * np.random.default_rng(0).standard_normal((40, 576))).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=sound)
    feeds = Feeds(constants={"sr": 16000}, states={"state": "stateN"})
    model, data = open_together(path, tmp_path / "x.npz", feeds=feeds)
    assert (data.input_shape, data.train.task.measure) == ((576 + 256,), "outputs")
    session, state = ort.InferenceSession(path), np.zeros((2, 1, 128), np.float32)
    expected = []
    for block in sound:
        speech, state = session.run(None, {"input": block[None], "state": state, "sr": np.array(16000)})
        expected.append(speech.ravel())
    rows = np.zeros((40, 832), np.float32)
    rows[:, :576] = sound
    (speech, _) = InSequence.of(to_torch(model), feeds.states)(rows)
    np.testing.assert_allclose(speech.reshape(40, -1), expected, atol=1e-4)


def test_whole_numbers_are_inputs_too(tmp_path: Path) -> None:
    """Tokens and a mask, each by the input's name; rows hold them as float32."""
    model = _tokens()
    random = np.random.default_rng(0)
    tokens, mask = random.integers(0, 20, (40, 6)), random.random((40, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", tokens=tokens, mask=mask)
    (rows,) = joined_examples(model, tmp_path / "x.npz", {})
    made = to_torch(model).eval()(torch.from_numpy(rows)).detach().numpy()
    run = networks.Runner(model)
    expected = [
        run.whole({"tokens": t[None], "mask": m[None]})["classes"][0] for t, m in zip(tokens, mask, strict=True)
    ]
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "states", "what"),
    [
        ({"y": (3, 4)}, STATES, "no array x; the file holds y"),
        ({"x": (9, 4, 11)}, STATES, r"sound is 9 x 4 x 11, but the model takes 4 x 1 x 10"),
        ({"x": (9, 4, 10)}, {"hidden": "nowhere"}, "no output 'nowhere'"),
        ({"x": (9, 4, 10)}, {"hid": "next_hidden"}, "no input 'hid'"),
        ({"x": (9, 4, 10)}, {"hidden": "speech"}, "'hidden' is 1 x 1 x 8, but 'speech' is 4 x 1"),
        ({"x": (9, 4, 10)}, {}, "no array sound, hidden, cell"),
        ({"x": (9, 4, 10)}, {"": "hidden"}, "'hidden' is not of the form INPUT=OUTPUT"),
        ({"sound": (9, 4, 10), "hidden": (9, 8), "cell": (8, 8)}, {}, "sound: 9, hidden: 9, cell: 8"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, arrays: dict[str, tuple[int, ...]], states: dict[str, str], what: str
) -> None:
    """Missing arrays, other shapes, other numbers of examples, unknown states."""
    np.savez(tmp_path / "x.npz", **{name: np.zeros(shape, np.float32) for name, shape in arrays.items()})
    with pytest.raises((InputError, MismatchError), match=what):
        joined_examples(networks.lstm(), tmp_path / "x.npz", states)


def test_options_that_may_be_missing_are_named(tmp_path: Path) -> None:
    """A single number may never change; what has the shape of one output may be its last value."""
    b = GraphBuilder("voice", 0)
    x, state, gain = b.input("x", (1, 4)), b.input("state", (1, 6)), b.input("gain", ())
    b.output(b.op("Mul", x, gain), "loud")
    b.output(b.op("Tanh", state), "next_state")
    np.savez(tmp_path / "x.npz", y=np.zeros((9, 4), np.float32))
    with pytest.raises(MismatchError) as caught:
        joined_examples(b.build(), tmp_path / "x.npz", {})
    assert "--state state=next_state" in str(caught.value.remedy)
    assert "--constant gain=NUMBER" in str(caught.value.remedy)


def test_inputs_without_a_batch_are_refused() -> None:
    """A scale for all examples has no axis along which two of them could lie."""
    b = GraphBuilder("scaled", 0)
    x, scale = b.input("x", (1, 4)), b.input("scale", (3,))
    b.output(b.op("Mul", x, b.op("ReduceMean", scale, axes=[0], keepdims=1)), "y")
    with pytest.raises(UnsupportedError, match=r"no axis of the inputs \(x 1 x 4, scale 3\)"):
        to_torch(b.build())(torch.zeros(1, 7))


def _tokens() -> Model:
    b = GraphBuilder("tokens", 0)
    tokens, mask = b.input("tokens", (1, 6), "int64"), b.input("mask", (1, 6))
    x = b.op("Gather", b.weight((20, 8), 8), tokens)
    x = b.op("Mul", x, b.op("Unsqueeze", mask, b.constant(np.asarray([2], np.int64))))
    b.output(b.op("MatMul", b.op("ReduceMean", x, axes=[1], keepdims=0), b.weight((8, 3), 8)), "classes")
    return b.build()
