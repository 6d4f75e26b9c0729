"""Which stream feeds which input of which model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from fakes import FakeDevice
from framefit import FramefitError, InputError
from framefit.core.model import GraphBuilder, TensorInfo
from framefit.core.workload import load_workload, streams_of
from framefit.execution.streams import open_stream
from framefit.execution.wiring import WiredModel, wire
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


@pytest.mark.parametrize("streams", ["", STREAMS])
@pytest.mark.parametrize(("name", "value"), [("sr", "16000"), ("top_k", "...")])
def test_a_number_beside_frames_is_proposed_as_a_constant(tmp_path: Path, name: str, value: str, streams: str) -> None:
    """An integer scalar that nothing names takes no frames: the message holds the line to write; named, it does."""
    ends = [
        helper.make_tensor_value_info("sound", TensorProto.FLOAT, ["batch", 4]),
        helper.make_tensor_value_info(name, TensorProto.INT64, []),
    ]
    nodes = [
        helper.make_node("Cast", [name], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sound", "number"], ["loud"]),
    ]
    outputs = [helper.make_tensor_value_info("loud", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "voice", ends, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), tmp_path / "v.onnx")
    entry = '[[models]]\nname = "v"\npath = "v.onnx"\n'
    sound = 'inputs = { sound = "camera" }\n' if streams else ""
    with pytest.raises(InputError, match=f"input '{name}' takes a single whole number") as error:
        wired(tmp_path, entry + sound, streams)
    assert f"constants = {{ {name} = {value} }}" in str(error.value.remedy)
    (found,) = wired(tmp_path, f"{entry}{sound}constants = {{ {name} = 2 }}", streams)
    assert [tensor.name for tensor in found.model.inputs] == ["sound"]
    both = f'inputs = {{ sound = "camera", {name} = "other" }}\n'
    (found,) = wired(tmp_path, entry + both, STREAMS)
    assert found.sources == {"sound": "camera", name: "other"}


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


def test_state_is_not_stacked(tmp_path: Path) -> None:
    """Of several frames at once only what streams bring is divided; state keeps its size, whatever that is."""
    keys = 'frames = 4\nstate = { hidden = "next_hidden", cell = "next_cell" }'  # 4 x 1 x 10; states 1 x 1 x 8
    (found,) = wired(tmp_path, model("lstm", keys))
    assert {name: tensor.shape for name, tensor in found.frame_inputs.items()} == {"sound": (1, 1, 10)}


@pytest.mark.parametrize("key", ["inputs", "shapes", "state", "constants"])
def test_inputs_that_do_not_exist(tmp_path: Path, key: str) -> None:
    """Each key that names no input of the model is refused beside those that exist."""
    value = {"inputs": '"camera"', "shapes": "[1]", "state": '"next_cell"', "constants": "1"}[key]
    with pytest.raises(InputError, match=f"{key} names no input 'nose'; inputs: sound, hidden, cell"):
        wired(tmp_path, model("lstm", f"{key} = {{ nose = {value} }}"), '[[streams]]\nname = "camera"\n')


def test_text_is_no_input(tmp_path: Path) -> None:
    """Frames are numbers; the message names the input that takes strings."""
    text, number = onnx.TensorProto.STRING, onnx.TensorProto.FLOAT
    node = onnx.helper.make_node(
        "LabelEncoder", ["word"], ["y"], domain="ai.onnx.ml", keys_strings=["a"], values_floats=[1.0]
    )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "words", [value("word", text, [3])], [value("y", number, [3])])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "words.onnx")
    with pytest.raises(InputError, match="'word' does not hold numbers"):
        wired(tmp_path, model("words"))


def reads(folder: Path, keys: str, streams: str = "", first: str = "", order: int = 1) -> list[WiredModel]:
    """A model of one output, one of two, and one that reads what is said."""
    b = GraphBuilder("reader", 1)
    features, image = b.input("features", (1, 4)), b.input("image", (1, 2, 6, 6))
    b.output(b.op("Concat", b.op("Flatten", image), features, axis=1))
    b.build().save(folder / "reader.onnx", force=True)
    for name, outputs in (("single", ["all"]), ("double", ["some", "others"])):
        b = GraphBuilder(name, 2)
        x = b.op("Flatten", b.op("GlobalAveragePool", b.conv(b.input("image", (1, 2, 6, 6)), 4, kernel=1)))
        for output in outputs:
            b.output(b.op("Relu", x), output)
        b.build().save(folder / f"{name}.onnx", force=True)
    return wired(folder, "".join([model("reader", keys), model("single", first), model("double")][::order]), streams)


@pytest.mark.parametrize("order", [1, -1])
def test_another_models_output(order: int, tmp_path: Path) -> None:
    """By model and output, or by the model where it has one; other inputs read streams; in any order of the file."""
    found = {one.entry.name: one for one in reads(tmp_path, 'inputs = { features = "double.others" }', order=order)}
    assert found["reader"].reads == {"features": ("double", "others")}
    assert found["reader"].after == ("double",)
    assert found["reader"].sources == {"image": "synthetic"}
    found = {one.entry.name: one for one in reads(tmp_path, 'inputs = { features = "single" }', order=order)}
    assert found["reader"].reads == {"features": ("single", "all")}
    assert found["single"].reads == {}


def test_names_of_models_may_hold_dots(tmp_path: Path) -> None:
    """The longest name that fits is the model, what follows its output."""
    models = "".join(
        model(file).replace(f'name = "{file}"', f'name = "{name}"{keys}')
        for file, name, keys in (
            ("double", "v1", ""),
            ("single", "v1.5", ""),
            ("reader", "all", '\ninputs = { features = "v1.5.all" }'),
        )
    )
    reads(tmp_path, 'inputs = { features = "single" }')  # which writes the models' files
    assert {one.entry.name: one.reads for one in wired(tmp_path, models)} == {
        "v1": {},
        "v1.5": {},
        "all": {"features": ("v1.5", "all")},
    }


def test_streams_stay_in_step_through_models(tmp_path: Path) -> None:
    """What a model reads through another one comes with the frames of the streams that it reads itself."""
    reads(tmp_path, 'inputs = { features = "single" }')
    models = model("reader", 'inputs = { features = "single", image = "other" }')
    models += model("single", 'inputs = { image = "camera" }')
    for one in wired(tmp_path, models, STREAMS):
        assert one.in_step == {"camera", "other"}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('inputs = { features = "double.none" }', "names no output of 'double'; outputs: some, others"),
        ('inputs = { features = "double" }', "names no output of 'double'"),
        ('inputs = { image = "single" }', "takes 1 x 2 x 6 x 6, not 1 x 4"),
    ],
)
def test_outputs_that_cannot_be_read(keys: str, says: str, tmp_path: Path) -> None:
    """One that there is not, several where none is named, and one of another size."""
    with pytest.raises(InputError, match=says):
        reads(tmp_path, keys)


def test_models_that_read_each_other(tmp_path: Path) -> None:
    """Neither could ever begin."""
    one, other = 'inputs = { bias = "other" }', 'inputs = { image = "two_ends.sum" }'
    with pytest.raises(InputError, match="read each other"):
        wired(
            tmp_path, model("two_ends", one) + model("two_ends", other).replace('name = "two_ends"', 'name = "other"')
        )


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


def test_the_implicit_stream_by_name(tmp_path: Path) -> None:
    """Without streams an input may name the synthetic one."""
    (found,) = wired(tmp_path, model("plain", 'inputs = { image = "synthetic" }'))
    assert found.sources == {"image": "synthetic"}


def write_video(folder: Path, *shape: int | str) -> None:
    """``video.onnx``: input "image" of this shape, text for dynamic sizes."""
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Relu", ["image"], ["y"])],
        "video",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / "video.onnx"
    )


def camera(**keys: object) -> str:
    """A stream."""
    return '[[streams]]\nname = "camera"\n' + "".join(
        f"{key} = {list(value) if isinstance(value, tuple) else repr(value)}\n" for key, value in keys.items()
    )


@pytest.mark.parametrize(
    ("declared", "frame", "keys", "whole", "one"),
    [
        (("n", 3, 8, 8), (1, 3, 8, 8), "frames = 4", (4, 3, 8, 8), (1, 3, 8, 8)),
        (("n", 3, 8, 8), (3, 8, 8), "frames = 4", (4, 3, 8, 8), (1, 3, 8, 8)),
        ((1, "c", 8, 8), (1, 3, 8, 8), "frames = 4\nframes_axis = 1", (1, 12, 8, 8), (1, 3, 8, 8)),
        ((1, "samples"), (160,), "frames = 3\nframes_axis = 1", (1, 480), (1, 160)),
        ((1, "samples"), (1, 160), "frames = 3\nframes_axis = -1", (1, 480), (1, 160)),
        (("samples",), (160,), "frames = 3", (480,), (160,)),
        ((4, 3, 8, 8), None, "frames = 4", (4, 3, 8, 8), (1, 3, 8, 8)),
        (("n", 3), None, "frames = 4\nshapes = { image = [8, 3] }", (8, 3), (2, 3)),
    ],
)
def test_several_frames_at_once(
    tmp_path: Path,
    declared: tuple[int | str, ...],
    frame: tuple[int, ...] | None,
    keys: str,
    whole: tuple[int, ...],
    one: tuple[int, ...],
) -> None:
    """The input holds that many of the stream's frames along their axis, and the stream is asked for one."""
    write_video(tmp_path, *declared)
    (found,) = wired(tmp_path, model("video", keys), camera() if frame is None else camera(shape=frame))
    assert found.model.inputs[0].shape == whole
    execution = found.execution([(0, 0)], FakeDevice(), "fake0")
    assert execution.frame_inputs[0].shape == one


@pytest.mark.parametrize(("declared", "keys"), [((4, 3), "frames = 3"), ((4, 3), "frames = 2\nframes_axis = 2")])
def test_frames_that_cannot_be_stacked(tmp_path: Path, declared: tuple[int, ...], keys: str) -> None:
    """They are refused with the model and its input."""
    write_video(tmp_path, *declared)
    with pytest.raises(InputError, match=r"input 'image' is \[4, 3\]: . frames cannot be stacked") as error:
        wired(tmp_path, model("video", keys))
    assert "model 'video'" in str(error.value.where)


@pytest.mark.parametrize(
    ("declared", "stream", "keys", "whole", "raw"),
    [
        ((1, 3, 8, 12), camera(), "preprocess = {}", (1, 3, 8, 12), (8, 12, 3)),
        ((1, 3, 8, 12), camera(shape=(20, 30, 3)), "preprocess = {}", (1, 3, 8, 12), (20, 30, 3)),
        ((1, 3, 8, 12), camera(shape=(1, 3, 20, 30)), "preprocess = {}", (1, 3, 8, 12), (20, 30, 3)),
        ((1, 3, 8, 12), camera(shape=(20, 30)), "preprocess = {}", (1, 3, 8, 12), (20, 30)),
        (("n", 3, "h", "w"), camera(), "preprocess = { size = [8, 12] }", (1, 3, 8, 12), (8, 12, 3)),
        (("n", 3, "h", "w"), camera(shape=(20, 30, 3)), "preprocess = {}", (1, 3, 20, 30), (20, 30, 3)),
        (("n", "h", "w", 3), camera(), 'preprocess = { size = [8, 12], layout = "NHWC" }', (1, 8, 12, 3), (8, 12, 3)),
        (("n", 1, 8, 12), camera(), 'preprocess = { channels = "GRAY" }', (1, 1, 8, 12), (8, 12, 1)),
        (("n", 3, 8, 12), camera(), "preprocess = {}\nframes = 4", (4, 3, 8, 12), (8, 12, 3)),
        ((1, "c", 8, 12), camera(), "preprocess = {}\nframes = 4\nframes_axis = 1", (1, 12, 8, 12), (8, 12, 3)),
        ((1, "f", 3, 8, 12), camera(), "preprocess = {}\nframes = 4\nframes_axis = 1", (1, 4, 3, 8, 12), (8, 12, 3)),
        ((1, 3, "f", 8, 12), camera(), "preprocess = {}\nframes = 4\nframes_axis = 2", (1, 3, 4, 8, 12), (8, 12, 3)),
    ],
)
def test_preprocessed_inputs(
    tmp_path: Path,
    declared: tuple[int | str, ...],
    stream: str,
    keys: str,
    whole: tuple[int, ...],
    raw: tuple[int, ...],
) -> None:
    """Open sizes follow from preprocess or the images, and synthetic streams give random images of bytes."""
    write_video(tmp_path, *declared)
    (found,) = wired(tmp_path, model("video", keys), stream)
    assert found.model.inputs[0].shape == whole
    execution = found.execution([(0, 0)], FakeDevice(), "fake0")
    (tensor,) = execution.frame_inputs
    assert tensor == TensorInfo(name="image", dtype="uint8", shape=raw)
    frame = open_stream(load_workload(tmp_path / "app.toml").streams[0], 0).read(0, tensor)
    assert frame.max() > 200
    execution.load([{"image": frame}] * found.entry.frames)
    execution.launch(0)
    assert execution._tensors[0]["image"].max() > 150


@pytest.mark.parametrize("source", ["frames.npz", "pictures"])
def test_preprocessed_files(tmp_path: Path, source: str) -> None:
    """Stored images go through preprocess as they are; open sizes follow from them where nothing else is said."""
    np.savez(tmp_path / "frames.npz", np.full((2, 20, 30, 3), 9, np.uint8))
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (30, 20), (9, 9, 9)).save(tmp_path / "pictures" / "0.png")
    write_video(tmp_path, 1, 3, "h", "w")
    (found,) = wired(tmp_path, model("video", "preprocess = { scale = 2 }"), camera(source=source))
    assert found.model.inputs[0].shape == (1, 3, 20, 30)
    execution = found.execution([(0, 0)], FakeDevice(), "fake0")
    (tensor,) = execution.frame_inputs
    assert (tensor.shape, execution.example(np.random.default_rng(0))[0]["image"].shape) == (None, (20, 30, 3))
    execution.load({"image": open_stream(load_workload(tmp_path / "app.toml").streams[0], 0).read(0, tensor)})
    execution.launch(0)
    assert (execution._tensors[0]["image"] == 18).all()


def test_preprocess_is_about_images(tmp_path: Path) -> None:
    """Of several inputs those that look like images are prepared, the others are read as they are."""
    b = GraphBuilder("mixed")
    left, right, shift = b.input("left", (1, 3, 8, 8)), b.input("right", (1, 3, 8, 8)), b.input("shift", (1, 1))
    b.output(b.op("Add", b.op("Add", left, right), shift))
    b.build().save(tmp_path / "mixed.onnx")
    (found,) = wired(tmp_path, model("mixed", "preprocess = {}"))
    assert set(found.prepare) == {"left", "right"}
    shapes = {tensor.name: tensor.shape for tensor in found.execution([(0, 0)], FakeDevice(), "fake0").frame_inputs}
    assert shapes == {"left": (8, 8, 3), "right": (8, 8, 3), "shift": (1, 1)}


@pytest.mark.parametrize(
    ("declared", "stream", "keys", "message"),
    [
        (
            (1, 3, 8, 8),
            camera(),
            "preprocess = { size = [4, 4] }",
            r"size = \[4, 4\], but input 'image' takes \[8, 8\]",
        ),
        ((1, 3, 8, 8), camera(), 'preprocess = { layout = "NHWC" }', "not RGB as NHWC"),
        ((1, 3), camera(), "preprocess = {}", "has 2 axes, which is not an NCHW image"),
        ((1, 3, "h", "w"), camera(), "preprocess = {}", "dynamic dimension h"),
        ((1, 3, 8, 8), camera(shape=(5, 5)), "constants = { image = 1 }\npreprocess = {}", "no input reads a stream"),
        ((1, 3, 8, 8), camera(shape=(5,)), "preprocess = {}", r"frames of stream 'camera' are \[5\]"),
        ((1, 3, 8, 8), camera(source="frames.npz"), "preprocess = {}", r"frames of stream 'camera' are \[3, 8, 8\]"),
        (
            (1, 3, 8, 8),
            camera(source="complex.npz"),
            "preprocess = {}",
            r"a frame is complex64 \[8, 8, 3\], not an image",
        ),
        ((1, 3, 8, 8), camera(), 'postprocess = "nowhere_at_all:f"', "no module 'nowhere_at_all'"),
    ],
)
def test_processing_that_does_not_fit(
    tmp_path: Path, declared: tuple[int | str, ...], stream: str, keys: str, message: str
) -> None:
    """It is refused with the model's name before anything is measured."""
    np.savez(tmp_path / "frames.npz", np.zeros((2, 3, 8, 8), np.uint8))
    np.savez(tmp_path / "complex.npz", np.zeros((2, 8, 8, 3), np.complex64))
    write_video(tmp_path, *declared)
    with pytest.raises(InputError, match=message) as error:
        wired(tmp_path, model("video", keys), stream)
    assert "video" in str(error.value)


def test_images_without_preprocess(tmp_path: Path) -> None:
    """Where images do not fit an input as they are read, preprocess is suggested; where they do, they are taken."""
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "pictures" / "0.png")
    write_video(tmp_path, 1, 3, 20, 30)
    with pytest.raises(InputError, match=r"does not take images as they are read, \[20, 30, 3\]") as error:
        wired(tmp_path, model("video"), camera(source="pictures"))
    assert "preprocess = {" in str(error.value.remedy)
    write_video(tmp_path, 1, "h", "w", 3)
    (found,) = wired(tmp_path, model("video"), camera(source="pictures"))
    assert found.model.inputs[0].shape == (1, 20, 30, 3)


def test_postprocess_comes_from_the_apps_folder(tmp_path: Path) -> None:
    """The function beside the app is what the execution calls."""
    (tmp_path / "finishing.py").write_text("def total(outputs): return {'n': outputs['y'].size}\n")
    write_video(tmp_path, 1, 5)
    (found,) = wired(tmp_path, model("video", 'postprocess = "finishing:total"'))
    execution = found.execution([(0, 0)], FakeDevice(), "fake0")
    execution.load({"image": np.zeros((1, 5), np.float32)})
    execution.launch(0)
    assert execution.results() == {"n": 5}


def test_queues_of_models(tmp_path: Path) -> None:
    """Where a model's streams differ, the shallower queue and the stricter rule count; several frames need room."""
    streams = (
        '[[streams]]\nname = "a"\nqueue = 5\nwhen_full = "drop-newest"\n'
        '[[streams]]\nname = "b"\nqueue = 3\nwhen_full = "block"\n[[streams]]\nname = "c"\n'
    )
    both, one, neither = wired(
        tmp_path,
        model("two_ends", 'inputs = { image = "a", bias = "b" }\nevery = 2')
        + model("plain", 'inputs = { image = "a" }')
        + model("passed_through", 'inputs = { image = "c", stamp = "c" }'),
        streams,
    )
    assert (both.depth, both.when_full, both.behind) == (3, "block", 8)
    assert (one.depth, one.when_full) == (5, "drop-newest")
    assert (neither.depth, neither.when_full) == (2, "drop-oldest")


@pytest.mark.parametrize(
    ("shape", "keys", "stream", "depth"),
    [
        pytest.param((1, 3, 8, 8), "", "", 1, id="image"),
        pytest.param((1, 8, 8, 3), "", "", 1, id="image, channels last"),
        pytest.param((1, 3, 8, 8), "", "queue = 2\n", 2, id="queue given"),
        pytest.param((1, 3, 8, 8), "", 'when_full = "drop-newest"\n', 2, id="oldest wanted"),
        pytest.param((1, 3, 8, 8), "", 'when_full = "block"\n', 2, id="every frame wanted"),
        pytest.param((1, 3, 8, 8), "frames = 3", "", 3, id="clip"),
        pytest.param((1, 160), "", "", 2, id="audio"),
        pytest.param((1, 1, 40, 98), "", "", 2, id="spectrogram"),
        pytest.param((1, 1, 8, 8), 'preprocess = { channels = "GRAY" }', "", 1, id="grey image"),
    ],
)
def test_the_newest_image_waits_by_default(tmp_path: Path, shape: tuple, keys: str, stream: str, depth: int) -> None:
    """Background models that look at single images take the newest one; what needs every frame has a queue of two."""
    batch = 3 if "frames" in keys else 1
    write_video(tmp_path, batch, *shape[1:])
    (found,) = wired(tmp_path, model("video", keys), f'[[streams]]\nname = "camera"\n{stream}')
    assert found.depth == depth
    if depth == 1:
        (first,) = wired(tmp_path, model("video", keys, priority="every-window"))
        assert first.depth == 2  # a frame in each window: one that is late does not cost the next one


def test_what_carries_a_state_sees_every_frame(tmp_path: Path) -> None:
    """A recurrent model of images keeps its queue of two."""
    b = GraphBuilder("recurrent")
    x, h = b.input("x", (1, 3, 8, 8)), b.input("h", (1, 3, 8, 8))
    b.output(b.op("Add", x, h), "next")
    b.build().save(tmp_path / "recurrent.onnx")
    (found,) = wired(tmp_path, model("recurrent", 'state = { h = "next" }'))
    assert found.depth == 2


def test_streams_that_are_read_together_stay_in_step(tmp_path: Path) -> None:
    """What one of them waits for, all of them wait for; other streams do not."""
    streams = "".join(f'[[streams]]\nname = "{name}"\n' for name in "abcd") + 'when_full = "block"\n'
    models = (
        model("two_ends", 'inputs = { image = "a", bias = "b" }')
        + model("plain", 'inputs = { image = "c" }')
        + model("passed_through", 'inputs = { image = "b", stamp = "d" }')
    )
    ends, plain, passed = wired(tmp_path, models, streams)
    assert ends.in_step == passed.in_step == {"a", "b", "d"}
    assert plain.in_step == {"c"}
    assert (ends.waits, passed.waits, plain.waits) == (True, True, False)
    assert (ends.when_full, passed.when_full) == ("drop-oldest", "block")


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ('model = "plain"\nsink = "o.npz"\ntensors = ["nose"]', "model 'plain' has no output 'nose'; outputs: "),
        ('model = "plain"\nsink = "o.csv"', "sink = 'o.csv' is not supported"),
        ('model = "plain"\nsink = "absent_module:f"', "no module 'absent_module'"),
        ('model = "plain"\nsink = "plain.onnx/o.npz"', "cannot be written"),
    ],
)
def test_outputs_that_cannot_be_given(tmp_path: Path, outputs: str, message: str) -> None:
    """They are refused before anything is measured."""
    with pytest.raises(FramefitError, match=message):
        wired(tmp_path, f"{model('plain')}[[outputs]]\n{outputs}\n")


def test_a_stream_that_nobody_reads_is_checked_too(tmp_path: Path) -> None:
    """A run would open it."""
    with pytest.raises(InputError, match=r"absent\.npz: no such file"):
        wired(tmp_path, model("plain", 'inputs = { image = "camera" }'), STREAMS + 'source = "absent.npz"\n')
