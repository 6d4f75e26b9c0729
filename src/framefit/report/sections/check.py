"""Models beside an earlier version of themselves."""

from __future__ import annotations

from collections.abc import Iterator

from framefit.core.check import CheckedModel, CheckResult
from framefit.report.description import (
    Block,
    Cell,
    Description,
    Detail,
    Kind,
    Section,
    Sentences,
    Tone,
    Verdict,
    columns,
    count,
    duration,
)
from framefit.report.formats import format_percent

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "cannot tell": "uncertain"}
_WORDS = {"pass": "not slower", "fail": "slower", "cannot tell": "cannot tell"}


def _describe(result: CheckResult, *, detail: Detail = "normal") -> Description:  # noqa: ARG001 - all of it is short
    """The verdict, and a row for each model."""
    words = {"pass": "No model is slower", "fail": "Slower", "cannot tell": "Cannot tell"}
    slower = [model.name for model in result.models if model.decision == "fail"]
    names = f": {', '.join(slower)}" if slower else ""
    text = f"than in {result.against}, by more than {format_percent(result.most - 1)}, on {result.target}."
    first = f"{words[result.decision]}{names}"
    verdict = Verdict("fits", first, text) if result.decision == "pass" else Verdict("fails", first, text)
    return Description(verdict, [], list(_blocks(result)))


def _blocks(result: CheckResult) -> Iterator[Block]:
    figures = ("here", "there", "ratio", "from", "to", "rounds")
    rows = [
        (Cell(model.name), *_figures(model), Cell(_WORDS[model.decision], tone=_TONES[model.decision]))
        for model in result.models
    ]
    note = "Intervals are those of the median ratio, 99 %. Where nothing was measured both versions are the same."
    yield Section("Models", columns(("model",), figures, ("verdict",)), rows, note=note, plain=True)
    alone = [f"{name} is only here" for name in result.only_here]
    alone += [f"{name} is only in {result.against}" for name in result.only_there]
    if alone:
        yield Sentences("Not compared", alone)


def _figures(model: CheckedModel) -> tuple[Cell, ...]:
    if model.same:
        return (Cell("-"),) * 6
    ratios = (model.ratio, *model.interval)
    return (
        duration(model.here_ns),
        duration(model.there_ns),
        *(Cell(f"{ratio:.3f}", ratio) for ratio in ratios),
        count(model.rounds),
    )


KIND: Kind[CheckResult] = Kind(noun="check", plural="checks", describe=_describe)
