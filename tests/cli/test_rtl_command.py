"""``framefit rtl``: what it says where it cannot do what is asked, and its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from console import Framefit
from rich.console import Console

from framefit.core.files import write_record
from framefit.core.tree_results import CircuitCost, GroupCircuit, RtlReport
from framefit.core.trees import Forest
from framefit.report.terminal import view
from trees_cases import random_ensemble


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """A file of trees."""
    path = tmp_path / "net.trees.json"
    write_record(path, Forest(model="net", ensembles=(random_ensemble(np.random.default_rng(0)),)))
    return path


def test_an_unknown_group_names_the_known_ones(framefit: Framefit, trees: Path) -> None:
    """Exit code 2, one message, nothing written."""
    ended = framefit("rtl", trees, "--group", "other", "-o", trees.parent / "out")
    assert (ended.code, ended.out) == (2, "")
    assert "choose from group" in ended.err
    assert not (trees.parent / "out").exists()


def test_no_layer_is_refused(framefit: Framefit, trees: Path) -> None:
    """The message says how a layer is written."""
    ended = framefit("rtl", trees, "--layer", "128")
    assert ended.code == 2
    assert "128x64" in ended.err


def test_the_missing_extra_is_named(framefit: Framefit, trees: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact line that installs it, and exit code 2."""
    pytest.importorskip("amaranth", reason="needs the extra hw: pip install 'framefit[hw]'")
    from framefit.trees.hardware import synthesis

    monkeypatch.setattr(synthesis, "find_spec", lambda _: None)
    monkeypatch.setattr(synthesis.shutil, "which", lambda _: None)
    ended = framefit("rtl", trees, "-o", trees.parent / "out")
    assert ended.code == 2
    assert "pip install 'framefit[hw]'" in ended.err


def test_the_table_shows_counts_and_what_was_scaled() -> None:
    """Tables of both sizes, a dash where nothing was counted, factors, and cycles a node."""
    cost = CircuitCost(
        circuit="int8",
        lut6=54321,
        lut4=None,
        lut6_depth=None,
        lut4_depth=None,
        flip_flops=0,
        memory_bits=7,
        factor=512.0,
        synthesised="a neuron of 16 inputs",
    )
    group = GroupCircuit(
        group="hidden",
        kind="vote",
        features=128,
        outputs=64,
        trees=576,
        positions=1,
        latency_cycles=None,
        rows=8,
        mismatches=0,
        cycles=1010,
        nodes=1000,
        cycles_per_node=1.01,
        costs=(cost,),
        notes=("some are scaled",),
    )
    console = Console(width=140, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(view(RtlReport(model="net", core="programmable", yosys="0.70", seed=0, groups=(group,))))
    shown = captured.get()
    for text in ("hidden", "8 of 8 rows", "1.010 cycles a node", "54,321", " - ", "(times 512)", "some are scaled"):
        assert text in shown
