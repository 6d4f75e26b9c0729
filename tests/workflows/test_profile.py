"""Profiles of runs: of the folder, of a thinned trace, and back into the table that the next plan uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from numba import njit

from framefit import InputError, RunResult, plan, simulate
from framefit.core.files import read_record, write_record
from framefit.core.latency_table import LatencyEntry, LatencyTable, read_table
from framefit.core.model import configuration
from framefit.core.profile import Profile
from framefit.core.program import read_program
from framefit.devices.npu.device import NpuDevice
from framefit.workflows.inject import inject_loss
from framefit.workflows.profile import _compiling_noted, profile, table_for
from framefit.workflows.report import write_views
from workloads import write_app, write_models, write_target

RATE_HZ = 74  # 13.5 ms: seven segments of 1.9 ms fit; were they 2.4 ms, only five would
WINDOWS = 150


@pytest.fixture(scope="module", autouse=True)
def _measures_nothing() -> Iterator[None]:
    """The description says it all: whoever measures in a test of this file, fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("framefit.planning.durations.measure", refuse)
        patch.setattr("framefit.planning.durations.measure_floor", refuse)
        yield


def app_in(folder: Path, table: str | None = None) -> Path:
    """A small priority model and a background model that has to be cut; planned from a table."""
    app = write_app(folder, target="target.toml", rate_hz=RATE_HZ, guard_ms=None, schedule="")
    if table is not None:
        app.write_text(f'table = "{table}"\n' + app.read_text())
    return app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and a board."""
    folder = write_models(tmp_path_factory.mktemp("profile"))
    write_target(folder)
    return folder


@pytest.fixture(scope="module")
def true_table(folder: Path) -> LatencyTable:
    """What the board's layers take, by its description."""
    planned = plan(app_in(folder))
    device = planned.device
    assert isinstance(device, NpuDevice)
    unit, entries = device.target.units[0].name, []
    for wired in planned.wired:
        model = wired.model.grouped(device.fusions(wired.model))
        for layer, nodes, ns in zip(model.layers, model.nodes, device.layers_ns(model, unit), strict=True):
            entries.append(
                LatencyEntry(
                    op=layer.op, configuration=configuration(nodes), unit=unit, latency_ns=ns, interval_ns=(ns, ns)
                )
            )
    return table_for(planned.workload, device).with_entries(tuple(entries))


def scaled(table: LatencyTable, factor: Callable[[int], float]) -> LatencyTable:
    """A table whose entries are wrong by a factor each."""
    entries = tuple(
        msgspec.structs.replace(
            entry,
            latency_ns=round(entry.latency_ns * factor(index)),
            interval_ns=(round(entry.latency_ns * factor(index)),) * 2,
        )
        for index, entry in enumerate(table.entries)
    )
    return msgspec.structs.replace(table, entries=entries)


@pytest.fixture(scope="module")
def ran(folder: Path) -> RunResult:
    """A run of the board that lost nothing."""
    return simulate(app_in(folder), windows=WINDOWS, output=folder / "ran")


def wasted(result: RunResult) -> float:
    """Part of the residual in which nothing ran."""
    return 1 - result.metrics.residual_utilisation_ratio


@pytest.mark.parametrize(
    ("factor", "wastes"),
    [
        (lambda _: 1.25, True),
        (lambda index: 1.25 if index % 2 else 0.75, True),
        (lambda _: 0.75, False),
    ],
    ids=["too slow", "mixed", "too fast"],
)
def test_a_wrong_table_is_put_right_by_a_run(
    folder: Path, true_table: LatencyTable, tmp_path: Path, factor: Callable[[int], float], wastes: bool
) -> None:
    """Plan, simulate, profile, plan again: feasible, closer to what happens, less residual wasted or no more delays."""
    board = folder / "board.table.json"
    write_record(board, scaled(true_table, factor), force=True)
    app = app_in(folder, "board.table.json")
    first = simulate(app, windows=WINDOWS, output=tmp_path / "first", update_table=board)
    replanned = plan(app)
    second = simulate(replanned, windows=WINDOWS, output=tmp_path / "second")
    assert replanned.timetable.feasible
    updated = read_table(board)
    for entry in updated.entries:
        true = true_table.find(entry.op, entry.configuration, entry.unit)
        assert true is not None
        assert entry.latency_ns == pytest.approx(true.latency_ns, rel=0.02, abs=2)
        assert entry.source == "profiled" or not true.latency_ns
    assert second.metrics.estimate_exceeded_ratio < 0.05
    assert second.metrics.miss_ratio <= first.metrics.miss_ratio
    if wastes:
        assert wasted(second) < wasted(first)
    else:  # launches ran on into the next window: nothing was wasted, the priority model had to wait
        first_delay, second_delay = (run.metrics.models[0].release_to_start_ns.p99 for run in (first, second))
        assert second_delay < 0.1 * first_delay
    assert first.profile is not None
    assert second.profile is not None
    slow = [one for one in first.profile.violations if "/" in one.operation]
    assert bool(slow) == (factor is not None and min(factor(0), factor(1)) < 1)
    assert not [one for one in second.profile.violations if "/" in one.operation]


def test_a_run_has_its_profile(ran: RunResult) -> None:
    """It is made when it is asked for, is what lies in the folder then, and where nothing was lost it is exact."""
    assert not (ran.folder / "profile.json").exists()
    write_views(ran.folder, ran.profile)
    assert ran.profile == read_record(ran.folder / "profile.json", Profile)
    assert ran.profile is not None
    assert ran.profile.events.lost == ran.profile.events.spurious == 0
    assert ran.profile.events.received == len(ran.trace)
    assert ran.profile.inferences == len(ran.launches)
    assert not [one for one in ran.profile.violations if "/" in one.operation]
    busy = (ran.seen.time_ns[1::2] - ran.seen.time_ns[::2]).sum()
    assert ran.profile.totals_by_unit["npu0"].duration_ns == pytest.approx(busy, abs=len(ran.trace))


def test_a_run_folder_is_profiled_as_the_run_was(ran: RunResult, tmp_path: Path) -> None:
    """Program, launches and timetable are found beside the trace."""
    found = profile(ran.folder, output=tmp_path / "out")
    assert found.profile == ran.profile
    assert msgspec.structs.replace(found.source.timetable, source=None) == ran.timetable
    assert profile(ran.folder / "trace.npz").profile == ran.profile


@pytest.mark.parametrize("method", ["align", "rule"])
def test_a_thinned_run_is_repaired(ran: RunResult, method: Literal["align", "rule"]) -> None:
    """What was lost is put back, and told apart."""
    thin = inject_loss(ran.folder, rate=0.05, seed=2).trace
    program, launches = read_program(ran.folder / "program.json")
    found = profile(thin, program, launches=launches, method=method)
    assert found.profile.method == method
    assert found.profile.inferences == len(ran.launches)
    assert found.profile.events.lost == found.profile.events.expected - len(thin)
    assert found.profile.totals_by_unit["npu0"].inferred_ratio == pytest.approx(0.05, abs=0.01)
    with pytest.raises(InputError, match="launches"):
        profile(thin, program)


def test_a_run_folder_updates_its_table(ran: RunResult, true_table: LatencyTable, tmp_path: Path) -> None:
    """The device is found in run.json; a table that is there keeps what the run did not use."""
    first = profile(ran.folder, update_table=tmp_path / "board.table.json")
    table = read_table(tmp_path / "board.table.json")
    assert table.fingerprint == true_table.fingerprint
    assert table.overhead == true_table.overhead
    assert len(table.entries) == len(
        {(op.op, str(op.configuration)) for op in first.sequence.operations if op.op and op.expected_ns}
    )
    other = msgspec.structs.replace(table.entries[0], configuration={"of": "another model"}, latency_ns=7)
    write_record(tmp_path / "board.table.json", table.with_entries((other,)), force=True)
    profile(ran.folder, update_table=tmp_path / "board.table.json")
    again = read_table(tmp_path / "board.table.json")
    assert again.find(other.op, other.configuration, other.unit) == other
    assert len(again.entries) == len(table.entries) + 1


def test_a_table_of_another_device_is_not_touched(ran: RunResult, true_table: LatencyTable, tmp_path: Path) -> None:
    """It is refused before anything is done, and the differing fact is named."""
    write_record(tmp_path / "t.json", msgspec.structs.replace(true_table, fingerprint={"target": "other"}))
    before = (tmp_path / "t.json").read_bytes()
    with pytest.raises(InputError, match="another device"):
        profile(ran.folder, update_table=tmp_path / "t.json")
    assert (tmp_path / "t.json").read_bytes() == before


def test_expectations_come_from_the_table(ran: RunResult, true_table: LatencyTable) -> None:
    """Against a table that is too fast, every layer that takes time is slow."""
    found = profile(ran.folder, table=scaled(true_table, lambda _: 0.7)).profile
    timed = [op for op in ran.program.programs[0].groups[0].operations if op.op and op.expected_ns]
    assert {one.operation for one in found.violations} >= {f"small/{op.name}" for op in timed}
    worst = found.violations[0]
    assert worst.actual_ns == pytest.approx(worst.expected_ns / 0.7, rel=0.03)
    assert worst.interval_ns[0] <= worst.actual_ns <= worst.interval_ns[1]


def test_a_table_without_entries_is_said(ran: RunResult, true_table: LatencyTable) -> None:
    """Then the program's own durations are expected."""
    found = profile(ran.folder, table=msgspec.structs.replace(true_table, entries=())).profile
    assert any("no entry for any operation" in warning for warning in found.warnings)


def test_a_long_run_is_profiled_from_where_its_trace_begins(folder: Path) -> None:
    """Of a trace that kept its last packets the launches are found that it tells of."""
    planned = plan(app_in(folder))
    assert isinstance(planned.device, NpuDevice)
    planned.device._packets._keep = 4_000
    result = simulate(planned, windows=2 * WINDOWS, output=folder / "long", force=True)
    assert result.trace.meta.overwritten_events > 1_000
    assert result.profile is not None
    assert result.profile.events.spurious == 0
    assert result.profile.events.lost <= 20
    log = profile(result.folder).log
    assert log.inference[-1] == len(result.launches) - 1
    first = int(log.inference[0])
    assert log.start_ns[0] >= result.launches.submit_ns[first] - 1


def test_a_device_that_loses_packets_is_profiled_all_the_same(folder: Path, tmp_path: Path) -> None:
    """Where the trace buffer overflowed, the profile says how much is inferred."""
    write_target(folder, "lossy.toml", trace="buffer_events = 16\ndrain_rate_hz = 1500\nloss_markers = true")
    app = write_app(folder, target="lossy.toml", rate_hz=RATE_HZ, guard_ms=None, schedule="")
    result = simulate(app, windows=WINDOWS, output=tmp_path / "lossy")
    assert result.profile is not None
    counts = result.profile.events
    assert counts.received == len(result.trace)
    assert counts.lost > 0.1 * counts.expected
    assert counts.expected <= 2 * sum(
        len(result.program.programs[which].groups[0].operations) for which in result.launches.program
    )


def test_an_unusable_trace_costs_no_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is complete; where its profile is asked for, a note says what was wrong."""

    def refuse(*_: object, **__: object) -> None:
        raise InputError("no way", where="trace")

    monkeypatch.setattr("framefit.workflows.record.profile_trace", refuse)
    result = simulate(app_in(folder), windows=5, output=tmp_path / "run")
    assert result.profile is None
    assert result.notes == (*result.warnings, "the trace was not profiled: no way")
    assert (tmp_path / "run" / "metrics.json").is_file()
    assert not (tmp_path / "run" / "profile.json").exists()


def test_the_same_trace_gives_the_same_profile(ran: RunResult) -> None:
    """Byte for byte, audit included."""
    thin = inject_loss(ran.folder, rate=0.2, burst=4, seed=5).trace
    program, launches = read_program(ran.folder / "program.json")
    first, second = (
        profile(thin, program, launches=launches, method="rule", audit=True, seed=3).profile for _ in range(2)
    )
    assert first == second
    assert first.certificate is not None
    other = profile(thin, program, launches=launches, method="rule", audit=True, seed=4).profile
    assert other.certificate != first.certificate
    assert dataclasses.is_dataclass(ran)
    assert np.isfinite(first.certificate.duration_error_ratio)


def test_loops_that_are_compiled_are_announced_in_each_step() -> None:
    """Once, however many there are; nothing is said where they are kept."""
    messages: list[str] = []
    double, triple, kept = (njit(lambda x, factor=factor: factor * x) for factor in (2, 3, 4))
    kept(1)
    with _compiling_noted(messages.append) as step:
        step("matching")
        double(1)
        triple(1)
        step("summing up")
        kept(2)
        triple(1.5)
    assert [message.split()[0] for message in messages] == ["matching", "compiling", "summing", "compiling"]
