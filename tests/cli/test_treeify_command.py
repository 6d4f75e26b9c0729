"""``framefit treeify`` on handwritten digits, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from console import Framefit


def test_two_hidden_layers_become_trees(framefit: Framefit, digits: Path) -> None:
    """From an ONNX file and an .npz to a hybrid that loses little; the JSON has the keys of the contract."""
    ended = framefit(
        *("treeify", digits / "mlp.onnx", "--data", digits / "digits.npz", "--first", "1", "--layers", "2"),
        *(
            "--trees",
            "64",
            "--max-drop",
            "0.05",
            "--finetune-batches",
            "60",
            "--examples",
            "1000",
            "--export",
            "ml",
            "-o",
            digits / "hybrid",
            "--json",
        ),
    )
    assert (ended.code, ended.err) == (0, "")
    result = json.loads(ended.out)
    assert json.loads((digits / "hybrid" / "result.json").read_text()) == result
    assert {"schema_version", "model", "original", "candidates", "chosen"} <= result.keys()
    assert {"first_layer", "last_layer", "bound_top1", "top1", "latency_ns", "lut6"} <= result["candidates"][0].keys()
    assert {"groups", "top1", "latency_ns", "lut6", "bytes"} <= result["chosen"].keys()
    assert {"first_layer", "last_layer", "depth", "trees", "kind"} <= result["chosen"]["groups"][0].keys()
    assert result["chosen"]["top1"] > result["original"]["top1"] - 0.05
    assert result["chosen"]["lut6"] > 0
    assert {one["file"]: one["flavour"] for one in result["chosen"]["exports"]} == {
        "model.onnx": "core",
        "model-ml.onnx": "ml",
    }


def test_the_table_and_exit_codes(framefit: Framefit, digits: Path) -> None:
    """Votes in a table; 1 and the bounds where nothing is worth replacing; 2 where options, folder or data are bad."""
    command = ("treeify", digits / "mlp.onnx", "--data", digits / "digits.npz", "--finetune", "none")
    votes = ("--first", "2", "--layers", "1", "--method", "ada", "--trees", "3", "--max-drop", "1")
    ended = framefit(*command, *votes, "-o", digits / "votes")
    assert (ended.code, ended.err) == (0, "")
    shown = " ".join(ended.out.split())
    assert "layer 2 vote 192 5 " in shown
    assert "model.onnx: trees as core operators, equal to the last bit" in shown
    assert framefit(*command, *votes, "-o", digits / "votes").code == 2
    poor = ("--first", "0", "--layers", "3", "--trees", "1", "--depth", "1", "--max-drop", "0")
    ended = framefit(*command, *poor, "-o", digits / "poor")
    assert ended.code == 1
    assert "no group of layers is worth replacing" in " ".join(ended.out.split())
    assert "0 to 2" in ended.out
    ended = framefit(*command, "--first", "2", "--layers", "7", "-o", digits / "no-group")
    assert (ended.code, ended.out) == (2, "")
    assert "layers 2 to 8 are not a group" in ended.err
    assert framefit(*command, "--depth", "7").code == 2
    assert framefit("treeify", digits / "mlp.onnx").code == 2
    assert framefit("treeify", digits / "mlp.onnx", "--data", digits / "missing.npz").code == 2
