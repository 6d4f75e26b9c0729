"""``framefit estimate`` and ``framefit table``: what they print, the JSON that others rely on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from console import Framefit

from framefit.core.files import write_record
from framefit.core.latency_table import LatencyTable
from framefit.core.run_record import LatencyEstimate
from networks import NETWORKS, write_dynamic
from simulated_tables import table_on


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A network as a file, its table, the table without its first entry, and one of another device."""
    model = NETWORKS["residual"]()
    model.save(tmp_path / "residual.onnx")
    table = table_on("vpu", [model])
    made = {
        "board": table,
        "less": msgspec.structs.replace(table, entries=table.entries[1:]),
        "elsewhere": msgspec.structs.replace(table_on("edge-8", [model]), target="vpu"),
    }
    for name, one in made.items():
        write_record(tmp_path / f"{name}.table.json", one)
    return {"model": tmp_path / "residual.onnx"} | {name: tmp_path / f"{name}.table.json" for name in made}


def test_the_estimate_is_shown(framefit: Framefit, files: dict[str, Path]) -> None:
    """Total with its interval, what it is made of, and each layer with its source, on stdout only."""
    ended = framefit("estimate", files["model"], "--table", files["board"])
    assert (ended.code, ended.err) == (0, "")
    for text in ("residual on vpu, unit vpu0", "Plain sum", "Coverage", "100.0 %", "measured", "not audited"):
        assert text in ended.out


def test_json_has_the_keys_of_the_contract(framefit: Framefit, files: dict[str, Path], tmp_path: Path) -> None:
    """Only JSON; the file that -o writes is the same."""
    ended = framefit("estimate", files["model"], "--table", files["board"], "--json", "-o", tmp_path / "out.json")
    assert (ended.code, ended.err) == (0, "")
    report = json.loads(ended.out)
    assert json.loads((tmp_path / "out.json").read_text()) == report
    assert {"schema_version", "total_ns", "interval_ns", "plain_sum_ns", "coverage_ratio", "layers"} <= report.keys()
    assert {"name", "op", "latency_ns", "interval_ns", "source"} <= report["layers"][0].keys()
    assert report["interval_ns"][0] <= report["total_ns"] <= report["interval_ns"][1]
    assert msgspec.convert(report, LatencyEstimate).plain_sum_ns == sum(one["latency_ns"] for one in report["layers"])


def test_a_missing_layer(framefit: Framefit, files: dict[str, Path]) -> None:
    """It is refused by name with 2; with --fallback coverage is below 100 % and the source is named."""
    refused = framefit("estimate", files["model"], "--table", files["less"])
    assert (refused.code, refused.out) == (2, "")
    assert "layer Relu" in refused.err
    assert "the table has no entry of Conv" in refused.err
    assert "--fallback" in refused.err
    ended = framefit("estimate", files["model"], "--table", files["less"], "--fallback", "--json")
    assert (ended.code, ended.err) == (0, "")
    report = json.loads(ended.out)
    assert 0 < report["coverage_ratio"] < 1
    assert {layer["source"] for layer in report["layers"]} & {"interpolated", "modelled"}


def test_a_table_of_another_device(framefit: Framefit, files: dict[str, Path]) -> None:
    """It is refused with 2, the differing facts named, unless it is asked for."""
    refused = framefit("estimate", files["model"], "--table", files["elsewhere"])
    assert (refused.code, refused.out) == (2, "")
    assert "target: 'edge-8' in the table, 'vpu' here" in refused.err
    unit = json.loads(files["elsewhere"].read_text())["entries"][0]["unit"]
    more = ("--any-fingerprint", "--unit", unit)
    assert framefit("estimate", files["model"], "--table", files["elsewhere"], *more).code == 0


def test_every_option_reaches_the_model(framefit: Framefit, tmp_path: Path) -> None:
    """Shape, target and unit."""
    path = write_dynamic(tmp_path / "dynamic.onnx")
    from framefit.core.model import Model

    table = table_on("vpu", [Model.load(path, shapes={"image": (2, 2, 6, 6)})])
    write_record(tmp_path / "board.table.json", table)
    ended = framefit(
        *("estimate", path, "--table", tmp_path / "board.table.json", "--target", "vpu", "--unit", "vpu0"),
        *("--shape", "image=2,2,6,6"),
    )
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("estimate", "detector", "--table", "absent.table.json"), "no such file"),
        (("estimate", "detektor", "--table", "BOARD"), "no built-in model 'detektor'"),
        (("estimate", "detector", "--table", "BOARD", "--unit", "dpu"), "no entry of unit 'dpu'"),
        (("estimate", "detector", "--table", "BOARD", "--shape", "image"), "is not of the form INPUT=1,3,H,W"),
        (("estimate", "detector"), "--table"),
        (("table", "absent.table.json"), "no such file"),
        (("table", "BOARD", "LESS"), "one table at a time"),
        (("table", "BOARD", "--merge", "LESS"), "belong together"),
        (("table", "BOARD", "-o", "out.json"), "belong together"),
        (("table", "BOARD", "--merge", "LESS", "--against", "LESS", "-o", "out.json"), "either --against or --merge"),
    ],
)
def test_bad_arguments_end_with_2(
    framefit: Framefit, files: dict[str, Path], arguments: tuple[str, ...], message: str
) -> None:
    """One message that says what, and nothing on stdout."""
    names = {"BOARD": files["board"], "LESS": files["less"]}
    ended = framefit(*(names.get(one, one) for one in arguments))
    assert (ended.code, ended.out) == (2, "")
    assert message in " ".join(ended.err.replace("│", " ").split())


def test_a_table_is_shown(framefit: Framefit, files: dict[str, Path]) -> None:
    """Facts and entries; as JSON it is the file."""
    ended = framefit("table", files["board"])
    assert (ended.code, ended.err) == (0, "")
    assert "of vpu, unit vpu0" in ended.out
    assert "kind" in ended.out
    shown = framefit("table", files["board"], "--json")
    assert json.loads(shown.out) == json.loads(files["board"].read_text())


def test_tables_are_compared(framefit: Framefit, files: dict[str, Path]) -> None:
    """The median ratio, what one lacks, and facts that differ."""
    ended = framefit("table", files["board"], "--against", files["less"])
    assert (ended.code, ended.err) == (0, "")
    assert "1.000 x" in ended.out
    assert "Only here" in ended.out
    compared = framefit("table", files["board"], "--against", files["elsewhere"], "--json")
    report = json.loads(compared.out)
    assert {one["fact"] for one in report["differences"]} >= {"target"}
    assert "Facts that differ" in framefit("table", files["board"], "--against", files["elsewhere"]).out


def test_tables_are_merged(framefit: Framefit, files: dict[str, Path], tmp_path: Path) -> None:
    """Several at once; those of another device only where that is asked for."""
    out = tmp_path / "both.table.json"
    ended = framefit("table", files["less"], "--merge", files["board"], files["less"], "-o", out)
    assert (ended.code, ended.err) == (0, "")
    both = msgspec.json.decode(out.read_bytes(), type=LatencyTable)
    assert len(both.entries) == len(json.loads(files["board"].read_text())["entries"])
    refused = framefit("table", files["board"], "--merge", files["elsewhere"], "-o", tmp_path / "x.table.json")
    assert (refused.code, refused.out) == (2, "")
    assert "target: 'edge-8' in the table, 'vpu' here" in refused.err
    more = ("--any-fingerprint", "-o", tmp_path / "x.table.json")
    assert framefit("table", files["board"], "--merge", files["elsewhere"], *more).code == 0
