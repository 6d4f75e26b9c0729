"""An independent check of a timetable: it shares no code with what built it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from framefit.core.run_record import TOO_SOON, FrameTable
from framefit.core.timetable import PlannedModel, Slot, Timetable, Window

Launches = Mapping[tuple[str, int], Sequence[tuple[int, Slot]]]  # model and frame -> absolute begin, slot


def check_timetable(
    timetable: Timetable,
    *,
    deadlines_ns: Mapping[str, int] | None = None,
    every: Mapping[str, Fraction | int] | None = None,
    releases: Mapping[str, Collection[int]] | None = None,
    lengths_ns: Sequence[int] = (),
    distances_ns: Mapping[str, int] | None = None,
    supported: Mapping[str, Sequence[Collection[str]]] | None = None,
    memory_limit_bytes: Mapping[str, int] | None = None,
    stored_ratio: float = 1.0,
) -> list[str]:
    """Everything that is wrong with a timetable that says it is feasible.

    Args:
        timetable: the plan.
        deadlines_ns: model -> deadline after release; default: the window's length for
            priority models, none for background models.
        every: priority model -> releases between its frames; default: 1.
        releases: model -> windows of the pattern in which its stream releases a frame; default: all.
        lengths_ns: of the pattern's windows; default: all as the timetable's window.
        distances_ns: sporadic model -> least time between its events; default: as the timetable says.
        supported: model -> units that can run each segment; default: any.
        memory_limit_bytes: unit -> bytes that it has.
        stored_ratio: bytes of a tensor there over those that segments hand on.

    Returns:
        One sentence for each violation: overlap on a unit, a slot outside its window or
        inside a priority period, a guard that is broken, segments out of order, left
        out or repeated, replicas where they cannot be, a wrong duration, a missed deadline, tensors that
        are used before they are there, more frames in flight than slots, a unit that does not support a
        segment, memory above the limit, an event that waits longer than the plan says.
    """
    wrong: list[str] = []
    models = {model.name: model for model in timetable.models}
    launches: dict[tuple[str, int], list[tuple[int, Slot]]] = defaultdict(list)
    lengths = lengths_ns or (timetable.window_ns,)
    begin = 0
    for window in timetable.windows:
        here = f"window {window.index}"
        if window.length_ns < timetable.window_ns:
            wrong.append(f"{here}: shorter than the timetable's window")
        if window.length_ns != lengths[window.index % len(lengths)]:
            wrong.append(f"{here}: {window.length_ns} ns, releases are {lengths[window.index % len(lengths)]} ns apart")
        wrong += _in_window(timetable, window, models, deadlines_ns or {})
        for slot in window.slots:
            model = models.get(slot.model)
            if model is not None and 0 <= slot.segment < len(model.segments):
                launches[slot.model, slot.frame].append((begin + slot.start_ns, slot))
        for model in timetable.models:
            here_slots = [slot for slot in window.slots if slot.model == model.name]
            due = _due(model, models, window.index, every or {}, releases or {}, len(lengths)) is not None
            if model.role == "priority" and len(here_slots) != (len(model.segments) if due else 0):
                wrong.append(f"{here}: priority model {model.name} runs {len(here_slots)} segments, due is {due}")
        begin += window.length_ns
    if len(timetable.windows) != timetable.hyperperiod_windows:
        wrong.append(f"{len(timetable.windows)} windows, hyperperiod of {timetable.hyperperiod_windows}")
    for entries in launches.values():
        entries.sort(key=lambda entry: entry[0])
    wrong += _in_order(timetable, models, launches)
    wrong += _replicas(models)
    wrong += _deliveries(timetable, models, launches)
    wrong += _read(timetable, models, launches, every or {})
    for name, model in models.items():
        deadline = (deadlines_ns or {}).get(name)
        if model.role == "background" and deadline is not None:
            windows = model.result_age_windows
            if windows is None or (windows - 1) * timetable.window_ns >= deadline:
                wrong.append(
                    f"{name}: results may be ready {windows} windows after release, its deadline is {deadline}"
                )
        for segment, units in zip(model.segments, (supported or {}).get(name, ()), strict=False):
            if segment.unit not in units:
                wrong.append(f"{name}[{segment.index}]: unit {segment.unit!r} does not support it")
    wrong += _across(timetable, models)
    wrong += _waits(timetable, deadlines_ns or {}, distances_ns or {})
    wrong += _reserved(timetable)
    wrong += _memory(timetable, memory_limit_bytes or {}, stored_ratio)
    return wrong


def _in_window(
    timetable: Timetable, window: Window, models: Mapping[str, PlannedModel], deadlines_ns: Mapping[str, int]
) -> list[str]:
    """Each slot of a window by itself, and overlaps on units."""
    wrong: list[str] = []
    here = f"window {window.index}"
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
        if slot.duration_ns < segment.duration_ns and not (timetable.preemptive and model.role == "background"):
            wrong.append(f"{here}: {name} is given {slot.duration_ns} ns and takes {segment.duration_ns}")
        end = slot.start_ns + slot.duration_ns
        goes_on = model.role == "priority" and bool(timetable.lengths_ns)  # see _across
        if slot.start_ns < 0 or (end > window.length_ns and not goes_on):
            wrong.append(f"{here}: {name} leaves the window")
        if model.role == "background":
            guard_ns = _guard_ns(timetable, model, slot.segment)
            if end + guard_ns > window.length_ns:
                wrong.append(f"{here}: {name} ends within the guard")
            for start, stop, period in reserved:
                if period.unit != slot.unit or slot.start_ns >= stop:
                    continue
                if end > start:
                    wrong.append(f"{here}: {name} inside the priority period of {period.model}")
                elif end + guard_ns > start:
                    wrong.append(f"{here}: {name} ends within the guard before {period.model}")
        else:
            limit = deadlines_ns.get(slot.model, window.length_ns)
            if end > limit:
                wrong.append(f"{here}: {name} ends {end - limit} ns after its deadline")
            own = [(s, e) for s, e, period in reserved if (period.model, period.unit) == (slot.model, slot.unit)]
            if not any(s <= slot.start_ns and end <= e for s, e in own):
                wrong.append(f"{here}: {name} outside its priority period")
        busy[slot.unit].append((slot.start_ns, end, name))
    for unit, spans in busy.items():
        spans.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(spans):
            if start < end:
                wrong.append(f"{here}: {first} and {second} overlap on {unit}")
    periods: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for start, end, period in reserved:
        periods[period.unit].append((start, end, period.model))
    for unit, spans in periods.items():
        spans.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(spans):
            if start < end:
                wrong.append(f"{here}: the priority periods of {first} and {second} overlap on {unit}")
    return wrong


def _guard_ns(timetable: Timetable, model: PlannedModel, number: int) -> int:
    """Of a segment, where there is such a one."""
    own_ns = model.segments[number].guard_ns if 0 <= number < len(model.segments) else None
    return timetable.guard_ns if own_ns is None else own_ns


def _across(timetable: Timetable, models: Mapping[str, PlannedModel]) -> list[str]:
    """Priority periods that go on, or begin, beyond their window take nobody's time in those that follow."""
    wrong = []
    busy: dict[str, list[tuple[int, int, str, int]]] = defaultdict(list)
    periods: dict[str, list[int]] = defaultdict(list)
    begin = 0
    for window in timetable.windows:
        for period in window.priority:
            busy[period.unit].append((begin + period.start_ns, begin + period.end_ns, period.model, -1))
            periods[period.unit].append(begin + period.start_ns)
        for slot in window.slots:
            if slot.model in models and models[slot.model].role == "background":
                start, guard_ns = begin + slot.start_ns, _guard_ns(timetable, models[slot.model], slot.segment)
                name = f"{slot.model}[{slot.segment}]"
                busy[slot.unit].append((start, start + slot.duration_ns, name, guard_ns))
        begin += window.length_ns
    for unit, spans in busy.items():
        spans.sort()
        first = (spans[0][0] + begin, *spans[0][1:])  # of the next repetition
        for (_, end, one, _), (start, _, other, _) in itertools.pairwise([*spans, first]):
            if start < end:
                wrong.append(f"{one} goes on until {end} ns on {unit}, {other} begins at {start} ns")
        reserved = sorted([*periods[unit], *(start + begin for start in periods[unit])])
        for start, end, one, guard_ns in spans:
            following = next((at for at in reserved if at > start), None)
            if guard_ns < 0 or following is None or timetable.preemptive:
                continue
            if end + guard_ns > following:
                wrong.append(f"{one} ends at {end} ns on {unit}, within the guard before {following} ns")
    return wrong


def _due(
    model: PlannedModel,
    models: Mapping[str, PlannedModel],
    window: int,
    every: Mapping[str, Fraction | int],
    releases: Mapping[str, Collection[int]],
    pattern: int,
) -> int | None:
    """Number of the frame that a model's stream, or the models that it reads, have for it in a window."""
    if model.after:
        frames = [
            _due(models[name], models, window, every, releases, pattern) for name in model.after if name in models
        ]
        if None in frames or not frames:
            return None
        number = frames[0] or 0
    else:
        here = sorted(releases.get(model.name, range(pattern)))
        if window % pattern not in here:
            return None
        number = window // pattern * len(here) + here.index(window % pattern)
    spacing = Fraction(every.get(model.name, 1))
    before, then = (math.floor((count - 1) / spacing) + 1 for count in (number, number + 1))  # frames that came by then
    return before if then > before else None


def _in_order(timetable: Timetable, models: Mapping[str, PlannedModel], launches: Launches) -> list[str]:
    """Each frame's segments one after the other, each once, and in full."""
    wrong = []
    for (name, frame), entries in launches.items():
        order = [slot.segment for _, slot in entries]
        replica = models[name].segments[order[0]].replica
        its = [segment for segment in models[name].segments if segment.replica == replica]
        if timetable.preemptive:
            order = [segment for segment, _ in itertools.groupby(order)]
            spent = sum(slot.duration_ns for _, slot in entries)
            planned = sum(segment.duration_ns for segment in its)
            if spent < planned:
                wrong.append(f"{name} frame {frame}: is given {spent} ns and takes {planned}")
        if order != [segment.index for segment in its]:
            wrong.append(f"{name} frame {frame}: segments run as {order}")
    for name, model in models.items():
        if model.role != "sporadic" and not any(key[0] == name for key in launches):
            wrong.append(f"{name} never runs")
        for left, right in itertools.pairwise(model.segments):
            if right.index != left.index + 1:
                wrong.append(f"{name}: segment {right.index} follows {left.index}")
    return wrong


def _replicas(models: Mapping[str, PlannedModel]) -> list[str]:
    """Replicas are of background models that no other model reads or is read by; each runs all layers, in order."""
    wrong = []
    read = {source for model in models.values() for source in model.after}
    for name, model in models.items():
        numbers = list(dict.fromkeys(segment.replica for segment in model.segments))
        if numbers != list(range(len(numbers))) and model.segments:
            wrong.append(f"{name}: replicas are numbered {numbers}")
        if len(numbers) < 2:
            continue
        if model.role == "priority" or model.after or name in read:
            wrong.append(
                f"{name}: a model that is reserved, reads others or is read by them has {len(numbers)} replicas"
            )
        layers = max(segment.span[1] for segment in model.segments)
        for number in numbers:
            spans = [segment.span for segment in model.segments if segment.replica == number]
            begins, ends = [first for first, _ in spans], [last + 1 for _, last in spans]
            if layers and (begins[0] != 0 or ends[-1] != layers + 1 or begins[1:] != ends[:-1]):
                wrong.append(f"{name}: segments of replica {number} have layers {spans}, the model {layers + 1}")
    return wrong


def _crossing_ns(timetable: Timetable, source: str, target: str, size_bytes: int) -> int:
    """What an idle link takes for so many bytes."""
    if source == target:
        return 0
    for link in timetable.links:
        if set(link.between) == {source, target}:
            carried = size_bytes / link.bandwidth_gbps if link.bandwidth_gbps else 0
            return math.ceil(link.latency_ns) + math.ceil(carried)
    return 0


def _deliveries(timetable: Timetable, models: Mapping[str, PlannedModel], launches: Launches) -> list[str]:
    """No segment begins before the tensors of the one before are there; no more frames are in flight than slots."""
    wrong = []
    for (name, frame), entries in launches.items():
        for (start, before), (begin, after) in itertools.pairwise(entries):
            if after.segment != before.segment + 1:
                continue
            size = models[name].segments[before.segment].boundary_bytes
            there = start + before.duration_ns + _crossing_ns(timetable, before.unit, after.unit, size)
            if begin < there:
                wrong.append(
                    f"{name} frame {frame}: segment {after.segment} begins {there - begin} ns before its tensors are "
                    f"on {after.unit}"
                )
    for name, model in models.items():
        for replica in range(1 + max((segment.replica for segment in model.segments), default=0)):
            spans = sorted(
                (entries[0][0], entries[-1][0] + entries[-1][1].duration_ns)
                for (owner, _), entries in launches.items()
                if owner == name and model.segments[entries[0][1].segment].replica == replica
            )
            for number, (start, _) in enumerate(spans):
                flying = 1 + sum(end > start for _, end in spans[:number])
                if flying > model.slots:
                    wrong.append(f"{name}: {flying} frames in flight at {start} ns, it has slots for {model.slots}")
                    break
        order = [
            frame for (owner, frame), _ in sorted(launches.items(), key=lambda item: item[1][0][0]) if owner == name
        ]
        if order != sorted(order):
            wrong.append(f"{name}: frames are started as {order}")
    return wrong


def _read(
    timetable: Timetable, models: Mapping[str, PlannedModel], launches: Launches, every: Mapping[str, Fraction | int]
) -> list[str]:
    """A model that reads others starts no frame before theirs are done: of as many as it starts, as many are there."""
    wrong = []
    for name, model in models.items():
        if not model.after:
            continue
        starts = sorted(entries[0] for (owner, _), entries in launches.items() if owner == name)
        for source in model.after:
            if source not in models:
                wrong.append(f"{name}: reads {source!r}, which is not planned")
                continue
            last = models[source].segments[-1]
            done = sorted(
                entries[-1][0] + entries[-1][1].duration_ns
                for (owner, _), entries in launches.items()
                if owner == source
            )
            for number, (start, slot) in enumerate(starts):
                needed = math.ceil(number * every.get(name, 1))
                link = _crossing_ns(timetable, last.unit, slot.unit, last.boundary_bytes)
                if needed >= len(done) or done[needed] + link > start:
                    wrong.append(f"{name}: frame {number} begins at {start} ns, before {source} has given it its input")
                    break
    return wrong


def _waits(timetable: Timetable, deadlines_ns: Mapping[str, int], distances_ns: Mapping[str, int]) -> list[str]:
    """Events that come when segments have just begun, or just do not fit any more, wait no longer than planned."""
    wrong = []
    events = [model for model in timetable.models if model.role == "sporadic"]
    for number, model in enumerate(events):
        distance = distances_ns.get(model.name, model.min_distance_ns)
        bound, limit = timetable.waits_ns.get(model.name), deadlines_ns.get(model.name, distance)
        units = {segment.unit for segment in model.segments}
        if model.min_distance_ns != distance or not 0 < limit <= distance:
            wrong.append(f"{model.name}: events are {distance} ns apart and due after {limit} ns")
        if bound is None or bound > limit:
            wrong.append(f"{model.name}: an event may wait {bound} ns, it is due after {limit} ns")
        if len(units) != 1 or model.after:
            wrong.append(f"{model.name}: a sporadic model has one unit and reads streams, it has {sorted(units)}")
        if bound is None or len(units) != 1:
            continue
        behind = [m for m in timetable.models if m in events[number + 1 :]]
        behind += [] if timetable.preemptive else [m for m in timetable.models if m.role == "background"]
        (unit,) = units
        blocking = {(s.duration_ns, s.guard_ns) for m in behind for s in m.segments if s.unit == unit} | {(0, 0)}
        first = [s for m in events[:number] if m.segments[0].unit == unit for s in m.segments]
        work = [
            (s.duration_ns, timetable.guard_ns if s.guard_ns is None else s.guard_ns) for s in (*first, *model.segments)
        ]
        gaps = _gaps(timetable, unit)
        total, most = sum(window.length_ns for window in timetable.windows), 0
        for begin, end in gaps[: len(gaps) // 3]:  # of the first of three repetitions
            for blocked, guard_ns in blocking:
                own_ns = timetable.guard_ns if guard_ns is None else guard_ns
                sums = zip(itertools.accumulate(ns for ns, _ in work), (guard for _, guard in work), strict=True)
                comes = [begin, *(end - guard - done + 1 - blocked for done, guard in sums)]
                fitting = [at for at in comes if begin <= at and at + blocked <= end - own_ns]
                for at in fitting:
                    done = _served(gaps, at + blocked, work)
                    most = max(most, (done if done is not None else at + total) - at)
        if most > bound:
            wrong.append(f"{model.name}: an event may wait {most} ns, the plan says {bound}")
    return wrong


def _gaps(timetable: Timetable, unit: str) -> list[tuple[int, int]]:
    """What is not reserved on a unit in three repetitions of the windows, cut at releases."""
    begin, busy, releases = 0, list[tuple[int, int]](), list[int]()
    for window in (*timetable.windows,) * 3:
        releases.append(begin)
        busy += [(begin + p.start_ns, begin + p.end_ns) for p in window.priority if p.unit == unit]
        begin += window.length_ns
    gaps, free = [], 0
    for start, stop in sorted([*busy, *((at, at) for at in [*releases, begin])]):
        if start > free:
            gaps.append((free, start))
        free = max(free, stop)
    return gaps


def _served(gaps: Sequence[tuple[int, int]], now: int, work: Sequence[tuple[int, int]]) -> int | None:
    """When segments, each with its guard, are done one after the other where they fit; ``None``: not in the gaps."""
    left = list(work)
    for begin, end in gaps:
        now = max(now, begin)
        while left and now + sum(left[0]) <= end:
            now += left.pop(0)[0]
        if not left:
            return now
    return None


def check_events(timetable: Timetable, frames: FrameTable) -> list[str]:
    """Everything that is wrong with a run's events: they are far enough apart, and none waited too long.

    Args:
        timetable: the plan that was run.
        frames: what came of each event.

    Returns:
        One sentence for each violation.
    """
    wrong = []
    for model in timetable.models:
        if model.role != "sporadic" or model.name not in frames.models:
            continue
        mine = frames.model == frames.models.index(model.name)
        kept = [
            (int(released), int(finished), int(frame))
            for released, finished, frame, fate in zip(
                frames.released_ns[mine], frames.finished_ns[mine], frames.frame[mine], frames.fate[mine], strict=True
            )
            if frames.fates[fate] != TOO_SOON
        ]
        bound = timetable.waits_ns.get(model.name)
        for (before, _, _), (released, _, frame) in itertools.pairwise(sorted(kept)):
            if released - before < model.min_distance_ns:
                wrong.append(
                    f"event {frame} of {model.name!r} came {(released - before) / 1e6:.6g} ms after the one before; "
                    f"the least distance is {model.min_distance_ns / 1e6:.6g} ms"
                )
        for released, finished, frame in kept:
            if bound is not None and finished >= 0 and finished - released > bound:
                wrong.append(
                    f"event {frame} of {model.name!r} took {(finished - released) / 1e6:.6g} ms, the bound is "
                    f"{bound / 1e6:.6g} ms"
                )
    return wrong


def _reserved(timetable: Timetable) -> list[str]:
    """The plan's figures are the worst of its windows and units."""
    wrong = []
    for unit in timetable.units:
        under_way: list[tuple[int, int]] = []  # relative to the window
        for window in (*timetable.windows, *timetable.windows):  # the last one's may go on in the first
            under_way += [(period.start_ns, period.end_ns) for period in window.priority if period.unit == unit]
            taken = sum(
                min(end, window.length_ns) - max(start, 0) for start, end in under_way if start < window.length_ns
            )
            if taken > timetable.priority_ns or window.length_ns - taken < timetable.residual_ns:
                wrong.append(f"window {window.index}: {taken} ns reserved, the plan says {timetable.priority_ns}")
            moved = [(start - window.length_ns, end - window.length_ns) for start, end in under_way]
            under_way = [(start, end) for start, end in moved if end > 0]
    return list(dict.fromkeys(wrong))


def _memory(timetable: Timetable, limits: Mapping[str, int], stored_ratio: float) -> list[str]:
    """What is planned fits, and is no less than what crosses units needs: on both where these share no memory."""
    wrong = []
    for unit, limit in limits.items():
        if timetable.memory_bytes.get(unit, 0) > limit:
            wrong.append(f"{unit}: {timetable.memory_bytes[unit]} bytes planned, it has {limit}")
    crossing: dict[str, int] = defaultdict(int)
    for model in timetable.models:
        for before, after in itertools.pairwise(model.segments):
            if before.unit != after.unit and before.replica == after.replica:
                apart = any(set(link.between) == {before.unit, after.unit} for link in timetable.links)
                for unit in (before.unit, after.unit)[: 2 if apart else 1]:
                    crossing[unit] += before.boundary_bytes * model.slots
    for unit, total in crossing.items():
        needed = math.floor(total * stored_ratio)
        if timetable.memory_bytes.get(unit, 0) < needed:
            wrong.append(
                f"{unit}: {timetable.memory_bytes.get(unit, 0)} bytes planned, tensors that cross units take {needed}"
            )
    return wrong
