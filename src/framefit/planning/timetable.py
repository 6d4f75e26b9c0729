"""Who runs when: priority periods, residuals, and what is placed into them.

A measured model as an entry of the timetable.

The list of what each unit does: units execute only that.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.policy import turns_between
from framefit.core.spacing import apart, least_apart
from framefit.core.timetable import (
    Instruction,
    PlannedModel,
    PriorityPeriod,
    Refusal,
    Segment,
    Slot,
    Timetable,
    Window,
    in_order,
)
from framefit.planning.ages import Spans, StageTurns, age_bound_ns, staged_age_ns, taken_age_ns
from framefit.planning.beat import Beat, Demand, Span
from framefit.planning.bounds import fair_rates
from framefit.planning.partition import planned_quantile_ns
from framefit.planning.playback import MOST_WINDOWS, Filled, Playback, delivered, fill, rates_in
from framefit.planning.reserved import Reserved, parts_of, reserve, segment_room
from framefit.planning.sporadic import events_ns, waits, with_guards

_STEADY_WINDOWS, _STEADY_FRAMES = 512, 128  # that a run is played for, at least, to tell what models get


def build_timetable(beat: Beat, models: Sequence[PlannedModel]) -> Timetable:
    """Reserve the priority periods and fill the residuals, on each unit that a segment names.

    On each unit the stages of background models take turns (:class:`Rotation`); a segment is placed where its
    quantile and the guard fit before the next reserved instant or the window's end.

    Args:
        beat: windows, guard, position, demands, links.
        models: measured; every segment with its unit and quantile.

    Returns:
        A timetable, feasible or with the binding constraint named. It repeats: the
        last window's rest stays idle so that the first one begins with new frames. Its
        length is a multiple of the priority models' ``every``; of the background models'
        it need not be one: no more of their frames are placed in it than arrive in as
        many windows, and bounds on ages hold wherever in it their frames arrive.
    """
    beat = beat.shared(models)
    priority = [model for model in models if model.role == "priority"]
    background = [model for model in models if model.role == "background"]
    units = tuple(dict.fromkeys(segment.unit for model in (*models, *beat.events) for segment in model.segments))
    laid_out = reserve(beat, priority)
    reserved, lengths = laid_out.windows, laid_out.lengths_ns
    free = _free(beat, laid_out, background)
    slack, problem = _deadlines(beat, laid_out)
    taken = {unit: laid_out.taken_ns(unit) for unit in units or ("",)}
    unread = _unread(models)
    problem = unread or problem
    if not beat.preemptive:
        problem = problem or _too_long(beat, background, priority)
    longest, late = waits(beat, event_spans(beat, laid_out), background)
    problem = problem or late
    ages: dict[str, int] = {}
    queued: dict[str, int] = {}
    aged: Refusal | None = None
    if problem is None:
        ages, queued, problem, aged = _ages(beat, models, laid_out, free)
    filled = Filled([[] for _ in reserved], [], slack)
    if problem is None and background:
        playback = fill(beat, in_order(background), free, delivered(priority, reserved))
        if all(playback.launches):
            filled, slack = _as_given(playback, background), min(slack, playback.idle_ns)
        else:
            problem = f"the background models do not all get a frame done within {MOST_WINDOWS} windows"
    windows = []
    used = {model.name: list(dict.fromkeys(segment.unit for segment in model.segments)) for model in background}
    for index, placed in enumerate(filled.windows):
        periods = reserved[index % len(reserved)]
        length = lengths[index % len(lengths)]
        own = _priority_slots(beat, priority, periods, index)
        windows.append(
            Window(
                index=index,
                length_ns=length,
                priority=tuple(periods),
                residual_ns=_residuals(
                    used, placed, {unit: ns[index % len(reserved)] for unit, ns in taken.items()}, length
                ),
                slots=tuple(sorted([*own, *placed], key=lambda slot: slot.start_ns)),
            )
        )
    within = () if beat.preemptive else (*background, *beat.events)
    by_window = list(zip(*taken.values(), strict=True))
    bound, gap = (None, None) if unread else _bounds(beat, models, by_window, lengths, units, filled)
    planned = [
        msgspec.structs.replace(
            with_guards(model, beat) if model.role == "background" else model,
            result_age_windows=ages.get(model.name, 1) if problem is None else None,
            queue_age_windows=queued.get(model.name, 0) if problem is None else 0,
        )
        for model in models
    ]
    return Timetable(
        feasible=problem is None,
        worst_slack_ns=slack,
        hyperperiod_windows=len(windows),
        window_ns=beat.window_ns,
        priority_ns=max(map(max, by_window)),
        residual_ns=min(length - max(ns) for length, ns in zip(lengths, by_window, strict=True)),
        guard_ns=max([beat.guard_ns, *(beat.own_guard_ns(s.duration_ns) for m in within for s in m.segments)]),
        preemptive=beat.preemptive,
        yields=beat.yields,
        units=units,
        windows=tuple(windows),
        models=tuple(planned),
        memory_bytes=unit_memory((*models, *beat.events)) if len(units) > 1 else {},
        bound=bound,
        gap_ratio=gap if problem is None else None,
        links=tuple(beat.links),
        lengths_ns=beat.lengths_ns,
        releases={name: demand.releases for name, demand in beat.demands.items() if demand.releases is not None},
        waits_ns={name: wait.ns for name, wait in longest.items()} if problem is None else {},
        binding_constraint=problem,
        proof=aged,
    )


def steady_launches(beat: Beat, timetable: Timetable) -> dict[str, float]:
    """Launches a window of each background model in a run that goes on, if all take their planned quantiles.

    A timetable begins with idle units and leaves out frames that would be in flight at its end: of models whose frames
    are in flight for many windows it shows fewer.

    Args:
        beat: that the timetable was made for.
        timetable: feasible.
    """
    models = [model for model in timetable.models if model.role != "sporadic"]
    beat = dataclasses.replace(beat.guarded(models), yields=timetable.yields).shared(models)
    priority = [model for model in models if model.role == "priority"]
    background = in_order([model for model in models if model.role == "background"])
    laid_out = reserve(beat, priority)
    rarest = max(beat.of(model.name).every for model in background)
    windows = min(max(_STEADY_WINDOWS, math.ceil(_STEADY_FRAMES * rarest)), MOST_WINDOWS)
    play, free = Playback(beat, background), _free(beat, laid_out, background)
    return rates_in(play, free, delivered(priority, laid_out.windows), windows)[0]


def unit_memory(models: Sequence[PlannedModel]) -> dict[str, int]:
    """Bytes of the tensors between segments, by unit: at most so many are there at once.

    Of each stage the largest that its segments hand on to each other (one frame of it is there at a time), and
    what crosses to or from another unit once for each of the model's ``slots``.
    """
    memory: dict[str, int] = {}
    for model in itertools.chain.from_iterable(model.replicas for model in models):
        stages = model.stages
        copies = model.slots if len(stages) > 1 else 1
        for stage in stages:
            inner = max((segment.boundary_bytes for segment in stage[:-1]), default=0)
            memory[stage[0].unit] = memory.get(stage[0].unit, 0) + inner
        for before, after in itertools.pairwise(stages):
            for unit in (before[-1].unit, after[0].unit):
                memory[unit] += before[-1].boundary_bytes * copies
    return memory


def _free(beat: Beat, laid_out: Reserved, background: Sequence[PlannedModel]) -> dict[str, list[list[Span]]]:
    """Where background segments may run on each unit, in each window."""
    return {
        unit: _kept(laid_out.free_windows(unit), events_ns(beat, unit))
        for unit in dict.fromkeys(segment.unit for model in background for segment in model.segments)
    }


def _kept(free: Sequence[Sequence[Span]], events: int) -> list[list[Span]]:
    """Spans without what sporadic models may take of each."""
    return [[(begin + events, end) for begin, end in spans if begin + events < end] for spans in free]


def event_spans(beat: Beat, laid_out: Reserved) -> dict[str, Spans]:
    """Where sporadic models may run, on their units."""
    return {model.segments[0].unit: laid_out.spans(model.segments[0].unit) for model in beat.events}


def _deadlines(beat: Beat, laid_out: Reserved) -> tuple[int, str | None]:
    """Least slack of the priority models, and the first of them that is late."""
    problem = None
    searched = beat.layout is not None
    for periods, ends, length in zip(laid_out.windows, laid_out.done_ns, laid_out.lengths_ns, strict=True):
        for period, end in zip(periods, ends, strict=True):
            deadline = beat.of(period.model).deadline_ns or length
            if end > deadline and problem is None:
                problem = (
                    f"{period.model!r} is ready {_ms(period.end_ns)} after its release"
                    + (f", {_ms(end - period.end_ns)} later at worst" if end > period.end_ns else "")
                    + f"; its deadline is {_ms(deadline)}"
                )
        if problem is None and periods and beat.even:
            first = periods[0].start_ns
            total = max(period.end_ns for period in periods) - first
            if not searched and total + beat.guard_ns > length:
                problem = f"the priority period of {_ms(total)} and the guard exceed the window of {_ms(length)}"
            elif searched and max(ends) > length:
                problem = f"the priority period ends {_ms(max(ends))} after the release, the window is {_ms(length)}"
    if problem is None and not laid_out.settled:
        problem = "the priority models take more time than there is between their frames"
    return laid_out.slack_ns, problem


def _unread(models: Sequence[PlannedModel]) -> str | None:
    """The first model that reads one which cannot give it what it needs."""
    roles = {model.name: model.role for model in models}
    position = {model.name: number for number, model in enumerate(in_order(models))}
    for model in models:
        for name in model.after:
            if name not in roles:
                return f"{model.name!r} reads {name!r}, which is not planned"
            if position[name] >= position[model.name]:
                return f"{model.name!r} and {name!r} read each other"
            if model.role == "priority" and roles[name] == "background":
                return f"{model.name!r} is a priority model and reads {name!r}, which is none"
    return None


def _too_long(beat: Beat, background: Sequence[PlannedModel], priority: Sequence[PlannedModel]) -> str | None:
    rooms: dict[str, int] = {}
    for model in background:
        for segment in model.segments:
            if segment.unit not in rooms:
                rooms[segment.unit] = segment_room(beat, priority, segment.unit)
            room = rooms[segment.unit]
            if segment.duration_ns > room:
                return (
                    f"segment {segment.index} of {model.name!r} (layer {segment.first_layer!r} to "
                    f"{segment.last_layer!r}) takes {_ms(segment.duration_ns)}, {room_text(beat)} {_ms(room)}"
                )
    return None


def room_text(beat: Beat) -> str:
    """What the room of a segment is, for people; its length follows."""
    if not beat.events:
        return "the residual less guard is"
    names = ", ".join(repr(model.name) for model in beat.events)
    return f"the residual less guard, in which events of {names} have to be in time, leaves segments of"


def _as_given(filling: Filled, background: Sequence[PlannedModel]) -> Filled:
    """Launches in the order of the models, not of what reads what."""
    launches = dict(zip((model.name for model in in_order(background)), filling.launches, strict=True))
    return Filled(filling.windows, [launches[model.name] for model in background], filling.idle_ns)


def _residuals(
    used: Mapping[str, Sequence[str]], placed: Sequence[Slot], taken: Mapping[str, int], length_ns: int
) -> tuple[int, ...]:
    """What each background model finds on the units that it uses, after those before it."""
    left = {unit: length_ns - taken[unit] for units in used.values() for unit in units}
    residuals = []
    for model, units in used.items():
        residuals.append(sum(left[unit] for unit in units))
        for slot in placed:
            if slot.model == model:
                left[slot.unit] -= slot.duration_ns
    return tuple(residuals)


def _bounds(
    beat: Beat,
    models: Sequence[PlannedModel],
    taken: Sequence[Sequence[int]],
    lengths: Sequence[int],
    units: Sequence[str],
    filled: Filled,
) -> tuple[float | None, float | None]:
    """Windows between results of the slowest model if residuals were fluids, and how much more they would hold."""
    background = [model for model in models if model.role == "background"]
    mean = np.asarray(lengths).mean() - np.asarray(taken, np.float64).mean(axis=0)
    if not background or mean.min() <= 0:
        return None, None
    arriving = np.array([beat.arriving(model, models) for model in background])
    background = [model.replicas[0] for model in background]
    durations = np.array([model.duration_ns for model in background], np.float64)
    work = np.array([[sum(s.duration_ns for s in m.segments if s.unit == unit) for unit in units] for m in background])
    rates = fair_rates(mean, work.astype(np.float64), arriving, np.ones(len(background)))
    planned = float(np.dot(filled.launches, durations)) if filled.launches else 0.0
    most = len(filled.windows) * float(np.dot(rates, durations))
    return 1 / float(rates.min()), max(most / planned - 1, 0.0) if planned else None


def _ages(
    beat: Beat,
    models: Sequence[PlannedModel],
    laid_out: Reserved,
    free: Mapping[str, Sequence[Sequence[Span]]],
) -> tuple[dict[str, int], dict[str, int], str | None, Refusal | None]:
    """Bound on the age of each model's results in windows, what queues cost of it, what binds, and which is too old."""
    background = [model for model in models if model.role == "background"]
    ages: dict[str, int] = {}
    queued: dict[str, int] = {}
    if not all(any(windows) for windows in free.values()):
        return ages, queued, "the priority models and the guard leave no residual", None
    given: dict[str, int] = {}  # in ns, of whatever others read
    for periods, ends in zip(laid_out.windows, laid_out.done_ns, strict=True):
        for period, end in zip(periods, ends, strict=True):
            given[period.model] = max(given.get(period.model, 0), end)
    ages |= {name: max(-(-ns // beat.window_ns), 1) for name, ns in given.items()}
    turns, oldest = _Turns(beat, background, laid_out, free), None
    for model in in_order(background):
        demand = beat.of(model.name)
        bound = turns.age_ns(model, models, given)
        if bound is None:
            return ages, queued, f"results of {model.name!r} may be more than {MOST_WINDOWS} windows old", None
        late_ns = 0 if demand.deadline_ns is None else bound - demand.deadline_ns
        if late_ns > (oldest.lateness_ns or 0 if oldest else 0):
            reason = f"results of {model.name!r} may be {_ms(bound)} old, its deadline is {_ms(bound - late_ns)}"
            oldest = Refusal(kind="not found", reason=reason, searched_s=0.0, lateness_ns=late_ns)
        given[model.name] = bound
        ages[model.name] = max(-(-bound // beat.window_ns), 1)
        if demand.queue > demand.frames and not model.after and len(model.replicas) <= 1:
            newest = turns.age_ns(model, models, given, queue=demand.frames)
            queued[model.name] = 0 if newest is None else ages[model.name] - max(-(-newest // beat.window_ns), 1)
    return ages, queued, None if oldest is None else oldest.reason, oldest


class _Turns:
    """Whose segments lie before whose, on each unit."""

    def __init__(
        self,
        beat: Beat,
        background: Sequence[PlannedModel],
        laid_out: Reserved,
        units: Collection[str],
    ) -> None:
        self.beat = beat
        self.stages: dict[str, list[tuple[int, Sequence[Segment]]]] = {unit: [] for unit in units}
        for model in in_order(background):
            for stage, count in zip(model.stages, model.stage_turns, strict=True):
                self.stages[stage[0].unit].append((count, stage))
        self.spans = {
            unit: dataclasses.replace(laid_out.spans(unit), events_ns=events_ns(beat, unit)) for unit in units
        }

    def others(self, stage: Sequence[Segment]) -> list[list[int]]:
        """Durations of the unit's other stages whose turns lie before each of this one's."""
        turns, stages = zip(*self.stages[stage[0].unit], strict=True)
        number = next(n for n, one in enumerate(stages) if one[0] is stage[0])
        return [
            [segment.duration_ns for other in before for segment in stages[other]]
            for before in turns_between(turns, number)
        ]

    def age_ns(
        self, model: PlannedModel, models: Sequence[PlannedModel], given: Mapping[str, int], queue: int | None = None
    ) -> int | None:
        """Bound on a result's age; ``given``: on those of the models that it reads; ``queue``: another than its own."""
        beat, demand, stages = self.beat, self.beat.of(model.name), model.stages
        if len(model.replicas) > 1:
            return self._age_of_replicas_ns(model)
        demand = demand if queue is None else dataclasses.replace(demand, queue=queue)
        if len(stages) == 1 and not model.after and beat.even and beat.layout is None:
            return age_bound_ns(
                [segment.duration_ns for segment in model.segments],
                self.others(stages[0]),
                self.spans[stages[0][0].unit],
                queue=demand.queue,
                frames=demand.frames,
                every=demand.every,
                refuses=demand.refuses,
                waits=demand.waits,
            )
        depth = max(demand.queue, demand.frames)
        refill = None if model.after else self._refill_ns(demand)
        bound = staged_age_ns(
            self._stage_turns(model),
            slots=model.slots if len(stages) > 1 else 1,
            waiting=depth // demand.frames,
            refill_ns=refill,
            apart_ns=self._apart_ns(model, models),
            at_releases=not model.after,
        )
        if bound is None or not model.after:
            return bound
        first = stages[0][0].unit
        read = []
        for one in models:
            if one.name in model.after:
                last = one.segments[-1]
                late = beat.late_ns if last.unit != first else 0
                read.append(given[one.name] + beat.longest_link_ns(last.unit, first, last.boundary_bytes) + late)
        return max(read) + bound

    def _age_of_replicas_ns(self, model: PlannedModel) -> int | None:
        """A frame waits for its turn until it is dropped, at most, and then takes what the slowest replica does.

        Its result waits for those of earlier frames, which came before it and are no older when they are ready.
        """
        refill = self._refill_ns(self.beat.of(model.name))
        taken = [
            taken_age_ns(self._stage_turns(replica), replica.slots if len(replica.stages) > 1 else 1)
            for replica in model.replicas
        ]
        known = [age for age in taken if age is not None]
        return refill + max(known) if refill is not None and len(known) == len(taken) else None

    def _refill_ns(self, demand: Demand) -> int | None:
        """The time in which a full queue has dropped what waits in it, all but what is taken with newer frames."""
        if demand.refuses or demand.waits:
            return None
        depth = max(demand.queue, demand.frames)
        return max(self._releases_ns(demand, apart(depth - demand.frames + 1, demand.every)))

    def _stage_turns(self, model: PlannedModel) -> list[StageTurns]:
        """The stages of a model, or of a replica, among those that they share their units with."""
        turns, stages = [], model.stages
        for number, stage in enumerate(stages):
            unit = stage[0].unit
            handed = self.beat.late_ns if len(stages) > 1 else 0
            if number:
                before = stages[number - 1][-1]
                handed += self.beat.longest_link_ns(before.unit, unit, before.boundary_bytes)
            own = [segment.duration_ns for segment in stage]
            turns.append(StageTurns(own, self.others(stage), self.spans[unit], handed))
        return turns

    def _apart_ns(self, model: PlannedModel, models: Sequence[PlannedModel]) -> Callable[[int], int]:
        """The least time between the releases of the newest frames of launches so many apart."""
        demand = self.beat.of(model.name)
        steps = [demand.every * demand.frames]
        while model.after:  # any of those that it reads: it gets no more frames than that one does
            model = next(one for one in models if one.name == model.after[0])
            demand = self.beat.of(model.name)
            steps.append(demand.every * demand.frames)
        return lambda count: min(self._releases_ns(demand, functools.reduce(least_apart, steps, count)))

    def _releases_ns(self, demand: Demand, count: int) -> list[int]:
        """The times between each release of a stream and the one so many later."""
        lengths = self.beat.pattern_ns
        begins = [sum(lengths[:window]) for window in range(len(lengths))]
        at = [begins[window] for window in demand.releases or range(len(lengths))]
        repeats, rest = divmod(count, len(at))
        return [
            (repeats + (place + rest) // len(at)) * sum(lengths) + at[(place + rest) % len(at)] - begin
            for place, begin in enumerate(at)
        ]


def _priority_slots(
    beat: Beat, priority: Sequence[PlannedModel], periods: Sequence[PriorityPeriod], window: int
) -> list[Slot]:
    """Launches of priority models: the n-th period of a model holds its n-th stage, or segment."""
    models = {model.name: model for model in priority}
    cut = beat.layout.cut if beat.layout else frozenset()
    seen: dict[str, int] = {}
    slots = []
    for period in periods:
        model, now = models[period.model], period.start_ns
        number = seen[period.model] = seen.get(period.model, -1) + 1
        for segment in parts_of(model, model.name in cut)[number]:
            slots.append(
                Slot(
                    unit=segment.unit,
                    start_ns=now,
                    duration_ns=segment.duration_ns,
                    model=period.model,
                    segment=segment.index,
                    frame=_priority_frame(beat, model, models, window),
                )
            )
            now += segment.duration_ns
    return slots


def _priority_frame(beat: Beat, model: PlannedModel, models: Mapping[str, PlannedModel], window: int) -> int:
    """Number of the frame that a due model takes in a window."""
    if model.after:
        return math.floor(_priority_frame(beat, models[model.after[0]], models, window) / beat.of(model.name).every)
    return beat.released(model.name, window) or 0


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3g} ms"


def longest_replica_ns(segments: Sequence[Segment]) -> int:
    """Quantile of the whole model, of the slowest of its replicas."""
    lengths: dict[int, int] = {}
    for segment in segments:
        lengths[segment.replica] = lengths.get(segment.replica, 0) + segment.duration_ns
    return max(lengths.values(), default=0)


def planned_model(
    name: str,
    model: Model,
    bounds: Sequence[tuple[int, int]],
    unit: str | Sequence[str],
    *,
    priority: bool,
    level: int,
    reasons: Sequence[str],
    samples_ns: Sequence[npt.NDArray[np.int64]],
    whole_ns: npt.NDArray[np.int64],
    excess: float,
    layer_names: Sequence[str] = (),
    slots: int = 1,
    after: Sequence[str] = (),
    read_output_bytes: int = 0,
    turns: Sequence[int] = (1,),
    uncut_ns: int | None = None,
    replicas: Sequence[int] = (),
) -> PlannedModel:
    """Segments with their durations, boundaries and reasons.

    Args:
        name: in the workload.
        model: in the layers that ``bounds`` count.
        bounds: first and last layer of each segment.
        unit: where it runs, or where each segment does.
        priority: whether it is a priority model.
        level: 0 to 10.
        reasons: for role and level, and for how it is cut.
        samples_ns: durations of each segment.
        whole_ns: durations of the uncut model, measured in turn with them.
        excess: quantile over median of this measurement.
        layer_names: what the user calls the layers; default: their own names.
        slots: frames that may be in flight.
        after: models whose outputs it reads.
        read_output_bytes: of its outputs that other models read.
        turns: of each replica's stages in a round of their units.
        replicas: number of each segment's; default: there is one.
        uncut_ns: median of the uncut model where it was priced uncut; default: the sum of its segments'.
    """
    units = [unit] * len(bounds) if isinstance(unit, str) else unit
    names = layer_names or [layer.name for layer in model.layers]
    outputs = {tensor.name for tensor in model.outputs}
    last_read = {tensor.name: index for index, layer in enumerate(model.layers) for tensor in layer.inputs}
    segments = []
    for index, ((first, last), samples) in enumerate(zip(bounds, samples_ns, strict=True)):
        leaving = [
            (name, tensor)
            for name, layer in zip(names[first : last + 1], model.layers[first : last + 1], strict=True)
            for tensor in layer.outputs
            if last_read.get(tensor.name, 0) > last or tensor.name in outputs
        ]
        segments.append(
            Segment(
                index=index,
                unit=units[index],
                fill_layer=names[first],
                first_layer=names[first],
                last_layer=names[last],
                output_layers=tuple(dict.fromkeys(layer for layer, _ in leaving)),
                duration_ns=planned_quantile_ns(samples, excess),
                median_ns=int(np.median(samples)),
                boundary_bytes=sum(tensor.bytes for _, tensor in leaving if last_read.get(tensor.name, 0) > last)
                + (read_output_bytes if index == len(bounds) - 1 else 0),
                tensors=tuple(tensor.name for _, tensor in leaving),
                span=(first, last),
                replica=replicas[index] if replicas else 0,
            )
        )
    medians = sum(segment.median_ns for segment in segments if not segment.replica)
    return PlannedModel(
        name=name,
        role="priority" if priority else "background",
        level=level,
        reasons=tuple(reasons),
        duration_ns=longest_replica_ns(segments),
        segments=tuple(segments),
        slots=slots,
        after=tuple(after),
        turns=turns[0],
        replica_turns=tuple(turns) if len(set(turns)) > 1 else (),
        whole_ns=medians if len(segments) == 1 or uncut_ns is None else uncut_ns,
        segmentation_overhead_ratio=medians / max(float(np.median(whole_ns)), 1) - 1 if len(segments) > 1 else 0.0,
    )


HOST = "host"


def instructions(timetable: Timetable) -> dict[str, tuple[Instruction, ...]]:
    """What each unit loads, runs and stores in one repetition of a timetable, in order.

    A segment's inputs are loaded where they come from elsewhere: from the host, from the unit of the segment before,
    or from that of a model whose outputs it reads. Between two segments on one unit tensors stay where they are.
    Outputs go to the host, and to the units of what reads them. The unit that has made a tensor stores it into
    the frame's copy, the one that needs it fetches it from there.

    Args:
        timetable: feasible; a launch that priority periods interrupt is one instruction.
    """
    models = {model.name: model for model in timetable.models}
    begun: dict[tuple[str, int], list[int]] = {}  # frames of each replica, in order
    lists: dict[str, list[Instruction]] = {unit: [] for unit in timetable.units}
    parts: dict[tuple[str, int, int], list[tuple[int, Slot]]] = {}
    for window in timetable.windows:
        for slot in window.slots:
            parts.setdefault((slot.model, slot.frame, slot.segment), []).append((window.index, slot))
    for launch in sorted(parts.values(), key=lambda launch: (launch[0][0], launch[0][1].start_ns)):
        index, slot = launch[0]
        model = models[slot.model]
        replica = model.segments[slot.segment].replica
        frames = begun.setdefault((slot.model, replica), [])
        if slot.frame not in frames:
            frames.append(slot.frame)
        number = frames.index(slot.frame) if len(model.replicas) > 1 else slot.frame
        lists[slot.unit] += _of_launch(models, model, index, slot, number % model.slots)
    return {unit: tuple(steps) for unit, steps in lists.items()}


def _of_launch(
    models: dict[str, PlannedModel], model: PlannedModel, window: int, slot: Slot, copy: int
) -> Iterator[Instruction]:
    """Fetch what is elsewhere, run, hand on what is needed elsewhere."""
    segment = model.segments[slot.segment]
    for source, tensors in _inputs(models, model, segment):
        yield _step("load", window, slot, copy, tensors, source, slot.unit)
    yield _step("run", window, slot, copy, (), slot.unit, slot.unit)
    following = model.segments[slot.segment + 1 : slot.segment + 2]
    if following and following[0].replica == segment.replica:
        if following[0].unit != slot.unit:
            yield _step("store", window, slot, copy, segment.tensors, slot.unit, following[0].unit)
        return
    readers = [one.segments[0].unit for one in models.values() if model.name in one.after]
    for target in [HOST, *dict.fromkeys(unit for unit in readers if unit != slot.unit)]:
        yield _step("store", window, slot, copy, segment.tensors, slot.unit, target)


def _inputs(
    models: dict[str, PlannedModel], model: PlannedModel, segment: Segment
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """From where which tensors have to be fetched."""
    before = model.segments[segment.index - 1] if segment.index else segment
    if segment.index and before.replica == segment.replica:
        if before.unit != segment.unit:
            yield before.unit, before.tensors
        return
    if not model.after:
        yield HOST, ()
    for last in itertools.chain.from_iterable(models[name].segments[-1:] for name in model.after):
        if last.unit != segment.unit:
            yield last.unit, last.tensors


def _step(
    kind: Literal["load", "run", "store"],
    window: int,
    slot: Slot,
    copy: int,
    tensors: tuple[str, ...],
    source: str,
    target: str,
) -> Instruction:
    return Instruction(
        unit=slot.unit,
        kind=kind,
        window=window,
        start_ns=slot.start_ns,
        model=slot.model,
        segment=slot.segment,
        frame=slot.frame,
        copy=copy,
        tensors=tensors,
        source=source,
        target=target,
    )
