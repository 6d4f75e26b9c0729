"""One model, cut or whole, launched segment by segment."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fakes import FakeDevice
from framefit.core.model import GraphBuilder, Model
from framefit.devices.ort import OrtDevice
from framefit.errors import InputError
from framefit.runtime.execution import Execution, greatest_difference
from networks import NETWORKS, Runner, difference, random_inputs

STATE = {"hidden": "next_hidden", "cell": "next_cell"}


def bounds(model: Model, step: int = 1) -> list[tuple[int, int]]:
    """Every ``step``-th legal cut."""
    ends = [0, *(cut.position for cut in model.legal_cuts[::step]), len(model.layers)]
    return [(first, end - 1) for first, end in pairwise(ends)]


def execution(model: Model, device: OrtDevice | FakeDevice, step: int | None = None, **options: object) -> Execution:
    """Whole, or cut at every ``step``-th legal cut."""
    segments = [(0, len(model.layers) - 1)] if step is None else bounds(model, step)
    return Execution(model, segments, device, device.target.units[0].name, **options)


@pytest.fixture
def device(tmp_path: Path) -> OrtDevice:
    """One that really computes."""
    return OrtDevice(cache=tmp_path)


def frames(model: Model, count: int, without: dict[str, str] | None = None) -> Iterator[dict[str, np.ndarray]]:
    """Random frames; inputs that are state left out."""
    for seed in range(count):
        feeds = random_inputs(model, seed)
        yield {name: array for name, array in feeds.items() if name not in (without or {})}


@pytest.mark.parametrize("name", ["plain", "unet", "two_ends", "inner_output", "passed_through", "selecting"])
@pytest.mark.parametrize("step", [1, 2])
def test_joined_segments_equal_the_whole(device: OrtDevice, name: str, step: int) -> None:
    """Segments run one after the other give the whole model's outputs, frame after frame."""
    model = NETWORKS[name]()
    cut, plain = execution(model, device, step), Runner(model)
    assert len(cut.parts) > 1
    for frame in frames(model, 3):
        assert difference(plain.whole(frame), cut.run(frame)) <= 1e-5


@pytest.mark.parametrize("step", [None, 1, 3])
def test_state_goes_from_frame_to_frame(device: OrtDevice, step: int | None) -> None:
    """Over several frames a recurrent model, cut or whole, gives what feeding its state back by hand gives."""
    model = NETWORKS["lstm"]()
    plain, fed_back = Runner(model), execution(model, device, step, state=STATE)
    state = {name: np.zeros((1, 1, 8), np.float32) for name in STATE}
    seen = []
    for frame in frames(model, 6, STATE):
        expected = plain.whole(frame | state)
        state = {name: expected[output] for name, output in STATE.items()}
        found = fed_back.run(frame)
        assert difference(expected, found) <= 1e-5
        seen.append(found["next_hidden"])
    assert np.abs(seen[-1]).max() > 1e-3


def test_reset_forgets(device: OrtDevice) -> None:
    """After a reset the same frames give the same outputs again, also after an odd number of frames."""
    model = NETWORKS["lstm"]()
    fed_back = execution(model, device, 1, state=STATE)
    inputs = list(frames(model, 3, STATE))
    first = [fed_back.run(frame) for frame in inputs]
    kept = fed_back.run(inputs[0])
    assert difference(first[0], kept) > 1e-3
    for _ in range(2):
        fed_back.reset()
        again = [fed_back.run(frame) for frame in inputs]
        assert all(difference(one, other) == 0 for one, other in zip(first, again, strict=True))


def test_state_is_handed_on_without_a_copy() -> None:
    """The array that holds one frame's new state is the very array that the next frame reads."""
    model = NETWORKS["lstm"]()
    device = FakeDevice()
    fed_back = execution(model, device, state=STATE)
    (frame,) = frames(model, 1, STATE)
    fed_back.run(frame)
    fed_back.load(frame)
    fed_back.launch(0)
    now = [fed_back.output(output) for output in STATE.values()]
    for array in now:
        array += 1
    fed_back.finish()
    fed_back.load(frame)
    fed_back.launch(0)
    following = fed_back._bindings[fed_back._parity][0]
    for name, array in zip(STATE, now, strict=True):
        assert np.shares_memory(following.tensors[name], array)
        assert (following.tensors[name] == 1).all()
    for output, array in zip(STATE.values(), now, strict=True):
        assert not np.shares_memory(following.tensors[output], array)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"hiddn": "next_hidden"}, "no input 'hiddn'; inputs: sound, hidden, cell"),
        ({"hidden": "nxt"}, "no output 'nxt'; outputs: speech, next_hidden, next_cell"),
        ({"hidden": "speech"}, r"output 'speech' is float32 \(4, 1, 1\)"),
        ({"hidden": "next_hidden", "cell": "next_hidden"}, "output 'next_hidden' already feeds 'hidden'"),
    ],
)
def test_wrong_state(state: dict[str, str], message: str) -> None:
    """State that names no input or output, that does not fit, or that is fed back twice is refused by name."""
    with pytest.raises(InputError, match=message) as found:
        execution(NETWORKS["lstm"](), FakeDevice(), state=state)
    assert f"state.{list(state)[-1]}" in str(found.value.where)


def test_labels_and_inputs() -> None:
    """Segments are numbered behind the name, a whole model is not; a frame holds the inputs that are no state."""
    model = NETWORKS["lstm"]()
    assert execution(model, FakeDevice(), name="voice").labels == ("voice",)
    cut = execution(model, FakeDevice(), 1, state=STATE)
    assert cut.labels == tuple(f"lstm.{index}" for index in range(len(cut.parts)))
    assert [tensor.name for tensor in cut.inputs] == ["sound"]


def test_the_first_launch_includes_handing_the_frame_over(device: OrtDevice) -> None:
    """Only the first segment copies the frame, and its duration begins before that."""
    model = NETWORKS["plain"]()
    cut = execution(model, device, 3)
    before = device.clock.now_ns()
    (frame,) = frames(model, 1)
    cut.load(frame)
    done = [cut.launch(index) for index in range(len(cut.parts))]
    trace = device.events()
    starts = trace.time_ns[::2].tolist()
    assert before <= done[0].started_ns < starts[0]
    assert [completion.started_ns for completion in done[1:]] == starts[1:]
    assert [completion.finished_ns for completion in done] == trace.time_ns[1::2].tolist()


def chain(layers: int, width: int) -> Model:
    """Layers in a row, 4 x width bytes between each."""
    b = GraphBuilder("chain")
    x = b.input("x", (1, width))
    for _ in range(layers):
        x = b.op("Relu", x)
    b.output(x, "y")
    return b.build()


def test_memory_is_what_is_planned() -> None:
    """Input, output and two places between the segments; state counts twice, shared arrays once."""
    model = chain(6, 16)
    size = 4 * 16
    assert execution(model, FakeDevice()).memory_bytes == 2 * size
    assert execution(model, FakeDevice(), 1).memory_bytes == (2 + 2) * size
    b = GraphBuilder("counter")
    b.output(b.op("Add", b.input("x", (1, 16)), b.input("before", (1, 16))), "after")
    counter = b.build()
    assert execution(counter, FakeDevice(), state={"before": "after"}).memory_bytes == 3 * size


def test_segments_share_one_block() -> None:
    """Intermediate tensors that are alive together never lie in the same place."""
    cut = execution(NETWORKS["unet"](), FakeDevice(), 1)
    last_read = {tensor.name: index for index, part in enumerate(cut.parts) for tensor in part.inputs}
    alive: list[tuple[str, int, int]] = [
        (tensor.name, index, last_read[tensor.name])
        for index, part in enumerate(cut.parts)
        for tensor in part.outputs
        if tensor.name in last_read
    ]
    arrays = cut._tensors[0]
    assert len(alive) > 5
    for one, first, last in alive:
        for other, begin, end in alive:
            if one != other and begin <= last and first <= end:
                assert not np.shares_memory(arrays[one], arrays[other])
    block = sum(arrays[name].nbytes for name, _, _ in alive)
    assert cut.memory_bytes < block + arrays["image"].nbytes + arrays["mask"].nbytes


@pytest.mark.parametrize(
    ("joined", "whole", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, -4.0], [1.0, -4.4], 0.4 / 4.4),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1.0], [1.0, 2.0], np.inf),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([1.0, np.inf], [1.0, 2.0], np.inf),
        ([1.0, 2.0], [1.0, np.nan], np.inf),
        ([1.0, np.nan, -np.inf], [1.0, np.nan, -np.inf], 0.0),
        ([1.5, np.nan], [1.0, np.nan], 0.5),
        ([1.5, np.inf], [1.5, -np.inf], np.inf),
        ([], [], 0.0),
    ],
)
def test_greatest_difference(joined: list[float], whole: list[float], difference: float) -> None:
    """Relative to the greatest reference value; NaNs and infinities have to agree, and never hide anything."""
    found = greatest_difference({"a": np.asarray(joined)}, {"a": np.asarray(whole)})
    assert found == pytest.approx(difference)


def test_greatest_difference_of_several_outputs() -> None:
    """The worst output counts, whole numbers and booleans included."""
    whole = {"a": np.asarray([2.0]), "b": np.asarray([10, 20]), "c": np.asarray([True, False])}
    assert greatest_difference(whole, whole) == 0
    assert greatest_difference(whole | {"b": np.asarray([10, 25])}, whole) == 0.25
    assert greatest_difference(whole | {"c": np.asarray([True, True])}, whole) == 1
