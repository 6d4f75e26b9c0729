"""What a device did minute by minute under a workload (``framefit soak --json``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from framefit.core.conditions import Conditions
from framefit.core.files import Record, Result, read_record
from framefit.core.host_view import HostView
from framefit.core.journal import read_lines
from framefit.core.timetable import Timetable
from framefit.errors import InputError

__all__ = ["CONDITIONS", "SoakMinute", "SoakResult", "read_soak", "soaked"]

CONDITIONS = "conditions.jsonl"
"""File of a run folder with a line for each second."""
_MINUTE_NS = 60_000_000_000
_FEW = 5  # launches: the median of fewer says little


class SoakMinute(Record, kw_only=True):
    """One minute; the last one may be half a minute longer or shorter.

    Attributes:
        minute: 0 is the first.
        windows: that began in it.
        duration_ratio: role -> what its launches took, over what the same ones took in the first minute.
        clock_mhz: mean of the cores and accelerators that models run on; ``None``: unknown, as below.
        temperature_c: of the hottest sensor, at its hottest.
        sensor: which one that is.
        power_w: mean.
        energy_j: of the minute.
    """

    minute: int
    windows: int
    duration_ratio: dict[str, float]
    clock_mhz: float | None = None
    temperature_c: float | None = None
    sensor: str = ""
    power_w: float | None = None
    energy_j: float | None = None


class SoakResult(Result, kw_only=True):
    """A workload for many minutes.

    Attributes:
        folder: of the run.
        minutes: in order.
        sustained: role -> the duration ratio of its slowest minute, at least 1: what ``framefit plan --sustained``
            multiplies durations with.
        power_of: where power was measured; "": nowhere.
    """

    schema_version: int = 1
    folder: str
    minutes: tuple[SoakMinute, ...]
    sustained: dict[str, float]
    power_of: str = ""


def soaked(folder: Path) -> bool:
    """Whether a run's folder has what sensors said."""
    return (folder / CONDITIONS).is_file()


def read_soak(folder: str | Path) -> SoakResult:
    """What a run's folder says of its minutes.

    Raises:
        InputError: it is not that of a soak, or of a run that was cut off and not completed by ``framefit report``.
    """
    folder = Path(folder)
    if not soaked(folder):
        raise InputError(
            f"has no {CONDITIONS}",
            where=folder,
            remedy="name the run folder of framefit soak; framefit report completes one that was cut off",
        )
    view = HostView.read(folder)
    timetable = read_record(folder / "timetable.json", Timetable)
    lines = read_lines(folder / CONDITIONS, Conditions)
    minutes, sustained = by_minute(view, timetable, lines)
    power_of = next((line.power_of for line in lines if line.power_of), "")
    return SoakResult(folder=str(folder), minutes=minutes, sustained=sustained, power_of=power_of)


def by_minute(
    view: HostView, timetable: Timetable, lines: list[Conditions]
) -> tuple[tuple[SoakMinute, ...], dict[str, float]]:
    """Minutes of a run, and how much longer launches took in the slowest one, by role.

    A minute's ratio weighs each segment by its time: what its launches took in the minute, over what as many took in
    the first minute, by medians. A segment that was not launched in the first minute, for another timetable was in
    force, is held against its planned median, times the ratio of the first minute to the plan.

    Args:
        view: of the host.
        timetable: of the run.
        lines: what sensors said.
    """
    launches, releases_ns = view.launches, view.releases_ns
    assert launches.finished_ns is not None
    if not len(releases_ns):
        return (), {}
    begin_ns = int(releases_ns[0])
    last = max(round((int(releases_ns[-1]) - begin_ns) / _MINUTE_NS) - 1, 0)

    def minute_of(times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.clip((times_ns - begin_ns) // _MINUTE_NS, 0, last)

    of_launch = minute_of(launches.submit_ns)
    took = (launches.finished_ns - launches.submit_ns).astype(np.float64)
    count = len(timetable.launched.program_units)
    keys = of_launch * count + launches.program
    order = np.argsort(keys, kind="stable")
    which, first = np.unique(keys[order], return_index=True)
    medians = {
        divmod(key, count): float(np.median(part))
        for key, part in zip(which.tolist(), np.split(took[order], first[1:]), strict=True)
        if len(part) >= _FEW
    }
    roles, planned = zip(
        *(
            ("background" if model.role == "background" else "priority", segment.median_ns)
            for model in timetable.launched.models
            for segment in model.segments
        ),
        strict=True,
    )
    ratios = _ratios(medians, roles, planned, last + 1)
    of_window, of_line = minute_of(releases_ns), minute_of(np.asarray([line.time_ns for line in lines], np.int64))
    cores = {str(unit.core) for unit in view.program.units}
    minutes = tuple(
        _minute(
            minute,
            int(np.count_nonzero(of_window == minute)),
            ratios[minute],
            [line for line, its in zip(lines, of_line, strict=True) if its == minute],
            cores,
            (releases_ns[-1] - begin_ns) / 1e9 - 60 * last if minute == last else 60.0,
        )
        for minute in range(last + 1)
    )
    sustained = {
        role: max(1.0, *(one.duration_ratio[role] for one in minutes if role in one.duration_ratio))
        for role in dict.fromkeys(roles)
        if any(role in one.duration_ratio for one in minutes)
    }
    return minutes, sustained


def _ratios(
    medians: dict[tuple[int, int], float], roles: tuple[str, ...], planned: tuple[int, ...], count: int
) -> list[dict[str, float]]:
    """For each minute, role -> time of its launches over that of the first minute's."""
    first_minute: dict[str, float] = {}
    for role in dict.fromkeys(roles):
        alike = [
            (ns, planned[program]) for (minute, program), ns in medians.items() if not minute and roles[program] == role
        ]
        first_minute[role] = sum(ns for ns, _ in alike) / sum(ns for _, ns in alike) if alike else 1.0
    ratios = []
    for minute in range(count):
        sums: dict[str, list[float]] = {}
        for (at, program), ns in medians.items():
            if at == minute:
                role = roles[program]
                reference = medians.get((0, program), planned[program] * first_minute[role])
                both = sums.setdefault(role, [0.0, 0.0])
                both[0] += ns
                both[1] += reference
        ratios.append({role: both[0] / max(both[1], 1.0) for role, both in sums.items()})
    return ratios


def _minute(
    minute: int,
    windows: int,
    ratios: dict[str, float],
    lines: list[Conditions],
    cores: set[str],
    seconds: float,
) -> SoakMinute:
    """One minute, with what sensors said in it."""
    clocks = [mhz for line in lines for name, mhz in line.clocks_mhz.items() if name in cores]
    hottest = max((one for line in lines if (one := line.hottest) is not None), key=lambda one: one[1], default=None)
    sensor, celsius = ("", None) if hottest is None else hottest
    watts = [line.power_w for line in lines if line.power_w is not None]
    power_w = float(np.mean(watts)) if watts else None
    return SoakMinute(
        minute=minute,
        windows=windows,
        duration_ratio=ratios,
        clock_mhz=float(np.mean(clocks)) if clocks else None,
        temperature_c=celsius,
        sensor=sensor,
        power_w=power_w,
        energy_j=None if power_w is None else power_w * seconds,
    )
