"""What was done so that a workload fits, and what may be done, as tables for a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from framefit.core.fit_results import FitResult, FittedModel, Standing
from framefit.report.formats import format_duration, format_ratio
from framefit.report.terminal.tables import add_row, bullets, headed, name_text, plain_table, spaced

__all__ = ["fit_view"]


_GOOD = ("kept", "verified")


def fit_view(result: FitResult, folder: Path | None) -> RenderableType:
    """The verdict, what each model asks for and gets, steps, and what is left.

    Args:
        result: of the workflow.
        folder: where it lies; ``None``: nothing was written.

    Returns:
        A rich renderable, at its best from 110 columns.
    """
    blocks: list[RenderableType] = [_headline(result), _models(result.after)]
    if result.steps:
        blocks.append(_steps(result))
    if result.models:
        blocks.append(headed("Accuracy", bullets((model.name, _accuracy(model)) for model in result.models)))
    if result.proposals:
        blocks.append(_proposals(result))
    if result.notes:
        blocks.append(headed("Notes", bullets((None, note) for note in result.notes)))
    if folder is not None:
        table = "" if result.table is None else f"\nlatency table: {folder / result.table}"
        blocks.append(Text(f"workload: {folder / 'app.toml'}\nrecord:   {folder / 'fit.json'}{table}"))
    elif result.proposals:
        blocks.append(Text("nothing was changed: --apply takes the steps"))
    return spaced(blocks)


def _headline(result: FitResult) -> Text:
    word, style = ("FITS", "bold green") if result.fits else ("DOES NOT FIT", "bold red")
    before, after = (format_ratio(one.load_ratio) for one in (result.before, result.after))
    load = f"the models ask for {after} of the units' time" + (f", before: {before}" if before != after else "")
    proof = "" if result.verified is None else f" ({result.verified})"
    why = f"\n{result.after.binding}" if result.after.binding else ""
    if not result.fits and result.after.fits and result.applied:
        why = "\nthe plan fits, but nothing shows that it holds" if result.verified is None else "\nit lost too much"
        why = "\nits accuracy on test data is not known yet" if result.interrupted and result.verified else why
    interrupted = " (interrupted)" if result.interrupted else ""
    return Text.assemble((word, style), f"{proof}{interrupted}  {load} on {result.target}", why)


def _models(standing: Standing) -> RenderableType:
    table = plain_table("Models", ["model", "role"], ["duration", "asks for", "gets"], caption="launches a second")
    for model in standing.models:
        gets = "-" if not standing.feasible else f"{model.planned_hz:.4g} Hz"
        duration = format_duration(model.duration_ns)
        add_row(table, name_text(model.name, model.role), model.role, duration, f"{model.asked_hz:.4g} Hz", gets)
    return table


def _steps(result: FitResult) -> RenderableType:
    caption = "load: what the models ask for of the units' time, predicted and as planned again"
    table = plain_table("Steps", ["", "detail", "outcome"], ["predicted", "load", "top-1", "seconds"], caption=caption)
    for step in result.steps:
        before, after = step.load_ratio
        now = "-" if after is None or step.name == "verify" else f"{_percent(before)} -> {_percent(after)}"
        add_row(
            table,
            str(step.number),
            step.what + (f": {step.detail}" if step.detail else ""),
            Text(step.outcome, style="green" if step.outcome in _GOOD else "yellow"),
            "-" if step.predicted_load_ratio is None else _percent(step.predicted_load_ratio),
            now,
            "-" if step.top1 is None else " -> ".join(f"{100 * top1:.2f} %" for top1 in step.top1),
            f"{step.seconds:.1f}",
        )
    return table


def _proposals(result: FitResult) -> RenderableType:
    table = plain_table("What may be done", ["", "detail", "costs"], ["load", "enough"])
    for number, step in enumerate(result.proposals, 1):
        told = step.predicted_load_ratio
        add_row(
            table,
            str(number),
            step.what + (f" ({step.needs})" if step.needs else ""),
            {"none": "nothing", "accuracy": "accuracy", "rate": "frames"}[step.cost],
            "unknown" if told is None else _percent(told),
            "yes" if step.enough else "no" if told is not None else "unknown",
        )
    return table


def _accuracy(model: FittedModel) -> str:
    if model.test is None:
        return f"{100 * model.drop:.2f} points lost on validation data"
    (before, after), (low, high) = model.test.top1, model.test.interval
    return (
        f"top-1 {100 * before:.2f} % -> {100 * after:.2f} % (90 %: {100 * low:.2f} to {100 * high:.2f} %) "
        f"on {model.test.images:,} test images"
    )


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"
