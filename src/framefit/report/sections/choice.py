"""A choice of targets: where a workload fits, with how much to spare, and what would help elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefit.core.choice import Choice, ChoiceCell
from framefit.core.verdict import SERVED, gets, share_ratio
from framefit.report.charts import Axis, Chart, Line, colour
from framefit.report.description import (
    NONE,
    Block,
    Cell,
    Description,
    Detail,
    Kind,
    Quantity,
    Section,
    Sentences,
    Tone,
    Verdict,
    columns,
    duration,
    rate,
    ratio,
)
from framefit.report.formats import format_ratio

_TONES: dict[str, Tone] = {"fits": "good", "fits with fewer frames": "uncertain", "does not fit": "bad"}


def _describe(choice: Choice, *, detail: Detail = "normal") -> Description:  # noqa: ARG001 - all of it is short
    """The targets that no other one beats, and every target at every rate."""
    return Description(_verdict(choice), list(_quantities(choice)), list(_blocks(choice)))


def _verdict(choice: Choice) -> Verdict:
    front = choice.front
    ended = " It was interrupted: the same command goes on." if choice.interrupted else ""
    if not front:
        return Verdict("fails", "No target:", f"the workload fits on none of them at these rates.{ended}")
    words = [_words(best) for best in map(choice.best, front) if best is not None]
    return Verdict("fits", "Fits on", f"{', '.join(words)}.{ended}")


def _words(best: ChoiceCell) -> str:
    price = "" if best.price is None else f" for {best.price:g}"
    fitted = "" if best.fits else f" (after a fit, {_points(best.accuracy_lost)} of accuracy lost)"
    return f"{best.target} up to {best.rate_hz:g} Hz{price}{fitted}"


def _loss(cell: ChoiceCell) -> str:
    """What a fit gave up, as a remark."""
    frames = f"{format_ratio(cell.frames_lost_ratio)} of frames" if cell.frames_lost_ratio else ""
    return ", ".join(filter(None, [_points(cell.accuracy_lost) if cell.accuracy_lost else "", frames]))


def _points(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f} points"


def _quantities(choice: Choice) -> Iterator[Quantity]:
    fitting = sum(cell.fits for cell in choice.cells)
    total = f"of {len(choice.cells)}"
    yield Quantity("Cells that fit", fitting, str(fitting), total, card=True)
    if _was_fitted(choice):
        fitted = sum(cell.fitted is not None for cell in choice.cells)
        yield Quantity("Made to fit", fitted, str(fitted), f"of {len(choice.cells) - fitting} others", card=True)


def _was_fitted(choice: Choice) -> bool:
    return any(cell.fitted is not None for cell in choice.cells)


def _blocks(choice: Choice) -> Iterator[Block]:
    after = ("after a fit",) if _was_fitted(choice) else ()
    lost = ("frames lost", "accuracy lost") if after else ()
    figures = ("rate", *(("price",) if _has_prices(choice) else ()), *lost, "load", "worst slack")
    rows: list[Sequence[Cell]] = [_row(choice, cell) for cell in choice.cells]
    note = "Load: time that all models require over the time of the units that they may use."
    yield Section(
        "Targets and rates",
        columns(("target", "verdict", *after), figures, ("what binds, or helps",), page=lost),
        rows,
        note=note,
        plain=True,
    )
    odd = list(dict.fromkeys(f"{cell.target}: {cell.binding}" for cell in choice.cells if cell.verdict is None))
    if odd:
        yield Sentences("Targets that cannot run it", odd)


def _has_prices(choice: Choice) -> bool:
    return any(cell.price is not None for cell in choice.cells)


def _row(choice: Choice, cell: ChoiceCell) -> Sequence[Cell]:
    price = (NONE if cell.price is None else Cell(f"{cell.price:g}", cell.price),) if _has_prices(choice) else ()
    lost: tuple[Cell, ...] = ()
    after: tuple[Cell, ...] = ()
    if _was_fitted(choice):
        accuracy = NONE if cell.accuracy_lost is None else Cell(_points(cell.accuracy_lost), cell.accuracy_lost)
        lost = (ratio(cell.frames_lost_ratio), accuracy)
        after = (NONE if cell.fitted is None else Cell(cell.fitted, tone=_TONES[cell.fitted], note=_loss(cell)),)
    if cell.verdict is None:
        verdict = Cell("cannot run it", tone="bad")
        return (Cell(cell.target), verdict, *after, rate(cell.rate_hz), *price, *lost, NONE, NONE, NONE)
    fewer = "; ".join(gets(model) for model in cell.models if share_ratio(model) < SERVED)
    return (
        Cell(cell.target),
        Cell(cell.verdict, tone=_TONES[cell.verdict]),
        *after,
        rate(cell.rate_hz),
        *price,
        *lost,
        ratio(cell.load_ratio),
        NONE if cell.verdict == "does not fit" and cell.worst_slack_ns > 0 else duration(cell.worst_slack_ns),
        Cell(cell.remedy or (cell.binding if cell.verdict == "does not fit" else fewer) or "-"),
    )


def _charts(named: Sequence[tuple[str, Choice]]) -> list[Chart]:
    """Load by rate, a line for each target."""
    lines: list[Line] = []
    for name, choice in named:
        for target in choice.targets:
            data = tuple(
                (cell.rate_hz, 100 * cell.load_ratio)
                for cell in choice.cells
                if cell.target == target and cell.verdict is not None
            )
            if data:
                label = target if len(named) == 1 else f"{name}: {target}"
                lines.append(Line(name=label, kind="line", data=data, colour=colour(len(lines))))
    return [
        Chart(
            title="Load by rate",
            summary="Above 100 % only cheaper models or fewer frames make a workload fit; below it deadlines may bind.",
            x=Axis(name="rate", unit="Hz", low=0.0),
            y=Axis(name="load", unit="%", low=0.0),
            lines=tuple(lines),
        )
    ]


KIND: Kind[Choice] = Kind(noun="choice of targets", plural="choices of targets", describe=_describe, charts=_charts)
