"""An independent check of a timetable: it shares no code with what built it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping

from framefit.core.timetable import Slot, Timetable

__all__ = ["check_timetable"]


def check_timetable(
    timetable: Timetable,
    *,
    deadlines_ns: Mapping[str, int] | None = None,
    every: Mapping[str, int] | None = None,
    memory_limit_bytes: Mapping[str, int] | None = None,
) -> list[str]:
    """Everything that is wrong with a timetable that says it is feasible.

    Args:
        timetable: the plan.
        deadlines_ns: model -> deadline after release; default: the window's length for
            priority models, none for background models.
        every: priority model -> windows between its frames; default: 1.
        memory_limit_bytes: unit -> bytes that it has.

    Returns:
        One sentence for each violation: overlap on a unit, a slot outside its window or
        inside a priority period, a guard that is broken, segments out of order, left
        out or repeated, a wrong duration, a missed deadline, memory above the limit.
    """
    wrong: list[str] = []
    models = {model.name: model for model in timetable.models}
    launches: dict[tuple[str, int], list[tuple[int, Slot]]] = defaultdict(list)
    begin = 0
    for window in timetable.windows:
        here = f"window {window.index}"
        if window.length_ns < timetable.window_ns:
            wrong.append(f"{here}: shorter than the timetable's window")
        reserved = [(period.start_ns, period.end_ns, period) for period in window.priority]
        busy: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for slot in window.slots:
            name = f"{slot.model}[{slot.segment}]"
            model = models.get(slot.model)
            if model is None or not 0 <= slot.segment < len(model.segments):
                wrong.append(f"{here}: {name} is no segment of the plan")
                continue
            segment = model.segments[slot.segment]
            if slot.unit != segment.unit or slot.unit not in timetable.units:
                wrong.append(f"{here}: {name} on unit {slot.unit!r}, compiled for {segment.unit!r}")
            if slot.duration_ns < segment.duration_ns and not timetable.preemptive:
                wrong.append(f"{here}: {name} is given {slot.duration_ns} ns and takes {segment.duration_ns}")
            end = slot.start_ns + slot.duration_ns
            if slot.start_ns < 0 or end > window.length_ns:
                wrong.append(f"{here}: {name} leaves the window")
            if model.role == "background":
                if end + timetable.guard_ns > window.length_ns:
                    wrong.append(f"{here}: {name} ends within the guard")
                for start, stop, period in reserved:
                    if period.unit != slot.unit or slot.start_ns >= stop:
                        continue
                    if end > start:
                        wrong.append(f"{here}: {name} inside the priority period of {period.model}")
                    elif end + timetable.guard_ns > start:
                        wrong.append(f"{here}: {name} ends within the guard before {period.model}")
            else:
                limit = (deadlines_ns or {}).get(slot.model, window.length_ns)
                if end > limit:
                    wrong.append(f"{here}: {name} ends {end - limit} ns after its deadline")
                if not any(s <= slot.start_ns and end <= e and p.model == slot.model for s, e, p in reserved):
                    wrong.append(f"{here}: {name} outside its priority period")
            busy[slot.unit].append((slot.start_ns, end, name))
            launches[slot.model, slot.frame].append((begin + slot.start_ns, slot))
        for unit, spans in busy.items():
            spans.sort()
            for (_, end, first), (start, _, second) in itertools.pairwise(spans):
                if start < end:
                    wrong.append(f"{here}: {first} and {second} overlap on {unit}")
        for model in timetable.models:
            here_slots = [slot for slot in window.slots if slot.model == model.name]
            due = window.index % (every or {}).get(model.name, 1) == 0
            if model.role == "priority" and len(here_slots) != (len(model.segments) if due else 0):
                wrong.append(f"{here}: priority model {model.name} runs {len(here_slots)} segments, due is {due}")
        begin += window.length_ns
    if len(timetable.windows) != timetable.hyperperiod_windows:
        wrong.append(f"{len(timetable.windows)} windows, hyperperiod of {timetable.hyperperiod_windows}")
    for (name, frame), entries in launches.items():
        entries.sort(key=lambda entry: entry[0])
        order = [slot.segment for _, slot in entries]
        if timetable.preemptive:
            order = [segment for segment, _ in itertools.groupby(order)]
            spent = sum(slot.duration_ns for _, slot in entries)
            planned = sum(segment.duration_ns for segment in models[name].segments)
            if spent < planned:
                wrong.append(f"{name} frame {frame}: is given {spent} ns and takes {planned}")
        if order != list(range(len(models[name].segments))):
            wrong.append(f"{name} frame {frame}: segments run as {order}")
    for name, model in models.items():
        if not any(key[0] == name for key in launches):
            wrong.append(f"{name} never runs")
        for left, right in itertools.pairwise(model.segments):
            if right.index != left.index + 1:
                wrong.append(f"{name}: segment {right.index} follows {left.index}")
    for name, model in models.items():
        deadline = (deadlines_ns or {}).get(name)
        if model.role == "background" and deadline is not None:
            windows = model.result_age_windows
            if windows is None or (windows - 1) * timetable.window_ns >= deadline:
                wrong.append(
                    f"{name}: results may be ready {windows} windows after release, its deadline is {deadline}"
                )
    for window in timetable.windows:
        taken = sum(period.end_ns - period.start_ns for period in window.priority)
        if taken > timetable.priority_ns or window.length_ns - taken < timetable.residual_ns:
            wrong.append(f"window {window.index}: {taken} ns reserved, the plan says {timetable.priority_ns}")
    for unit, limit in (memory_limit_bytes or {}).items():
        if timetable.memory_bytes.get(unit, 0) > limit:
            wrong.append(f"{unit}: {timetable.memory_bytes[unit]} bytes planned, it has {limit}")
    return wrong
