"""``framefit cycles``: the table, the JSON that others rely on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import Framefit

from networks import NETWORKS, write_dynamic


def test_the_table_shows_layers_and_what_binds(framefit: Framefit) -> None:
    """Total, layers, and the terms that bind, on stdout only."""
    ended = framefit("cycles", "detector", "--target", "edge-8")
    assert (ended.code, ended.err) == (0, "")
    assert "detector on edge-8" in ended.out
    assert "What binds" in ended.out
    assert "compute" in ended.out


def test_json_has_the_keys_of_the_contract(framefit: Framefit, tmp_path: Path) -> None:
    """Only JSON; the file that -o writes is the same."""
    ended = framefit("cycles", "detector", "--target", "vpu", "--json", "-o", tmp_path / "out.json")
    assert (ended.code, ended.err) == (0, "")
    report = json.loads(ended.out)
    assert json.loads((tmp_path / "out.json").read_text()) == report
    assert {"schema_version", "target", "source", "total_cycles", "total_ns", "layers"} <= report.keys()
    keys = "name op macs cycles bound bytes_read bytes_written utilisation_ratio weight_sparsity_ratio"
    assert {*keys.split(), "activation_sparsity_ratio"} <= report["layers"][0].keys()
    assert (report["target"], report["source"]) == ("vpu", "cycles")
    assert report["total_cycles"] == sum(layer["cycles"] for layer in report["layers"])


def test_a_file_with_a_shape_a_constant_and_sparsity(framefit: Framefit, tmp_path: Path) -> None:
    """Every option reaches the model."""
    path = write_dynamic(tmp_path / "dynamic.onnx")
    ended = framefit(
        *("cycles", path, "--target", "vpu", "--unit", "vpu0", "--no-fuse", "--shape", "image=2,2,6,6"),
        *("--weight-sparsity", 0.5, "--activation-sparsity", 0.25, "--json"),
    )
    assert (ended.code, ended.err) == (0, "")
    layers = json.loads(ended.out)["layers"]
    assert layers[0]["macs"] == 2 * 4 * 16 * 18
    assert (layers[0]["weight_sparsity_ratio"], layers[0]["activation_sparsity_ratio"]) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("detector", "--target", "vpuu"), "did you mean 'vpu'?"),
        (("detector", "--target", "vpu", "--unit", "dpu"), "no unit 'dpu'"),
        (("detector", "--target", "vpu", "--weight-sparsity", "1.5"), "must be 0 to 1"),
        (("detector", "--target", "vpu", "--shape", "image=a,b"), "is not of the form INPUT=1,3,H,W"),
        (("detector", "--target", "vpu", "--constant", "sr=x"), "is not of the form INPUT=NUMBER"),
        (("detector",), "--target"),
    ],
)
def test_bad_arguments_end_with_2(framefit: Framefit, arguments: tuple[str, ...], message: str) -> None:
    """One message that says what, and nothing on stdout."""
    ended = framefit("cycles", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in " ".join(ended.err.replace("│", " ").split())


def test_an_existing_file_is_left_alone(framefit: Framefit, tmp_path: Path) -> None:
    """Without --force it stays as it is."""
    path = tmp_path / "out.json"
    path.write_text("mine")
    NETWORKS["plain"]().save(tmp_path / "plain.onnx")
    assert framefit("cycles", tmp_path / "plain.onnx", "--target", "vpu", "-o", path).code == 2
    assert path.read_text() == "mine"
    assert framefit("cycles", tmp_path / "plain.onnx", "--target", "vpu", "-o", path, "--force").code == 0
