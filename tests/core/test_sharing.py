"""Several applications on one runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from framefit import InputError, Runner
from framefit.core.workload import DeviceOptions, MachineSettings, UnitEntry, load_workload
from framefit.core.workload_merge import Shared, shared
from workloads import write_app, write_models, write_target

IMAGES = np.random.default_rng(1).standard_normal((6, 3, 16, 16)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models and a board."""
    write_target(write_models(tmp_path))
    return tmp_path


def app(folder: Path, name: str, **keys: Any) -> Path:
    """An ``app.toml`` under another name."""
    given: dict[str, Any] = {"rate_hz": 80, "guard_ms": None, "schedule": "", "target": "target.toml"}
    path = folder / f"{name}.toml"
    write_app(folder, **given | keys).rename(path)
    return path


def together(*apps: Path) -> Shared:
    """Their workloads as one."""
    return shared([(path, load_workload(path)) for path in apps])


def test_one_application_is_as_it_is(folder: Path) -> None:
    """Nothing is changed where nothing is shared."""
    path = app(folder, "a")
    assert together(path).workload == load_workload(path)


def test_a_model_that_two_need_is_there_once(folder: Path) -> None:
    """By its file and what it reads, not by its name; the stricter of what both ask for holds."""
    (folder / "copied.onnx").write_bytes((folder / "small.onnx").read_bytes())
    one = app(folder, "a", model="every = 4\ndeadline_ms = 9", stream="queue = 4")
    two = app(
        folder,
        "b",
        priority=["copied:3"],
        background=["chain:7"],
        model="every = 6\ndeadline_ms = 7\nlatency_sensitive = true",
        stream='queue = 3\nwhen_full = "block"',
    )
    found = together(one, two)
    (camera,) = found.workload.streams
    assert (camera.queue, camera.when_full) == (3, "block")
    face, chain = found.workload.models
    assert (face.name, face.priority, face.every, face.deadline_ms) == ("small", "every-window", 2, 7)
    assert face.latency_sensitive is True
    assert (chain.name, chain.priority) == ("chain", 7)
    assert found.names == ({"small": "small", "chain": "chain"}, {"copied": "small", "chain": "chain"})


def test_a_slower_application_keeps_its_rate(folder: Path) -> None:
    """The fastest beat holds; a model of half that rate takes every second frame."""
    found = together(app(folder, "a", background=()), app(folder, "b", priority=(), rate_hz=40, last="every = 3"))
    assert found.workload.beat_hz == 80
    assert {model.name: model.every for model in found.workload.models} == {"small": 1, "chain": 6}
    with pytest.raises(InputError, match="'camera' has 50 Hz, which does not divide the other application's 80 Hz"):
        together(app(folder, "a"), app(folder, "b", rate_hz=50))


def test_streams_keep_their_rates(folder: Path) -> None:
    """Applications on other streams are no faster and no slower than alone, however their rates compare."""
    one, two = app(folder, "a", background=()), app(folder, "b", priority=(), rate_hz=50)
    two.write_text(two.read_text().replace('name = "camera"', 'name = "scene"'))
    found = together(one, two).workload
    assert found.rates_hz == {"camera": 80, "scene": 50}
    assert {model.name: model.every for model in found.models} == {"small": 1, "chain": 1}
    assert found.beat_hz == 120  # 80 Hz and 50 Hz meet every 100 ms, at 8 + 5 - 1 releases


def test_models_are_read_by_the_name_that_they_have_together(folder: Path) -> None:
    """A model that another application calls differently still feeds what reads it."""
    (folder / "again.onnx").write_bytes((folder / "small.onnx").read_bytes())
    two = app(folder, "b", priority=["reader:3"], background=["again"])
    two.write_text(
        two.read_text().replace('path = "reader.onnx"', 'path = "small.onnx"\ninputs = { image = "again.x" }')
    )
    found = together(app(folder, "a", background=()), two)
    assert {model.name: model.inputs["image"] for model in found.workload.models} == {
        "small": "camera",
        "reader": "small.x",
    }


def test_streams_stay_apart(folder: Path) -> None:
    """Beside another stream, each model still reads its own application's only one."""
    one, two = app(folder, "a", background=()), app(folder, "b", priority=())
    two.write_text(two.read_text().replace('name = "camera"', 'name = "scene"'))
    assert {model.name: model.inputs for model in together(one, two).workload.models} == {
        "small": {"image": "camera"},
        "chain": {"image": "scene"},
    }


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"target": "cpu"}, r"\$\.target is 'cpu', and 'target\.toml' in .*a\.toml"),
        ({"stream": "shape = [1, 3, 16, 16]"}, "stream 'camera': shape"),
        (
            {"priority": ["chain"], "background": ["small"], "model": "frames = 2\nframes_axis = 2"},
            "model 'chain' differs",
        ),
        ({"schedule": 'segmentation = "equal"'}, r"\$\.schedule\.segmentation is 'equal', and 'fewest'"),
        ({"schedule": "num_priority = 1"}, "priority_threshold or num_priority"),
        ({"more": '[[outputs]]\nmodel = "small"\nsink = "one.npz"\n'}, "sink .* is used twice"),
    ],
)
def test_what_contradicts_is_refused(keys: dict[str, Any], says: str, folder: Path) -> None:
    """With the file, the key, and both values."""
    one = app(
        folder,
        "a",
        schedule='segmentation = "fewest"\npriority_threshold = 5',
        more='[[outputs]]\nmodel = "small"\nsink = "one.npz"\n',
    )
    with pytest.raises(InputError, match=says) as error:
        together(one, app(folder, "b", **keys))
    assert "b.toml" in str(error.value.where)
    assert error.value.remedy


_OTHER = {
    "cores": (0, 1),
    "providers": ("OtherProvider",),
    "device": DeviceOptions(custom_ops=("a.so",)),
    "units": (UnitEntry(name="a"),),
    "kernels": "never",
}  # than their defaults


@pytest.mark.parametrize("key", MachineSettings.__struct_fields__)
def test_settings_of_the_machine_are_those_of_all_applications(key: str, folder: Path) -> None:
    """Whichever of them differs: none can hold for one application alone."""
    one, two = (app(folder, name) for name in "ab")
    before = load_workload(two)
    after = msgspec.structs.replace(before, **{key: _OTHER[key]})
    assert before.machine == MachineSettings()
    assert after.machine == msgspec.structs.replace(before.machine, **{key: _OTHER[key]})
    assert shared([(one, after), (two, after)]).workload.machine == after.machine
    with pytest.raises(InputError, match=rf"\$\.{key} is .*, and .* in .*a\.toml"):
        shared([(one, before), (two, after)])


def test_which_core_executes_is_no_fact_of_how_fast_it_is() -> None:
    """Measurements of one core hold for another one, not for another provider; what is not set is no fact."""
    assert MachineSettings(cores=(3,)).facts() == MachineSettings().facts() == {"providers": "CPUExecutionProvider"}
    assert MachineSettings(providers=("A", "B")).facts() == {"providers": "A,B"}
    one, two = UnitEntry(name="a", cores=(1,)), UnitEntry(name="b", provider="P", device_id=1, threads=2)
    facts = MachineSettings(units=(one, two)).facts()
    assert facts["units"] == "a: providers, 1 thread; b: P device_id=1, 2 threads"
    assert MachineSettings(units=(msgspec.structs.replace(one, cores=(2,)), two)).facts() == facts


def test_schedules_are_put_together(folder: Path) -> None:
    """A key that only one of them sets holds."""
    found = together(app(folder, "a", schedule='segmentation = "equal"'), app(folder, "b", schedule="num_priority = 1"))
    assert (found.workload.schedule.segmentation, found.workload.schedule.num_priority) == ("equal", 1)


def test_functions_are_looked_for_in_one_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An application elsewhere that names one is refused; without one it may lie anywhere."""
    other = tmp_path_factory.mktemp("other")
    write_target(write_models(other))
    one = app(folder, "a")
    assert together(one, app(other, "b")).workload.model_names == ["small", "chain"]
    with pytest.raises(InputError, match="'drawing:draw' is searched beside the first application"):
        together(one, app(other, "b", more='[[outputs]]\nmodel = "small"\nsink = "drawing:draw"\n'))


def test_both_get_their_results_and_the_model_runs_once(folder: Path) -> None:
    """Each by its own name for the model; there is one launch a frame."""
    (folder / "face.onnx").write_bytes((folder / "small.onnx").read_bytes())
    one = app(folder, "a", background=())
    with Runner(one, app(folder, "b", priority=["face"]), virtual=True) as runner:
        first, second = runner.subscribe("small"), runner.subscribe("face")
        for image in IMAGES:
            runner.submit(image)
        assert [x.frame for x in first.outputs()] == [x.frame for x in second.outputs()] == list(range(len(IMAGES)))
    programs = runner.result().program.programs
    launched = [programs[index].model for index in runner.result().launches.program]
    assert launched.count("small") == len(IMAGES)
    assert set(launched) == {"small", "chain"}
