"""``framefit treeify`` on handwritten digits, and its exit codes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from console import Framefit

pytest.importorskip("sklearn", reason="no digits without scikit-learn")
pytest.importorskip("torch", reason="the extra 'train' is not installed")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``mlp.onnx`` and ``digits.npz`` of the example."""
    path = Path(__file__).resolve().parents[2] / "examples" / "digits.py"
    spec = importlib.util.spec_from_file_location("digits_for_trees", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("digits")
    module.write_data(folder / "digits.npz", images=False)
    module.write_network(module.mlp(), folder / "digits.npz", folder / "mlp.onnx")
    return folder


def test_two_hidden_layers_become_trees(framefit: Framefit, digits: Path) -> None:
    """From an ONNX file and an .npz to a hybrid that loses little; the JSON has the keys of the contract."""
    ended = framefit(
        *("treeify", digits / "mlp.onnx", "--data", digits / "digits.npz", "--first", "1", "--layers", "2"),
        *("--trees", "64", "-o", digits / "hybrid", "--json"),
    )
    assert (ended.code, ended.err) == (0, "")
    result = json.loads(ended.out)
    assert json.loads((digits / "hybrid" / "result.json").read_text()) == result
    assert {"schema_version", "model", "original", "candidates", "chosen"} <= result.keys()
    assert {"first_layer", "last_layer", "bound_top1", "top1", "latency_ns", "lut6"} <= result["candidates"][0].keys()
    assert {"groups", "top1", "latency_ns", "lut6", "bytes"} <= result["chosen"].keys()
    assert {"first_layer", "last_layer", "depth", "trees", "kind"} <= result["chosen"]["groups"][0].keys()
    assert result["chosen"]["top1"] > result["original"]["top1"] - 0.05
    assert {path.name for path in (digits / "hybrid").iterdir()} == {"model.onnx", "trees.json", "result.json"}


def test_the_table_and_exit_codes(framefit: Framefit, digits: Path) -> None:
    """Votes in a table; 1 where nothing can be replaced; 2 where the folder or the data are wrong."""
    command = ("treeify", digits / "mlp.onnx", "--data", digits / "digits.npz")
    votes = ("--first", "2", "--layers", "1", "--method", "ada", "--trees", "3", "-o", digits / "votes")
    ended = framefit(*command, *votes)
    assert (ended.code, ended.err) == (0, "")
    assert "192 trees of depth 5 (vote)" in " ".join(ended.out.split())
    assert framefit(*command, *votes).code == 2
    assert framefit(*command, "--first", "9", "-o", digits / "none").code == 1
    assert framefit("treeify", digits / "mlp.onnx", "--data", digits / "missing.npz").code == 2
