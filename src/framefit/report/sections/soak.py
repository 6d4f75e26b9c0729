"""A workload for many minutes: whether launches got slower, and what the sensors said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor

from framefit.core.soak import SoakMinute, SoakResult
from framefit.report.charts import Axis, Chart, Line, colour
from framefit.report.description import (
    NONE,
    Cell,
    Description,
    Detail,
    Kind,
    Quantity,
    Section,
    Verdict,
    columns,
    count,
)
from framefit.report.formats import format_percent

_STEADY = 1.05  # medians of a minute vary by less on a quiet machine
_SENSORS = {"clock": "clock_mhz", "temperature": "temperature_c", "power": "power_w", "energy": "energy_j"}


def _describe(soak: SoakResult, *, detail: Detail = "normal") -> Description:  # noqa: ARG001 - all of it is short
    """Whether it got slower, and each minute."""
    return Description(_verdict(soak), list(_quantities(soak)), [soak_section(soak)])


def _verdict(soak: SoakResult) -> Verdict:
    if not soak.minutes:
        return Verdict("fails", "No minute", "was run.")
    if len(soak.minutes) == 1:
        return Verdict("fails", "One minute", "says nothing: it is the reference. Give more with --minutes.")
    worst = max(soak.sustained.values(), default=1.0)
    slowest = max(soak.minutes, key=lambda one: max(one.duration_ratio.values(), default=0.0))
    if worst <= _STEADY:
        return Verdict("fits", "Steady", f"over {len(soak.minutes)} minutes, within {format_percent(worst - 1, 1)}.")
    text = (
        f"in minute {slowest.minute} of {len(soak.minutes)} launches took {format_percent(worst - 1, 0)} longer than "
    )
    return Verdict("fails", "It gets slower", f"{text}in the first one.")


def _quantities(soak: SoakResult) -> Iterator[Quantity]:
    for role, ratio in soak.sustained.items():
        yield Quantity(
            f"{role} models, slowest minute", ratio, f"{ratio:.3f}", "of the first minute", "less", card=True
        )
    hottest = max((one.temperature_c for one in soak.minutes if one.temperature_c is not None), default=None)
    if hottest is not None:
        yield Quantity("Hottest", hottest, f"{hottest:.1f} C", "of all sensors", "less", card=True)
    joules = [one.energy_j for one in soak.minutes if one.energy_j is not None]
    if joules:
        windows = sum(one.windows for one in soak.minutes if one.energy_j is not None)
        each = 1e3 * sum(joules) / max(windows, 1)
        yield Quantity("Energy a window", each, f"{each:.1f} mJ", soak.power_of, "less", card=True)


def soak_section(soak: SoakResult) -> Section:
    """A row for each minute; what no sensor says is unknown."""
    roles = tuple(soak.sustained)
    known = [name for name, key in _SENSORS.items() if any(getattr(one, key) is not None for one in soak.minutes)]
    unknown = [name for name in _SENSORS if name not in known]
    note = "Durations are ratios to the first minute, of the same segments, by medians."
    note += f" Unknown, for no sensor could be read: {', '.join(unknown)}." if unknown else ""
    figures = ("windows", *(f"{role} durations" for role in roles), *known)
    rows = [_row(one, roles, known) for one in soak.minutes]
    return Section("Minute by minute", columns(("minute",), figures), rows, note=note, plain=True)


def _row(minute: SoakMinute, roles: Sequence[str], known: Sequence[str]) -> tuple[Cell, ...]:
    ratios = [minute.duration_ratio.get(role) for role in roles]
    sensors = {
        "clock": _figure(minute.clock_mhz, "MHz", 0),
        "temperature": _figure(minute.temperature_c, "C", 1, minute.sensor),
        "power": _figure(minute.power_w, "W", 2),
        "energy": _figure(minute.energy_j, "J", 1),
    }
    return (
        count(minute.minute),
        count(minute.windows),
        *(NONE if ratio is None else Cell(f"{ratio:.3f}", ratio) for ratio in ratios),
        *(sensors[name] for name in known),
    )


def _figure(value: float | None, unit: str, places: int, note: str = "") -> Cell:
    if value is None:
        return Cell("unknown", tone="faint")
    return Cell(f"{value:.{places}f} {unit}", value, note=note)


def soak_charts(soak: SoakResult) -> Iterator[Chart]:
    """Durations, with the clock that they follow, and the temperature."""
    if len(soak.minutes) < 2:
        return
    first = soak.minutes[0]
    lines = [
        _line(f"{role} durations", [(one.minute, one.duration_ratio.get(role)) for one in soak.minutes], place)
        for place, role in enumerate(soak.sustained)
    ]
    if first.clock_mhz:
        clocks = [(one.minute, one.clock_mhz and one.clock_mhz / first.clock_mhz) for one in soak.minutes]
        lines.append(_line("clock", clocks, 7, dashed=True))
    values = [datum[1] or 0.0 for line in lines for datum in line.data]
    worst = ", ".join(f"{role} models {ratio:.3f}" for role, ratio in soak.sustained.items())
    yield Chart(
        title="Minute by minute, beside the first one",
        summary=f"What launches took over what they took in the first minute; in the slowest one: {worst}.",
        x=Axis(name="minute", whole=True),
        y=Axis(
            name="of the first minute", low=floor(10 * min(0.9, *values)) / 10, high=ceil(10 * max(1.1, *values)) / 10
        ),
        lines=tuple(lines),
    )
    celsius = [(one.minute, one.temperature_c) for one in soak.minutes]
    known = [value for _, value in celsius if value is not None]
    if known:
        yield Chart(
            title="Temperature",
            summary=f"Of the hottest sensor in each minute: from {min(known):.1f} to {max(known):.1f} C.",
            x=Axis(name="minute", whole=True),
            y=Axis(name="temperature", unit="C"),
            lines=(_line("hottest sensor", celsius, 1),),
        )


def _line(name: str, data: list[tuple[int, float | None]], place: int, *, dashed: bool = False) -> Line:
    points = tuple((float(minute), value) for minute, value in data if value is not None)
    return Line(name=name, kind="line", data=points, colour=colour(place), dashed=dashed)


KIND: Kind[SoakResult] = Kind(noun="soak", plural="soaks", describe=_describe)
