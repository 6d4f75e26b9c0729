"""``framefit soak``, and plans for a warm device.

A simulation's launches are made slower minute by minute, so that the truth is known.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

import framefit
from framefit import InputError
from framefit.cli.app import main
from framefit.core.conditions import Conditions
from framefit.core.files import to_json
from framefit.core.soak import CONDITIONS, read_soak
from framefit.report.terminal import view
from workloads import write_app, write_models

MINUTES = 4
SLOWER = (1.0, 1.0, 1.25, 1.1)  # in each minute
RATE_HZ = 4


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload on a described device."""
    return write_app(write_models(tmp_path_factory.mktemp("app")), target="vpu", rate_hz=RATE_HZ)


@pytest.fixture(scope="module")
def folder(app: Path) -> Path:
    """Its run, as a device that gets warm would have made it."""
    run = app.parent / "warm"
    framefit.simulate(app, windows=MINUTES * 60 * RATE_HZ, output=run)
    with np.load(run / "launches.npz") as file:
        arrays = dict(file)
    minute = np.minimum((arrays["submit_ns"] - arrays["releases_ns"][0]) // 60_000_000_000, MINUTES - 1)
    took = (arrays["finished_ns"] - arrays["submit_ns"]) * np.asarray(SLOWER)[minute]
    arrays["finished_ns"] = arrays["submit_ns"] + took.astype(np.int64)
    np.savez(run / "launches.npz", **arrays)
    begin_ns = int(arrays["releases_ns"][0])
    lines = [
        Conditions(
            time_ns=begin_ns + second * 1_000_000_000,
            clocks_mhz={"0": 2000.0 / SLOWER[second // 60], "7": 100.0},
            temperatures_c={"cpu": 40.0 + second / 10, "soc": 41.0},
            power_w=5.0,
            power_of="VDD_IN",
        )
        for second in range(MINUTES * 60)
    ]
    (run / CONDITIONS).write_text("".join(to_json(line, indent=None) + "\n" for line in lines) + '{"time_ns": 1')
    return run


def test_minutes_say_how_much_slower(folder: Path) -> None:
    """By role, and the slowest one is what is planned for."""
    soak = read_soak(folder)
    assert [one.minute for one in soak.minutes] == list(range(MINUTES))
    for role in ("priority", "background"):
        assert [one.duration_ratio[role] for one in soak.minutes] == pytest.approx(SLOWER, rel=0.03)
        assert soak.sustained[role] == pytest.approx(1.25, rel=0.03)


def test_minutes_have_what_sensors_said(folder: Path) -> None:
    """A last line that was cut off is left out; clocks are those of the cores that models run on."""
    soak = read_soak(folder)
    second = soak.minutes[2]
    assert second.clock_mhz == pytest.approx(1600.0)
    assert (second.temperature_c, second.sensor) == (pytest.approx(57.9), "cpu")
    assert (second.power_w, second.energy_j, soak.power_of) == (5.0, pytest.approx(300.0), "VDD_IN")
    assert second.windows == 60 * RATE_HZ


def test_a_plan_for_the_warm_device_has_longer_launches(app: Path, folder: Path) -> None:
    """By the ratio of their role, and it says so."""
    cool, warm = framefit.plan(app), framefit.plan(app, sustained=str(folder))
    for before, after in zip(cool.timetable.models, warm.timetable.models, strict=True):
        whole = [sum(segment.duration_ns for segment in model.segments) for model in (before, after)]
        assert whole[1] / whole[0] == pytest.approx(1.25, rel=0.05)
    assert "slowest minute" in warm.timetable.reasons[0]


def test_rungs_are_planned_for_the_warm_device(app: Path, folder: Path) -> None:
    """A ladder's rungs are for launches that take yet longer than warm ones."""
    text = app.read_text().replace("[schedule]", "[schedule]\nladder = true", 1)
    ladder = app.with_name("ladder.toml")
    ladder.write_text(text)
    warm = framefit.plan(ladder, sustained=str(folder)).timetable
    assert warm.ladder is not None
    rung = next(one for one in warm.ladder.rungs if one.covers == (1.2, 1.2))
    for base, longer in zip(warm.models, rung.timetable.models, strict=True):
        ratio = sum(s.duration_ns for s in longer.segments) / sum(s.duration_ns for s in base.segments)
        assert ratio == pytest.approx(1.2, rel=0.1)


def test_the_terminal_and_the_page_show_it(folder: Path) -> None:
    """As a table, and as charts beside those of the run."""
    console = Console(width=120, file=io.StringIO(), no_color=True)
    with console.capture() as capture:
        console.print(view(read_soak(folder)))
    assert "IT GETS SLOWER in minute 2 of 4 launches took 25 % longer than in the first one." in capture.get()
    page = framefit.write_report(folder, force=True).read_text()
    assert "Minute by minute, beside the first one" in page
    assert "Temperature" in page


def test_a_run_without_sensors_is_refused(app: Path) -> None:
    """Nothing else knows how warm the device was."""
    plain = app.parent / "plain"
    framefit.simulate(app, windows=8, output=plain)
    with pytest.raises(InputError, match=CONDITIONS):
        framefit.plan(app, sustained=str(plain))


def test_a_described_device_does_not_get_warm(app: Path) -> None:
    """Before anything is planned."""
    with pytest.raises(InputError, match="does not get warm"):
        framefit.soak(app)


@pytest.mark.timed
def test_a_soak_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is a run's, with a line a second; one minute is the reference and says nothing else."""
    app = write_app(write_models(tmp_path), rate_hz=50)
    given = ["soak", str(app), "--minutes", "0.02", "-o", str(tmp_path / "run"), "--json"]
    monkeypatch.setattr(sys, "argv", ["framefit", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    soak = json.loads(capsys.readouterr().out)
    assert [minute["windows"] for minute in soak["minutes"]] == [60]
    assert all(ratio == 1.0 for ratio in soak["sustained"].values())
    lines = (tmp_path / "run" / CONDITIONS).read_text().splitlines()
    assert [msgspec.json.decode(line, type=Conditions).time_ns for line in lines]
