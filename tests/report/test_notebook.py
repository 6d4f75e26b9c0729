"""Results in a notebook: short in a line, tables as HTML, and tables for pandas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import framefit
from framefit import InputError
from framefit.core.run_record import CycleReport
from framefit.report.sections import _KINDS, kind_of
from workloads import write_app, write_models, write_target


@pytest.fixture(scope="module")
def report() -> CycleReport:
    """Cycles of a built-in network."""
    return framefit.cycles("detector", "vpu")


def test_a_result_is_a_line(report: CycleReport) -> None:
    """Figures, and how much there is of the rest."""
    assert repr(report).startswith("<CycleReport: ")
    assert f"{len(report.layers)} layers" in repr(report)
    assert len(repr(report)) < 300


def test_a_notebook_shows_verdict_and_tables(report: CycleReport) -> None:
    """All that the terminal shows; names that look like HTML are none."""
    shown = report._repr_html_()
    _, kind = kind_of(report)
    description = kind.describe(report, detail="normal")
    assert description.verdict.word in shown
    assert all(f"<h3>{block.title}</h3>" in shown for block in description.blocks)
    assert shown.count("<tr>") > len(report.layers)


def test_a_plan_is_shown_as_its_timetable(tmp_path: Path) -> None:
    """Though it is no record."""
    write_target(write_models(tmp_path))
    plan = framefit.plan(write_app(tmp_path, target="target.toml"))
    assert "chain" in plan._repr_html_()
    assert len(repr(plan)) < 700 + len(str(tmp_path))


def test_pandas_takes_the_longest_table(report: CycleReport) -> None:
    """Figures are numbers; another table is asked for by its title."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = report.to_pandas()
    assert len(frame) == len(report.layers)
    assert frame["cycles"].sum() == report.total_cycles
    assert len(report.to_pandas("What binds")) < len(frame)
    with pytest.raises(InputError, match="no table 'nothing'"):
        report.to_pandas("nothing")


def test_without_pandas_it_is_said(report: CycleReport, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what installs it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pandas is not installed"):
        report.to_pandas()


def test_all_results_can_be_shown() -> None:
    """Every record that a page knows."""
    from framefit.core import (
        check,
        choice,
        fit_results,
        latency_table,
        loss_study,
        profile,
        run_record,
        soak,
        sparsity,
        stored,
        target,
        timetable,
        tree_results,
    )  # fmt: skip
    from framefit.core.files import Result

    modules = (
        check, choice, fit_results, latency_table, loss_study, profile, run_record, soak, sparsity, stored, target,
        timetable, tree_results,
    )  # fmt: skip
    for name in _KINDS:
        homes = [module for module in modules if hasattr(module, name)]
        assert name.endswith("Content") or issubclass(getattr(homes[0], name), Result), name
