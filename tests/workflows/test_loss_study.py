"""``framefit inject-loss --repeat``: what losses cost, and which buffer would have lost nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import framefit
from framefit import InputError
from framefit.core.events import Trace
from framefit.core.files import read_record, write_record
from framefit.core.loss_study import LossStudy
from framefit.profiling.inject import drop_by_buffer
from framefit.profiling.profile import open_trace, profile_trace
from framefit.profiling.validation import compare_repair
from lossy_runs import played, program, segment

NET = program(
    segment(
        "net",
        *(("conv", "npu0", 9_000), ("pool", "npu0", 4_000), ("conv", "npu0", 700), ("pad", "npu0", 200)),
        *(("conv", "npu0", 3_000), ("reformat", "npu0", 1_500), ("pool", "npu0", 600)),
    )
)
WHOLE = played(NET, 60)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LossStudy]:
    """The folder of a study, and the record in it."""
    folder = tmp_path_factory.mktemp("losses")
    write_record(folder / "program.json", NET)
    WHOLE.write(folder / "trace.npz")
    framefit.inject_loss(
        str(folder), repeat=3, rates=(0.05, 0.3), bursts=(1, 8), drain_rate=1e6, output=str(folder / "study")
    )
    return folder / "study", read_record(folder / "study" / "loss_study.json", LossStudy)


def test_the_certified_buffer_loses_nothing_and_a_smaller_one_does(studied: tuple[Path, LossStudy]) -> None:
    """The certificate names the least buffer, at the drain rate that was given."""
    _, study = studied
    assert study.buffer_events is not None
    assert f"a buffer of {study.buffer_events} events for each core would have lost nothing" in study.certificate
    assert drop_by_buffer(WHOLE, study.buffer_events, 1e6).lost == 0
    assert drop_by_buffer(WHOLE, study.buffer_events - 1, 1e6).lost > 0
    assert study.drain_known
    rates = [size.drain_rate_hz for size in study.sizes]
    sizes = [size.buffer_events for size in study.sizes if size.buffer_events is not None]
    assert rates == sorted(rates)
    assert sizes == sorted(sizes, reverse=True)


def test_every_rate_and_burst_is_profiled(studied: tuple[Path, LossStudy]) -> None:
    """More losses cost more, and each point has its repeats."""
    _, study = studied
    assert [(point.rate, point.burst) for point in study.drawn] == [(0.05, 1), (0.05, 8), (0.3, 1), (0.3, 8)]
    assert all(point.repeats == 3 and not point.refused for point in study.drawn)
    by = {(point.rate, point.burst): point for point in study.drawn}
    assert 0 < by[0.05, 1].duration_error_ratio < by[0.3, 8].duration_error_ratio
    assert all(point.recognised_ratio > 0.9 for point in study.drawn if point.rate == 0.05)
    low, high = by[0.3, 8].duration_error_range
    assert low <= by[0.3, 8].duration_error_ratio <= high


def test_a_page_a_picture_and_a_report(studied: tuple[Path, LossStudy], tmp_path: Path) -> None:
    """The page says the certificate; ``framefit report`` makes it again from the folder."""
    folder, study = studied
    assert {path.name for path in folder.iterdir()} == {"loss_study.json", "loss_study.svg", "report.html"}
    assert study.certificate in (folder / "report.html").read_text()
    again = framefit.write_report(str(folder), output=str(tmp_path / "again.html"))
    assert study.certificate in again.read_text()


def test_a_slow_drain_has_no_buffer(tmp_path: Path) -> None:
    """Where more comes than leaves, no buffer helps."""
    found = framefit.inject_loss(WHOLE, program=NET, repeat=1, rates=(0.1,), bursts=(1,), drain_rate=1e3)
    assert found.study.buffer_events is None
    assert found.study.certificate.startswith("no buffer would have lost nothing")


@pytest.mark.parametrize("wrong", [{"rate": 0.1}, {"burst": 3}, {"kind": "overflow"}])
def test_options_of_one_loss_are_refused(wrong: dict[str, object]) -> None:
    """A study has rates and bursts of its own."""
    with pytest.raises(InputError, match="--repeat asks for many"):
        framefit.inject_loss(WHOLE, program=NET, repeat=2, **wrong)


def test_a_loss_needs_its_rate() -> None:
    """Without --repeat nothing says how much to lose."""
    with pytest.raises(InputError, match="--rate missing"):
        framefit.inject_loss(WHOLE)


def test_a_loss_before_the_first_packet_is_no_error() -> None:
    """Inferences are counted from the first that left a packet; a study knows which one that was."""
    whole = profile_trace(open_trace(WHOLE, NET))
    kept = np.arange(len(WHOLE)) >= 3 * 14
    kept[200::9] = False
    thin = Trace(
        **{name: getattr(WHOLE, name)[kept] for name in ("time_ns", "id", "type", "core", "operation")},
        kinds=WHOLE.kinds,
    )
    repair = compare_repair(whole.log, profile_trace(open_trace(thin, NET)).log, kept)
    assert repair is not None
    assert repair.recognised_ratio > 0.95
