"""``framefit init`` and ``framefit schema``: a first workload, and how editors check it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

import framefit
from framefit import GraphBuilder, InputError, Model
from framefit.core.files import from_data
from framefit.core.workload import Workload, load_workload
from networks import NETWORKS


def save(model: Model, path: Path) -> Path:
    """Write an ONNX file."""
    path.write_bytes(model.to_bytes())
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A large and a small model."""
    found = {}
    for name, channels in (("large", 32), ("small", 4)):
        b = GraphBuilder(name)
        b.output(b.conv(b.input("image", (1, 3, 16, 16)), channels))
        found[name] = save(b.build(), tmp_path / f"{name}.onnx")
    return found


def test_a_first_workload_plans(files: dict[str, Path], tmp_path: Path) -> None:
    """The smallest model is in every frame; paths are relative to the file, and the schema lies beside it."""
    app = tmp_path / "app.toml"
    found = framefit.init(str(files["large"]), str(files["small"]), output=str(app), rate_hz=12.5)
    assert (found.priority, found.background) == ("small", ("large",))
    workload = load_workload(app)
    assert workload.rate_hz == 12.5
    assert [(model.name, model.priority) for model in workload.models] == [
        ("small", "every-window"),
        ("large", "background"),
    ]
    assert 'path = "small.onnx"' in app.read_text()
    assert app.read_text().startswith("#:schema ./app.schema.json\n")
    assert json.loads((tmp_path / "app.schema.json").read_text()) == json.loads(framefit.schema("app"))
    assert framefit.plan(str(app), target="vpu").timetable.feasible


def test_files_are_kept_and_models_of_one_name_are_numbered(files: dict[str, Path], tmp_path: Path) -> None:
    """Nothing is overwritten unasked."""
    app = str(tmp_path / "app.toml")
    found = framefit.init(str(files["small"]), str(files["small"]), output=app)
    assert (found.priority, found.background) == ("small", ("small-2",))
    with pytest.raises(InputError, match="exists"):
        framefit.init(str(files["small"]), output=app)


def test_open_shapes_are_asked_for_and_written(tmp_path: Path) -> None:
    """The message names the option; the shape is given to the model that needs it only."""
    free, x = str(tmp_path / "free.onnx"), onnx.helper.make_tensor_value_info("x", 1, [1, "length"])
    y = onnx.helper.make_tensor_value_info("y", 1, [1, "length"])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "free", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), free)
    app = tmp_path / "app.toml"
    with pytest.raises(InputError, match="dynamic dimension length") as raised:
        framefit.init(free, output=str(app))
    assert raised.value.remedy is not None
    assert "--shape x=" in raised.value.remedy
    framefit.init(free, output=str(app), shapes={"x": (1, 576), "y": (3,)})
    assert load_workload(app).models[0].shapes == {"x": (1, 576)}


def test_sizes_of_images_are_guessed_and_said(tmp_path: Path) -> None:
    """A comment in the file, and a line for the user."""
    b = GraphBuilder("camera")
    b.output(b.conv(b.input("image", (1, 3, 32, 32)), 4))
    proto = onnx.load_from_string(b.build().to_bytes())
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"size{axis}"
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save(proto, tmp_path / "camera.onnx")
    written = framefit.init(str(tmp_path / "camera.onnx"), output=str(tmp_path / "app.toml"))
    assert written.guesses == ("camera: input 'image' leaves its size open, here 1x3x224x224",)
    assert load_workload(tmp_path / "app.toml").models[0].shapes == {"image": (1, 3, 224, 224)}
    assert "# guessed: input 'image' leaves its size open" in (tmp_path / "app.toml").read_text()


def test_states_and_options_are_wired(tmp_path: Path) -> None:
    """An input is fed by the output of its shape and a like name; a sampling rate is 16 kHz: the workload plans."""
    path = save(NETWORKS["lstm"](), tmp_path / "lstm.onnx")
    proto = onnx.load(path)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("sr", onnx.TensorProto.INT64, []))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("rate", onnx.TensorProto.INT64, []))
    proto.graph.node.append(onnx.helper.make_node("Identity", ["sr"], ["rate"]))
    onnx.save(proto, path)
    written = framefit.init(str(path), output=str(tmp_path / "app.toml"))
    entry = load_workload(tmp_path / "app.toml").models[0]
    assert entry.state == {"hidden": "next_hidden", "cell": "next_cell"}
    assert entry.constants == {"sr": 16_000}
    assert len(written.guesses) == 3
    assert framefit.plan(str(tmp_path / "app.toml"), target="vpu").timetable.feasible


def _keys(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(schema["$defs"][name]["properties"])


def test_the_schema_is_that_of_the_records() -> None:
    """All keys of the records, with their descriptions, no unknown keys, and the choices of values."""
    schema = json.loads(framefit.schema("app"))
    assert set(_keys(schema, "Workload")) == {field.name for field in msgspec.structs.fields(Workload)}
    assert schema["$defs"]["Workload"]["additionalProperties"] is False
    entry = _keys(schema, "ModelEntry")
    assert entry["shapes"]["description"] == "graph input -> shape, for dynamic dimensions."
    assert _keys(schema, "Workload")["cores"]["description"].startswith("one unit for each")  # of what it extends
    assert {"every-window", "background", "auto"} <= set(str(entry["priority"]).replace("'", " ").split())
    assert from_data({"rate_hz": 30, "models": [{"name": "a", "path": "a.onnx"}]}, Workload, "app").rate_hz == 30
    assert "units" in _keys(json.loads(framefit.schema("target")), "Target")
    assert _keys(json.loads(framefit.schema("boards")), "Board")["address"]["description"].startswith("ssh://")
