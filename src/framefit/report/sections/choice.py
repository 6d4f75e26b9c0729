"""A choice of targets: where a workload fits, with how much to spare, and what would help elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefit.core.choice import Choice, ChoiceCell
from framefit.core.verdict import SERVED, gets, share_ratio
from framefit.report.charts import Axis, Chart, Line, colour
from framefit.report.description import (
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

_TONES: dict[str, Tone] = {"fits": "good", "fits with fewer frames": "uncertain", "does not fit": "bad"}


def _describe(choice: Choice, *, detail: Detail = "normal") -> Description:  # noqa: ARG001 - all of it is short
    """The targets that no other one beats, and every target at every rate."""
    return Description(_verdict(choice), list(_quantities(choice)), list(_blocks(choice)))


def _verdict(choice: Choice) -> Verdict:
    front = choice.front
    ended = " It was interrupted: the same command goes on." if choice.interrupted else ""
    if not front:
        return Verdict("fails", "No target:", f"the workload fits on none of them at these rates.{ended}")
    words = [f"{name} up to {choice.best_hz(name):g} Hz{_price(choice, name)}" for name in front]
    return Verdict("fits", "Fits on", f"{', '.join(words)}.{ended}")


def _price(choice: Choice, name: str) -> str:
    return f" for {choice.prices[name]:g}" if name in choice.prices else ""


def _quantities(choice: Choice) -> Iterator[Quantity]:
    fitting = sum(cell.fits for cell in choice.cells)
    total = f"of {len(choice.cells)}"
    yield Quantity("Cells that fit", fitting, str(fitting), total, card=True)


def _blocks(choice: Choice) -> Iterator[Block]:
    texts = ("target", "verdict", "what binds, or helps")
    figures = ("rate", *(("price",) if choice.prices else ()), "load", "worst slack")
    rows: list[Sequence[Cell]] = [_row(choice, cell) for cell in choice.cells]
    note = "Load: time that all models require over the time of the units that they may use."
    yield Section("Targets and rates", columns(texts[:1], figures, texts[1:]), rows, note=note, plain=True)
    odd = list(dict.fromkeys(f"{cell.target}: {cell.binding}" for cell in choice.cells if cell.verdict is None))
    if odd:
        yield Sentences("Targets that cannot run it", odd)


def _row(choice: Choice, cell: ChoiceCell) -> Sequence[Cell]:
    price = (Cell(f"{choice.prices[cell.target]:g}"),) if choice.prices else ()
    if cell.verdict is None:
        nothing = Cell("-")
        return (
            Cell(cell.target),
            rate(cell.rate_hz),
            *price,
            nothing,
            nothing,
            Cell("cannot run it", tone="bad"),
            nothing,
        )
    fewer = "; ".join(gets(model) for model in cell.models if share_ratio(model) < SERVED)
    return (
        Cell(cell.target),
        rate(cell.rate_hz),
        *price,
        ratio(cell.load_ratio),
        duration(cell.worst_slack_ns),
        Cell(cell.verdict, tone=_TONES[cell.verdict]),
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
