"""A plan in plain words: what each model needs, finds and gives, for terminal and page."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload
from framefit.report.explained import Account, Way, deadline_ns, window_starts
from framefit.report.formats import format_bytes, format_difference, format_duration, format_hz, format_ratio

__all__ = ["common_prefix", "format_beat", "percentile_name", "sentences", "slack_sentence"]


_THRESHOLD = 5  # docs/priorities.md: from this level on, where the workload names no other
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
    """What all layer names of a cut model begin with, up to a slash; pictures and tables leave it away."""
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


def sentences(account: Account, timetable: Timetable, workload: Workload) -> list[tuple[str, str]]:
    """How a model came to its part of the plan: label and text of each sentence.

    Args:
        account: of the model.
        timetable: the plan.
        workload: that it was made for.
    """
    model, takes = account.model, f"{format_duration(account.model.duration_ns)} ({percentile_name(workload)})"
    found = [("level", _level(model, workload))]
    if model.role == "priority":
        return [*found, *_reserved(account, timetable, takes), *_rate(account, timetable)]
    text = f"takes {takes}. {_residual(account, timetable)}".rstrip()
    found += [("duration", text), ("cut", _cut(account, timetable, workload)), ("age", _age(model, timetable))]
    if account.ways:
        way = max(account.ways, key=lambda way: way.age_ns)
        found.append(("path", _path(way, whole=len(model.segments) == 1, units=len(timetable.units))))
    return [*found, *_rate(account, timetable)]


def _level(model: PlannedModel, workload: Workload) -> str:
    schedule = workload.schedule
    if schedule.num_priority is not None:
        rule = f"num_priority = {schedule.num_priority}: so many models of the highest levels come first"
    else:
        threshold = _THRESHOLD if schedule.priority_threshold is None else schedule.priority_threshold
        rule = f"a model of level {threshold} or more comes first"
    means = "is a priority model: time is reserved for it" if model.role == "priority" else "runs in what those leave"
    why = "; ".join(reason for reason in model.reasons if not _tells_cut(reason))
    return f"{model.level} of 10 ({rule}); it {means}." + (f" Why this level: {why}." if why else "")


def _tells_cut(reason: str) -> bool:
    """Whether a model's reason is about how it runs and not about its level."""
    return " whole: " in reason


def _reserved(account: Account, timetable: Timetable, takes: str) -> Iterator[tuple[str, str]]:
    """A priority model's periods, and when it is ready."""
    model, count = account.model, len(timetable.windows)
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
        end, deadline = max(p.end_ns for periods in windows for p in periods), deadline_ns(account, timetable)
        by = f"{format_duration(abs(deadline - end))} {'before' if end <= deadline else 'after'} its deadline"
        yield "result", f"ready {format_duration(end)} after its frame's release, {by} of {format_duration(deadline)}."


def _residual(account: Account, timetable: Timetable) -> str:
    if account.residual_ns is None:
        return ""
    first = ["the priority models"] if any(model.role == "priority" for model in timetable.models) else []
    *most, last = [*first, *account.before] or [""]
    takers = f"{', '.join(most)} and {last}" if most else last
    leave = "leave" if first or most else "leaves"
    if account.residual_ns[1] <= 0:
        return f"It finds nothing: {takers} {leave} no residual."
    what = f"what {takers} {leave} of a window" if takers else "the whole window"
    span = _span(max(account.residual_ns[0], 0), account.residual_ns[1])
    text = f"It finds the {_ordinal(len(account.before) + 1)} residual, {what}: {span}"
    units = {segment.unit for segment in account.model.segments}
    text += f" on {len(units)} units together" if len(units) > 1 else ""
    if timetable.preemptive:
        return text + "."
    return text + f"; a segment may take at most {format_duration(account.room_ns)} of it in one go."


def _span(low_ns: int, high_ns: int) -> str:
    low, high = format_duration(low_ns), format_duration(high_ns)
    return low if low == high else f"{low} to {high}"


def _cut(account: Account, timetable: Timetable, workload: Workload) -> str:
    """Whether and why it is cut, and what that costs."""
    model, room = account.model, account.room_ns
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
    elif account.entry.always_split:
        reason = "always_split asks for it; it would fit whole"
    else:
        reason = "shorter segments fill residuals better; it would fit whole"
    whole = next(filter(_tells_cut, model.reasons), "").partition(" whole: ")[0]
    text = f"into {len(durations)} segments of {_span(min(durations), longest)}, since "
    text += reason + (f" ({whole} whole)" if whole else "")
    text += f'. segmentation = "{workload.schedule.segmentation}": {_MODES[workload.schedule.segmentation]}.'
    if longest > room > 0:
        text += f" The longest segment is still {format_duration(longest - room)} too long."
    ratio = model.segmentation_overhead_ratio
    text += f" Boundaries cost {format_ratio(ratio)} more time" if ratio > 0 else " Boundaries cost no time"
    text += f"; at most {format_bytes(max(segment.boundary_bytes for segment in model.segments))} cross one."
    difference = model.max_relative_difference
    if not timetable.feasible:  # nobody compared
        return text
    if difference is None:
        return text + " Whether the outputs stay the same is compared when it first runs."
    return text + f" Outputs differ from the whole model's by {format_difference(difference)} at most."


def _age(model: PlannedModel, timetable: Timetable) -> str:
    age = model.result_age_windows
    if age is None:
        return "no bound: a result may be of any age" + (
            "." if timetable.feasible else ", since the plan does not hold."
        )
    longest = age * max((window.length_ns for window in timetable.windows), default=timetable.window_ns)
    within = "one window" if age == 1 else f"{age} windows"
    return (
        f"a result is ready within {within} ({format_duration(longest)}) of its frame's release, whenever that is and "
        "whatever is at work then."
    )


def _path(way: Way, *, whole: bool, units: int) -> str:
    parts = [f"release of window {way.release_window}"]
    for leg in way.legs:
        word = "segment" if len(leg.segments) == 1 else "segments"
        which = f"{word} {_ranges(leg.segments)}"
        if whole:
            which = "runs" if leg is way.legs[0] else "goes on"
        on = f" on {leg.unit}" if units > 1 else ""
        parts.append(f"{which} in window {leg.window}{on}")
    parts.append(f"result, {format_duration(way.age_ns)} after the release")
    return f"the longest one in this plan, frame {way.frame}: " + " -> ".join(parts) + "."


def _ranges(numbers: Iterable[int]) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _rate(account: Account, timetable: Timetable) -> list[tuple[str, str]]:
    """How many results it gives; nothing where the plan has none of it."""
    results, count = len(account.ways), len(timetable.windows)
    if not results:
        return []
    windows = "every window" if count == 1 else f"{count} windows"
    hertz = format_hz(results * 1e9 / window_starts(timetable)[-1])
    return [("rate", f"{results} result{'s' * (results != 1)} in {windows}: {hertz}.")]


def _ordinal(number: int) -> str:
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"{number}th"
