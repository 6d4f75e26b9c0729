"""A fit in a report: how the workload came to fit, step by step, and what each step cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefit.core.fit_results import FitResult, Standing
from framefit.report.charts import Axis, Chart, Line, colour, percent_axis, row_height_px
from framefit.report.description import Kind, Quantity
from framefit.report.formats import format_duration, format_hz, format_ratio
from framefit.report.markup import Markup, bullet_list, facts_panel, joined, panel, panels, quantity, table, verdict

__all__ = ["FITS"]


_NONE = "\u2013"


def _verdict(result: FitResult) -> Markup:
    shown = {"simulated": "a simulation shows it", "run": "a run shows it"}.get(result.verified or "", "not verified")
    kept = sum(step.outcome == "kept" for step in result.steps)
    ended = " It was interrupted." if result.interrupted else ""
    if result.fits:
        how = f"after {kept} step{'s' * (kept != 1)}, {shown}" if result.applied else "as it is"
        load = f"the units are asked for {format_ratio(result.after.load_ratio)} of their time"
        before = f", {format_ratio(result.before.load_ratio)} before" if kept else ""
        return verdict("fits", "Fits", f"{how}: {load}{before}.{ended}")
    binding = result.after.binding or "what binds is not known"
    word = "Does not fit." if result.applied else "Does not fit as it is."
    return verdict("fails", word, f"{binding}{ended}")


def _quantities(result: FitResult) -> Iterator[Quantity]:
    before, after = result.before, result.after
    remark = f"before: {format_ratio(before.load_ratio)}"
    yield Quantity("Asked of the units", after.load_ratio, format_ratio(after.load_ratio), remark, "less", card=True)
    share = after.least_share_ratio
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
        remark = f"{worst.name}, on {worst.test.images:,} test images; allowed: {_points(result.settings.max_drop)}"
        yield Quantity("Accuracy lost", drop, _points(drop), remark, "less", card=True)
    kept = sum(step.outcome == "kept" for step in result.steps)
    yield Quantity("Steps", len(result.steps), f"{kept} kept", f"of {len(result.steps)} taken", card=True)
    yield Quantity("Took", result.seconds, f"{result.seconds:,.0f} s", "", "less", card=True)


def _charts(named: Sequence[tuple[str, FitResult]]) -> Iterator[Chart]:
    several = len(named) > 1
    lines = []
    for place, (name, result) in enumerate(named):
        load = [(0.0, 100 * result.before.load_ratio)]
        told = ["before"]
        for step in result.steps:
            if step.name == "verify":
                continue
            kept = step.outcome == "kept" and step.load_ratio[1] is not None
            load.append(
                (float(step.number), 100 * (step.load_ratio[1] if kept and step.load_ratio[1] else load[-1][1] / 100))
            )
            told.append(step.what if kept else f"{step.what} ({step.outcome})")
        label = name if several else "asked of the units"
        lines.append(Line(name=label, kind="line", data=tuple(load), labels=tuple(told), colour=colour(place)))
        guessed = [(float(s.number), 100 * s.predicted_load_ratio) for s in result.steps if s.predicted_load_ratio]
        if guessed and not several:
            lines.append(Line(name="predicted", kind="points", data=tuple(guessed), colour=1))
    if all(len(line.data) < 2 for line in lines if line.kind == "line"):
        return
    lines.append(Line(name="all of their time", kind="across", data=((100.0,),), colour=-1, dashed=True))
    first = named[0][1]
    yield Chart(
        title="Time asked of the units, step by step",
        summary=f"Above 100 % nothing fits. From {format_ratio(first.before.load_ratio)} to "
        f"{format_ratio(first.after.load_ratio)} in {len(first.steps)} steps.",
        x=Axis(name="step", whole=True),
        y=Axis(name="asked", unit="%", low=0.0),
        lines=tuple(lines),
    )
    pairs = [(name, step) for name, result in named for step in result.steps if step.top1 is not None]
    if pairs:
        labels = tuple(f"{step.number} {step.what}" + (f" ({name})" if several else "") for name, step in pairs)
        each = [
            tuple((100 * step.top1[which], float(at)) for at, (_, step) in enumerate(pairs) if step.top1)
            for which in (0, 1)
        ]
        yield Chart(
            title="Accuracy before and after each step",
            summary="Top-1 of the model that a step changes, on validation data; it may lose "
            f"{_points(first.settings.max_drop)}.",
            x=percent_axis("top-1", [x for points in each for x, _ in points]),
            y=Axis(name="", scale="category", categories=labels),
            lines=(
                Line(name="before", kind="points", data=each[0], colour=7),
                Line(name="after", kind="points", data=each[1], colour=0),
            ),
            height_px=row_height_px(len(pairs)),
        )


def _tables(result: FitResult, _: str) -> Markup:
    parts = [panel("Steps", _steps(result))] if result.steps else []
    parts.append(panel("What each model asks for and gets", _served(result)))
    if result.models:
        parts.append(panel("Models that were changed", _models(result)))
    if result.proposals:
        rows = [
            (
                one.what,
                one.cost,
                _NONE
                if one.predicted_load_ratio is None
                else quantity(one.predicted_load_ratio, format_ratio(one.predicted_load_ratio)),
                one.needs or "nothing",
            )
            for one in result.proposals
        ]
        listed = table("Proposals", rows, left=("step", "costs"), right=("asked then",), words=("needs",))
        parts.append(panel("What may be tried", listed))
    few = [panel("What to know of this fit", bullet_list(result.notes))] if result.notes else []
    settings = result.settings
    facts = (
        ("workload", settings.app),
        ("target", result.target),
        ("accuracy that may be lost", _points(settings.max_drop)),
        ("seconds that it may take", settings.max_seconds),
        ("seed", settings.seed),
        ("latency table", result.table),
    )
    return joined([panels(parts, one=True), panels([*few, facts_panel("Settings", facts)])])


def _steps(result: FitResult) -> Markup:
    rows = []
    for step in result.steps:
        before, after = step.load_ratio
        accuracy = _NONE if step.top1 is None else f"{100 * step.top1[0]:.2f} to {100 * step.top1[1]:.2f} %"
        guess = step.predicted_load_ratio
        rows.append(
            (
                step.outcome,
                quantity(step.number, str(step.number)),
                _NONE if guess is None else quantity(guess, format_ratio(guess)),
                quantity(before, format_ratio(before)),
                _NONE if after is None else quantity(after, format_ratio(after)),
                accuracy,
                quantity(step.seconds, f"{step.seconds:.1f} s"),
                step.what,
                step.detail,
            )
        )
    right = ("step", "predicted", "before", "after", "top-1", "took")
    return table("Steps", rows, left=("outcome",), right=right, words=("what", "why"))


def _served(result: FitResult) -> Markup:
    rows = []
    before = {model.name: model for model in result.before.models}
    for model in result.after.models:
        old = before.get(model.name)
        rows.append(
            (
                model.name,
                model.role,
                _NONE if old is None else quantity(old.duration_ns, format_duration(old.duration_ns)),
                quantity(model.duration_ns, format_duration(model.duration_ns)),
                quantity(model.asked_hz, format_hz(model.asked_hz)),
                _NONE if old is None else _given(old.planned_hz, result.before),
                _given(model.planned_hz, result.after),
                quantity(model.share_ratio, format_ratio(model.share_ratio)),
            )
        )
    right = ("took", "takes", "asks for", "got", "gets", "share")
    return table("Models", rows, left=("model", "role"), right=right)


def _given(rate_hz: float, standing: Standing) -> Markup | str:
    return quantity(rate_hz, format_hz(rate_hz)) if standing.feasible else _NONE


def _models(result: FitResult) -> Markup:
    rows = []
    for model in result.models:
        done = [f"{format_ratio(model.cycles_ratio)} of its cycles"] if model.cycles_ratio < 1 else []
        done += {"no": [], "all": ["int8"], "ends": ["int8 but for its ends"]}[model.int8]
        done += ["trees"] if model.trees else []
        tested = [_NONE] * 3
        if (test := model.test) is not None:
            low, high = test.interval
            tested = [
                quantity(test.top1[0], f"{100 * test.top1[0]:.2f} %"),
                quantity(test.top1[1], f"{100 * test.top1[1]:.2f} %", f"{100 * low:.1f} to {100 * high:.1f} %"),
                quantity(test.drop, _points(test.drop)),
            ]
        rows.append((model.name, ", ".join(done), *tested, quantity(model.drop, _points(model.drop)), model.path))
    right = ("test top-1 before", "after, 90 %", "lost", "lost (validation)")
    return table("Changed models", rows, left=("model", "now"), right=right, words=("file",))


def _points(ratio: float) -> str:
    return f"{100 * ratio:.2f} points"


FITS = Kind(
    noun="fit",
    plural="fits",
    verdict=_verdict,
    quantities=lambda result: list(_quantities(result)),
    charts=lambda named: list(_charts(named)),
    tables=_tables,
)
