"""A study of losses: which trace buffer loses nothing, and what losses cost a profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from framefit.core.loss_study import LossPoint, LossStudy
from framefit.report.charts import Axis, Chart, Line, colour, svg_chart
from framefit.report.csv_files import write_text
from framefit.report.description import (
    Block,
    Cell,
    Description,
    Detail,
    Kind,
    Quantity,
    Section,
    Sentences,
    Verdict,
    columns,
    count,
    rate,
    ratio,
)
from framefit.report.formats import format_hz, format_ratio

__all__ = ["write_loss_picture"]


def _describe(study: LossStudy, *, detail: Detail = "normal") -> Description:  # noqa: ARG001 - all of it is short
    """The certificate, buffers by drain rate, and errors by loss."""
    sized = study.buffer_events is not None
    verdict = Verdict("fits" if sized else "fails", "No loss:" if sized else "No buffer:", f"{study.certificate}.")
    return Description(verdict, list(_quantities(study)), list(_blocks(study)))


def _quantities(study: LossStudy) -> Iterator[Quantity]:
    size = study.buffer_events
    if size is not None:
        yield Quantity("Buffer", size, f"{size:,}", "events for each core", "less", card=True)
    how = "for each core" if study.drain_known else "assumed"
    yield Quantity("Drain rate", study.drain_rate_hz, format_hz(study.drain_rate_hz), how, card=True)
    yield Quantity("Busiest core", study.mean_rate_hz, format_hz(study.mean_rate_hz), "in the mean", card=True)
    yield Quantity("Events", study.events, f"{study.events:,}", "of the whole run", card=True)


def _blocks(study: LossStudy) -> Iterator[Block]:
    if study.warnings:
        yield Sentences("What to know of these figures", study.warnings)
    sizes = [
        (rate(size.drain_rate_hz), ratio(size.drain_rate_hz / study.mean_rate_hz), count(size.buffer_events))
        for size in study.sizes
    ]
    note = "A buffer that would hold more than half of a core's events is not shown."
    figures = ("drain rate", "of the mean rate", "events that a buffer holds")
    yield Section("Buffers that lose nothing", columns(figures=figures), sizes, note=note, plain=True)
    if study.buffers:
        rows = [(count(point.buffer_events), *_cells(point)) for point in study.buffers]
        yield Section("What smaller buffers lose", columns(figures=("buffer", *_FIGURES)), rows, plain=True)
    rows = [(count(point.burst), *_cells(point)) for point in study.drawn]
    note = f"Means of {study.repeats} profiles each, against the profile of the whole trace."
    yield Section("What losses cost", columns(figures=("in a row", *_FIGURES)), rows, note=note, plain=True)


_FIGURES = ("lost", "recognised", "duration error", "up to", "layer error", "in interval", "refused")


def _cells(point: LossPoint) -> Sequence[Cell]:
    refused = count(point.refused, "bad" if point.refused else "faint")
    if point.refused == point.repeats:
        return (ratio(point.rate), *[Cell("-")] * 5, refused)
    return (
        ratio(point.rate),
        ratio(point.recognised_ratio),
        ratio(point.duration_error_ratio),
        ratio(point.duration_error_range[1]),
        ratio(point.total_error_ratio),
        ratio(point.coverage_ratio),
        refused,
    )


def _curves(study: LossStudy) -> list[tuple[str, list[LossPoint]]]:
    """Points of each burst length, and of the buffers, by what is lost."""
    bursts = list(dict.fromkeys(point.burst for point in study.drawn))
    named = [
        ("one by one" if burst == 1 else f"{burst} in a row", [point for point in study.drawn if point.burst == burst])
        for burst in bursts
    ]
    named.append(("smaller buffers", list(study.buffers)))
    return [
        (name, sorted((point for point in points if point.refused < point.repeats), key=lambda point: point.rate))
        for name, points in named
        if points
    ]


def _charts(named: Sequence[tuple[str, LossStudy]]) -> list[Chart]:
    """Errors of durations against what was lost, of one study or of several."""
    lines: list[Line] = []
    for study_name, study in named:
        for name, points in _curves(study):
            whole = name if len(named) == 1 else f"{study_name}: {name}"
            data = tuple(
                (100 * point.rate, 100 * point.duration_error_ratio, *(100 * end for end in point.duration_error_range))
                for point in points
            )
            lines.append(Line(name=whole, kind="points", data=data, colour=colour(len(lines))))
    worst = max((point.duration_error_ratio for _, study in named for point in study.drawn), default=0.0)
    return [
        Chart(
            title="Error of durations",
            summary=f"Of operations that lost an event, against the whole trace; {format_ratio(worst)} at most in the "
            "mean of one rate and burst length.",
            x=Axis(name="events lost", unit="%", low=0.0),
            y=Axis(name="duration error", unit="%", low=0.0),
            lines=tuple(lines),
        )
    ]


def write_loss_picture(path: Path, study: LossStudy) -> None:
    """Write the errors of durations against what was lost as an SVG, in place of an older one."""
    lines = [
        Line(
            name=name,
            kind="line",
            data=tuple((100 * point.rate, 100 * point.duration_error_ratio) for point in points),
        )
        for name, points in _curves(study)
    ]
    write_text(path, svg_chart("Error of durations after losses", "events lost, %", "duration error, %", lines))


KIND: Kind[LossStudy] = Kind(noun="study of losses", plural="studies of losses", describe=_describe, charts=_charts)
