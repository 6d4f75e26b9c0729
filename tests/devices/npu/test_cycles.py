"""``framefit.cycles``: from names and files to a report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from msgspec.structs import replace

import framefit
from framefit import GraphBuilder, InputError, Model
from framefit.core.files import read_record
from framefit.core.run_record import CycleReport
from framefit.core.target import Cost, Unit, resolve_target
from networks import NETWORKS, write_dynamic


def test_names_and_files_are_found(tmp_path: Path) -> None:
    """A built-in model by name, the same one as a file, and as an object: one report."""
    model = NETWORKS["plain"]()
    model.save(tmp_path / "plain.onnx")
    of_file = framefit.cycles(tmp_path / "plain.onnx", "vpu")
    assert of_file == framefit.cycles(model, resolve_target("vpu"))
    assert framefit.cycles("detector", "edge-8").model == "detector"


def test_totals_are_sums() -> None:
    """Of the layers' cycles and durations; all multiply-accumulates are there."""
    model = NETWORKS["residual"]()
    report = framefit.cycles(model, "vpu")
    assert report.total_cycles == sum(layer.cycles for layer in report.layers)
    assert report.total_ns == sum(layer.latency_ns for layer in report.layers)
    assert sum(layer.macs for layer in report.layers) == model.macs
    assert (report.target, report.unit, report.source, report.clock_mhz) == ("vpu", "vpu0", "cycles", 700)


def test_activations_are_applied_on_the_way_out() -> None:
    """Unless asked not to, a convolution takes in its norm and activation; that saves their traffic."""
    model = NETWORKS["plain"]()
    fused, apart = framefit.cycles(model, "vpu"), framefit.cycles(model, "vpu", fuse=False)
    assert fused.layers[0].op == "Conv+BatchNormalization+Relu"
    assert [layer.op for layer in apart.layers] == [layer.op for layer in model.layers]
    assert fused.total_cycles < apart.total_cycles


def test_sparsity_of_every_layer_or_of_each() -> None:
    """One ratio, or one a layer; the report says which layers have weights at all."""
    model = NETWORKS["plain"]()
    report = framefit.cycles(model, "vpu", fuse=False, weight_sparsity=0.5, activation_sparsity=0.25)
    for layer in report.layers:
        expected = (0.5, 0.25) if layer.op in ("Conv", "Gemm") else (0.0, 0.0)
        assert (layer.weight_sparsity_ratio, layer.activation_sparsity_ratio) == expected
    ratios = [index / 20 for index in range(len(model.layers))]
    each = framefit.cycles(model, "vpu", fuse=False, weight_sparsity=ratios)
    assert each.layers[3].weight_sparsity_ratio == ratios[3]


def test_the_report_is_written_once(tmp_path: Path) -> None:
    """As JSON that reads back the same; an existing file is left alone unless forced."""
    path = tmp_path / "cycles.json"
    report = framefit.cycles("detector", "vpu", output=path)
    assert read_record(path, CycleReport) == report
    with pytest.raises(InputError, match="already exists"):
        framefit.cycles("detector", "vpu", output=path)
    framefit.cycles("detector", "gpu", output=path, force=True)
    assert read_record(path, CycleReport).target == "gpu"


def test_dynamic_shapes(tmp_path: Path) -> None:
    """They are given by name; what had to be assumed is noted."""
    path = write_dynamic(tmp_path / "dynamic.onnx")
    report = framefit.cycles(path, "vpu")
    assert report.notes == ("input 'image': leading dimension batch assumed to be 1",)
    larger = framefit.cycles(path, "vpu", shapes={"image": (4, 2, 6, 6)})
    assert larger.notes == ()
    assert sum(layer.macs for layer in larger.layers) == 4 * sum(layer.macs for layer in report.layers)


def test_sizes_that_are_missing_are_asked_for_as_an_option(tmp_path: Path) -> None:
    """The remedy is this command's, not a key of ``app.toml``."""
    b = GraphBuilder("sound")
    b.output(b.op("Relu", b.input("sound in", (1, 1))))
    content = onnx.ModelProto.FromString(b.build().to_bytes())
    content.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "samples"
    onnx.save(content, tmp_path / "sound.onnx")
    with pytest.raises(InputError, match="'sound in' has the dynamic dimension samples") as error:
        framefit.cycles(tmp_path / "sound.onnx", "vpu")
    assert error.value.remedy == "give all its sizes, in the form --shape sound in=1,576"
    assert error.value.where == str(tmp_path / "sound.onnx")
    assert framefit.cycles(tmp_path / "sound.onnx", "vpu", shapes={"sound in": (1, 576)}).total_cycles > 0


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    """It exists, so it is not said to be missing."""
    with pytest.raises(InputError, match="is a folder"):
        framefit.cycles(tmp_path, "vpu")


def test_unknown_operators_are_noted() -> None:
    """Priced by their bytes, and named."""
    b = GraphBuilder("odd")
    b.output(b.op("LRN", b.input("x", (1, 4, 6, 6)), size=3))
    assert framefit.cycles(b.build(), "vpu").notes == (
        "priced by their bytes, since the model does not know these operators: LRN",
    )


def test_shapes_that_depend_on_data_are_noted() -> None:
    """Layers whose cost is not known in whole are named."""
    notes = framefit.cycles(NETWORKS["selecting"](), "vpu").notes
    assert any("shapes or iterations depend on the data" in note for note in notes)


def test_iterations_that_depend_on_data_are_noted() -> None:
    """One iteration is priced, and the layer is named."""
    b = GraphBuilder("loop")
    x, times = b.input("x", (1, 4)), b.input("times", (), np.int64)
    number, going, carried = (
        ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        for name, dtype, shape in (
            ("number", ir.DataType.INT64, []),
            ("going", ir.DataType.BOOL, []),
            ("carried", ir.DataType.FLOAT, [1, 4]),
        )
    )
    still, grown = ir.node("Identity", [going]), ir.node("Exp", [carried])
    outputs = [still.outputs[0], grown.outputs[0]]
    body = ir.Graph([number, going, carried], outputs, nodes=[still, grown], name="body")
    loop = b.op("Loop", times, b.constant(np.asarray([True]).squeeze()), x, body=body)
    b.output(loop)
    report = framefit.cycles(b.build(), "vpu")
    assert report.layers[0].method == "unknown"
    assert report.notes == (f"shapes or iterations depend on the data, so only a part is priced: {loop}",)


def test_the_first_unit_that_runs_the_model_is_taken() -> None:
    """Unless one is named."""
    units = Unit(name="small", operators=("Relu",)), Unit(name="big")
    target = replace(resolve_target("vpu"), units=units)
    model = NETWORKS["plain"]()
    assert framefit.cycles(model, target).unit == "big"
    with pytest.raises(InputError, match="unit 'small' of target 'vpu' does not support Conv"):
        framefit.cycles(model, target, unit="small")


def test_a_function_beside_the_target(tmp_path: Path) -> None:
    """``cost.function`` is looked for in the folder of the target's file."""
    (tmp_path / "prices_for_this_test.py").write_text("def price(layer, unit, target):\n    return 10 + layer.macs\n")
    (tmp_path / "mine.toml").write_text(
        'schema_version = 1\nname = "mine"\nkind = "npu"\n[processor]\nclock_mhz = 500\n'
        '[cost]\nsource = "function"\nfunction = "prices_for_this_test:price"\n'
    )
    model = NETWORKS["plain"]()
    report = framefit.cycles(model, tmp_path / "mine.toml", fuse=False)
    assert report.source == "function"
    assert [layer.latency_ns for layer in report.layers] == [
        0 if layer.op in ("Flatten", "Identity") else 10 + layer.macs for layer in model.layers
    ]


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    """The target and the key are named."""
    target = replace(resolve_target("vpu"), cost=Cost(source="function", function="no_such_module_here:price"))
    with pytest.raises(InputError, match=r"cost\.function"):
        framefit.cycles(NETWORKS["plain"](), target)


@pytest.mark.parametrize(
    ("model", "target", "message"),
    [
        ("detektor", "vpu", "no built-in model 'detektor', and no such file; did you mean 'detector'?"),
        ("xyz", "vpu", "no built-in model 'xyz', and no such file\nremedy"),
        ("absent.onnx", "vpu", "no such file"),
        ("detector", "vpuu", "no built-in target 'vpuu'"),
        ("detector", "cpu", "describes no processor"),
    ],
)
def test_names_that_do_not_exist(model: str, target: str, message: str) -> None:
    """Each is refused with what there is."""
    with pytest.raises(InputError, match=message) as error:
        framefit.cycles(model, target)
    assert error.value.remedy


def test_a_real_quantised_target_takes_a_float_model() -> None:
    """The micro-NPU stores bytes: a float network counts as if it were quantised."""
    model: Model = NETWORKS["plain"]()
    report = framefit.cycles(model, "micro-npu")
    assert {layer.precision for layer in report.layers if layer.macs} == {"int8"}
