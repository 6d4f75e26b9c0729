"""A plan: its windows, how each model came to its part in plain words, and its tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from framefit.core.files import Record
from framefit.core.timetable import PlannedModel, Slot, Timetable, Window, reserved_share, within_windows
from framefit.core.workload import Workload
from framefit.planning.explain import (
    FramePath,
    FreeTime,
    ModelSchedule,
    deadline_ns,
    free_times,
    loss_of,
    model_schedules,
    window_starts,
)
from framefit.report.charts import Axis, Chart, Line, colour, row_height_px
from framefit.report.description import Better, Kind, Quantity, card_row, fraction_row
from framefit.report.drawing import Look, looks_of, step_ms
from framefit.report.formats import format_bytes, format_difference, format_duration, format_hz, format_ratio
from framefit.report.markup import (
    Markup,
    bullet_list,
    folded,
    fragment,
    joined,
    panel,
    quantity,
    script_json,
    shares,
    table,
    verdict,
    write_page,
)

__all__ = [
    "PLANS",
    "PlanContent",
    "WindowPictures",
    "common_prefix",
    "format_beat",
    "need_picture",
    "percentile_name",
    "plan_markup",
    "sentences",
    "slack_sentence",
    "texts",
    "write_plan_page",
]


_UNIT_NAME, _CAPTION, _TRACK, _UNIT_GAP = 17, 17, 36, 8
_LANE, _LANE_GAP, _AXIS = 22, 4, 20
_TICKS = 5


@dataclass(frozen=True)
class _FlightLane:
    """Where the frames of a model are drawn that are in flight one after the other."""

    model: str
    paths: tuple[FramePath, ...]


class WindowPictures:
    """Draws the windows of one plan, all to the same scale."""

    def __init__(self, timetable: Timetable, told: Sequence[ModelSchedule]) -> None:
        """Lay the plan out.

        Args:
            timetable: the plan.
            told: its models' accounts.
        """
        self._timetable = timetable = within_windows(timetable)
        self._units = timetable.units
        self._starts = window_starts(timetable)
        names = [model.name for model in timetable.models]
        self.looks = looks_of(names, [model.name for model in timetable.models if model.role == "priority"])
        self._places = {name: place for place, name in enumerate(names)}
        self._cut = {model.name for model in timetable.models if len(model.segments) > 1}
        self._lanes = [_FlightLane(account.model.name, ways) for account in told for ways in _in_lanes(account.paths)]
        self._flying: dict[tuple[int, int], list[FramePath]] = {}  # lane and window
        for number, lane in enumerate(self._lanes):
            for way in lane.paths:
                for place in range(way.release_window, way.hops[-1].window + 1):
                    self._flying.setdefault((number, place), []).append(way)
        ends = [period.end_ns for window in timetable.windows for period in window.priority]
        self._span_ns = max([1, *(window.length_ns for window in timetable.windows), *ends])
        self._unit_name = _UNIT_NAME if len(self._units) > 1 else 0
        self._unit_height = self._unit_name + _CAPTION + _TRACK + _UNIT_GAP
        self._lanes_top = len(self._units) * self._unit_height + (_LANE_GAP if self._lanes else 0)
        self._bottom = self._lanes_top + len(self._lanes) * _LANE
        self._height = self._bottom + _AXIS

    def window(self, place: int) -> str:
        """One window as a figure.

        Args:
            place: in ``Timetable.windows``.
        """
        window, start = self._timetable.windows[place], self._starts[place]
        flying = sum(len(self._flying.get((number, place), ())) for number in range(len(self._lanes)))
        told = f"from {format_duration(start)}; {flying} frame{'s' * (flying != 1)} in flight"
        parts = [
            f'<figure class="cell" data-window="{window.index}">',
            f"<figcaption><b>Window {window.index}</b> <span>{told}</span></figcaption>",
            f'<svg class="window" width="100%" height="{self._height}" role="img" aria-label="Window {window.index}">',
            *self._beat(window),
        ]
        for number, unit in enumerate(self._units):
            parts += self._track(place, window, unit, number * self._unit_height)
        for number, lane in enumerate(self._lanes):
            ways = self._flying.get((number, place), [])
            parts += self._flights(place, window, self.looks[lane.model], ways, self._lanes_top + number * _LANE)
        return "\n".join([*parts, "</svg></figure>"])

    def _x(self, ns: float) -> str:
        return f"{100 * ns / self._span_ns:.4f}%"

    def _beat(self, window: Window) -> Iterator[str]:
        """Times across, and the window's ends."""
        length_ms, step = window.length_ns / 1e6, step_ms(self._span_ns / 1e6, _TICKS)
        y = self._bottom + 14
        for number in range(int(length_ms / step) + 1):
            x = self._x(number * step * 1e6)
            yield f'<line class="tick" x1="{x}" x2="{x}" y1="{self._unit_name + _CAPTION}" y2="{self._bottom}"/>'
            if number and length_ms - number * step > 0.5 * step:
                yield f'<text class="at" x="{x}" y="{y}" text-anchor="middle">{number * step:g}</text>'
        end = self._x(window.length_ns)
        yield f'<line class="release" x1="0" x2="0" y1="0" y2="{self._bottom}"/>'
        yield f'<line class="release" x1="{end}" x2="{end}" y1="0" y2="{self._bottom}"/>'
        yield f'<text class="at" x="0" dx="4" y="{y}">0</text>'
        yield f'<text class="at" x="{end}" dx="-4" y="{y}" text-anchor="end">{length_ms:.4g} ms</text>'

    def _track(self, place: int, window: Window, unit: str, top: int) -> Iterator[str]:
        if self._unit_name:
            yield f'<text class="unit" x="0" dx="6" y="{top + 12}">{escape(unit)}</text>'
        captions, y = top + self._unit_name, top + self._unit_name + _CAPTION
        free = free_times(self._timetable, window, unit)
        yield f'<rect class="lane" x="0" y="{y}" width="{self._x(window.length_ns)}" height="{_TRACK}"/>'
        for stretch in free:
            yield self._residual(stretch, captions, y)
        periods = sorted((p for p in window.priority if p.unit == unit), key=lambda period: period.start_ns)
        for period in periods:
            length = format_duration(period.end_ns - period.start_ns)
            over = " over" if period.end_ns > window.length_ns else ""
            box = f'x="{self._x(period.start_ns)}" width="{self._x(period.end_ns - period.start_ns)}"'
            yield f'<rect class="reserved{over}" {box} y="{captions}" height="{_CAPTION + _TRACK}"/>'
            yield (
                f'<svg {box} y="{captions}" height="{_CAPTION}"><text class="caption" x="4" y="12" '
                f"{texts(f'priority {length}', 'priority', length)}</text></svg>"
            )
        for slot in window.slots:
            if slot.unit == unit:
                yield from self._slot(place, slot, y)

    def _residual(self, free: FreeTime, captions: int, y: int) -> str:
        length = format_duration(free.end_ns - free.start_ns)
        box = f'x="{self._x(free.start_ns)}" width="{self._x(free.end_ns - free.start_ns)}"'
        told = (
            f'<svg {box} y="{captions}" height="{_CAPTION}"><text class="caption" x="4" y="12" '
            f"{texts(f'residual {length}', 'residual', '')}</text></svg>"
        )
        if not free.guard_ns:
            return told
        guard = f'x="{self._x(free.end_ns - free.guard_ns)}" width="{self._x(free.guard_ns)}" y="{y}" height="{_TRACK}"'
        return f'{told}<rect class="guard" {guard}><title>guard: {format_duration(free.guard_ns)}</title></rect>'

    def _slot(self, place: int, slot: Slot, y: int) -> Iterator[str]:
        look = self.looks[slot.model]
        box = f'x="{self._x(slot.start_ns)}" width="{self._x(slot.duration_ns)}" y="{y + 3}" height="{_TRACK - 6}"'
        which = f"segment {slot.segment}" if slot.model in self._cut else "whole"
        title = (
            f"{slot.model}, {which}, frame {slot.frame}: {format_duration(slot.start_ns)} to "
            f"{format_duration(slot.start_ns + slot.duration_ns)}"
        )
        facts = (place, slot.start_ns, slot.duration_ns, self._places[slot.model], slot.segment, slot.frame)
        yield (
            f'<g class="slot" data-slot="{",".join(map(str, facts))}" '
            f'data-way="{self._places[slot.model]}/{slot.frame}"><title>{escape(title)}</title>'
            f'<rect {box} rx="4" fill="{_shade(look, slot.frame)}"/><svg {box}>'
            f'<text class="in" x="50%" y="50%" dy="0.35em" text-anchor="middle" fill="{look.ink}" '
        )
        label = (str(slot.segment),) if slot.model in self._cut else (slot.model, slot.model[:1])
        yield f"{texts(*label, '')}</text></svg></g>"

    def _flights(self, place: int, window: Window, look: Look, ways: Sequence[FramePath], top: int) -> Iterator[str]:
        """The pieces of the arcs from release to result that lie in this window."""
        start, y = self._starts[place], top + _LANE - 6
        end = start + window.length_ns
        for way in ways:
            left, right = max(way.release_ns, start) - start, min(way.result_ns, end) - start
            begun = min(max(way.start_ns - start, left), right)
            begins, ends = way.release_ns >= start, way.result_ns <= end
            told = f"{way.model} frame {way.frame}"
            age = format_duration(way.age_ns)
            yield (
                f'<g class="way" data-way="{self._places[way.model]}/{way.frame}" stroke="{look.fill}" '
                f'data-flight="{way.release_window},{way.start_ns},{way.result_ns},{way.age_ns}">'
                f"<title>{escape(told)}: result {age} after its release</title>"
            )
            x1, x2, x3 = self._x(left), self._x(begun), self._x(right)
            yield f'<rect class="hit" x="{x1}" width="{self._x(right - left)}" y="{top}" height="{_LANE}"/>'
            if begun > left:
                yield f'<line class="waits" x1="{x1}" x2="{x2}" y1="{y}" y2="{y}"/>'
            if right > begun:
                yield f'<line x1="{x2}" x2="{x3}" y1="{y}" y2="{y}"/>'
            if begins:
                yield f'<circle cx="{x1}" cy="{y}" r="4" fill="{look.fill}"/>'
            rise = y - len(self._units) * self._unit_height + _UNIT_GAP - 3
            if ends:
                yield (
                    f'<svg x="{x3}" y="{y}" overflow="visible"><path fill="none" d="M-1 0Q0 0 0 -5V{-rise}'
                    f'm-4 6l4 -6l4 6"/></svg>'
                )
            labels: tuple[str, ...] = (told, f"frame {way.frame}", str(way.frame))
            if ends:
                labels = (*(f"{label}: {age}" for label in labels), age)
            yield (
                f'<svg x="{x1}" width="{self._x(right - left)}" y="{top}" height="{_LANE}">'
                f'<text class="flight" x="8" y="11" {texts(*labels, "")}</text></svg></g>'
            )


def need_picture(account: ModelSchedule, timetable: Timetable, look: Look) -> str:
    """What a model needs above what it finds in the tightest window, to the same scale.

    Args:
        account: of the model.
        timetable: its plan.
        look: of the model.
    """
    model = account.model
    window_ns = max((window.length_ns for window in timetable.windows), default=timetable.window_ns)
    finds_ns = max(account.residual_ns[0] if account.residual_ns else window_ns, 0)
    span = max(model.duration_ns, finds_ns, 1)

    def box(start: float, length: float, y: int) -> str:
        return f'x="{100 * start / span:.3f}%" width="{100 * length / span:.3f}%" y="{y}" height="20"'

    needs = f"needs {format_duration(model.duration_ns)}"
    finds = ("residual" if account.residual_ns else "window") + f" of {format_duration(finds_ns)}"
    finds = finds if finds_ns else "no residual"
    parts = [
        f'<svg class="need" width="100%" height="76" role="img" aria-label="{escape(model.name)} {needs}, {finds}">',
        f'<text class="caption" y="11">{needs}</text>',
    ]
    now = 0
    for segment in model.segments:
        own = box(now, segment.duration_ns, 17)
        label = str(segment.index) if len(model.segments) > 1 else ""
        parts.append(
            f'<rect {own} rx="3" fill="{_shade(look, segment.index)}"/><svg {own}><text class="in" x="50%" y="14" '
            f'text-anchor="middle" fill="{look.ink}" {texts(label, "")}</text></svg>'
        )
        now += segment.duration_ns
    parts.append(f'<rect class="finds" {box(0, finds_ns, 41)} rx="3"/>')
    guard = min(timetable.guard_ns, finds_ns)
    if account.residual_ns and guard:
        parts.append(f'<rect class="guard" {box(finds_ns - guard, guard, 41)}/>')
    return "".join([*parts, f'<text class="caption" y="73">{finds}</text></svg>'])


def texts(*variants: str) -> str:
    """The end of a text element's start tag, and its content: the page shows the longest variant that has room."""
    told = "|".join(variant.replace("|", "/") for variant in variants)
    return f'data-texts="{escape(told)}">{escape(variants[0])}'


def _shade(look: Look, frame: int) -> str:
    return look.alternate if frame % 2 else look.fill


def _in_lanes(ways: Sequence[FramePath]) -> list[tuple[FramePath, ...]]:
    """As few lanes as hold all frames of a model that are in flight at once."""
    lanes: list[list[FramePath]] = []
    for way in sorted(ways, key=lambda way: way.release_ns):
        lane = next((lane for lane in lanes if lane[-1].result_ns <= way.release_ns), None)
        if lane is None:
            lanes.append([way])
        else:
            lane.append(way)
    return [tuple(lane) for lane in lanes]


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


def sentences(account: ModelSchedule, timetable: Timetable, workload: Workload) -> list[tuple[str, str]]:
    """How a model came to its part of the plan: label and text of each sentence.

    Args:
        account: of the model.
        timetable: the plan.
        workload: that it was made for.
    """
    model, takes = account.model, f"{format_duration(account.model.duration_ns)} ({percentile_name(workload)})"
    found = [("level", _level_sentence(model, workload))]
    if model.role == "priority":
        return [*found, *_reserved(account, timetable, takes), *_rate_sentence(account, timetable)]
    text = f"takes {takes}. {_residual_sentence(account, timetable)}".rstrip()
    found += [
        ("duration", text),
        ("cut", _cut_sentence(account, timetable, workload)),
        ("age", _age_sentence(model, timetable)),
    ]
    if account.paths:
        way = max(account.paths, key=lambda way: way.age_ns)
        found.append(("path", _path_sentence(way, whole=len(model.segments) == 1, units=len(timetable.units))))
    return [*found, *_rate_sentence(account, timetable)]


def _level_sentence(model: PlannedModel, workload: Workload) -> str:
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


def _reserved(account: ModelSchedule, timetable: Timetable, takes: str) -> Iterator[tuple[str, str]]:
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


def _residual_sentence(account: ModelSchedule, timetable: Timetable) -> str:
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


def _cut_sentence(account: ModelSchedule, timetable: Timetable, workload: Workload) -> str:
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


def _age_sentence(model: PlannedModel, timetable: Timetable) -> str:
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


def _path_sentence(way: FramePath, *, whole: bool, units: int) -> str:
    parts = [f"release of window {way.release_window}"]
    for leg in way.hops:
        word = "segment" if len(leg.segments) == 1 else "segments"
        which = f"{word} {_ranges(leg.segments)}"
        if whole:
            which = "runs" if leg is way.hops[0] else "goes on"
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


def _rate_sentence(account: ModelSchedule, timetable: Timetable) -> list[tuple[str, str]]:
    """How many results it gives; nothing where the plan has none of it."""
    results, count = len(account.paths), len(timetable.windows)
    if not results:
        return []
    windows = "every window" if count == 1 else f"{count} windows"
    hertz = format_hz(results * 1e9 / window_starts(timetable)[-1])
    return [("rate", f"{results} result{'s' * (results != 1)} in {windows}: {hertz}.")]


def _ordinal(number: int) -> str:
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"{number}th"


_FIRST_WINDOWS = 12  # drawn at once; more are folded, if it is more than
_FEW_WINDOWS = 4
_MOST_WINDOWS = 240  # of a plan that repeats later still, the page would take long to open
_ARROW = "\u2192"
_PLANNED = "quantile"  # where no workload says which


@dataclass(frozen=True)
class PlanContent:
    """A plan; ``workload`` is ``None`` where nothing tells what it was made for."""

    timetable: Timetable
    workload: Workload | None


class _Part(Record, kw_only=True):
    """A segment as the script tells of it: all texts ready."""

    unit: str
    fill: str
    last: str
    out: str
    planned: str
    median: str
    bytes: str


class _Told(Record, kw_only=True):
    name: str
    role: str
    bound: str
    parts: tuple[_Part, ...]


class _PlanData(Record, kw_only=True):
    """What the page's script reads; places in ``models`` and segments are those of the pictures."""

    percentile: str
    models: tuple[_Told, ...]


def write_plan_page(
    path: str | Path, timetable: Timetable, workload: Workload, *, title: str, force: bool = False
) -> None:
    """Write a plan as a page that any current browser opens, without a server or a network.

    Args:
        path: usually ``plan.html``.
        timetable: the plan, feasible or not.
        workload: that it was made for.
        title: what the plan was made from, such as the workload's file.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    heading, content = " + ".join(model.name for model in timetable.models), PlanContent(timetable, workload)
    write_page(
        path,
        title=f"{title}: {heading}",
        heading=heading,
        subtitle=f"{title}, {_subtitle(timetable)}",
        body=joined([_verdict(content), card_row(list(_quantities(content))), plan_markup(timetable, workload)]),
        footer="Durations are planned, not measured in a run: framefit run, or framefit simulate, shows what happens.",
        uses=("plan",),
        force=force,
    )


def plan_markup(timetable: Timetable, workload: Workload | None, name: str = "plan") -> Markup:
    """A plan's windows, how each model came to its part, and its tables.

    Args:
        timetable: the plan, feasible or not.
        workload: that it was made for; ``None``: not known, and frames' ways and reasons are left out.
        name: its id in the page.
    """
    told = [] if workload is None else model_schedules(timetable, workload)
    pictures = WindowPictures(timetable, told)
    percentile = _PLANNED if workload is None else percentile_name(workload)
    stories = [] if workload is None else [_story(account, timetable, workload, pictures) for account in told]
    places = {
        "name": escape(name),
        "help": _help(timetable),
        "legend": "".join(_legend(timetable, pictures)),
        "windows": _windows(timetable, pictures),
        "stories": joined(stories),
        "losses": _losses(timetable, told),
        "models": _models(timetable, told),
        "segments": _segments(timetable, percentile),
        "notes": panel("Notes", bullet_list(timetable.reasons)) if timetable.reasons else "",
        "percentile": percentile,
        "page": script_json(_page(timetable, percentile)),
    }
    return fragment("plan/plan.html", places)


def _page(timetable: Timetable, percentile: str) -> _PlanData:
    return _PlanData(
        percentile=percentile,
        models=tuple(
            _Told(
                name=model.name,
                role=model.role,
                bound=_bound(model.result_age_windows),
                parts=tuple(
                    _Part(
                        unit=segment.unit,
                        fill=segment.fill_layer,
                        last=segment.last_layer,
                        out=", ".join(segment.output_layers),
                        planned=format_duration(segment.duration_ns),
                        median=format_duration(segment.median_ns),
                        bytes=format_bytes(segment.boundary_bytes),
                    )
                    for segment in model.segments
                ),
            )
            for model in timetable.models
        ),
    )


def _subtitle(timetable: Timetable) -> str:
    units, count = timetable.units, timetable.hyperperiod_windows
    repeats = f"; the plan repeats after {count} windows" if count > 1 else ""
    return f"on {', '.join(units)}; windows of {format_beat(timetable)}{repeats}"


def _verdict(content: PlanContent) -> Markup:
    """Whether it fits, and by how much."""
    timetable, workload = content.timetable, content.workload
    if workload is not None:
        text = slack_sentence(timetable, workload)
    else:
        text = f"Worst slack {format_duration(timetable.worst_slack_ns)}."
    return verdict("fits", "Fits.", text) if timetable.feasible else verdict("fails", "Does not fit.", text)


def _quantities(content: PlanContent) -> Iterator[Quantity]:
    timetable = content.timetable
    lengths = {window.length_ns for window in timetable.windows}
    differ = max(lengths, default=0) > min(lengths, default=0) + 1
    yield _time("Window", timetable.window_ns, "the shortest one" if differ else "one beat")
    slack = timetable.worst_slack_ns
    yield _time("Worst slack", slack, "stays free in the tightest window" if slack >= 0 else "is missing", "more")
    if timetable.priority_ns:
        yield _time("Priority period", timetable.priority_ns, f"{format_ratio(reserved_share(timetable))} of a window")
    left = timetable.residual_ns
    remark = "what is left of it" if left > 0 else f"{format_duration(-left)} beyond the window"
    yield Quantity("Residual", left, format_duration(left) if left > 0 else "none", remark, "more", card=True)
    if timetable.guard_ns:
        yield _time("Guard", timetable.guard_ns, "kept free before each reserved instant")
    oldest = max((model.result_age_windows or 0 for model in timetable.models), default=0)
    if timetable.feasible and oldest and lengths:
        remark = f"bound: {oldest} window{'s' * (oldest != 1)} after its release"
        yield _time("Oldest result", oldest * max(lengths), remark, "less")
    parts = () if content.workload is None else loss_of(timetable, model_schedules(timetable, content.workload)).shares
    if timetable.feasible and parts:
        yield fraction_row("Residual at work", parts[0][1], "more", "the rest: see where it goes, below", card=True)
    if timetable.memory_bytes:
        most = max(timetable.memory_bytes, key=lambda unit: timetable.memory_bytes[unit])
        size = timetable.memory_bytes[most]
        yield Quantity("Memory", size, format_bytes(size), f"tensors on {most}", "less", card=True)
    for model in timetable.models:
        yield Quantity(f"{model.name}: duration", model.duration_ns, format_duration(model.duration_ns), "", "less")
        yield Quantity(f"{model.name}: segments", len(model.segments), str(len(model.segments)))


def _time(name: str, ns: int, remark: str, better: Better = "") -> Quantity:
    return Quantity(name, ns, format_duration(ns), remark, better, card=True)


def _help(timetable: Timetable) -> str:
    if timetable.feasible:
        return ""
    parts = []
    if timetable.binding_constraint:
        parts.append(panel("What binds", Markup(f'<p class="binds">{escape(timetable.binding_constraint)}</p>')))
    if timetable.fixes:
        rows = [
            (
                Markup(f"<code>{escape(fix.change)}</code>"),
                fix.effect,
                Markup('<b class="yes">planned again: fits</b>') if fix.verified else "not verified",
            )
            for fix in timetable.fixes
        ]
        listed = table("What would help", rows, words=("change", "what it gives", "sure?"))
        parts.append(panel("What would help", listed))
    return f'<div class="help">{"".join(parts)}</div>' if parts else ""


def _legend(timetable: Timetable, pictures: WindowPictures) -> Iterator[str]:
    def entry(mark: str, text: str) -> str:
        return f"<span>{mark}{escape(text)}</span>"

    for name, look in pictures.looks.items():
        shades = "".join(f'<i style="background:{shade}"></i>' for shade in dict.fromkeys((look.fill, look.alternate)))
        yield entry(shades, name)
    if timetable.priority_ns:
        yield entry('<i class="keep"></i>', "priority period")
    if timetable.guard_ns:
        yield entry('<i class="hatched"></i>', "guard")
    yield entry('<i class="arc"></i>', "a frame, from its release to its result; dashed: it waits")


def _windows(timetable: Timetable, pictures: WindowPictures) -> str:
    count = len(timetable.windows)
    if not count:
        return '<p class="note">There are no windows.</p>'
    drawn = [pictures.window(place) for place in range(min(count, _MOST_WINDOWS))]
    rest = drawn[_FIRST_WINDOWS:] if count > _FIRST_WINDOWS + _FEW_WINDOWS else []
    text = f'<div class="windows">{"".join(drawn[: len(drawn) - len(rest)])}</div>'
    if rest:
        more = Markup(f'<div class="windows">{"".join(rest)}</div>')
        text += f'<div class="more">{folded(f"Windows {len(drawn) - len(rest)} to {len(drawn) - 1}", more)}</div>'
    if count > len(drawn):
        text += (
            f'<p class="note">The plan goes on: {count - len(drawn)} more windows are left out here; '
            "timetable.json has them all.</p>"
        )
    return text


def _story(account: ModelSchedule, timetable: Timetable, workload: Workload, pictures: WindowPictures) -> Markup:
    model = account.model
    told = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(text.replace('->', _ARROW))}</dd></div>"
        for label, text in sentences(account, timetable, workload)
    )
    return Markup(
        f'<section class="panel story"><h3>{escape(model.name)} <small class="role">{model.role}</small>'
        f"</h3>{need_picture(account, timetable, pictures.looks[model.name])}<dl>{told}</dl></section>"
    )


def _losses(timetable: Timetable, told: Sequence[ModelSchedule]) -> str:
    parts = loss_of(timetable, told).shares if told else ()
    if not parts or not timetable.feasible or all(model.role == "priority" for model in timetable.models):
        return ""
    return panel("Where the residuals go", shares(parts))


def _models(timetable: Timetable, told: Sequence[ModelSchedule]) -> Markup:
    rows = []
    seconds = sum(window.length_ns for window in timetable.windows) / 1e9
    results = {account.model.name: len(account.paths) for account in told}
    for model in timetable.models:
        cut, difference = len(model.segments) > 1, model.max_relative_difference
        rate_hz = results.get(model.name, 0) / seconds if seconds else 0.0
        rows.append(
            (
                model.name,
                model.role,
                quantity(model.level, str(model.level)),
                quantity(model.duration_ns, format_duration(model.duration_ns)),
                quantity(len(model.segments), str(len(model.segments))),
                quantity(rate_hz, format_hz(rate_hz)) if rate_hz else "\u2013",
                _bound(model.result_age_windows),
                quantity(model.segmentation_overhead_ratio, format_ratio(model.segmentation_overhead_ratio))
                if cut
                else "\u2013",
                format_difference(difference) if cut and timetable.feasible else "\u2013",
            )
        )
    right = ("level", "duration", "segments", "results", "age", "overhead", "difference")
    note = "Age: bound, in windows after the release. Overhead, difference: of cutting."
    return panel("Models", table("Models", rows, left=("model", "role"), right=right), note)


def _segments(timetable: Timetable, percentile: str) -> Markup:
    rows: list[tuple[str, ...]] = []
    for model in timetable.models:
        prefix = common_prefix(model)
        for segment in model.segments:
            layers = (segment.fill_layer, segment.last_layer, *segment.output_layers)
            fill, last, *out = (layer.removeprefix(prefix) for layer in layers)
            figures = (
                quantity(segment.index, str(segment.index)),
                quantity(segment.duration_ns, format_duration(segment.duration_ns)),
                quantity(segment.median_ns, format_duration(segment.median_ns)),
                quantity(segment.boundary_bytes, format_bytes(segment.boundary_bytes)),
            )
            rows += [(model.name, segment.unit, *figures, fill, last, ", ".join(out))]
    right = ("segment", percentile, "p50", "hands on")
    words = ("fill layer", "last layer", "output layers")
    note = "The fill layer receives the tensors of the segment before; the output layers hand on."
    listed = table("Segments", rows, left=("model", "unit"), right=right, words=words)
    return panel("Segments", listed, note)


def _bound(age_windows: int | None) -> str:
    return "no bound" if age_windows is None else str(age_windows)


def _durations(named: Sequence[tuple[str, PlanContent]]) -> list[Chart]:
    """What the models take, of several plans side by side; a single one's windows say it."""
    if len(named) == 1:
        return []
    models = tuple(dict.fromkeys(model.name for _, plan in named for model in plan.timetable.models))
    lines = []
    for place, (name, plan) in enumerate(named):
        ms = {model.name: model.duration_ns / 1e6 for model in plan.timetable.models}
        data = tuple((float(at), ms[model], None, None) for at, model in enumerate(models) if model in ms)
        lines.append(Line(name=name, kind="bars", data=data, colour=colour(place)))
    told = (f"{name}: worst slack {format_duration(plan.timetable.worst_slack_ns)}" for name, plan in named)
    return [
        Chart(
            title="What the models take",
            summary=f"The planned quantile of a whole frame. {'; '.join(told)}.",
            x=Axis(name="duration", unit="ms", low=0.0),
            y=Axis(name="", scale="category", categories=models),
            lines=tuple(lines),
            height_px=row_height_px(len(named) * len(models)),
        )
    ]


PLANS = Kind(
    noun="plan",
    plural="plans",
    verdict=_verdict,
    quantities=lambda content: list(_quantities(content)),
    charts=_durations,
    tables=lambda content, name: plan_markup(content.timetable, content.workload, f"{name}-plan"),
    uses=("plan",),
)
