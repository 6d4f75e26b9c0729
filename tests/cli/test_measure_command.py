"""``framefit measure``: the table on screen, its JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import Framefit

from framefit.cli.screen import Interrupt
from networks import NETWORKS


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A file of seven layers."""
    NETWORKS["plain"]().save(tmp_path / "plain.onnx")
    return tmp_path / "plain.onnx"


def test_the_table_is_shown_and_written(framefit: Framefit, plain: Path, tmp_path: Path) -> None:
    """Overhead and entries on stdout; the file has the contract's keys, and --json prints just it."""
    path = tmp_path / "board.table.json"
    command = ("measure", plain, "--target", "vpu", "--repeats", 10, "--no-audit")
    ended = framefit(*command, "-o", path)
    assert (ended.code, ended.err) == (0, "")
    assert "Overhead of a launch " in ended.out
    table = json.loads(path.read_text())
    assert {"schema_version", "target", "fingerprint", "overhead", "correction", "entries"} <= table.keys()
    keys = "input_ns_per_byte output_ns_per_byte intercept_ns condition_number"
    assert set(keys.split()) <= table["overhead"].keys()
    keys = "op configuration unit latency_ns interval_ns samples_ns source"
    assert set(keys.split()) <= table["entries"][0].keys()
    again = framefit(*command, "--json")
    assert json.loads(again.out) == table


def test_every_option_reaches_the_campaign(framefit: Framefit, tmp_path: Path) -> None:
    """Kind, method, seed and grid are in the table's settings or entries."""
    (tmp_path / "grid.toml").write_text('[[layers]]\nop = "Softmax"\nshapes = [[1, 100]]\n')
    ended = framefit(
        *("measure", "--grid", tmp_path / "grid.toml", "--target", "vpu", "--auxiliary", "conv3x3"),
        *("--overhead", "auxiliary", "--repeats", 5, "--seed", 3, "--unit", "vpu0", "--json"),
    )
    table = json.loads(ended.out)
    assert table["settings"] == {"repeats": 5, "seed": 3, "auxiliary": "conv3x3", "overhead": "auxiliary"}
    assert [(entry["op"], entry["auxiliary"]) for entry in table["entries"]] == [("Softmax", "conv3x3")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to measure"),
        (("detector", "--auxiliary", "conv5x5"), "conv5x5"),
        (("detector", "--repeats", "0"), "--repeats"),
        (("detector", "--target", "vpuu"), "did you mean 'vpu'?"),
        (("detector", "--grid", "absent.toml"), "no such file"),
        (("detector", "--resume"), "no output is named"),
    ],
)
def test_bad_arguments_end_with_2(framefit: Framefit, arguments: tuple[str, ...], message: str) -> None:
    """One message that says what, and nothing on stdout."""
    ended = framefit("measure", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in " ".join(ended.err.replace("│", " ").split())


def test_an_interrupted_measurement_is_kept(
    framefit: Framefit, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 130, a table of what was complete; --resume completes it."""
    path = tmp_path / "board.table.json"
    command = ("measure", plain, "--target", "vpu", "--repeats", 100, "--no-audit", "-o", path)
    calls = iter(range(100_000))

    def asked(self: Interrupt) -> bool:
        self.asked = next(calls) > 900
        return self.asked

    with monkeypatch.context() as patch:
        patch.setattr(Interrupt, "__call__", asked)
        ended = framefit(*command)
    assert ended.code == 130
    entries = json.loads(path.read_text())["entries"]
    assert 5 <= len(entries[0]["samples_ns"]) < 100
    ended = framefit(*command, "--resume")
    assert ended.code == 0
    assert {len(entry["samples_ns"]) for entry in json.loads(path.read_text())["entries"]} == {100}
