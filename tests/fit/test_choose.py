"""``framefit choose``: a workload on several targets at several rates, described ones in processes of their own."""

from __future__ import annotations

import json
import os
import signal
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

import framefit
from framefit import InputError, load_workload
from framefit.cli.app import main
from framefit.core.choice import Choice, ChoiceCell
from framefit.core.files import read_record
from framefit.core.fit_results import FitResult
from framefit.fit import choose as choosing
from framefit.fit.choose import at_rate
from workloads import write_app, write_models, write_target


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload for a described device that cannot serve more than some 60 frames a second."""
    models = write_models(tmp_path_factory.mktemp("choose"))
    write_target(models)
    return write_app(models, target="target.toml", rate_hz=40, guard_ms=None, schedule="")


def targets(app: Path) -> tuple[str, str]:
    """Its own target, and a built-in one."""
    return str(app.parent / "target.toml"), "vpu"


def verdicts(choice: Choice) -> list[tuple[str, float, str | None]]:
    """What a reader looks at."""
    return [(Path(cell.target).name, cell.rate_hz, cell.verdict) for cell in choice.cells]


def test_each_target_is_planned_at_each_rate(app: Path) -> None:
    """A cell says what a plan of that target and rate says."""
    choice = framefit.choose(app, targets=targets(app), rates=(80, 20), workers=1).choice
    assert verdicts(choice) == [
        ("target.toml", 20, "fits"),
        ("target.toml", 80, "fits with fewer frames"),
        ("vpu", 20, "fits"),
        ("vpu", 80, "fits"),
    ]
    workload = at_rate(load_workload(app), 2.0)
    planned = framefit.plan(app, workload=workload).timetable
    cell = choice.cells[1]
    assert cell.worst_slack_ns == planned.worst_slack_ns
    assert [model.served_hz for model in cell.models] == [model.served_hz for model in planned.models]
    best = choice.best("vpu")
    assert best is not None
    assert best.rate_hz == 80
    assert choice.front == ["vpu"]


def test_any_number_of_processes_gives_the_same(app: Path) -> None:
    """Bit by bit."""
    one, two = (framefit.choose(app, targets=targets(app), rates=(20, 80), workers=n).choice for n in (1, 2))
    assert msgspec.json.encode(one) == msgspec.json.encode(two)


def killed(_: None, task: Any) -> ChoiceCell:
    """Die in another process than the first one, once for each file that is not there yet."""
    mark = Path(os.environ["KILLED"])
    if os.getpid() != int(os.environ["HERE"]) and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return PLAN(None, task)


PLAN = choosing.plan_cell


def test_a_process_that_is_killed_costs_time_only(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was planning is planned again."""
    expected = framefit.choose(app, targets=targets(app), rates=(20, 80), workers=1).choice
    monkeypatch.setenv("KILLED", str(tmp_path / "killed"))
    monkeypatch.setenv("HERE", str(os.getpid()))
    monkeypatch.setattr(choosing, "plan_cell", killed)
    assert framefit.choose(app, targets=targets(app), rates=(20, 80), workers=2).choice == expected
    assert (tmp_path / "killed").exists()


def test_it_goes_on_where_it_was_interrupted(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that are known are not planned again; those of another workload are."""
    planned: list[float] = []

    def counted(_: None, task: Any) -> ChoiceCell:
        planned.append(task.rate_hz)
        if len(planned) == 2:
            raise KeyboardInterrupt
        return PLAN(None, task)

    monkeypatch.setattr(choosing, "plan_cell", counted)
    folder = tmp_path / "choice"

    def chosen(**changed: Any) -> Choice:
        return framefit.choose(app, targets=("vpu",), rates=(20, 80), workers=1, output=str(folder), **changed).choice

    first = chosen()
    assert first.interrupted
    assert len(first.cells) == 1
    assert not chosen().interrupted
    assert planned == [20, 80, 80]
    assert chosen() == read_record(folder / "choice.json", Choice)
    assert planned == [20, 80, 80]
    next((folder / "cells").iterdir()).write_text("{")
    assert len(chosen().cells) == 2
    assert len(planned) == 4


def test_a_target_that_cannot_run_it_is_a_row(app: Path, tmp_path: Path) -> None:
    """With the reason, beside the others."""
    text = (app.parent / "target.toml").read_text()
    narrow = tmp_path / "narrow.toml"
    narrow.write_text(text.replace("[[units]]", '[[units]]\noperators = ["Relu"]', 1))
    choice = framefit.choose(app, targets=(str(narrow), "vpu"), workers=1).choice
    assert choice.cells[0].verdict is None
    assert choice.cells[0].binding
    assert choice.front == ["vpu"]


def cells(*given: tuple[str, float, str]) -> Choice:
    """A choice without figures."""
    return Choice(
        app="app.toml",
        cells=tuple(
            ChoiceCell(target=t, rate_hz=r, verdict=v, price={"a": 10.0, "b": 5.0, "c": 20.0, "d": 10.0}[t])
            for t, r, v in given  # type: ignore[arg-type]
        ),
    )


def test_the_front_is_what_no_other_target_beats() -> None:
    """By price and the highest rate at which all fits."""
    fits, fewer = "fits", "fits with fewer frames"
    choice = cells(
        ("a", 30, fits), ("a", 60, fewer), ("b", 15, fits), ("c", 30, fits), ("c", 60, fits), ("d", 30, fits)
    )
    assert choice.front == ["b", "a", "c"]
    assert cells(("a", 30, fewer)).front == []


def test_prices_are_read_and_missing_ones_named(app: Path, tmp_path: Path) -> None:
    """A file of lines."""
    prices = tmp_path / "prices.toml"
    prices.write_text("vpu = 20\n")
    choice = framefit.choose(app, targets=("vpu",), prices=str(prices), workers=1).choice
    assert [cell.price for cell in choice.cells] == [20.0]
    with pytest.raises(InputError, match="no price of target 'edge-8'"):
        framefit.choose(app, targets=("vpu", "edge-8"), prices=str(prices))
    prices.write_text('vpu = "much"\n')
    with pytest.raises(InputError, match="the price of 'vpu' is 'much'"):
        framefit.choose(app, targets=("vpu",), prices=str(prices))
    prices.write_text("vpu 20")
    with pytest.raises(InputError, match="cannot be read"):
        framefit.choose(app, targets=("vpu",), prices=str(prices))


def test_all_rates_keep_their_proportion(app: Path) -> None:
    """Streams, windows, changes and rates that may be set."""
    workload = load_workload(app)
    assert at_rate(workload, 1.0) == workload
    twice = at_rate(workload, 2.0)
    assert twice.beat_hz == 2 * workload.beat_hz


def test_the_command_shows_a_table_and_writes_a_page(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 0 where it fits somewhere, 1 where nowhere."""

    def ended(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["framefit", "choose", str(app), *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().out

    folder = tmp_path / "out"
    given = ("--targets", "vpu", "--workers", "1", "-o", str(folder))
    code, out = ended(*given, "--rates", "20,80")
    assert code == 0
    assert "vpu up to 80 Hz" in " ".join(out.split())
    assert "Targets and rates" in (folder / "report.html").read_text()
    code, out = ended("--targets", targets(app)[0], "--rates", "5000", "--workers", "1", "--json")
    assert code == 1
    assert json.loads(out)["cells"][0]["verdict"] == "does not fit"


def test_what_does_not_fit_is_fitted(app: Path, tmp_path: Path) -> None:
    """At its own rate, proven, with what it costs; the fit stays, and can be gone on with by itself."""
    folder = tmp_path / "choice"
    given = {"targets": targets(app)[:1], "rates": (20, 80), "fit": True, "max_seconds": 60, "workers": 1}
    choice = framefit.choose(app, output=str(folder), **given).choice
    fits, fewer = choice.cells
    assert (fits.fitted, fits.fit) == (None, None)
    assert (fewer.verdict, fewer.fitted, fewer.accuracy_lost) == ("fits with fewer frames", "fits with fewer frames", 0)
    assert fewer.frames_lost_ratio is not None
    assert 0 < fewer.frames_lost_ratio < 0.5
    assert fewer.remedy
    assert choice.best(targets(app)[0]) == fits
    assert fewer.fit is not None
    result = read_record(folder / fewer.fit / "fit.json", FitResult)
    assert result.verified is not None
    assert sum(model.asked_hz for model in result.before.models) == pytest.approx(
        sum(model.asked_hz for model in fewer.models)
    )
    assert framefit.plan(folder / fewer.fit / "app.toml").timetable.verdict == "fits"
    loose = framefit.choose(app, **given).choice.cells[1]
    assert loose == msgspec.structs.replace(fewer, fit=None)


def test_a_fit_that_was_interrupted_goes_on(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are not taken again."""
    folder = tmp_path / "choice"
    given = {"targets": targets(app)[:1], "rates": (80,), "fit": True, "max_seconds": 60, "workers": 1}

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(import_module("framefit.fit.loop"), "proven", interrupted)
        first = framefit.choose(app, output=str(folder), **given).choice
    assert (first.interrupted, first.cells) == (True, ())
    (begun,) = (folder / "fits").glob("*/fit/fit.json")
    steps = read_record(begun, FitResult).steps
    assert steps
    (cell,) = framefit.choose(app, output=str(folder), **given).choice.cells
    assert cell.fitted == "fits with fewer frames"
    assert read_record(begun, FitResult).steps[: len(steps)] == steps


def test_data_that_fit_no_model_are_refused_at_once(app: Path, tmp_path: Path) -> None:
    """Not as a cell that cannot run."""
    with pytest.raises(InputError, match="no model 'doors'"):
        framefit.choose(app, fit=True, data={"doors": str(tmp_path / "data.npz")})
    with pytest.raises(InputError, match="give fit, too"):
        framefit.choose(app, data={"doors": str(tmp_path / "data.npz")})
