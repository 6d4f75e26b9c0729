"""The run folder: what it may replace, and what its pictures show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from framefit import InputError, Plan, plan, run, simulate
from framefit.core.program import Launches
from framefit.workflows.record import RunResult, first_shown
from workloads import RATE_HZ, listing, write_app, write_models, write_target


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload on a board."""
    folder = write_models(tmp_path_factory.mktemp("app"))
    write_target(folder)
    return write_app(folder, target="target.toml", guard_ms=None)


@pytest.fixture(scope="module")
def planned(app: Path) -> Plan:
    """Its plan."""
    return plan(app)


@pytest.mark.parametrize("verb", [run, simulate])
@pytest.mark.parametrize("place", ["notes", "notes/mine.txt", "runless"])
def test_force_never_replaces_what_is_no_run_folder(
    verb: Callable[..., RunResult], place: str, app: Path, tmp_path: Path
) -> None:
    """Files, and folders with anything but a run, stay as they are; that is said before the work of a plan."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "runless" / "run.json").mkdir(parents=True)
    before, told = listing(tmp_path), []
    with pytest.raises(InputError, match="not a run folder"):
        verb(app, windows=3, output=tmp_path / place, force=True, notify=told.append)
    assert (listing(tmp_path), told) == (before, [])


def test_force_replaces_runs_and_empty_folders(planned: Plan, tmp_path: Path) -> None:
    """An empty folder, an earlier run, and one behind a link, which stays one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for windows, name in enumerate(("out", "out", "link"), 2):
        simulate(planned, windows=windows, output=tmp_path / name, force=True)
        assert len((tmp_path / "out" / "frames.csv").read_text().splitlines()) == 1 + 2 * windows
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_what_comes_in_mid_run_is_not_replaced(planned: Plan, tmp_path: Path) -> None:
    """Somebody else's file at the run folder's place survives the end of the run."""

    def write(begun: int, count: int) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "mine.txt").write_text("mine")

    simulate(planned, windows=3, output=tmp_path / "out", force=True, on_idle=write)
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    assert len((tmp_path / "out" / "frames.csv").read_text().splitlines()) == 1 + 2 * 3


def test_runs_at_the_same_time_get_numbers_of_their_own(
    planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins while another one goes on, and ends before it, does not lose its folder to it."""
    monkeypatch.chdir(tmp_path)
    inner: list[RunResult] = []

    def run_another(begun: int, count: int) -> None:
        if not inner:
            inner.append(simulate(plan(planned.app), windows=2))

    outer = simulate(planned, windows=3, on_idle=run_another)
    assert {inner[0].folder.name, outer.folder.name} == {f"{planned.app.parent.name}-{number}" for number in (1, 2)}
    for result, windows in ((inner[0], 2), (outer, 3)):
        assert len((result.folder / "frames.csv").read_text().splitlines()) == 1 + 2 * windows
    assert sorted(path.name for path in Path("runs").iterdir()) == sorted(one.folder.name for one in (*inner, outer))


def launched_in(windows: np.ndarray) -> Launches:
    """One launch in each of these windows."""
    return Launches(program=np.zeros(len(windows), np.int32), window=windows, frame=windows, submit_ns=windows)


@pytest.mark.parametrize(
    ("windows", "pattern", "first"),
    [
        (100, 7, 0),  # no more launches than are shown
        (101, 7, 7),  # the first of them is in window 1
        (200, 10, 100),
        (290, 60, 240),  # 50 windows less than could be shown: the most that is given up
        (270, 59, 177),
        (289, 60, 189),  # 51 less: the pattern is not waited for
        (150, 10_000, 50),
    ],
)
def test_pictures_show_the_end_of_a_long_run(
    windows: int, pattern: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a repetition of the timetable on, unless that hides more than half of what can be shown."""
    monkeypatch.setattr("framefit.workflows.record._MOST_SHOWN", 100)
    assert first_shown(launched_in(np.arange(windows)), pattern) == first
    launches = launched_in(np.repeat(np.arange(1000), 80)[: windows * 80])
    assert len(launches.window[launches.window >= first_shown(launches, pattern)]) >= 50


def test_part_of_a_run(planned: Plan, tmp_path: Path) -> None:
    """Launches, events and releases of the same windows."""
    result = simulate(planned, windows=30, output=tmp_path / "out")
    seen, launches, releases = result.view.part(10, 20)
    assert (launches.window[0], launches.window[-1]) == (10, 19)
    assert np.array_equal(seen.time_ns[::2], launches.submit_ns)
    assert np.array_equal(releases, result.releases_ns[10:20])
    assert launches.submit_ns[0] >= releases[0]
    rest = result.view.part(20)
    assert len(rest[0]) == 2 * len(rest[1]) == 2 * int((result.launches.window >= 20).sum())
    assert rest[2][0] - releases[-1] == round(1e9 / RATE_HZ)
