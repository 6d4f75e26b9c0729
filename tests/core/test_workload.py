"""What the user wants to run (``app.toml``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from framefit.core.grid import Grid
from framefit.core.workload import Preprocess, Workload, load_workload, names_function
from framefit.errors import InputError, UnsupportedError

BUILT = """
schema_version = 1
target = "cpu"
cores = [1]
providers = ["CPUExecutionProvider"]
rate_hz = 30

[schedule]
priority_position = "start"
segmentation = "fill"
quantile = 0.99
guard_ms = 0.3

[[streams]]
name = "camera"
source = "synthetic"
rate_hz = 30
shape = [1, 3, 240, 320]
queue = 2
when_full = "drop-oldest"

[[streams]]
name = "sounds"
source = "sounds.npz"
array = "x"
when_full = "drop-newest"

[[models]]
name = "face"
path = "face.onnx"
priority = "every-window"
inputs = { input = "camera" }
shapes = { input = [1, 3, 240, 320] }
state = { state = "stateN" }
constants = { sr = 16000 }
frames = 1
frames_axis = 0
aggregate = 1
deadline_ms = 33.3
every = 1
always_split = false

[[models]]
name = "voice"
path = "sub/voice.onnx"
priority = "background"
inputs = { sound = "sounds" }

[[outputs]]
model = "face"
tensors = ["boxes", "scores"]
sink = "faces.npz"
"""

LEAST = """
rate_hz = 30
[[models]]
name = "face"
path = "face.onnx"
priority = "background"
"""


def write(folder: Path, text: str) -> Path:
    """An ``app.toml`` beside empty model files."""
    (folder / "sub").mkdir(exist_ok=True)
    for name in ("face.onnx", "sub/voice.onnx"):
        (folder / name).touch()
    path = folder / "app.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> InputError:
    """The error with which a workload is refused."""
    path = write(folder, text)
    with pytest.raises(InputError) as found:
        load_workload(path)
    assert found.value.exit_code == 2
    assert str(path) in str(found.value)
    assert found.value.remedy
    return found.value


def test_the_contracts_example(tmp_path: Path) -> None:
    """What is built of the contract's example is read, and paths become absolute."""
    workload = load_workload(write(tmp_path, BUILT))
    assert (workload.cores, workload.beat_hz, workload.window_ns) == ((1,), 30.0, 33_333_333)
    assert workload.schedule.guard_ms == 0.3
    assert workload.stream_names == ["camera", "sounds"]
    assert workload.streams[0].source == "synthetic"
    assert workload.streams[1].source == str(tmp_path / "sounds.npz")
    face, voice = workload.models
    assert (face.path, voice.path) == (str(tmp_path / "face.onnx"), str(tmp_path / "sub" / "voice.onnx"))
    assert (face.state, face.constants, face.deadline_ms) == ({"state": "stateN"}, {"sr": 16000}, 33.3)
    assert workload.outputs[0].sink == str(tmp_path / "faces.npz")
    assert workload.outputs[0].tensors == ("boxes", "scores")


def test_the_least(tmp_path: Path) -> None:
    """A beat and a model are enough."""
    workload = load_workload(write(tmp_path, LEAST))
    assert (workload.target, workload.streams, workload.outputs) == ("cpu", (), ())


def test_optional_keys(tmp_path: Path) -> None:
    """What goes beyond the beat, a model and its role is read with its values."""
    text = LEAST.replace('priority = "background"', "") + (
        "priority = 3\nframes = 2\nframes_axis = 1\naggregate = 4\nevery = 2\nalways_split = true\n"
        'latency_sensitive = true\ntask = "face-detection"\npostprocess = "boxes.decode:best"\n'
        'preprocess = { size = [240, 320], layout = "NHWC", channels = "BGR", mean = [1, 2.5, 3], scale = 0.5 }\n'
        '[schedule]\npriority_position = "end"\npriority_threshold = 5\nsegmentation = "equal"\npreemption = "never"\n'
    )
    workload = load_workload(write(tmp_path, text))
    (model,) = workload.models
    assert (model.priority, model.frames, model.frames_axis, model.aggregate, model.every) == (3, 2, 1, 4, 2)
    assert (model.always_split, model.latency_sensitive, model.task) == (True, True, "face-detection")
    assert model.postprocess == "boxes.decode:best"
    assert model.preprocess == Preprocess(
        size=(240, 320), layout="NHWC", channels="BGR", mean=(1.0, 2.5, 3.0), scale=0.5
    )
    schedule = workload.schedule
    assert (schedule.priority_position, schedule.priority_threshold, schedule.num_priority) == ("end", 5, None)
    assert (schedule.segmentation, schedule.preemption) == ("equal", "never")


def test_defaults(tmp_path: Path) -> None:
    """Roles are determined, and real-time priorities used, where nothing else is said."""
    workload = load_workload(write(tmp_path, LEAST.replace('priority = "background"', "")))
    assert workload.models[0].priority == "auto"
    assert workload.schedule.preemption == "auto"


def test_paths_become_absolute_and_functions_stay(tmp_path: Path) -> None:
    """Files and folders lie beside the app; functions and the synthetic stream are no paths."""
    sources = ("clips/day", "frames.npz", "camera:frames", "my.camera:frames", "synthetic")
    streams = "".join(f'[[streams]]\nname = "s{i}"\nsource = "{source}"\n' for i, source in enumerate(sources))
    outputs = "".join(f'[[outputs]]\nmodel = "face"\nsink = "{sink}"\n' for sink in ("a.jsonl", "my:put", "my:put"))
    workload = load_workload(write(tmp_path, LEAST + streams + outputs))
    expected = [str(tmp_path / "clips" / "day"), str(tmp_path / "frames.npz"), *sources[2:]]
    assert [stream.source for stream in workload.streams] == expected
    assert [output.sink for output in workload.outputs] == [str(tmp_path / "a.jsonl"), "my:put", "my:put"]


def test_the_implicit_stream_may_be_named(tmp_path: Path) -> None:
    """A workload without streams has one called "synthetic"; with streams it has not."""
    text = LEAST + 'inputs = { x = "synthetic" }\n'
    assert load_workload(write(tmp_path, text)).models[0].inputs == {"x": "synthetic"}
    error = refusal(tmp_path, text + '[[streams]]\nname = "camera"\n')
    assert "input 'x' reads 'synthetic'; streams: camera" in error.what


@pytest.mark.parametrize("text", ["a:b", "pkg.mod:name", "_a1:_b2"])
def test_names_of_functions(text: str) -> None:
    """A module, which may be dotted, a colon, and a name."""
    assert names_function(text)


@pytest.mark.parametrize("text", ["a", "a:", ":b", "a.:b", "a:b.c", "a:b.npz", "1a:b", "a b:c", "a:b:c", "", "dir/a:b"])
def test_names_of_no_functions(text: str) -> None:
    """Files, folders and unfinished names are none."""
    assert not names_function(text)


def test_streams_of_other_rates_make_windows_between_their_releases(tmp_path: Path) -> None:
    """Of the beat too where it is given; a stream without a rate has the beat's, else the fastest one's."""
    streams = '[[streams]]\nname = "a"\n[[streams]]\nname = "b"\nrate_hz = 20\n'
    workload = load_workload(write(tmp_path, LEAST + streams))
    assert workload.rates_hz == {"a": 30, "b": 20}
    assert workload.grid.lengths_ns == (33_333_333, 16_666_667, 16_666_667, 33_333_333)
    assert workload.window_ns == 16_666_667
    assert workload.beat_hz == 40
    faster = load_workload(write(tmp_path, LEAST.replace("rate_hz = 30\n", "") + streams))
    assert faster.rates_hz == {"a": 20, "b": 20}
    assert faster.grid == Grid(20.0)


def test_rates_that_hardly_ever_meet_are_refused(tmp_path: Path) -> None:
    """Of streams as they begin, and as they change."""
    streams = '[[streams]]\nname = "a"\n[[streams]]\nname = "b"\nrate_hz = 999\n'
    assert "coincide again only" in refusal(tmp_path, LEAST.replace("= 30", "= 1000") + streams).what
    later = '[[streams]]\nname = "a"\n[[streams]]\nname = "b"\n[[streams.changes]]\nafter_s = 2\nrate_hz = 999\n'
    assert "coincide again only" in refusal(tmp_path, LEAST.replace("= 30", "= 1000") + later).what


def test_changes_of_rate_come_in_order_with_the_rates_of_the_others(tmp_path: Path) -> None:
    """A beat that is given goes on while a stream follows it."""
    change = "[[streams.changes]]\nafter_s = {}\nrate_hz = {}\n"
    streams = f'[[streams]]\nname = "a"\n{change.format(1, 15)}{change.format(3, 10)}'
    streams += f'[[streams]]\nname = "b"\n{change.format(2, 20)}'
    workload = load_workload(write(tmp_path, LEAST + streams))
    told = [(after_s, one.rates_hz, one.rate_hz) for after_s, one in workload.announced()]
    assert told == [
        (1, {"a": 15, "b": 30}, 30),
        (2, {"a": 15, "b": 20}, None),
        (3, {"a": 10, "b": 20}, None),
    ]
    wrong = LEAST + f'[[streams]]\nname = "a"\n{change.format(2, 15)}{change.format(1, 10)}'
    assert "in order of after_s" in refusal(tmp_path, wrong).what


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rate_hz = 30", "rate_hz = 0", "rate_hz must be greater than 0, is 0"),
        ("rate_hz = 30", "rate_hz = -30", "rate_hz must be greater than 0, is -30"),
        ("rate_hz = 30", "rate_hz = nan", "rate_hz must be greater than 0, is nan"),
        ("rate_hz = 30", "rate_hz = inf", "rate_hz must be greater than 0, is inf"),
        ("rate_hz = 30", "rate_hz = 1e-300", "rate_hz must be 1e-06 to 1e+09, is 1e-300"),
        ("rate_hz = 30", 'rate_hz = "30"', "$.rate_hz must be a number, is '30'"),
        ("rate_hz = 30", "window_ms = 0", "window_ms must be greater than 0"),
        ("rate_hz = 30", "rate_hz = 30\nwindow_ms = 33.3", "rate_hz or window_ms, not both"),
        ("rate_hz = 30", "", "the windows' rate is missing"),
        ("rate_hz = 30", "rat_hz = 30", "unknown key $.rat_hz; did you mean 'rate_hz'?"),
        ("rate_hz = 30", "rate_hz = 30\nschedule.guard_ms = -1", "guard_ms must not be negative, is -1"),
        ("rate_hz = 30", "rate_hz = 30\nschedule.guard_ms = nan", "guard_ms must be at most 1e+09, is nan"),
        ("rate_hz = 30", "rate_hz = 30\nschedule.quantile = 1.0", "quantile must be at least 0.5 and below 1"),
        ("rate_hz = 30", "rate_hz = 30\nschedule.num_priority = -1", "num_priority must not be negative, is -1"),
        ("rate_hz = 30", "rate_hz = 30\nschedule = { num_priority = 1, priority_threshold = 2 }", "not both"),
        ("rate_hz = 30", 'rate_hz = 30\nschedule.preemption = "always"', "$.schedule.preemption is 'always'"),
        (
            "rate_hz = 30",
            "rate_hz = 30\nunits = [{ name = 'a', thread = 2 }]",
            "unknown key $.units[0].thread; did you mean 'threads'?",
        ),
        ("rate_hz = 30", "rate_hz = 30\nunits = [{ name = 'a', threads = 0 }]", "threads must be 1 to 1024, is 0"),
        (
            "rate_hz = 30",
            "rate_hz = 30\nunits = [{ name = 'a', cores = [1], threads = 2 }]",
            "threads = 2 needs as many cores, cores = [1]",
        ),
        ("rate_hz = 30", "rate_hz = 30\nunits = [{ name = 'a' }, { name = 'a' }]", "unit name 'a' is used twice"),
        (
            "rate_hz = 30",
            "rate_hz = 30\nunits = [{ name = 'a', device_id = 1 }]",
            "options and device_id belong to a provider",
        ),
        (
            "rate_hz = 30",
            "rate_hz = 30\nunits = [{ name = 'a', provider = 'P', device_id = 1, options = { device_id = 0 } }]",
            "give device_id once",
        ),
        ("rate_hz = 30", "rate_hz = 30\ncores = [0]\nunits = [{ name = 'a' }]", "give cores or [[units]], not both"),
        (
            "rate_hz = 30",
            "rate_hz = 30\nunits = [{ name = 'a' }, { name = 'b', same_as = 'c' }]",
            "unit 'b': same_as = 'c' must name another unit: a",
        ),
        ("rate_hz = 30", "rate_hz = 30\nunits = [{ name = 'a', same_as = 'a' }]", "another unit: there is none"),
        (
            "rate_hz = 30",
            "rate_hz = 30\nunits = [{ name = 'a', same_as = 'b' }, { name = 'b', same_as = 'a' }]",
            "'b' has same_as itself",
        ),
        (
            "rate_hz = 30",
            "rate_hz = 30\nunits = [{ name = 'a' }, { name = 'b', threads = 2, same_as = 'a' }]",
            "same_as = 'a' must have the same threads",
        ),
        ("rate_hz = 30", "rate_hz = 30\nschema_version = 2", "$.schema_version is 2"),
        ('"face.onnx"', '"face.onnx"\npreprocess = { size = [0, 4] }', "size must be positive, is [0, 4]"),
        (
            '"face.onnx"',
            '"face.onnx"\npreprocess = { mean = [1, 2] }',
            "mean must hold 1 number or 3 numbers for RGB, holds 2",
        ),
        (
            '"face.onnx"',
            '"face.onnx"\npreprocess = { channels = "GRAY", mean = [1, 2, 3] }',
            "mean must hold 1 number for GRAY, holds 3",
        ),
        ('"face.onnx"', '"face.onnx"\npreprocess = { scale = 0 }', "scale not 0"),
        ('"face.onnx"', '"face.onnx"\npostprocess = "boxes.py"', 'postprocess must read "module:function"'),
        (
            "[[models]]",
            "outputs = [{ model = 'face', sink = 'a.npz' }, { model = 'face', sink = 'a.npz' }]\n[[models]]",
            "sink 'a.npz' is used twice",
        ),
        ('path = "face.onnx"', 'path = "face.onnx"\nrate = 3', "unknown key $.models[0].rate"),
        ('path = "face.onnx"', 'path = "face.onnx"\ndeadline_ms = 0', "deadline_ms must be greater than 0"),
        ('path = "face.onnx"', 'path = "face.onnx"\nframes = 0', "frames must be at least 1, is 0"),
        ('path = "face.onnx"', 'path = "face.onnx"\nframes = 2147483647', "frames must be at most 10000"),
        ('path = "face.onnx"', 'path = "nose.onnx"', "$.models[0].path: no such file"),
        ("[[models]]", "device.custom_ops = ['ops.so']\n[[models]]", "$.device.custom_ops[0]: no such file"),
        ("[[models]]", "device.custom_op = ['ops.so']\n[[models]]", "unknown key $.device.custom_op; did you mean"),
        ('path = "face.onnx"', f'path = "{"n" * 5000}"', "is not a possible file name"),
        (
            'path = "face.onnx"',
            'path = "face.onnx"\ninputs = { x = "cam" }',
            "input 'x' reads 'cam'; streams: synthetic",
        ),
        ('name = "face"', 'name = "face"\npriority = "sometimes"', None),
        ("[[models]]", "[[outputs]]\nmodel = 'nose'\nsink = 'a.npz'\n[[models]]", "outputs name a model 'nose'"),
        ("[[models]]", "[[streams]]\nname = 'a'\nqueue = 0\n[[models]]", "queue must be at least 1, is 0"),
        ("[[models]]", "[[streams]]\nname = 'a'\nshape = [1, 0]\n[[models]]", "shape must be positive, is [1, 0]"),
        ("[[models]]", "[[streams]]\nname = 'a'\n[[streams]]\nname = 'a'\n[[models]]", "stream name 'a' is used twice"),
        (
            "[[models]]",
            "[[models]]\nname = 'face'\npath = 'face.onnx'\n[[models]]",
            "model name 'face' is used twice",
        ),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    """Every mistake is refused with exit code 2 and a message that names it."""
    assert old in LEAST
    error = refusal(tmp_path, LEAST.replace(old, new))
    assert not isinstance(error, UnsupportedError)
    if message is not None:
        assert message in error.what


def test_no_models(tmp_path: Path) -> None:
    """A workload without models is refused, whether the key is absent or empty."""
    assert "models" in refusal(tmp_path, "rate_hz = 30").what
    assert "no models" in refusal(tmp_path, "rate_hz = 30\nmodels = []").what


def test_the_beat_follows_the_fastest_stream(tmp_path: Path) -> None:
    """Without a rate of its own the workload takes the fastest stream's; ``window_ms`` is another way to say it."""
    text = LEAST.replace("rate_hz = 30", 'streams = [{ name = "a", rate_hz = 25 }, { name = "b" }]')
    assert load_workload(write(tmp_path, text)).window_ns == 40_000_000
    assert load_workload(write(tmp_path, LEAST.replace("rate_hz = 30", "window_ms = 12.5"))).window_ns == 12_500_000
    fields = load_workload(write(tmp_path, LEAST.replace("rate_hz = 30", "window_ms = 12.5")))
    assert isinstance(fields, Workload)
    assert fields.beat_hz == 80
