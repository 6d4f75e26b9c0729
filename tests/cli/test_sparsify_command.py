"""``framefit sparsify`` on handwritten digits, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from console import Framefit


def test_half_of_the_cycles_cost_less_than_a_point(framefit: Framefit, digits: Path) -> None:
    """From an ONNX file and an .npz to a model within its budget; the JSON has the keys of the contract."""
    ended = framefit(
        *("sparsify", digits / "mlp.onnx", "--data", digits / "digits.npz", "--target", "vpu", "--cycles", "0.5"),
        *("--episodes", "2", "--accuracy-drop", "0.03", "-o", digits / "half", "--json"),
    )
    assert (ended.code, ended.err) == (0, "")
    result = json.loads(ended.out)
    assert json.loads((digits / "half" / "result.json").read_text()) == result
    keys = "schema_version model target dense configurations chosen deployed reasons ledger"
    assert set(keys.split()) <= result.keys()
    row = result["configurations"][result["chosen"]]
    assert row["cycles_ratio"] <= 0.5
    assert row["difference_top1"] >= -1.0
    keys = "solver top1_before_finetune top1 top5 parameters zeros sparsity_ratio cycles cycles_ratio layers"
    assert set(keys.split()) <= row.keys()
    assert {"name", "sparsity_ratio", "activation_sparsity_ratio", "cycles"} <= row["layers"][0].keys()
    assert {"images_forwarded", "seconds", "evaluations"} <= result["ledger"].keys()
    again = framefit("sparsify", "--resume", digits / "half", "--no-compare", "--json")
    assert (again.code, again.err) == (0, "")
    assert json.loads(again.out)["target_cycles_ratio"] == 0.5


def test_exit_codes_tell_what_happened(framefit: Framefit, digits: Path) -> None:
    """1: out of reach; 2: what cannot be used, with a remedy."""
    given = ("--data", digits / "digits.npz", "--target", "vpu", "-o", digits / "none")
    ended = framefit("sparsify", digits / "mlp.onnx", *given, "--cycles", "0.02")
    assert ended.code == 1
    assert "out of reach" in ended.err
    for arguments in (
        ("sparsify", digits / "mlp.onnx", *given, "--cycles", "1.5"),
        ("sparsify", digits / "mlp.onnx", *given, "--cycles", "half"),
        ("sparsify", digits / "none.onnx", *given),
        ("sparsify", digits / "mlp.onnx", "--target", "vpu"),
        ("sparsify", digits / "mlp.onnx", "--data", digits / "mlp.onnx", "--target", "vpu", "-o", digits / "none"),
        ("sparsify", digits / "mlp.onnx", *given[:2], "--target", "cpu", "--pattern", "unstructured"),
        ("sparsify", digits / "mlp.onnx", *given, "--deploy-to", "vpuu"),
        ("sparsify", "--resume", digits),
    ):
        ended = framefit(*arguments)
        assert ended.code == 2, arguments
        assert ended.err
