"""One model, cut or whole, launched segment by segment."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeDevice
from framefit import FramefitError, InputError
from framefit.core.model import GraphBuilder, Model, TensorInfo
from framefit.core.workload import MachineSettings, Preprocess
from framefit.devices.ort import OrtDevice
from framefit.execution.buffers import unit_bytes
from framefit.execution.execution import Execution, greatest_difference
from framefit.execution.prepare import Preparation
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


def test_state_is_passed_on_without_a_copy() -> None:
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
    following = fed_back._bindings[fed_back._turn][0]
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


def doubling(*shape: int) -> Model:
    """Input "x" and output "y", twice as much; "same" is what came in plus a half."""
    b = GraphBuilder("doubling")
    x = b.input("x", shape)
    same = b.op("Add", x, b.constant(np.float32(0.5)))
    b.output(same, "same")
    b.output(b.op("Sub", b.op("Add", x, same), b.constant(np.float32(0.5))), "y")
    return b.build()


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ({}, "a frame lacks input 'bias'"),
        ({"bias": np.zeros((1, 6, 1, 1))}, "a frame lacks input 'image'"),
        ({"bias": np.zeros((1, 6, 1, 1)), "image": np.zeros((1, 3, 8, 8)), "more": np.zeros(1)}, "'more', which is no"),
        (
            {"bias": np.zeros((1, 6, 1, 1)), "image": np.zeros((1, 1, 8, 8))},
            r"a frame is \[1, 1, 8, 8\], but input 'image'",
        ),
        ([], "got 0 frames, the model consumes 1 at once"),
    ],
)
def test_frames_that_are_refused(frame: object, problem: str) -> None:
    """A frame that lacks an input, has too much or another shape is refused before anything runs."""
    device = FakeDevice()
    whole = execution(NETWORKS["two_ends"](), device)
    if isinstance(frame, dict) and not frame:
        frame = {"image": np.zeros((1, 3, 8, 8))}
    with pytest.raises(InputError, match=problem):
        whole.load(frame)
    assert device.launches == []


def test_a_leading_one_may_be_left_out(device: OrtDevice) -> None:
    """A frame without the batch axis counts as one with it."""
    whole = execution(doubling(1, 3), device)
    frame = np.arange(3, dtype=np.float32)
    assert whole.run({"x": frame})["y"].tolist() == [[0, 2, 4]]


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize(("shape", "axis", "one"), [((4, 3), 0, (1, 3)), ((1, 8), 1, (1, 2)), ((2, 8), -1, (2, 2))])
def test_several_frames_at_once(
    device: OrtDevice, shape: tuple[int, ...], axis: int, one: tuple[int, ...], step: int | None
) -> None:
    """Frames lie one after the other along their axis of the input, group after group."""
    joined = execution(doubling(*shape), device, step, frames=4, frames_axis=axis)
    assert [(tensor.name, tensor.shape) for tensor in joined.frame_inputs] == [("x", one)]
    assert joined.inputs[0].shape == shape
    for start in (0, 4):
        frames = [np.random.default_rng(start + k).random(one, np.float32) for k in range(4)]
        found = joined.run([{"x": frame} for frame in frames])
        np.testing.assert_allclose(found["y"], 2 * np.concatenate(frames, axis), rtol=1e-6)
    with pytest.raises(InputError, match="got 1 frames, the model consumes 4 at once"):
        joined.load({"x": frames[0]})


@pytest.mark.parametrize(("frames", "axis"), [(3, 0), (2, 2), (2, -3)])
def test_frames_that_cannot_be_stacked(frames: int, axis: int) -> None:
    """An axis that is not there, or that the frames do not divide, is refused with the input's name."""
    with pytest.raises(
        InputError, match=rf"input 'x' is \[4, 3\]: {frames} frames cannot be stacked along axis {axis}"
    ):
        execution(doubling(4, 3), FakeDevice(), frames=frames, frames_axis=axis)


def test_state_does_not_count_as_frames(device: OrtDevice) -> None:
    """A recurrent model of four steps gives the same for four frames at once as for their stack."""
    model = NETWORKS["lstm"]()
    plain = execution(model, device, state=STATE)
    joined = execution(model, device, 1, state=STATE, frames=4)
    assert [(tensor.name, tensor.shape) for tensor in joined.frame_inputs] == [("sound", (1, 1, 10))]
    for frame in frames(model, 3, STATE):
        parts = [{"sound": part} for part in frame["sound"]]  # without their leading 1
        assert difference(plain.run(frame), joined.run(parts)) <= 1e-5


class Slow:
    """Anything that takes a millisecond of a fake device's time."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.calls = 0

    def __call__(self, given: object) -> object:
        """Let time pass."""
        self.calls += 1
        self.device.clock.sleep_until_ns(self.device.clock.now_ns() + 1_000_000)
        return given


def test_preparing_and_postprocessing_are_timed() -> None:
    """They count as part of the first and the last segment, and of nothing else."""
    device = FakeDevice(5_000_000)
    before, after = Slow(device), Slow(device)
    cut = execution(doubling(1, 3), device, 1, prepare={"x": before}, postprocess=after)
    assert [(tensor.shape, tensor.dtype) for tensor in cut.frame_inputs] == [(None, "")]
    for _ in range(2):
        cut.load({"x": np.zeros((1, 3), np.float32)})
        done = [cut.launch(index) for index in range(len(cut.parts))]
        assert len(done) > 2
        assert [launch.duration_ns for launch in done] == [6_000_000, *[5_000_000] * (len(done) - 2), 6_000_000]
        cut.finish()
    whole = execution(doubling(1, 3), device, prepare={"x": before}, postprocess=after)
    whole.load({"x": np.zeros((1, 3), np.float32)})
    assert whole.launch(0).duration_ns == 7_000_000
    assert (before.calls, after.calls) == (3, 3)


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("frames", [1, 2])
def test_raw_images(device: OrtDevice, step: int | None, frames: int) -> None:
    """A model with preprocess is loaded with raw images of any size; its input holds what they become."""
    one = TensorInfo(name="x", dtype="float32", shape=(1, 3, 2, 4))
    prepare = Preparation(Preprocess(mean=(100.0,), scale=0.5), one)
    cut = execution(doubling(frames, 3, 2, 4), device, step, frames=frames, prepare={"x": prepare})
    assert cut.frame_inputs == (prepare.raw,)
    random = np.random.default_rng(0)
    raws = [random.integers(0, 256, (2, 4, 3), np.uint8) for _ in range(frames)]
    found = cut.run([{"x": raw} for raw in raws])["y"]
    np.testing.assert_allclose(found, [(raw.transpose(2, 0, 1) - 100.0) for raw in raws], rtol=1e-5)
    assert cut.run([{"x": random.integers(0, 256, (20, 40, 3), np.uint8)}] * frames)["y"].shape == found.shape


def test_examples_can_be_loaded(device: OrtDevice) -> None:
    """Random frames for measuring: raw images of the typical size where the input is prepared."""
    one = TensorInfo(name="x", dtype="float32", shape=(1, 3, 2, 4))
    prepare = Preparation(Preprocess(), one, example=(20, 40, 3))
    cut = execution(doubling(2, 3, 2, 4), device, frames=2, prepare={"x": prepare})
    frames = cut.example(np.random.default_rng(0))
    assert [frame["x"].shape for frame in frames] == [(20, 40, 3)] * 2
    assert not np.array_equal(frames[0]["x"], frames[1]["x"])
    assert cut.run(frames)["y"].any()
    plain = execution(doubling(1, 3), device)
    (frame,) = plain.example(np.random.default_rng(0))
    np.testing.assert_allclose(plain.run(frame)["y"], 2 * frame["x"], rtol=1e-5)


@pytest.mark.parametrize("frames", [1, 2])
def test_a_disarmed_copy_goes_the_same_way_without_effect(frames: int) -> None:
    """It takes frames, small ones, and launches; neither the device nor the original's tensors notice."""
    b = GraphBuilder("stacked")
    b.output(b.op("Relu", b.input("x", (frames, 4))), "y")
    device = FakeDevice()
    original = execution(b.build(), device, frames=frames)
    original.load([{"x": np.full((1, 4), 7, np.float32)}] * frames)
    original.launch(0)
    launches = list(device.launches)
    stand_in = copy.copy(original)
    stand_in.disarm()
    (tensor,) = stand_in.frame_inputs
    stand_in.load([{"x": np.zeros(tensor.shape or (), np.float32)}] * frames)
    before = device.clock.now_ns()
    done = stand_in.launch(0)
    assert (done.started_ns, done.finished_ns) == (before, before)
    assert device.launches == launches
    assert (original._tensors[0]["x"] == 7).all()
    original.load([{"x": np.full((1, 4), 8, np.float32)}] * frames)
    original.launch(0)
    assert (original._tensors[0]["x"] == 8).all()
    assert len(device.launches) == 2


def test_preparing_what_is_no_input() -> None:
    """It is refused by name."""
    with pytest.raises(InputError, match="no input 'z'; inputs: x"):
        execution(doubling(1, 3), FakeDevice(), prepare={"z": lambda raw: raw})


def test_results_are_copies(device: OrtDevice) -> None:
    """Outputs of one frame stay what they are when the next one comes, all of them or those asked for."""
    cut = execution(doubling(1, 3), device, 1)
    taken = []
    for number in range(2):
        cut.load({"x": np.full((1, 3), number, np.float32)})
        for index in range(len(cut.parts)):
            cut.launch(index)
        taken.append((cut.results(), cut.results(["y"])))
        with pytest.raises(InputError, match="model 'doubling' has no output 'z'; outputs: same, y"):
            cut.results(["z"])
        cut.finish()
    for number, (every, some) in enumerate(taken):
        assert {name: array.ravel()[0] for name, array in every.items()} == {"same": number + 0.5, "y": 2 * number}
        assert {name: array.ravel()[0] for name, array in some.items()} == {"y": 2 * number}


@pytest.mark.parametrize("step", [None, 1])
def test_postprocessed_results(device: OrtDevice, step: int | None) -> None:
    """What the function makes of all outputs replaces them, also where it gives its arguments back."""

    def best(outputs: dict[str, np.ndarray]) -> dict[str, object]:
        return {"y": outputs["y"], "sum": outputs["same"].sum() - outputs["y"].sum()}

    cut = execution(doubling(1, 3), device, step, postprocess=best)
    taken = []
    for number in range(2):
        frame = {"x": np.full((1, 3), number, np.float32)}
        assert set(cut.run(frame)) == {"same", "y"}
        cut.load(frame)
        for index in range(len(cut.parts)):
            cut.launch(index)
        taken.append(cut.results())
        assert set(cut.results(["sum"])) == {"sum"}
        with pytest.raises(InputError, match="has no output 'same'; outputs: y, sum"):
            cut.results(["same"])
        cut.finish()
    assert [results["y"].ravel()[0] for results in taken] == [0, 2]
    assert [results["sum"].item() for results in taken] == [1.5, -1.5]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda outputs: outputs["z"], r"the function raised KeyError: 'z' \(test_execution\.py, line \d+\)"),
        (lambda _: 3, "the function returned int"),
        (lambda outputs: {1: outputs["y"]}, "the function returned dict"),
    ],
)
def test_functions_that_fail(function: object, message: str) -> None:
    """A failing function is told with the model's name and its place, and the device is not blamed."""
    whole = execution(doubling(1, 3), FakeDevice(), postprocess=function)
    whole.load({"x": np.zeros((1, 3), np.float32)})
    with pytest.raises(FramefitError, match=message) as found:
        whole.launch(0)
    assert type(found.value) is FramefitError
    assert found.value.where == "model 'doubling', postprocess"


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


# On several units ----------------------------------------------------------------------------


def on_units(device: OrtDevice | FakeDevice, model: Model, units: Sequence[int], **options: Any) -> Execution:
    """A model cut as soon as it may be, the last segment of all that is left, on the device's units."""
    names = [device.target.units[unit].name for unit in units]
    pieces = bounds(model)
    pieces[len(units) - 1 :] = [(pieces[len(units) - 1][0], pieces[-1][1])]
    return Execution(model, pieces, device, names, **options)


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("name", ["plain", "residual", "two_ends", "lstm", "passed_through"])
def test_stages_equal_the_whole(tmp_path: Path, name: str, slots: int) -> None:
    """Frame by frame, with as many frames on their way as may be, each stage one frame ahead of the next."""
    model, state = NETWORKS[name](), STATE if name == "lstm" else {}
    device = OrtDevice(MachineSettings(cores=(0, 1)), cache=tmp_path)
    whole = execution(model, device, state=state)
    count = min(3, len(bounds(model)))
    cut = on_units(device, model, [index % 2 for index in range(count)], state=state, slots=slots)
    assert cut.units == ("cpu0", "cpu1", "cpu0")[:count]
    inputs = list(frames(model, 7, state))
    expected = [whole.run(frame) for frame in inputs]
    stages, waiting, found = cut.stages(), list(inputs), []
    assert [len(stage.labels) for stage in stages] == [1] * count
    at: list[int | None] = [None] * count  # the frame that each stage is done with
    while len(found) < len(inputs):
        for number in reversed(range(count)):
            in_flight = sum(frame is not None for frame in at)
            if number and at[number - 1] is not None:
                at[number], at[number - 1] = at[number - 1], None
            elif not number and waiting and at[0] is None and in_flight < cut.slots:
                at[0] = len(inputs) - len(waiting)
                stages[0].load(waiting.pop(0))
            else:
                continue
            stages[number].launch(0)
            if number == count - 1:
                found.append(stages[-1].results())
                at[-1] = None
            stages[number].finish()
    for one, other in zip(found, expected, strict=True):
        assert greatest_difference(one, other) <= 1e-4


def test_what_crosses_stages_exists_once_a_slot() -> None:
    """Tensors of two frames never share memory there; within a stage they do, and all of it was planned."""
    model, device = chain(6, 16), FakeDevice(units=2)
    cut = on_units(device, model, [0, 0, 0, 1, 1, 1], slots=3)
    size = 4 * 16
    assert len(cut._tensors) == 3
    crossing = cut.parts[2].outputs[0].name
    for name in (crossing, model.inputs[0].name, model.outputs[0].name):
        assert not any(np.shares_memory(one[name], other[name]) for one, other in combinations(cut._tensors, 2))
    inner = cut.parts[0].outputs[0].name
    assert all(np.shares_memory(cut._tensors[0][inner], other[inner]) for other in cut._tensors)
    assert cut.unit_bytes == {"fake0": (3 + 3 + 2) * size, "fake1": (3 + 2) * size}
    assert cut.memory_bytes == allocated(cut)
    both = unit_bytes(model, cut.bounds, cut.units, {}, slots=3, separate=True)
    assert both == {"fake0": (3 + 3 + 2) * size, "fake1": (3 + 2 + 3) * size}


def allocated(cut: Execution) -> int:
    """Bytes of all memory behind its tensors."""
    blocks = {}
    for tensors in cut._tensors:
        for array in tensors.values():
            base = array
            while isinstance(base.base, np.ndarray):
                base = base.base
            blocks.setdefault(id(base), (base, []))[1].append(array)
    total = 0
    for _, arrays in blocks.values():
        begin = min(array.__array_interface__["data"][0] for array in arrays)
        end = max(array.__array_interface__["data"][0] + array.nbytes for array in arrays)
        total += end - begin
    return total


@pytest.mark.parametrize(("units", "slots"), [([0, 0, 0], 3), ([0, 0, 0, 1], 3), ([0, 0, 1], 1), ([0, 1, 0], 1)])
def test_state_that_a_later_stage_gives_allows_one_frame_in_flight(units: list[int], slots: int) -> None:
    """The next frame needs it; state that stays in one stage, or goes ahead, does not hold the others up."""
    b = GraphBuilder("counter")
    x = b.op("Add", b.input("x", (1, 16)), b.input("before", (1, 16)))
    after = b.op("Relu", x)
    b.output(after, "after")
    b.output(b.op("Neg", after), "negative")
    model = b.build()
    device = FakeDevice(units=2)
    cut = on_units(device, model, units, state={"before": "after"}, slots=3)
    assert cut.slots == slots
    assert cut.memory_bytes == allocated(cut)
