"""The windows of a plan as SVG for a page, one image a window.

Lengths across are percentages and the rest is in pixels: a window is as wide as the screen has
room for, its letters stay as they are, and windows that stand side by side join into one time line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from framefit.core.timetable import Slot, Timetable, Window
from framefit.report.explained import Account, Free, Way, free_times, window_starts
from framefit.report.formats import format_duration
from framefit.report.looks import Look, looks_of, step_ms
from framefit.report.spanning import within_windows

__all__ = ["WindowPictures", "need_picture", "texts"]


_UNIT_NAME, _CAPTION, _TRACK, _UNIT_GAP = 17, 17, 36, 8
_LANE, _LANE_GAP, _AXIS = 22, 4, 20
_TICKS = 5


@dataclass(frozen=True)
class _Lane:
    """Where the frames of a model are drawn that are in flight one after the other."""

    model: str
    ways: tuple[Way, ...]


class WindowPictures:
    """Draws the windows of one plan, all to the same scale."""

    def __init__(self, timetable: Timetable, told: Sequence[Account]) -> None:
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
        self._lanes = [_Lane(account.model.name, ways) for account in told for ways in _in_lanes(account.ways)]
        self._flying: dict[tuple[int, int], list[Way]] = {}  # lane and window
        for number, lane in enumerate(self._lanes):
            for way in lane.ways:
                for place in range(way.release_window, way.legs[-1].window + 1):
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

    def _residual(self, free: Free, captions: int, y: int) -> str:
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

    def _flights(self, place: int, window: Window, look: Look, ways: Sequence[Way], top: int) -> Iterator[str]:
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


def need_picture(account: Account, timetable: Timetable, look: Look) -> str:
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


def _in_lanes(ways: Sequence[Way]) -> list[tuple[Way, ...]]:
    """As few lanes as hold all frames of a model that are in flight at once."""
    lanes: list[list[Way]] = []
    for way in sorted(ways, key=lambda way: way.release_ns):
        lane = next((lane for lane in lanes if lane[-1].result_ns <= way.release_ns), None)
        if lane is None:
            lanes.append([way])
        else:
            lane.append(way)
    return [tuple(lane) for lane in lanes]
