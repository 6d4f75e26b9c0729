"""A fit: how the workload came to fit, step by step, what each step cost, and what may still be tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from framefit.core.fit_results import FitResult, FitStep, FittedModel, ProposedStep
from framefit.core.timetable import Timetable
from framefit.core.verdict import share_ratio
from framefit.report.charts import Axis, Chart, Line, colour, percent_axis, row_height_px
from framefit.report.description import (
    NONE,
    Beside,
    Block,
    Cell,
    Description,
    Facts,
    Kind,
    PlanPicture,
    Quantity,
    Section,
    Sentences,
    Verdict,
    columns,
    count,
    duration,
    ratio,
    served,
)
from framefit.report.formats import format_duration, format_percent, format_ratio

__all__ = ["FitContent"]

_GOOD = ("kept", "verified")
_PROOFS = {"simulated": "simulation", "run": "run"}
_COSTS = {"none": "nothing", "accuracy": "accuracy", "rate": "frames"}


@dataclass(frozen=True)
class FitContent:
    """A fit, and its plans.

    Attributes:
        before: of the workload as it was given; ``None``: not known.
        after: as the fit left it; likewise.
    """

    result: FitResult
    before: Timetable | None = None
    after: Timetable | None = None


def _describe(content: FitContent | FitResult, *, folder: Path | None = None, **_: object) -> Description:
    """A fit: the verdict, steps, what each model asks for and gets, and what is left; ``folder`` is where it lies."""
    content = FitContent(content) if isinstance(content, FitResult) else content
    result = content.result
    return Description(_verdict(result), list(_quantities(result)), [*_windows(content), *_blocks(result, folder)])


def _windows(content: FitContent) -> Iterator[Block]:
    """The windows before and after, where the steps changed the plan."""
    before, after = content.before, content.after
    if before is None or after is None or not any(step.outcome == "kept" for step in content.result.steps):
        return
    titles = [f"Windows {when}: {plan.verdict}" for when, plan in (("before", before), ("after", after))]
    yield Beside(
        [(title, PlanPicture(plan, None, (), "quantile")) for title, plan in zip(titles, (before, after), strict=True)]
    )


def _verdict(result: FitResult) -> Verdict:
    verified = result.verified
    proof = "not verified" if verified is None else f"a {_PROOFS[verified.by]} proves it"
    kept = sum(step.outcome == "kept" for step in result.steps)
    ended = " It was interrupted." if result.interrupted else ""
    load = f"the models ask for {format_ratio(result.after.load_ratio)} of the units' time on {result.target}"
    before = (
        ""
        if result.before.load_ratio == result.after.load_ratio
        else (f", {format_ratio(result.before.load_ratio)} before")
    )
    if result.fits:
        how = f"after {kept} step{'s' * (kept != 1)}, {proof}" if result.applied else "as it is"
        return Verdict.of(
            result.verdict, ".", f"{how.capitalize()}: {load}{before}.{ended}", result.after.models_by(result.before)
        )
    return Verdict.of(result.verdict, ".", f"{_why(result)}; {load}{before}.{ended}")


def _why(result: FitResult) -> str:
    """What binds, or what is missing where the plan fits."""
    if not result.after.fits or not result.applied:
        return result.after.binding or "The binding constraint is not known"
    if result.verified is None:
        return "The plan fits, but no simulation or run has proved it"
    if result.interrupted:
        return "The plan fits, but its accuracy on test data is not known yet"
    return "The plan fits, but it lost too much accuracy"


def _quantities(result: FitResult) -> Iterator[Quantity]:
    before, after = result.before, result.after
    remark = f"before: {format_ratio(before.load_ratio)}"
    yield Quantity("Asked of the units", after.load_ratio, format_ratio(after.load_ratio), remark, "less", card=True)
    share = min((share_ratio(model) for model in after.models_by(before)), default=1.0) if after.feasible else 0.0
    remark = f"of what it asks for; before: {format_ratio(before.least_share_ratio)}"
    yield Quantity("Least served model gets", share, format_ratio(share), remark, "more", card=True)
    slack = after.worst_slack_ns
    remark = f"before: {format_duration(before.worst_slack_ns)}"
    yield Quantity("Worst slack", slack, format_duration(slack), remark, "more", card=True)
    tested = [model for model in result.models if model.test is not None]
    if tested:
        worst = max(tested, key=lambda model: model.test.drop if model.test else 0.0)
        assert worst.test is not None
        drop = worst.test.drop
        remark = f"{worst.name}, on {worst.test.images:,} test examples; allowed: {_points(result.settings.max_drop)}"
        yield Quantity("Accuracy lost", drop, _points(drop), remark, "less", card=True)
    kept = sum(step.outcome == "kept" for step in result.steps)
    yield Quantity("Steps", len(result.steps), f"{kept} kept", f"of {len(result.steps)} taken", card=True)
    yield Quantity("Took", result.seconds, f"{result.seconds:,.0f} s", "", "less", card=True)


def _blocks(result: FitResult, folder: Path | None) -> Iterator[Block]:
    if result.steps:
        yield _steps(result)
    yield _served(result)
    if result.front:
        yield _front(result)
    if result.models:
        yield _models(result)
    if result.proposals:
        yield Sentences("What may be tried", [(proposal.what, _proposal(proposal)) for proposal in result.proposals])
    notes = list(result.notes)
    if folder is None and result.proposals and not result.applied:
        notes.append("Nothing was changed: --apply takes the steps.")
    if notes:
        yield Sentences("Notes", notes)
    settings = result.settings
    facts = (
        ("workload", settings.app),
        ("target", result.target),
        ("accuracy that may be lost", _points(settings.max_drop)),
        ("seconds that it may take", settings.max_seconds),
        ("seed", settings.seed),
        ("latency table", result.table),
    )
    yield Facts("Settings", facts)
    if folder is not None:
        table = None if result.table is None else folder / result.table
        files = (("workload", folder / "app.toml"), ("record", folder / "fit.json"), ("latency table", table))
        yield Facts("Files", files)


def _proposal(step: ProposedStep) -> str:
    """What a step costs and gives, and what it needs."""
    load = step.predicted_load_ratio
    load_text = "unknown" if load is None else format_ratio(load)
    enough = "yes" if step.enough else "no" if load is not None else "unknown"
    needs = f" ({step.needs})" if step.needs else ""
    return f"costs {_COSTS[step.cost]}; asked of the units then: {load_text}; enough: {enough}{needs}"


def _steps(result: FitResult) -> Section:
    rows = []
    for step in result.steps:
        before, after = step.load_ratio
        score = step.accuracy
        accuracy = "-" if score is None else f"{format_percent(score.before)} -> {format_percent(score.after)}"
        rows.append(
            (
                count(step.number),
                Cell(step.outcome, tone="good" if step.outcome in _GOOD else "uncertain"),
                ratio(_predicted(step)),
                ratio(before),
                NONE if step.name == "verify" else ratio(after),
                accuracy,
                Cell(f"{step.seconds:.1f} s", step.seconds),
                step.what,
                step.detail,
            )
        )
    figures = ("predicted", "before", "after", _score(result), "took")
    note = "Predicted, before, after: what the models ask for of the units' time, as predicted and as planned again."
    return Section("Steps", columns(("step", "outcome"), figures, ("what", "why")), rows, note)


def _predicted(step: FitStep) -> float | None:
    """The load that was predicted."""
    return None if step.predicted is None else step.load_ratio[0] - step.predicted


def _served(result: FitResult) -> Section:
    rows = []
    before = {model.name: model for model in result.before.models}
    for model in result.after.models_by(result.before):
        old = before.get(model.name)
        rows.append(
            (
                Cell(model.name, tone=model.role),
                model.role,
                NONE if old is None else duration(old.duration_ns),
                duration(model.duration_ns),
                NONE if old is None or not result.before.feasible else served(old),
                served(model) if result.after.feasible else NONE,
            )
        )
    figures = ("took", "takes", "got", "gets")
    note = "Got, gets: frames a second, of those that it asked for. Took, got: before the steps."
    return Section("What each model asks for and gets", columns(("model", "role"), figures), rows, note)


def _front(result: FitResult) -> Section:
    rows = [
        (
            Cell("chosen", tone="good") if plan.chosen else "planned",
            ratio(plan.frames_lost_ratio),
            Cell(_points(plan.accuracy_lost), plan.accuracy_lost),
            ratio(plan.load_ratio),
            "; ".join(plan.steps) or "as it is",
        )
        for plan in result.front
    ]
    note = (
        "None is better than another in all of frames lost (of those that the workload asked for), accuracy lost (on "
        "the data that decide) and load. All were planned again; the chosen one is what the verification ran."
    )
    return Section(
        "Ways to make it fit", columns(("way",), ("frames lost", "accuracy lost", "load"), ("steps",)), rows, note
    )


def _models(result: FitResult) -> Section:
    rows: list[Sequence[Cell | str]] = []
    for model in result.models:
        tested = [NONE] * 3
        if (test := model.test) is not None:
            low, high = test.interval
            interval = f"({100 * low:.2f} to {100 * high:.2f} %)"
            tested = [
                Cell(format_percent(test.top1[0]), test.top1[0]),
                Cell(format_percent(test.top1[1]), test.top1[1], interval),
                Cell(_points(test.drop), test.drop),
            ]
        rows.append(
            (
                model.name,
                *tested,
                count(None if test is None else test.images),
                Cell(_points(model.drop), model.drop),
                _changes(model),
                model.path,
            )
        )
    figures = (f"test {_score(result)} before", "after, 90 %", "lost", "test examples", "lost (validation)")
    changed = columns(("model",), figures, ("now", "file"))
    agreeing = [m.test.acceptance for m in result.models if m.test is not None and m.test.acceptance is not None]
    note = " ".join(f"{one.text}." for one in agreeing if one.measure != "top1")
    return Section("Models that were changed", changed, rows, note[:1].upper() + note[1:])


def _score(result: FitResult) -> str:
    """What the scores of its models are."""
    tests = [model.test.acceptance for model in result.models if model.test is not None]
    return "agreement" if any(test is not None and test.measure != "top1" for test in tests) else "top-1"


def _changes(model: FittedModel) -> str:
    changes = [f"{format_ratio(model.cycles_ratio)} of its cycles"] if model.cycles_ratio < 1 else []
    changes += {"no": [], "all": ["int8"], "ends": ["int8 but for its ends"]}[model.int8]
    return ", ".join(changes + ["trees"] * bool(model.trees))


def _points(drop: float) -> str:
    return f"{100 * drop:.2f} points"


def _charts(contents: Sequence[tuple[str, FitContent | FitResult]]) -> Iterator[Chart]:
    named = [(name, content.result if isinstance(content, FitContent) else content) for name, content in contents]
    several = len(named) > 1
    lines = []
    for place, (name, result) in enumerate(named):
        load = [(0.0, 100 * result.before.load_ratio)]
        labels = ["before"]
        for step in result.steps:
            if step.name == "verify":
                continue
            kept = step.outcome == "kept" and step.load_ratio[1] is not None
            load.append(
                (float(step.number), 100 * (step.load_ratio[1] if kept and step.load_ratio[1] else load[-1][1] / 100))
            )
            labels.append(step.what if kept else f"{step.what} ({step.outcome})")
        label = name if several else "asked of the units"
        lines.append(Line(name=label, kind="line", data=tuple(load), labels=tuple(labels), colour=colour(place)))
        predicted = [(step, _predicted(step)) for step in result.steps]
        guessed = [(float(step.number), 100 * load) for step, load in predicted if load]
        if guessed and not several:
            lines.append(Line(name="predicted", kind="points", data=tuple(guessed), colour=1))
    if all(len(line.data) < 2 for line in lines if line.kind == "line"):
        return
    lines.append(Line(name="all of their time", kind="across", data=((100.0,),), colour=-1, dashed=True))
    first = named[0][1]
    yield Chart(
        title="Time asked of the units, step by step",
        summary=f"Above 100 % nothing fits. From {format_ratio(first.before.load_ratio)} to "
        f"{format_ratio(first.after.load_ratio)} in {len(first.steps)} step{'s' * (len(first.steps) != 1)}.",
        x=Axis(name="step", whole=True),
        y=Axis(name="asked", unit="%", low=0.0),
        lines=tuple(lines),
    )
    pairs = [(name, step) for name, result in named for step in result.steps if step.accuracy is not None]
    if pairs:
        steps = tuple(f"{step.number} {step.what}" + (f" ({name})" if several else "") for name, step in pairs)
        scores = [step.accuracy for _, step in pairs if step.accuracy is not None]
        each = [
            tuple((100 * score, float(at)) for at, score in enumerate(column))
            for column in ([score.before for score in scores], [score.after for score in scores])
        ]
        yield Chart(
            title="Accuracy before and after each step",
            summary=f"{_score(first).capitalize()} of the model that a step changes, on data that decide; it may lose "
            f"{_points(first.settings.max_drop)}.",
            x=percent_axis(_score(first), [x for points in each for x, _ in points]),
            y=Axis(name="", scale="category", categories=steps),
            lines=(
                Line(name="before", kind="points", data=each[0], colour=7),
                Line(name="after", kind="points", data=each[1], colour=0),
            ),
            height_px=row_height_px(len(pairs)),
        )


KIND: Kind[FitContent | FitResult] = Kind(noun="fit", plural="fits", describe=_describe, charts=_charts, uses=("plan",))
