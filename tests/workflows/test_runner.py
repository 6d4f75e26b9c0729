"""Models on the beat inside a program: exact in virtual time, and for real."""

from __future__ import annotations

import asyncio
import csv
import itertools
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import pytest

from framefit import DeviceError, FramefitError, InfeasibleError, InputError, Plan, Runner, plan, simulate
from framefit.core.files import read_record
from framefit.core.model import GraphBuilder, TensorInfo
from framefit.core.program import read_program
from framefit.core.run_record import RunInfo
from framefit.core.workload import Preprocess
from framefit.devices.device import Array, Binding, Completion
from framefit.devices.npu.device import NpuDevice
from framefit.devices.ort import OrtDevice
from framefit.execution.prepare import Preparation
from framefit.runtime import session
from framefit.runtime.program import Output, Subscription, TimeUpError
from networks import difference
from workloads import listing, no_noise, stopping, write_app, write_models, write_target

FRAMES = 20
RATE_HZ = 80  # windows of 12.5 ms: shorter than the chain
IMAGES = np.random.default_rng(1).standard_normal((FRAMES, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, a board, and the images as a file."""
    folder = write_models(tmp_path_factory.mktemp("runner"))
    write_target(folder)
    np.savez(folder / "camera.npz", IMAGES)
    return folder


def on_board(folder: Path, **given: Any) -> Path:
    """An ``app.toml`` for the board; the guard follows from the segments."""
    keys: dict[str, Any] = {"rate_hz": RATE_HZ, "guard_ms": None, "schedule": "", "target": "target.toml"}
    return write_app(folder, **keys | given)


def two_streams(folder: Path, *, queue: int = 2, when_full: str = "drop-oldest") -> Path:
    """A camera for the priority model, and a scene for the background model."""
    text = on_board(folder).read_text()
    head, models = text.split("[[models]]", 1)
    head += f'queue = {queue}\nwhen_full = "{when_full}"\n[[streams]]\nname = "scene"\nqueue = 1\n[[models]]'
    small, chain = models.split("[[models]]")
    path = folder / f"two-{queue}-{when_full}.toml"
    path.write_text(f'{head}{small}inputs = {{ image = "camera" }}\n[[models]]{chain}inputs = {{ image = "scene" }}\n')
    return path


@pytest.fixture(scope="module")
def planned(folder: Path) -> Plan:
    """A small priority model, and a background model that had to be cut."""
    result = plan(on_board(folder))
    assert len(result.timetable.model("chain").segments) >= 2
    return result


def expected(folder: Path, model: str, image: Array) -> dict[str, Array]:
    """What ONNX Runtime says of the original file."""
    session = ort.InferenceSession(folder / f"{model}.onnx", providers=["CPUExecutionProvider"])
    return dict(zip(("pooled",), session.run(None, {"image": image[None]}), strict=True))


def submit_all(runner: Runner, images: Iterable[Array], **options: Any) -> None:
    """One after the other."""
    for image in images:
        runner.submit(image, **options)


def fates(runner: Runner) -> dict[tuple[str, int], tuple[str, str]]:
    """Of the result: model and frame -> fate and reason; each has one."""
    frames = list(runner.result().frames)
    found = {(one.model, one.frame): (one.fate, one.reason) for one in frames}
    assert len(found) == len(frames)
    return found


def test_a_loop_gets_what_the_models_give(planned: Plan, folder: Path) -> None:
    """Outputs are those of the original files, of the frame whose number they carry, each model's in order."""
    outputs: list[Output] = []
    with Runner(planned, virtual=True) as runner:
        for number, image in enumerate(IMAGES):
            assert runner.submit(image) == number
            outputs += runner.outputs()
        assert list(runner.outputs()) == []
    outputs += runner.outputs()
    for name in ("small", "chain"):
        frames = [one.frame for one in outputs if one.model == name]
        assert frames == sorted(set(frames))
        done = [frame for (model, frame), (fate, _) in fates(runner).items() if model == name and fate == "done"]
        assert frames == sorted(done)
        assert len(frames) > FRAMES / 3
    for one in outputs:
        assert difference(expected(folder, one.model, IMAGES[one.frame]), dict(one.tensors)) <= 1e-4
        assert one.frames == (one.frame,)
        assert one.submitted_ns is not None
        assert one.submitted_ns <= one.released_ns <= one.started_ns < one.finished_ns
    assert [one.frame for one in outputs if one.model == "small"] == list(range(FRAMES))


def test_it_runs_as_a_run_does(planned: Plan, folder: Path, tmp_path: Path) -> None:
    """The same frames from a file, simulated: every launch and every fate is the same to the nanosecond."""
    simulated = simulate(
        plan(on_board(folder, stream='source = "camera.npz"')), outputs=True, windows=FRAMES, output=tmp_path / "out"
    )
    with Runner(planned, virtual=True, drain=False) as runner:
        for image in IMAGES:
            runner.submit(image)
    result = runner.result()
    assert result.frames == simulated.frames
    (stream,) = result.metrics.streams
    assert stream.waited_ns is not None  # in a file they do not wait
    assert stream.waited_ns.count == FRAMES
    streams = (msgspec.structs.replace(stream, waited_ns=None),)
    assert msgspec.structs.replace(result.metrics, streams=streams) == simulated.metrics
    begin, other = result.releases_ns[0], simulated.releases_ns[0]
    np.testing.assert_array_equal(result.launches.submit_ns - begin, simulated.launches.submit_ns - other)
    np.testing.assert_array_equal(result.launches.frame, simulated.launches.frame)


def test_a_test_is_exact(planned: Plan) -> None:
    """Two virtual runs of one plan and seed are the same."""
    seen = []
    for _ in range(2):
        with Runner(planned, virtual=True, seed=3) as runner:
            for image in IMAGES[:8]:
                runner.submit(image)
        seen.append([(one.model, one.frame, one.finished_ns) for one in runner.outputs()])
    assert seen[0] == seen[1]
    assert len(seen[0]) >= 12


def test_a_window_without_a_frame_is_empty(planned: Plan) -> None:
    """It is no miss; background work goes on in it."""
    with Runner(planned, virtual=True) as runner:
        runner.submit(IMAGES[0])
        assert [one.model for one in runner.outputs()] == ["small"]
        assert runner.fate(0)["chain"].fate == "waiting"
        runner.step(3)
        assert [(one.model, one.frame) for one in runner.outputs()] == [("chain", 0)]
        runner.submit(IMAGES[1])
        assert [(one.model, one.frame) for one in runner.outputs()] == [("small", 1)]
        small, chain = runner.metrics().models
    assert (small.releases, small.completed, small.missed) == (2, 2, 0)
    assert chain.missed == 0
    result = runner.result()
    assert result.metrics.windows > 4
    assert result.metrics.misses == ()
    (camera,) = result.metrics.streams
    assert (camera.received, camera.dropped, camera.waited_windows) == (2, 0, 0)


def test_a_frame_is_taken_when_the_next_window_begins(planned: Plan) -> None:
    """Windows keep their beat whenever frames come; a frame's deadline counts from the window that took it."""
    with Runner(planned, virtual=True) as runner:
        for gap in (0, 1, 4):
            runner.step(gap)
            runner.submit(IMAGES[0])
        starts = [one.released_ns for one in runner.outputs() if one.model == "small"]
    window_ns = 1_000_000_000 // RATE_HZ
    assert [(start - starts[0]) / window_ns for start in starts] == [0, 2, 7]


@pytest.mark.parametrize(
    ("rule", "taken", "reason"),
    [("drop-oldest", [2, 3], "a newer frame was submitted"), ("drop-newest", [0, 1], "others waited")],
)
def test_more_frames_than_windows(rule: str, taken: list[int], reason: str, folder: Path) -> None:
    """One frame a window; the others wait as far as the stream's queue goes. What gives way is dropped, not missed."""
    with Runner(two_streams(folder, when_full=rule), virtual=True) as runner:
        assert [runner.submit(image, "camera") for image in IMAGES[:4]] == [0, 1, 2, 3]
        assert runner.fate(taken[0], "camera") == {"small": ("waiting", "")}
        runner.submit(IMAGES[0], "scene")
        assert [one.frame for one in runner.outputs() if one.model == "small"] == taken[:1]
        runner.step()
        outputs = [one for one in runner.outputs() if one.model == "small"]
        assert [one.frame for one in outputs] == taken[1:]
        np.testing.assert_allclose(
            outputs[0].tensors["pooled"], expected(folder, "small", IMAGES[taken[1]])["pooled"], rtol=1e-4
        )
        for number in set(range(4)).difference(taken):
            fate = runner.fate(number, "camera")["small"]
            assert fate.fate == "dropped"
            assert reason in fate.reason
    assert {fates(runner)["small", number][0] for number in taken} == {"done"}
    small = runner.result().metrics.models[0]
    assert (small.releases, small.completed, small.missed) == (2, 2, 0)
    camera, scene = runner.result().metrics.streams
    assert (camera.received, camera.dropped) == (4, 2)
    assert (scene.received, scene.dropped) == (1, 0)


def test_a_stream_that_waits_loses_nothing(folder: Path) -> None:
    """Handing a frame over takes as long as the slowest model needs; every frame is done, by every model."""
    with Runner(on_board(folder, stream='queue = 1\nwhen_full = "block"'), virtual=True) as runner:
        submit_all(runner, IMAGES[:8])
        with pytest.raises(TimeUpError, match="frames wait already"):
            submit_all(runner, IMAGES, timeout=0.001)
        count = next(number for number in itertools.count() if number not in submitted(runner))
    assert set(fates(runner)) == {(model, number) for model in ("small", "chain") for number in range(count)}
    assert {fate for fate, _ in fates(runner).values()} == {"done"}
    assert runner.result().metrics.streams[0].waited_windows > 0


def submitted(runner: Runner) -> set[int]:
    """Numbers that are known."""
    found = set()
    for number in itertools.count():
        try:
            runner.fate(number)
        except InputError:
            return found
        found.add(number)
    return found


def test_the_end_finishes_what_was_submitted_or_gives_it_up(planned: Plan) -> None:
    """``drain`` decides; either way every frame has its fate, and the program may ask for it."""
    for drain in (True, False):
        with Runner(planned, virtual=True, drain=drain) as runner:
            for image in IMAGES[:5]:
                runner.submit(image)
        found = fates(runner)
        assert set(found) == {(model, number) for model in ("small", "chain") for number in range(5)}
        ended = [key for key, (_, reason) in found.items() if reason == "the run ended"]
        assert bool(ended) == (not drain)
        for (model, number), fate in found.items():
            assert runner.fate(number)[model] == fate
        assert not runner.result().interrupted


def test_results_that_nobody_takes_give_way(planned: Plan) -> None:
    """The oldest of each model; how many there were is told when later ones are read."""
    with Runner(planned, virtual=True, keep=3) as runner:
        for image in IMAGES[:10]:
            runner.submit(image)
        assert [one.frame for one in runner.outputs() if one.model == "small"] == [7, 8, 9]
        assert runner.dropped == 7 + len([one for one in fates_so_far(runner, "chain") if one == "done"]) - 3
        assert list(runner.outputs()) == []


def test_results_for_nobody(planned: Plan) -> None:
    """Without a queue for all, only subscriptions get results; fates are known all the same."""
    with Runner(planned, virtual=True, keep=0) as runner:
        small = runner.subscribe("small")
        runner.submit(IMAGES[0])
        assert list(runner.outputs()) == []
        assert [one.frame for one in small.outputs()] == [0]
        assert runner.fate(0)["small"] == ("done", "")


def fates_so_far(runner: Runner, model: str) -> list[str]:
    """Of all frames that were submitted."""
    return [runner.fate(number)[model].fate for number in sorted(submitted(runner))]


def test_several_receivers(planned: Plan) -> None:
    """Each has a queue and arrays of its own; one that sleeps loses the oldest and holds nobody up."""
    with Runner(planned, virtual=True) as runner:
        busy, slow = runner.subscribe("small"), runner.subscribe("small", ["pooled"], queue=2)
        seen: list[int] = []
        for image in IMAGES[:6]:
            runner.submit(image)
            for one, other in zip(busy.outputs(), runner.outputs(), strict=False):
                one.tensors["pooled"].fill(7)  # its own
                assert not (other.tensors["pooled"] == 7).any()
                seen.append(one.frame)
        assert seen == [0, 1, 2, 3, 4, 5]
        assert (busy.dropped, slow.dropped) == (0, 0)
        assert [(one.frame, list(one.tensors)) for one in slow.outputs()] == [(4, ["pooled"]), (5, ["pooled"])]
        assert slow.dropped == 4
        slow.close()
        with runner.subscribe("chain") as chain:
            while (found := chain.wait(timeout=1.0)) is not None and found.frame < 3:
                assert found.model == "chain"
        runner.submit(IMAGES[6])
        assert list(slow.outputs()) == []
        assert slow.wait() is None
        assert [one.frame for one in busy.outputs()] == [6]


def test_a_receiver_may_wait(planned: Plan) -> None:
    """Time passes until the next result, or no longer than it is given; nothing comes where nothing is at work."""
    with Runner(planned, virtual=True) as runner:
        chain = runner.subscribe("chain")
        runner.submit(IMAGES[0])
        assert chain.wait(timeout=0.001) is None
        found = chain.wait()
        assert found is not None
        assert found.frame == 0
        assert chain.wait() is None
        runner.submit(IMAGES[1])
        assert [one.frame for one in chain] == [1]
        assert [one.model for one in (runner.wait(), runner.wait()) if one is not None] == ["small", "chain"]


def test_a_request_gets_its_own_result(planned: Plan, folder: Path) -> None:
    """What was made of that very frame, by the models that are asked, whatever others submit and take."""
    with Runner(planned, virtual=True) as runner:
        runner.submit(IMAGES[0])
        first = runner.request(IMAGES[1], models=["small"])
        second = runner.request(IMAGES[2])
        assert first.done
        assert list(first.result()) == ["small"]
        assert not second.done
        with pytest.raises(TimeUpError, match="frame 2 is not done"):
            second.result(timeout=0.001)
        found = second.result()
        assert {name: one.frame for name, one in found.items()} == {"small": 2, "chain": 2}
        for name, one in found.items():
            assert difference(expected(folder, name, IMAGES[2]), dict(one.tensors)) <= 1e-4
        doomed = [runner.request(image, models=["chain"]) for image in IMAGES]
        lost = [one for one in doomed if runner.fate(one.number)["chain"].fate == "dropped"]
        with pytest.raises(FramefitError, match=f"frame {lost[0].number} was dropped: a newer frame"):
            lost[0].result()


def test_stacks_and_postprocess(folder: Path, tmp_path: Path) -> None:
    """As in a run: the function's result replaces the outputs, and stacks come whole, the rest at the end."""
    (folder / "doubling.py").write_text("def double(outputs):\n    return {'twice': 2 * outputs['pooled']}\n")
    app = on_board(
        folder,
        background=(),
        model='aggregate = 4\npostprocess = "doubling:double"',
        more='[[outputs]]\nmodel = "small"\nsink = "stacked.jsonl"\n',
    )
    with Runner(app, virtual=True, force=True) as runner:
        request = runner.request(IMAGES[0])
        for image in IMAGES[1:10]:
            runner.submit(image)
        outputs = list(runner.outputs())
        assert request.result()["small"].tensors["twice"].shape == (1, 8, 1, 1)
        absent = runner.subscribe("small", ["pooled"])
        runner.submit(IMAGES[10])
        with pytest.raises(InputError, match="gave no output 'pooled'; it gave: twice"):
            list(absent.outputs())
    outputs += runner.outputs()
    assert [one.frames for one in outputs] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10)]
    assert [one.tensors["twice"].shape for one in outputs] == [(4, 1, 8, 1, 1)] * 2 + [(3, 1, 8, 1, 1)]
    for one in outputs:
        for index, number in enumerate(one.frames):
            twice = {"pooled": one.tensors["twice"][index] / 2}
            assert difference(expected(folder, "small", IMAGES[number]), twice) <= 1e-4
    assert len((folder / "stacked.jsonl").read_text().splitlines()) == 3


def test_frames_that_do_not_fit_are_refused_at_once(planned: Plan) -> None:
    """The run goes on; a frame that was refused has no number."""
    with Runner(planned, virtual=True) as runner:
        for frame in (np.zeros((3, 16, 15)), "picture", np.zeros((3, 16, 16), np.complex64), {"camera": None}):
            with pytest.raises(InputError, match="camera") as error:
                runner.submit(frame)
            assert error.value.remedy
        with pytest.raises(InputError, match="no stream 'kamera'; frames are taken for: camera"):
            runner.submit(IMAGES[0], "kamera")
        with pytest.raises(InputError, match="no model 'face'; models: small, chain"):
            runner.subscribe("face")
        with pytest.raises(InputError, match="no output 'boxes'; outputs: pooled"):
            runner.subscribe("small", ["boxes"])
        with pytest.raises(InputError, match="no frame 0: 0 were submitted"):
            runner.fate(0)
        with pytest.raises(InputError, match="the run goes on"):
            runner.result()
        assert runner.submit(IMAGES[0].astype(np.float64)) == 0
        assert [one.frame for one in runner.outputs()] == [0]
    with pytest.raises(FramefitError, match="the run has ended"):
        runner.submit(IMAGES[0])
    with pytest.raises(InputError, match="has run"), runner:
        pass


def test_before_the_beginning(planned: Plan) -> None:
    """Nothing can be asked of a runner outside of its block."""
    runner = Runner(planned, virtual=True)
    for ask in (lambda: runner.submit(IMAGES[0]), runner.outputs, runner.metrics, runner.wait, runner.step):
        with pytest.raises(InputError, match="has not begun"):
            ask()


def test_the_program_may_change_its_array(planned: Plan, folder: Path) -> None:
    """A frame is copied, unless it is given away."""
    buffer = np.empty((3, 16, 16), np.float32)
    with Runner(planned, virtual=True) as runner:
        for image in IMAGES[:10]:  # the chain falls behind
            buffer[:] = image
            runner.submit(buffer)
        runner.submit(IMAGES[10], copy=False)
    for one in runner.outputs():
        assert difference(expected(folder, one.model, IMAGES[one.frame]), dict(one.tensors)) <= 1e-4


def test_images_are_prepared(folder: Path) -> None:
    """Raw images of the size that the plan was made for; where the stream has another source, of any size."""
    preprocess = Preprocess(size=(16, 16), mean=(7.0,), scale=0.5)
    pictures = np.random.default_rng(2).integers(0, 256, (3, 20, 24, 3), np.uint8)
    keys = "preprocess = { size = [16, 16], mean = [7], scale = 0.5 }"
    prepare = Preparation(preprocess, TensorInfo(name="image", dtype="float32", shape=(1, 3, 16, 16)))
    (folder / "nobody.py").write_text("def frames():\n    raise AssertionError('called')\n")
    for stream, refused in (("shape = [20, 24, 3]", (16, 16, 3)), ('source = "nobody:frames"', (16, 16, 2))):
        app = on_board(folder, background=(), model=keys, stream=stream)
        with Runner(app, virtual=True, submitted=["camera"]) as runner:
            for picture in pictures:
                runner.submit(picture[..., ::-1])
            with pytest.raises(InputError, match="frame"):
                runner.submit(np.zeros(refused, np.uint8))
            outputs = list(runner.outputs())
        assert [one.frame for one in outputs] == [0, 1, 2]
        for one in outputs:
            image = prepare(np.ascontiguousarray(pictures[one.frame][..., ::-1]))
            assert difference(expected(folder, "small", image[0]), dict(one.tensors)) <= 1e-4


def test_several_frames_at_once(folder: Path) -> None:
    """A result tells all frames that went into it; each of them is done, and each request gets it."""
    app = on_board(folder, background=["chain"], last="frames = 2\nframes_axis = 2")
    halves = IMAGES[:, :, :8]
    text = app.read_text().replace('name = "small"', 'name = "small"\nframes = 2\nframes_axis = 2')
    app.write_text(text)
    with Runner(app, virtual=True) as runner:
        first = runner.request(halves[0], models=["small"])
        for half in halves[1:6]:
            runner.submit(half)
        outputs = [one for one in runner.outputs() if one.model == "small"]
        assert first.result()["small"].frames == (0, 1)
    assert [(one.frame, one.frames) for one in outputs] == [(1, (0, 1)), (3, (2, 3)), (5, (4, 5))]
    for one in outputs:
        image = np.concatenate([halves[number] for number in one.frames], axis=1)
        assert difference(expected(folder, "small", image), dict(one.tensors)) <= 1e-4


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with a model that reads two streams, and its ``pair.toml``."""
    b = GraphBuilder("pair", 1)
    left, right = b.input("left", (1, 3, 16, 16)), b.input("right", (1, 3, 16, 16))
    b.output(b.op("GlobalAveragePool", b.op("Sub", left, right)), "pooled")
    b.build().save(tmp_path / "pair.onnx")
    write_target(tmp_path)
    (tmp_path / "pair.toml").write_text(
        'schema_version = 1\ntarget = "target.toml"\nrate_hz = 80\n[[streams]]\nname = "left"\n[[streams]]\n'
        'name = "right"\n[[models]]\nname = "pair"\npath = "pair.onnx"\npriority = "every-window"\n'
        'inputs = { left = "left", right = "right" }\n'
    )
    return tmp_path


def test_streams_that_one_model_reads_come_together(pair: Path) -> None:
    """They are submitted as a dict, under one number; one without the other is refused."""
    with Runner(pair / "pair.toml", virtual=True) as runner:
        for number in range(4):
            assert runner.submit({"right": IMAGES[number], "left": IMAGES[number + 1]}) == number
        for frame in ({"left": IMAGES[0]}, {"left": IMAGES[0], "middle": IMAGES[0]}):
            with pytest.raises(InputError, match="models read 'left', 'right' together"):
                runner.submit(frame)
        with pytest.raises(InputError, match="which stream"):
            runner.submit(IMAGES[0])
        for one in runner.outputs():
            found = one.tensors["pooled"].ravel()
            np.testing.assert_allclose(
                found, (IMAGES[one.frame + 1] - IMAGES[one.frame]).mean((1, 2)), rtol=1e-3, atol=1e-6
            )
    assert len(runner.result().frames) == 4


def test_a_file_that_ends_beside_submitted_frames(pair: Path) -> None:
    """A frame that came without one from the file is accounted for, in the result as when it is asked for."""
    np.savez(pair / "right.npz", IMAGES[:3])
    text = (pair / "pair.toml").read_text().replace('name = "right"', 'name = "right"\nsource = "right.npz"')
    (pair / "pair.toml").write_text(text)
    with Runner(pair / "pair.toml", virtual=True) as runner:
        submit_all(runner, IMAGES[:3])
        with pytest.raises(FramefitError, match="the run has ended"):
            submit_all(runner, IMAGES[3:])
        assert [one.frame for one in runner.outputs()] == [0, 1, 2]
    assert fates(runner)["pair", 3] == runner.fate(3)["pair"] == ("dropped", "the run ended")
    assert set(fates(runner)) == {("pair", number) for number in submitted(runner)}


def test_streams_with_sources_of_their_own_go_on_beside(folder: Path) -> None:
    """A file's frames come in every window; only the named stream takes any, and the file's end ends the run."""
    text = two_streams(folder).read_text().replace('name = "scene"', 'name = "scene"\nsource = "camera.npz"')
    (folder / "beside.toml").write_text(text)
    with Runner(folder / "beside.toml", virtual=True) as runner:
        runner.submit(IMAGES[3])
        runner.step(4)
        with pytest.raises(InputError, match="stream 'scene' has a source of its own; frames are taken for: camera"):
            runner.submit(IMAGES[0], "scene")
        outputs = list(runner.outputs())
        assert [one.frame for one in outputs if one.model == "small"] == [0]
        scene = [one for one in outputs if one.model == "chain"]
        assert scene
        assert {one.submitted_ns for one in scene} == {None}
        for one in scene:
            assert difference(expected(folder, "chain", IMAGES[one.frame]), dict(one.tensors)) <= 1e-4
        runner.step(FRAMES)
        with pytest.raises(FramefitError, match="the run has ended"):
            runner.submit(IMAGES[0])
    assert runner.result().metrics.windows == FRAMES
    with Runner(folder / "beside.toml", virtual=True, submitted=[]) as runner:
        with pytest.raises(InputError, match="no stream takes frames"):
            runner.submit(IMAGES[0])
        runner.step(2)
        assert {one.model for one in runner.outputs()} == {"small", "chain"}
    with (
        pytest.raises(InputError, match="no stream 'sound'; streams: camera, scene"),
        Runner(folder / "beside.toml", virtual=True, submitted=["sound"]),
    ):
        pass


def test_a_run_folder(folder: Path, tmp_path: Path) -> None:
    """It is what a run leaves, with the numbers that frames were submitted under."""
    more = '[[outputs]]\nmodel = "small"\nsink = "kept.npz"\n'
    app = two_streams(folder)
    (folder / "kept.toml").write_text(app.read_text() + more)
    with Runner(folder / "kept.toml", virtual=True, output=tmp_path / "out", force=True) as runner:
        for _ in range(3):
            for image in IMAGES[:4]:
                runner.submit(image, "camera")
            runner.submit(IMAGES[0], "scene")
            runner.step(3)
    result = runner.result()
    assert result.folder == tmp_path / "out"
    info = read_record(tmp_path / "out" / "run.json", RunInfo)
    assert (info.interrupted, info.error) == (False, None)
    with (tmp_path / "out" / "frames.csv").open() as file:
        rows = list(csv.DictReader(file))
    small = {int(row["frame"]): row for row in rows if row["model"] == "small"}
    assert sorted(small) == list(range(12))
    done = [number for number, row in sorted(small.items()) if row["fate"] == "done"]
    assert done == [2, 3, 6, 7, 10, 11]
    assert {row["reason"] for row in small.values()} == {"", "a newer frame was submitted before a window took it"}
    with np.load(folder / "kept.npz") as archive:
        assert archive["frame"].tolist() == done
    _, launches = read_program(tmp_path / "out" / "program.json")
    assert launches is not None
    assert launches.frame[launches.program == 0].tolist() == done
    assert runner.result().profile is not None


def failing(patch: pytest.MonkeyPatch, device: type, launches: int) -> None:
    """Let a device fail after so many launches of the run."""
    left, submit = [launches], device.submit

    def fail(self: Any, binding: Binding) -> Completion:
        if left[0] == 0:
            raise DeviceError("the device is gone")
        left[0] -= 1
        done: Completion = submit(self, binding)
        return done

    patch.setattr(device, "submit", fail)


def test_a_device_that_fails_is_reported(planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results until then are given; then whoever submits, reads or leaves gets its error, and the folder says so."""
    failing(monkeypatch, NpuDevice, 5)

    def loop(runner: Runner) -> None:
        with pytest.raises(DeviceError, match="gone"):
            submit_all(runner, IMAGES)
        with pytest.raises(DeviceError, match="gone"):
            list(iter(runner.wait, None))
        with pytest.raises(DeviceError, match="gone"):
            list(runner.outputs())
        submit_all(runner, IMAGES)

    with (
        pytest.raises(DeviceError, match="gone"),
        Runner(stopping(planned), virtual=True, output=tmp_path / "out") as runner,
    ):
        loop(runner)
    info = read_record(tmp_path / "out" / "run.json", RunInfo)
    assert "the device is gone" in (info.error or "")
    assert not info.interrupted
    counts = Counter(fate for fate, _ in fates(runner).values())
    assert counts["done"] >= 1
    assert counts["dropped"] >= 1


def test_a_device_that_failed_unnoticed(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that swallowed the error gets it at the end; one that fails itself gets a note."""
    failing(monkeypatch, NpuDevice, 1)

    def swallow(runner: Runner) -> None:
        with pytest.raises(DeviceError):
            submit_all(runner, IMAGES[:3])

    def fail_too(runner: Runner) -> None:
        swallow(runner)
        raise ValueError("of the program's own")

    with pytest.raises(DeviceError, match="gone"), Runner(stopping(planned), virtual=True) as runner:
        swallow(runner)
    monkeypatch.undo()
    failing(monkeypatch, NpuDevice, 1)
    with pytest.raises(ValueError, match="own") as error, Runner(stopping(planned), virtual=True) as runner:
        fail_too(runner)
    assert "the device is gone" in error.value.__notes__[0]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_of_the_program_ends_the_run(kind: type[BaseException], planned: Plan, tmp_path: Path) -> None:
    """At once, with all that happened saved; the exception goes on as it is."""

    def stop(runner: Runner) -> None:
        submit_all(runner, IMAGES[:4])
        raise kind("stop")

    with pytest.raises(kind, match="stop"), Runner(planned, virtual=True, output=tmp_path / "out") as runner:
        stop(runner)
    assert read_record(tmp_path / "out" / "run.json", RunInfo).interrupted
    assert set(fates(runner)) == {(model, number) for model in ("small", "chain") for number in range(4)}
    assert "the run ended" in {reason for _, reason in fates(runner).values()}


def test_ctrl_c_while_frames_are_finished(planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given up, everything is saved, and the interrupt goes on."""
    join, left = threading.Thread.join, [1]

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        join(thread, timeout)

    def leave(runner: Runner) -> None:
        submit_all(runner, IMAGES[:4])
        monkeypatch.setattr(threading.Thread, "join", interrupted)

    with pytest.raises(KeyboardInterrupt), Runner(planned, virtual=True, output=tmp_path / "out") as runner:
        leave(runner)
    assert read_record(tmp_path / "out" / "run.json", RunInfo).interrupted
    assert set(fates(runner)) == {(model, number) for model in ("small", "chain") for number in range(4)}


def test_what_cannot_begin(planned: Plan, folder: Path, tmp_path: Path) -> None:
    """A plan that does not fit, a folder that exists, a target of the wrong time: refused, and nothing left behind."""
    threads = threading.active_count()
    (tmp_path / "there").mkdir()
    infeasible = on_board(folder, model="deadline_ms = 0.001")
    for runner, kind, says in (
        (Runner(infeasible, virtual=True), InfeasibleError, "deadline"),
        (Runner(planned), InputError, "virtual time"),
        (Runner(planned, virtual=True, output=tmp_path / "there"), InputError, "already exists"),
        (Runner(planned, virtual=True, seed=-1), InputError, "seed -1"),
        (Runner(planned, virtual=True, keep=-1), InputError, "holds nothing"),
        (Runner(folder / "absent.toml"), InputError, "absent"),
    ):
        with pytest.raises(kind, match=says), runner:
            pass
    for apps, says in (((), "no application"), ((planned, "other.toml"), "a plan beside another")):
        with pytest.raises(InputError, match=says):
            Runner(*apps)  # type: ignore[arg-type]
    assert list(listing(tmp_path)) == ["there"]
    assert threading.active_count() == threads


# With asyncio ------------------------------------------------------------------------------------


def test_a_program_of_asyncio_awaits_results(planned: Plan, folder: Path) -> None:
    """Requests and subscriptions wait beside each other; outputs are those of the original files."""

    async def program(runner: Runner) -> tuple[dict[str, Output], list[Output]]:
        async def follow() -> list[Output]:
            taken = []
            async for output in runner.subscribe("small", queue=100):
                taken.append(output)
                if len(taken) == 3:
                    break
            return taken

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        answers = [await runner.request(image, models=["small"]) for image in IMAGES[:3]]
        return answers[2], await following

    with Runner(planned, virtual=True) as runner:
        answer, taken = asyncio.run(program(runner))
    assert [output.frame for output in taken] == [0, 1, 2]
    assert answer["small"].frame == 2
    assert difference(expected(folder, "small", IMAGES[2]), dict(answer["small"].tensors)) <= 1e-4


def test_a_cancelled_wait_loses_nothing(planned: Plan) -> None:
    """What comes afterwards is read by the next one; the end of the run ends a loop."""

    async def program(runner: Runner, subscription: Subscription) -> list[int]:
        async def frames() -> list[int]:
            return [output.frame async for output in subscription]

        waiting = asyncio.create_task(frames())
        await asyncio.sleep(0.01)
        waiting.cancel()
        for image in IMAGES[:2]:
            runner.submit(image)
        runner.step(4)
        subscription.close()
        return await frames()

    with Runner(planned, virtual=True) as runner:
        assert asyncio.run(program(runner, runner.subscribe("small", queue=100))) == [0, 1]


# For real ----------------------------------------------------------------------------------------


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan with durations that follow from the layers."""
    no_noise(monkeypatch)


@pytest.mark.timed
@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("preemption", ["auto", "never"])
def test_threads_of_a_program_share_a_runner(preemption: str, folder: Path) -> None:
    """Several submit while others take: each frame has one fate and its own result, and outputs are right."""
    app = write_app(folder, rate_hz=100, guard_ms=None, schedule=f'preemption = "{preemption}"', stream="queue = 4")
    numbers: dict[int, int] = {}
    taken: list[Output] = []
    with Runner(app) as runner:
        chain = runner.subscribe("chain", queue=100)

        def submit(first: int) -> None:
            for index in range(first, FRAMES, 2):
                request = runner.request(IMAGES[index], models=["small"])
                numbers[request.number] = index
                try:
                    answers.append((index, request.result(timeout=20)["small"]))
                except FramefitError:
                    assert runner.fate(request.number)["small"].fate == "dropped"

        def take() -> None:
            taken.extend(chain)

        answers: list[tuple[int, Output]] = []
        threads = [threading.Thread(target=submit, args=(first,)) for first in range(2)]
        reader = threading.Thread(target=take)
        for thread in (reader, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        live = runner.metrics()
    reader.join()
    assert sorted(numbers) == list(range(FRAMES))
    assert set(fates(runner)) == {(model, number) for model in ("small", "chain") for number in range(FRAMES)}
    assert answers
    for index, one in answers:
        assert numbers[one.frame] == index
        assert difference(expected(folder, "small", IMAGES[index]), dict(one.tensors)) <= 1e-4
    done = [number for (model, number), (fate, _) in fates(runner).items() if model == "chain" and fate != "dropped"]
    assert [one.frame for one in taken] == sorted(done)
    for one in taken:
        assert difference(expected(folder, "chain", IMAGES[numbers[one.frame]]), dict(one.tensors)) <= 1e-4
    assert live.models[0].completed <= runner.result().metrics.models[0].completed


@pytest.mark.timed
@pytest.mark.usefixtures("_quiet")
def test_a_run_folder_of_a_real_run(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Launches are measured before and after, as in a run; the program has its cores again at the end."""
    before = os.sched_getaffinity(0)
    app = write_app(folder, rate_hz=100, guard_ms=None, background=())
    with caplog.at_level(logging.WARNING), Runner(app, output=tmp_path / "out") as runner:
        during = os.sched_getaffinity(0)
        runner.request(IMAGES[0]).result(timeout=20)
        assert runner.wait(timeout=20) is not None
        assert runner.wait(timeout=0.02) is None
    assert during == (before - {max(before)} or before)
    assert bool(caplog.messages) == (len(before) == 1)
    assert os.sched_getaffinity(0) == before
    assert runner.result().metrics.floor_release_to_start_ns.count == session._LEAST_FLOOR
    assert (tmp_path / "out" / "metrics.json").exists()


@pytest.mark.timed
@pytest.mark.usefixtures("_quiet")
def test_a_processor_that_fails_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is woken, with the error; so is whoever leaves."""
    app = write_app(folder, rate_hz=100, guard_ms=None, background=(), model='on_error = "stop"')

    def arm(message: str) -> None:
        if message == "running":
            failing(monkeypatch, OrtDevice, 2)

    def ask(runner: Runner) -> None:
        for image in IMAGES[:3]:
            runner.request(image).result(timeout=20)

    with pytest.raises(DeviceError, match="gone"), Runner(app, notify=arm) as runner:
        ask(runner)


@pytest.mark.timed
@pytest.mark.usefixtures("_quiet")
def test_real_time_passes_by_itself(folder: Path) -> None:
    """It cannot be virtual on this machine's processor, and nobody lets it pass."""
    app = write_app(folder, rate_hz=100, guard_ms=None, background=())
    with pytest.raises(InputError, match="its time is real"), Runner(app, virtual=True):
        pass
    with Runner(app) as runner, pytest.raises(InputError, match="time is real"):
        runner.step()
