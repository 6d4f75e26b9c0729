"""A plan: its windows, how each model came to its part in plain words, and its tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from framefit.core.explanation import FramePath, ModelGraph, ModelSchedule, PlanExplanation
from framefit.core.timetable import PlannedModel, Refusal, Segment, Timetable, reserved_share, window_starts
from framefit.core.verdict import verdict_of
from framefit.core.workload import Workload
from framefit.report.charts import Axis, Chart, Line, colour, row_height_px
from framefit.report.description import (
    NONE,
    Better,
    Block,
    Cell,
    Description,
    Detail,
    Facts,
    Graph,
    Kind,
    PlanPicture,
    Quantity,
    Section,
    Sentences,
    Shares,
    Story,
    Verdict,
    columns,
    count,
    duration,
    ratio,
    ratio_quantity,
    served,
    size,
)
from framefit.report.formats import format_bytes, format_difference, format_duration, format_hz, format_ratio

__all__ = ["PlanContent"]


_KERNELS = 6  # names of layers that a sentence lists
_THRESHOLD = 5  # docs/priorities.md: from this level on, unless the workload sets one
_ROUNDING_NS = 1  # a release is a whole nanosecond: windows of one rate differ by it
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_MODES = {
    "fill": "so finely that residuals are filled",
    "fewest": "into as few segments as possible",
    "equal": "into segments of nearly equal duration",
}


def format_beat(timetable: Timetable) -> str:
    """Length of the windows and their rate, or from the shortest to the longest where they differ."""
    longest = max((window.length_ns for window in timetable.windows), default=timetable.window_ns)
    if longest > timetable.window_ns + _ROUNDING_NS:
        return f"{format_duration(timetable.window_ns)} to {format_duration(longest)}"
    return f"{format_duration(timetable.window_ns)} ({1e9 / timetable.window_ns:.4g} Hz)"


def common_prefix(model: PlannedModel) -> str:
    """What all layer names of a cut model begin with, up to a slash; pictures and tables leave it apath."""
    names = [name for segment in model.segments for name in (segment.first_layer, segment.last_layer)]
    if not names:
        return ""
    first, last = min(names), max(names)
    equal = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[: first.rfind("/", 0, equal) + 1]


def percentile_name(workload: Workload) -> str:
    """How the planned quantile is called, such as ``p99``."""
    return f"p{100 * workload.schedule.quantile:.4g}"


def slack_sentence(timetable: Timetable, workload: Workload) -> str:
    """What the worst slack means."""
    slack, planned = timetable.worst_slack_ns, percentile_name(workload)
    if slack < 0:
        return f"Where everything takes its {planned}, {format_duration(-slack)} are missing in the tightest window."
    if not timetable.feasible:
        return "See what binds."
    text = f"Where everything takes its {planned}, {format_duration(slack)} stay free in the tightest window"
    return text + (", the guard not counted." if timetable.guard_ns else ".")


def guard_remark(timetable: Timetable) -> str:
    """What the guard is kept free for: each background segment has its own, and the timetable's is the greatest."""
    background = [model for model in timetable.models if model.role == "background"]
    guards = [s.guard_ns for model in background for s in model.segments if s.guard_ns is not None]
    if not guards or min(guards) >= timetable.guard_ns:
        return "kept free before each reserved instant"
    return f"at most kept free before a reserved instant; behind the shortest segments {format_duration(min(guards))}"


def refusal_sentence(refusal: Refusal) -> str:
    """How sure it is that the workload does not fit, and by how much it does not."""
    text = f"Proved in {refusal.searched_s:.2g} s." if refusal.searched_s else "This is proved."
    if refusal.kind != "proved":
        more = (
            f" It was searched for {refusal.searched_s:.2g} s; search_s in [schedule] is the time for orders of the "
            "priority models."
        )
        text = f"This is no proof that nothing fits.{more if refusal.searched_s else ''}"
    if not refusal.lateness_ns or refusal.bound_ns is None:
        return text
    best = format_duration(refusal.lateness_ns)
    if refusal.bound_ns >= refusal.lateness_ns:
        return f"{text} At best the latest frame is {best} late."
    bound = format_duration(refusal.bound_ns)
    return f"{text} The best plan that was found is {best} late, none is less than {bound} late."


def sentences(schedule: ModelSchedule, timetable: Timetable, workload: Workload) -> list[tuple[str, str]]:
    """How a model came to its part of the plan: label and text of each sentence.

    Args:
        schedule: of the model.
        timetable: the plan.
        workload: that it was made for.
    """
    model, takes = schedule.model, f"{format_duration(schedule.model.duration_ns)} ({percentile_name(workload)})"
    labelled = [("level", _level_sentence(model, workload))]
    if model.role == "priority":
        return [*labelled, *_reserved(schedule, timetable, takes), *_rate_sentence(schedule, timetable)]
    if model.role == "sporadic":
        return [*labelled, *_sporadic(schedule, timetable, takes)]
    text = f"takes {takes}. {_residual_sentence(schedule, timetable)}".rstrip()
    labelled += [
        ("duration", text),
        ("cut", _cut_sentence(schedule, timetable, workload)),
        ("age", _age_sentence(model, timetable)),
    ]
    if schedule.paths:
        path = max(schedule.paths, key=lambda path: path.age_ns)
        labelled.append(("path", _path_sentence(path, whole=len(model.segments) == 1, units=len(timetable.units))))
    return [*labelled, *_rate_sentence(schedule, timetable)]


def _sporadic(schedule: ModelSchedule, timetable: Timetable, takes: str) -> Iterator[tuple[str, str]]:
    """A sporadic model's events, and how long one may wait."""
    model, wait_ns = schedule.model, timetable.waits_ns.get(schedule.model.name)
    pieces = f" in {len(model.segments)} segments" if len(model.segments) > 1 else ""
    yield "duration", f"takes {takes}{pieces} on {model.segments[0].unit}."
    apart = format_duration(model.min_distance_ns)
    yield "events", f"come at any time, {apart} apart at least; one that comes sooner after the one before is dropped."
    if wait_ns is None:
        yield "wait", "no bound, since the plan does not hold."
        return
    deadline = f"{format_duration(schedule.deadline_ns - wait_ns)} before its deadline"
    yield (
        "wait",
        (
            f"at most {format_duration(wait_ns)} from an event to its result, {deadline} of "
            f"{format_duration(schedule.deadline_ns)}: whenever it comes, and whatever runs at that time."
        ),
    )


def _level_sentence(model: PlannedModel, workload: Workload) -> str:
    if model.role == "sporadic":
        return f"{model.level} of 10; it is a sporadic model: its events are served before all background models."
    schedule = workload.schedule
    if schedule.num_priority is not None:
        rule = f"num_priority = {schedule.num_priority}: that many models of the highest levels come first"
    else:
        threshold = _THRESHOLD if schedule.priority_threshold is None else schedule.priority_threshold
        rule = f"a model of level {threshold} or more comes first"
    means = (
        "is a priority model: time is reserved for it"
        if model.role == "priority"
        else "runs in the time that priority models leave"
    )
    why = "; ".join(reason for reason in model.reasons if not _tells_cut(reason))
    return f"{model.level} of 10 ({rule}); it {means}." + (f" Why this level: {why}." if why else "")


def _tells_cut(reason: str) -> bool:
    """Whether a model's reason is about how it runs and not about its level."""
    return " whole: " in reason


def _reserved(schedule: ModelSchedule, timetable: Timetable, takes: str) -> Iterator[tuple[str, str]]:
    """A priority model's periods, and when it is ready."""
    model, count = schedule.model, len(timetable.windows)
    windows = [[p for p in window.priority if p.model == model.name] for window in timetable.windows]
    reserved = [sum(period.end_ns - period.start_ns for period in periods) for periods in windows if periods]
    pieces = f" in {len(model.segments)} segments" if len(model.segments) > 1 else ""
    text = f"takes {takes}{pieces}"
    if reserved:
        beat = "every window" if len(reserved) == count else f"{len(reserved)} windows of {count}"
        text += f"; {format_duration(max(reserved))} of {beat} are reserved for it"
        if max(reserved) > model.duration_ns:
            text += f", {format_duration(max(reserved) - model.duration_ns)} of that for waking up late"
    yield "duration", text + "."
    if reserved:
        end, deadline = max(p.end_ns for periods in windows for p in periods), schedule.deadline_ns
        by = f"{format_duration(abs(deadline - end))} {'before' if end <= deadline else 'after'} its deadline"
        yield "result", f"ready {format_duration(end)} after its frame's release, {by} of {format_duration(deadline)}."


def _residual_sentence(schedule: ModelSchedule, timetable: Timetable) -> str:
    if schedule.residual_ns is None:
        return ""
    first = ["the priority models"] if any(model.role == "priority" for model in timetable.models) else []
    *most, last = [*first, *schedule.before] or [""]
    takers = f"{', '.join(most)} and {last}" if most else last
    leave = "leave" if first or most else "leaves"
    if schedule.residual_ns[1] <= 0:
        return f"No time is left for it: {takers} {leave} no residual."
    what = f"what {takers} {leave} of a window" if takers else "the whole window"
    span = _span(max(schedule.residual_ns[0], 0), schedule.residual_ns[1])
    text = f"It finds the {_ordinal(len(schedule.before) + 1)} residual, {what}: {span}"
    units = {segment.unit for segment in schedule.model.segments}
    text += f" on {len(units)} units together" if len(units) > 1 else ""
    if timetable.preemptive:
        return text + "."
    return text + f"; a segment may take at most {format_duration(schedule.room_ns)} of it in one go."


def _span(low_ns: int, high_ns: int) -> str:
    low, high = format_duration(low_ns), format_duration(high_ns)
    return low if low == high else f"{low} to {high}"


def _cut_sentence(schedule: ModelSchedule, timetable: Timetable, workload: Workload) -> str:
    """Whether and why it is cut, and what that costs."""
    model, room = schedule.model, schedule.room_ns
    durations = [segment.duration_ns for segment in model.segments]
    longest = max(durations, default=0)
    if len(durations) <= 1:
        if timetable.preemptive:
            return "runs whole: a priority period interrupts it and it goes on afterwards, so nothing has to be cut."
        if longest > room:
            return f"not cut, and {format_duration(longest - room)} too long to run in one go."
        return "runs whole: it fits into one residual."
    if model.duration_ns > room:
        reason = "it is too long to run in one go"
    elif schedule.entry.always_split:
        reason = "always_split asks for it; it would fit whole"
    elif timetable.waits_ns and not timetable.preemptive:
        reason = f"events of {' and '.join(timetable.waits_ns)} may come meanwhile; it would fit whole"
    else:
        reason = "shorter segments fill residuals better; it would fit whole"
    whole = next(filter(_tells_cut, model.reasons), "").partition(" whole: ")[0]
    replicas = model.replicas
    if len(replicas) > 1:
        units = "; on ".join(", ".join(dict.fromkeys(s.unit for s in replica.segments)) for replica in replicas)
        text = f"has {len(replicas)} replicas, on {units}: a frame goes to whichever is free, results leave in order. "
        text += f"All together they have {len(durations)} segments of {_span(min(durations), longest)}."
        return text + _cut_costs(model, timetable, room)
    text = f"into {len(durations)} segments of {_span(min(durations), longest)}, since "
    text += reason + (f" ({whole} whole)" if whole else "")
    text += f'. segmentation = "{workload.schedule.segmentation}": {_MODES[workload.schedule.segmentation]}.'
    return text + _cut_costs(model, timetable, room)


def _cut_costs(model: PlannedModel, timetable: Timetable, room: int) -> str:
    """What its cuts cost, and whether outputs stay the same."""
    longest, text = max((segment.duration_ns for segment in model.segments), default=0), ""
    if longest > room > 0:
        text += f" The longest segment is still {format_duration(longest - room)} too long."
    ratio = model.segmentation_overhead_ratio
    text += f" Boundaries cost {format_ratio(ratio)} more time" if ratio > 0 else " Boundaries cost no time"
    text += f"; at most {format_bytes(max(segment.boundary_bytes for segment in model.segments))} cross one."
    difference = model.max_relative_difference
    if not timetable.feasible:  # then outputs were not compared
        return text
    if difference is None:
        return text + " Whether the outputs stay the same is compared when it first runs."
    return text + f" Outputs differ from the whole model's by {format_difference(difference)} at most."


def _age_sentence(model: PlannedModel, timetable: Timetable) -> str:
    age = model.result_age_windows
    if age is None:
        return "no bound: a result may be of any age" + (
            "." if timetable.feasible else ", since the plan does not hold."
        )
    longest = age * max((window.length_ns for window in timetable.windows), default=timetable.window_ns)
    within = "one window" if age == 1 else f"{age} windows"
    text = (
        f"a result is ready within {within} ({format_duration(longest)}) of its frame's release, whenever that is and "
        "whatever runs at that time."
    )
    if not model.queue_age_windows:
        return text
    cost = "one window" if model.queue_age_windows == 1 else f"{model.queue_age_windows} windows"
    return f"{text} Its queue may cost {cost} of that: with queue = 1 of its stream only the newest frame waits."


def _path_sentence(path: FramePath, *, whole: bool, units: int) -> str:
    parts = [f"release of window {path.release_window}"]
    for hop in path.hops:
        word = "segment" if len(hop.segments) == 1 else "segments"
        which = f"{word} {_ranges(hop.segments)}"
        if whole:
            which = "runs" if hop is path.hops[0] else "goes on"
        on = f" on {hop.unit}" if units > 1 else ""
        parts.append(f"{which} in window {hop.window}{on}")
    parts.append(f"result, {format_duration(path.age_ns)} after the release")
    return f"the longest one in this plan, frame {path.frame}: " + " -> ".join(parts) + "."


def _ranges(numbers: Iterable[int]) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _rate_sentence(schedule: ModelSchedule, timetable: Timetable) -> list[tuple[str, str]]:
    """How many results it gives; nothing where the plan has none of it."""
    results, count = len(schedule.paths), len(timetable.windows)
    if not results:
        return []
    windows = "every window" if count == 1 else f"{count} windows"
    hertz = format_hz(results * 1e9 / window_starts(timetable)[-1])
    return [("rate", f"{results} result{'s' * (results != 1)} in {windows}: {hertz}.")]


def _ordinal(number: int) -> str:
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"{number}th"


@dataclass(frozen=True)
class PlanContent:
    """A plan.

    Attributes:
        workload: ``None``: what it was made for is not known.
        explanation: how it came about; ``None``: likewise, then frames' paths and reasons are left out.
        graphs: of its models, for a page.
    """

    timetable: Timetable
    workload: Workload | None = None
    explanation: PlanExplanation | None = None
    graphs: Sequence[ModelGraph] = ()


def _describe(content: PlanContent | Timetable, *, detail: Detail = "normal") -> Description:
    """A plan; with the detail "full", and on a page, its windows are drawn and each model's part is explained."""
    content = PlanContent(content) if isinstance(content, Timetable) else content
    return Description(_verdict(content), list(_quantities(content)), list(_blocks(content, detail)))


def _verdict(content: PlanContent) -> Verdict:
    """Whether it fits, and by how much."""
    timetable, workload = content.timetable, content.workload
    slack = timetable.worst_slack_ns
    if workload is not None:
        text = slack_sentence(timetable, workload)
    elif slack >= 0 and not timetable.feasible:
        text = "See what binds."
    elif slack >= 0:
        text = f"The worst slack is {format_duration(slack)}."
    else:  # a plan can also fail for a reason other than time: memory, or an operator
        text = f"{format_duration(-slack)} are missing in the tightest window."
    verdict = timetable.verdict or verdict_of(timetable.models, feasible=timetable.feasible)
    return Verdict.of(verdict, ".", text, timetable.models)


def _quantities(content: PlanContent) -> Iterator[Quantity]:
    timetable = content.timetable
    lengths = {window.length_ns for window in timetable.windows}
    differ = max(lengths, default=0) > min(lengths, default=0) + _ROUNDING_NS
    beat = f"the shortest; {format_beat(timetable)}" if differ else f"{1e9 / timetable.window_ns:.4g} Hz"
    repeats = timetable.hyperperiod_windows
    yield _time("Window", timetable.window_ns, beat + (f", repeats after {repeats}" if repeats > 1 else ""))
    slack = timetable.worst_slack_ns
    if timetable.feasible:
        yield _time("Worst slack", slack, "stays free in the tightest window", "more")
    elif slack < 0:
        yield _time("Lateness", -slack, "is missing in the tightest window", "less")
    if timetable.priority_ns:
        share = f"{format_ratio(reserved_share(timetable))} of a window"
        yield _time("Priority period", timetable.priority_ns, share)
    left = timetable.residual_ns
    remark = "of each window" if left > 0 else f"{format_duration(-left)} beyond the window"
    yield Quantity("Residual", left, format_duration(left) if left > 0 else "none", remark, "more", card=True)
    if timetable.guard_ns:
        yield _time("Guard", timetable.guard_ns, guard_remark(timetable))
    oldest = max((model.result_age_windows or 0 for model in timetable.models), default=0)
    if timetable.feasible and oldest and lengths:
        remark = f"bound: {oldest} window{'s' * (oldest != 1)} after its release"
        yield _time("Oldest result", oldest * max(lengths), remark, "less")
    shares = () if content.explanation is None else content.explanation.loss.shares
    if timetable.feasible and shares:
        yield ratio_quantity("Residual at work", shares[0][1], "more", "used by background models", card=True)
    if timetable.bound is not None:
        gap = "" if timetable.gap_ratio is None else f", this plan is {format_ratio(timetable.gap_ratio)} above"
        yield Quantity("Windows a frame", timetable.bound, f"{timetable.bound:.3g}", f"at least{gap}", card=True)
    if timetable.memory_bytes:
        most = max(timetable.memory_bytes, key=lambda unit: timetable.memory_bytes[unit])
        number = timetable.memory_bytes[most]
        yield Quantity("Memory", number, format_bytes(number), f"tensors on {most}", "less", card=True)
    for name, wait_ns in timetable.waits_ns.items():
        yield _time(f"{name}: wait", wait_ns, "bound, from an event to its result", "less")
    for model in timetable.models:
        yield Quantity(f"{model.name}: duration", model.duration_ns, format_duration(model.duration_ns), "", "less")
        yield Quantity(f"{model.name}: segments", len(model.segments), str(len(model.segments)))


def _time(name: str, ns: int, remark: str, better: Better = "") -> Quantity:
    return Quantity(name, ns, format_duration(ns), remark, better, card=True)


def _blocks(content: PlanContent, detail: Detail) -> Iterator[Block]:
    timetable, workload, explanation = content.timetable, content.workload, content.explanation
    yield from _help(timetable)
    if detail == "brief":
        return
    drawn = detail in ("full", "page")
    percentile = "quantile" if workload is None else percentile_name(workload)
    if drawn:
        stories: list[Story] = []
        if workload is not None and explanation is not None:
            stories = [
                Story(schedule.model.name, schedule.model.role, sentences(schedule, timetable, workload))
                for schedule in explanation.schedules
            ]
        yield PlanPicture(timetable, explanation, stories, percentile)
    background = any(model.role == "background" for model in timetable.models)
    shares = () if explanation is None else explanation.loss.shares
    if drawn and shares and timetable.feasible and background:
        yield Shares("Where the residuals go", shares)
    if len(timetable.units) > 1 or not drawn:
        memory = timetable.memory_bytes
        used = [
            (unit, f"{format_bytes(memory[unit])} of tensors" if unit in memory else "-") for unit in timetable.units
        ]
        yield Facts("Units", used)
    reasons: list[str | tuple[str, str]] = list(timetable.reasons)
    if not drawn:  # else a model's sentences hold its reasons
        reasons += [(model.name, reason) for model in timetable.models for reason in model.reasons]
    reasons += [(model.name, _kernels_sentence(model)) for model in timetable.models if model.kernels]
    if reasons:
        yield Sentences("Notes", reasons)
    if detail != "full":
        yield _models(content)
    if timetable.models:
        yield _segments(timetable, percentile, 400 if drawn else 40)
    if detail == "page":
        for graph in content.graphs:
            yield Graph(f"Layers of {graph.model.name}", graph)


def _kernels_sentence(model: PlannedModel) -> str:
    """Which layers are not the runtime's."""
    more = len(model.kernels) - _KERNELS
    names = ", ".join(model.kernels[:_KERNELS]) + (f" and {more} more" if more > 0 else "")
    return f"kernels that skip zeros, or multiply bytes, execute {len(model.kernels)} of its layers: {names}"


def _help(timetable: Timetable) -> Iterator[Block]:
    """What binds a plan that does not fit, and what would help it."""
    if not timetable.feasible and timetable.binding_constraint:
        refused = () if timetable.proof is None else (refusal_sentence(timetable.proof),)
        yield Sentences("What binds", [timetable.binding_constraint, *refused])
    if timetable.fixes:
        sure = {True: "planned again: fits", False: "not verified"}
        yield Sentences(
            "What would help", [(fix.change, f"{fix.effect} ({sure[fix.verified]})") for fix in timetable.fixes]
        )


def _models(content: PlanContent) -> Section:
    timetable = content.timetable
    rows: list[list[Cell | str]] = []
    for model in timetable.models:
        wait_ns = timetable.waits_ns.get(model.name)
        cut = len(model.segments) > 1
        difference = format_difference(model.max_relative_difference) if cut and timetable.feasible else "-"
        rows.append(
            [
                Cell(model.name, tone=model.role),
                model.role,
                count(model.level),
                duration(model.duration_ns),
                count(len(model.segments)),
                served(model) if timetable.feasible else NONE,
                _age_bound(model.result_age_windows),
                *([NONE if wait_ns is None else duration(wait_ns)] if timetable.waits_ns else []),
                ratio(model.segmentation_overhead_ratio) if cut else NONE,
                difference,
            ]
        )
    waits = ("wait",) if timetable.waits_ns else ()
    figures = ("level", "duration", "segments", "gets", "age", *waits, "overhead", "difference")
    note = "Age: the bound, in windows after the release. Overhead, difference: of cutting."
    return Section(
        "Models",
        columns(("model", "role"), figures, page=("level", "difference")),
        rows,
        f"{note} Wait: the bound, from an event to its result." if waits else note,
    )


def _age_bound(age_windows: int | None) -> Cell:
    return Cell("no bound") if age_windows is None else count(age_windows)


def _segments(timetable: Timetable, percentile: str, most: int) -> Section:
    rows: list[tuple[Cell | str, ...]] = []
    for model in timetable.models:
        prefix = common_prefix(model)
        rows += [
            (
                Cell(model.name, tone=model.role),
                segment.unit,
                count(segment.index),
                duration(segment.duration_ns),
                duration(segment.median_ns),
                size(segment.boundary_bytes),
                _layers(segment, prefix),
            )
            for segment in model.segments
        ]
    figures = ("segment", percentile, "p50", "hands on")
    note = "Layers: the fill layer, which receives the tensors of the segment before, to the last layer; "
    note += "output layers are named where others hand on."
    return Section("Segments", columns(("model", "unit"), figures, ("layers",), short=("layers",)), rows, note, most)


def _layers(segment: Segment, prefix: str) -> str:
    layers = " .. ".join(dict.fromkeys(text.removeprefix(prefix) for text in (segment.fill_layer, segment.last_layer)))
    if segment.output_layers not in ((), (segment.last_layer,)):
        layers += f"; out: {', '.join(layer.removeprefix(prefix) for layer in segment.output_layers)}"
    return layers


def _charts(named: Sequence[tuple[str, PlanContent]]) -> list[Chart]:
    """What the models take, of several plans side by side; a single one's windows say it."""
    if len(named) == 1:
        return []
    models = tuple(dict.fromkeys(model.name for _, plan in named for model in plan.timetable.models))
    lines = []
    for place, (name, plan) in enumerate(named):
        ms = {model.name: model.duration_ns / 1e6 for model in plan.timetable.models}
        data = tuple((float(at), ms[model], None, None) for at, model in enumerate(models) if model in ms)
        lines.append(Line(name=name, kind="bars", data=data, colour=colour(place)))
    slacks = (f"{name}: worst slack {format_duration(plan.timetable.worst_slack_ns)}" for name, plan in named)
    return [
        Chart(
            title="What the models take",
            summary=f"The planned quantile of a whole frame. {'; '.join(slacks)}.",
            x=Axis(name="duration", unit="ms", low=0.0),
            y=Axis(name="", scale="category", categories=models),
            lines=tuple(lines),
            height_px=row_height_px(len(named) * len(models)),
        )
    ]


KIND: Kind[PlanContent] = Kind(noun="plan", plural="plans", describe=_describe, charts=_charts, uses=("plan",))
