"""Every missed frame names its cause, injected faults by their names: in the records, on a terminal and on the page."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from framefit import FramefitError, Plan, plan, simulate, write_report
from framefit.core.files import read_record
from framefit.core.run_record import Metrics
from framefit.report.sections.run import RunContent
from framefit.report.terminal import view
from workloads import write_app, write_models, write_target

WINDOWS = 40


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A small priority model that is due soon, and a background model in segments, on a board without variation."""
    folder = write_models(tmp_path_factory.mktemp("causes"))
    write_target(folder, variation="sigma_ratio = 0.0")
    keys = 'deadline_ms = 1.0\non_nan = "drop"'
    sink = '[[outputs]]\nmodel = "small"\nsink = "small.npz"\n'
    return plan(write_app(folder, target="target.toml", rate_hz=80, guard_ms=None, schedule="", model=keys, more=sink))


def injected(planned: Plan, folder: Path, *faults: str) -> Metrics:
    """What a simulation with these faults records; it may end early."""
    try:
        simulate(planned, windows=WINDOWS, output=folder, outputs=True, force=True, inject=faults)
    except FramefitError:
        assert faults[0].startswith("stick")
    return read_record(folder / "metrics.json", Metrics)


def terminal(metrics: Metrics) -> str:
    """What a terminal shows of a run, in one line."""
    console = Console(width=200, file=io.StringIO(), no_color=True)
    console.print(view(RunContent(metrics)))
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def page(folder: Path) -> str:
    """The words on the page of a run, in one line."""
    text = write_report(folder, force=True).read_text()
    text = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


@pytest.mark.parametrize(
    ("fault", "name", "cause", "words"),
    [
        ("raise:small@10w..12w", "raise:small", "fault", "small: the launch failed"),
        ("hang:small@10w", "hang:small", "fault", "small: the launch was terminated"),
        ("hang:small*5ms@10w", "hang:small*5ms", "own duration", "took 5.00 ms, planned 0.03 ms"),
        ("hang:chain@10w", "hang:chain", "fault", "hung for 25.00 ms"),
        ("hang:chain*20ms@10w", "hang:chain*20ms", "overrun", "took 20.00 ms"),
        ("stick:small@10w", "stick:small", "fault", "unit 'npu0' does not come back from a launch"),
        ("slow:small*300@10w..12w", "slow:small*300", "own duration", "took 8.98 ms, planned 0.03 ms"),
        ("slow:chain*9@10w..14w", "slow:chain*9", "overrun", "ms after the instant"),
        ("slow:npu0*9@10w..14w", "slow:npu0*9", "overrun", "ms after the instant"),
        ("nan:small@10w", "nan:small", "fault", "outputs not finite"),
        ("inf:small@10w", "inf:small", "fault", "outputs not finite"),
        ("burst:camera*6@10w", "burst:camera*6", "backlog", "6 frames came at once in window 10"),
        ("shape:camera@10w..12w", "shape:camera", "fault", "stream 'camera', frame 10"),
    ],
)
def test_every_fault_is_named(planned: Plan, tmp_path: Path, fault: str, name: str, cause: str, words: str) -> None:
    """By each miss that follows from it, in the summary of causes, and in the table of injected faults."""
    metrics = injected(planned, tmp_path / "out", fault)
    (summary,) = metrics.injected
    assert (summary.fault, summary.first_window) == (name, 10)
    assert summary.missed == len(metrics.misses) == metrics.models[0].missed > 0
    assert all(miss.injected == name and f"(injected: {name})" in miss.detail for miss in metrics.misses)
    assert cause in {miss.cause for miss in metrics.misses}
    assert any(words in miss.detail for miss in metrics.misses)
    for shown in (terminal(metrics), page(tmp_path / "out")):
        assert f"x {cause} (injected: {name})" in shown
        assert words in shown
        assert re.search(rf"Injected faults .*{re.escape(name)} {summary.times} 10 {summary.last_window}", shown)


@pytest.mark.parametrize(
    ("fault", "times", "last"),
    [("stall:camera@10w..20w", 10, 19), ("end:camera@10w", 1, 10), ("raise:chain@10w", 1, 10)],
)
def test_faults_that_cost_no_priority_frame_are_listed(
    planned: Plan, tmp_path: Path, fault: str, times: int, last: int
) -> None:
    """With what they befell, and that nothing was missed."""
    metrics = injected(planned, tmp_path / "out", fault)
    (summary,) = metrics.injected
    assert (summary.times, summary.first_window, summary.last_window, summary.missed) == (times, 10, last, 0)
    assert metrics.misses == ()
    assert f"{summary.fault} {times} 10 {last} 0" in page(tmp_path / "out")


def test_a_terminal_names_each_cause(planned: Plan, tmp_path: Path) -> None:
    """Though it lists few misses, and one cause has many."""
    metrics = injected(planned, tmp_path / "out", "slow:small*300@5w..25w", "raise:small@30w")
    assert len(metrics.misses) == 21
    shown = terminal(metrics)
    assert "20 x own duration (injected: slow:small*300), 1 x fault (injected: raise:small)" in shown
    assert "small: the launch failed (injected: raise:small)" in shown


def test_without_faults_none_is_named(planned: Plan, tmp_path: Path) -> None:
    """Neither in the records nor on the page."""
    metrics = injected(planned, tmp_path / "out")
    assert metrics.injected == metrics.misses == ()
    shown = page(tmp_path / "out")
    assert "(injected:" not in shown
    assert "Injected faults" not in shown


class Killed(BaseException):
    """Ends a run as nothing that a run survives would."""


def test_what_was_injected_survives_a_run_that_is_cut_off(planned: Plan, tmp_path: Path) -> None:
    """The report that is made of the journal names it, also where the run went on after that."""
    out = tmp_path / "out"

    def kill(begun: int, count: int) -> None:
        if begun >= 20:
            raise Killed

    with pytest.raises(Killed):
        simulate(planned, windows=WINDOWS, output=out, force=True, on_idle=kill, inject=["slow:small*300@10w..12w"])
    assert "x own duration (injected: slow:small*300)" in page(out)
    recovered = read_record(out / "metrics.json", Metrics)
    (summary,) = recovered.injected
    assert (summary.times, summary.first_window, summary.last_window, summary.missed) == (2, 10, 11, 2)
    simulate(out, resume=True)
    resumed = read_record(out / "metrics.json", Metrics)
    assert resumed.windows == WINDOWS
    assert resumed.injected[0].times == 4  # times of faults count from the first release of each part
    assert resumed.injected[0].missed == len(resumed.misses) == 4
    assert json.loads((out / "metrics.json").read_text())["misses"][0]["injected"] == "slow:small*300"
