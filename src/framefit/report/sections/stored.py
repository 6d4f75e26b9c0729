"""What a store holds, the latest last, and what became of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from framefit.core.history import device_of
from framefit.core.stored import FigureName, PastFigure, StoredFigure, StoredFile, StoreLog
from framefit.report.charts import Axis, Chart, Line, colour
from framefit.report.description import (
    NONE,
    Block,
    Cell,
    Description,
    Detail,
    Kind,
    Section,
    Sentences,
    Verdict,
    columns,
)
from framefit.report.formats import format_duration, format_percent

_SHORT = 12  # digits of a hash
_NAMES: dict[FigureName, str] = {
    "latency": "Latency of the whole model, in turn with others",
    "response": "From a frame's release to its result, 99 % of the frames within",
    "missed": "Frames that missed their deadline",
    "accuracy": "Accuracy on test data",
}
_TIMES = {"latency", "response"}
_WORSE = "#d64545"


def _describe(log: StoreLog, *, detail: Detail = "normal") -> Description:  # noqa: ARG001 - all of it is short
    """A row for each file, and each figure."""
    return Description(_verdict(log), [], list(_blocks(log)))


def _verdict(log: StoreLog) -> Verdict:
    count = len(log.files)
    text = f"{count} file{'s' * (count != 1)}"
    if not log.worse:
        return Verdict("plain", text, f"in {log.store}.")
    (first, *more) = log.worse
    others = f", and {len(more)} more" if more else ""
    return Verdict("fails", "It got worse:", f"{_change(first)}{others} ({text} in {log.store}).")


def _change(row: PastFigure) -> str:
    """What was and is, in words."""
    place = f" on {row.device}" if row.device else ""
    before = "" if row.before is None else f"{_value(row.before)} before, "
    return f"{row.figure.name}{place} {before}{_value(row.figure)} now"


def _blocks(log: StoreLog) -> Iterator[Block]:
    if log.damaged:
        yield Sentences("Records that cannot be read", log.damaged)
    for name in _NAMES:
        rows = [row for row in log.history if row.figure.name == name]
        if rows:
            note = "Worse: by more than both 90 % intervals, beside the figure before on the same device."
            titles = columns(("pushed", "commit", "device"), ("value", "interval", "before"), ("file",), page=("file",))
            yield Section(_NAMES[name], titles, [_past(row) for row in rows], note=note, plain=True)
    files = [
        (Cell(file.object[:_SHORT]), Cell(file.name), Cell(f"{file.bytes:,}"), Cell(file.kind), *_words(file))
        for file in log.files
    ]
    names, figures, words = ("hash", "file"), ("bytes",), ("kind", "pushed", "device", "command")
    yield Section("Files", columns(names, figures, words), files, plain=True)


def _words(file: StoredFile) -> tuple[Cell, ...]:
    return Cell(_minute(file.time)), Cell(device_of(file) or "-"), Cell(file.command or "-")


def _past(row: PastFigure) -> tuple[Cell, ...]:
    return (
        Cell(_minute(row.time)),
        Cell(row.commit or "-"),
        Cell(row.device or "-"),
        Cell(_value(row.figure), note="worse" if row.worse else "", tone="bad" if row.worse else ""),
        NONE
        if row.figure.interval is None
        else Cell(" to ".join(_text(row.figure, end) for end in row.figure.interval)),
        NONE if row.before is None else Cell(_value(row.before)),
        Cell(row.file),
    )


def _value(figure: StoredFigure) -> str:
    return _text(figure, figure.value)


def _text(figure: StoredFigure, value: float) -> str:
    return format_duration(value) if figure.name in _TIMES else format_percent(value)


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _charts(named: Sequence[tuple[str, StoreLog]]) -> Iterable[Chart]:
    """Each figure over time, a line for each device; with intervals, and what is worse marked."""
    rows = [row for _, log in named for row in log.history]
    for name in _NAMES:
        of_name = [row for row in rows if row.figure.name == name]
        if len(of_name) > 1:
            yield _chart(name, of_name)


def _chart(name: FigureName, rows: Sequence[PastFigure]) -> Chart:
    factor, unit = (1e-6, "ms") if name in _TIMES else (100.0, "%")
    labels = [row.commit or _minute(row.time) for row in rows]
    lines = []
    for place, device in enumerate(dict.fromkeys(row.device for row in rows)):
        its = [number for number, row in enumerate(rows) if row.device == device and not row.worse]
        lines.append(_points(device or name, rows, its, labels, factor, colour(place)))
    worse = [number for number, row in enumerate(rows) if row.worse]
    if worse:
        lines.append(_points("worse than before", rows, worse, labels, factor, fill=_WORSE))
    changes = "; ".join(
        f"{_change(row)} ({labels[number]}, {row.file})" for number, row in enumerate(rows) if row.worse
    )
    return Chart(
        title=_NAMES[name],
        summary=f"Worse by more than both intervals: {changes}."
        if changes
        else "Nothing got worse beyond its interval.",
        x=Axis(name="in the order of time", whole=True),
        y=Axis(name=name, unit=unit),
        lines=tuple(lines),
    )


def _points(
    name: str,
    rows: Sequence[PastFigure],
    places: Sequence[int],
    labels: Sequence[str],
    factor: float,
    place: int = 0,
    fill: str = "",
) -> Line:
    data = []
    for number in places:
        figure = rows[number].figure
        ends = () if figure.interval is None else tuple(factor * end for end in figure.interval)
        data.append((float(number + 1), factor * figure.value, *ends))
    shown = tuple(labels[number] for number in places)
    return Line(name=name, kind="points", data=tuple(data), labels=shown, colour=place, fill=fill)


KIND: Kind[StoreLog] = Kind(noun="store", plural="stores", describe=_describe, charts=_charts)
