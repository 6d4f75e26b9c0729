"""Several units change their timetable with the same window, and nothing is lost or late."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice, ListSink, NumberStream
from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.devices.clock import RealClock
from framefit.execution.execution import Execution
from framefit.runtime.channel import FrameChannel, Port, unit_mailboxes
from framefit.runtime.job import Job, Part, stage_jobs
from framefit.runtime.log import FrameOutcome, LaunchLog
from framefit.runtime.switching import Drift, Ladder, Rung, Share, TimetableSwitcher
from framefit.runtime.units import UnitAssignment, UnitGroup
from unit_groups import MS, fates, network

GUARD_NS = MS // 2
LAYERS = 6
PRIORITY = ("face", "eyes")
DURATIONS = {"face": 2 * MS, "eyes": MS, "big@finest.0": MS // 10 * 3, "big@finest.1": MS // 10 * 3}
Bounds = tuple[tuple[int, int], ...]
Due = list[list[tuple[int, int]]]


def rung(rate_hz: float, *due: Due, name: str = "") -> Rung:
    """A timetable of which only its instants count."""
    return Rung(Grid(rate_hz), [Share(one, 0, ()) for one in due], name=name)


# What units agree on


def test_whichever_unit_comes_first_decides_for_all() -> None:
    """What is asked for after a unit has begun a window is in force from the next one on."""
    one, other = rung(100.0, [[]], [[]]), rung(50.0, [[]], [[]])
    switcher = TimetableSwitcher(one)
    switcher.begin(0)
    assert switcher.come_to(0, begins=True).rung is one
    switcher.turn(lambda _: other)
    assert switcher.come_to(0, begins=True).rung is one  # the second unit
    assert switcher.come_to(1, begins=False).rung is other
    switcher.turn(lambda _: one)
    assert switcher.come_to(1, begins=True).rung is one  # nobody had begun it
    switcher.turn(lambda _: other)
    assert switcher.come_to(1, begins=True).rung is one
    assert switcher.come_to(2, begins=True).rung is other
    assert switcher.stretch(1).rung is one
    assert switcher.release(3) - switcher.release(2) == 20 * MS


def test_of_several_for_one_window_the_last_one_counts() -> None:
    """And where that is in force already, nothing changes."""
    one, other = rung(100.0, [[]]), rung(50.0, [[]])
    switcher = TimetableSwitcher(one)
    switcher.turn(lambda _: other, 3)
    switcher.turn(lambda _: one, 3)
    assert switcher.come_to(3, begins=True).rung is one
    assert len(switcher.stretches) == 1
    assert not switcher.unsettled


def test_units_repeat_their_windows_together() -> None:
    """Else it would not be the same window in which all models have had their turn."""
    with pytest.raises(ValueError, match="the same number of windows"):
        rung(100.0, [[]], [[], []])


def test_what_may_be_reserved_first_is_known_ahead() -> None:
    """A segment may last into the next window until what any timetable that may be in force then reserves there."""
    late, soon = rung(100.0, [[(5 * MS, 0)], []], [[], []]), rung(100.0, [[(3 * MS, 0)]], [[]])
    switcher = TimetableSwitcher(late)
    assert switcher.earliest_ns == [5 * MS, 0]  # its own instants count
    assert switcher.expect([late])
    assert switcher.earliest_ns == [0, 0]
    switcher = TimetableSwitcher(soon)
    assert not switcher.expect([soon, rung(50.0, [[(4 * MS, 0)]], [[]])])
    assert switcher.earliest_ns == [3 * MS, 0]


# Frames in flight while it changes


@dataclass
class Way:
    """A timetable of a test: windows a second, a cut of the background model, its slots and turns, and an instant."""

    rate_hz: int
    bounds: Bounds
    slots: int
    eyes_ns: int


@dataclass
class Plan:
    """A background model over several units, its timetables, and from which windows on which is asked for."""

    layers: list[int]
    stages: list[tuple[int, int]]  # unit and first layer
    ways: list[Way]
    asked: list[tuple[int, int]]
    units: int
    longest: dict[str, int] = field(default_factory=lambda: {"face": 2 * MS, "eyes": MS})


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Two or three units; the first layers of the background model are on one, what follows on others."""
    units = draw(st.integers(2, 3))
    borders = draw(st.lists(st.integers(1, LAYERS - 1), min_size=1, max_size=2, unique=True))
    first = draw(st.integers(0, units - 1))
    stages = [((first + number) % units, layer) for number, layer in enumerate([0, *sorted(borders)])]
    layers = draw(st.lists(st.integers(MS // 20, 2 * MS), min_size=LAYERS, max_size=LAYERS))
    ways = []
    for _ in range(draw(st.integers(2, 4))):
        rate = draw(st.sampled_from([50, 100, 200]))
        cuts = draw(st.sets(st.integers(1, LAYERS - 1))) | {layer for _, layer in stages}
        edges = sorted({0, *cuts, LAYERS})
        bounds = tuple((begin, end - 1) for begin, end in itertools.pairwise(edges))
        ways.append(Way(rate, bounds, draw(st.integers(1, 3)), draw(st.sampled_from([0, MS, 2 * MS]))))
    asked = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, len(ways) - 1)), min_size=1, max_size=12))
    return Plan(layers, stages, ways, sorted(asked), units)


def made(
    plan: Plan, device: FakeDevice, climb: Callable[[list[Rung]], tuple[TimetableSwitcher, Ladder]] | None = None
) -> tuple[UnitGroup, list[Rung], ListSink]:
    """Priority models "face" and "eyes" on the first two units, and the background model in stages over all."""
    names = [unit.name for unit in device.target.units]
    sink = ListSink()
    executions, first_programs = cut(plan, device, names)
    bridges, own = executions[-1].stages(), [one.stages() for one in executions[:-1]]
    small = [Execution(network(1), [(0, 0)], device, names[unit], name=name) for unit, name in enumerate(PRIORITY)]
    jobs: list[list[Job]] = [[] for _ in names]
    for unit, execution in enumerate(small):
        jobs[unit].append(job(execution, unit, [plan.longest[PRIORITY[unit]]], unit, priority=True))
    slots = max(way.slots for way in plan.ways)
    estimates = [sum(plan.layers[a : b + 1]) for a, b in executions[0].bounds]
    whole = job(executions[0], first_programs[0], estimates, 2, sink=sink)
    mailboxes = unit_mailboxes(device.clock, names)
    used = [*range(len(PRIORITY)), *(unit for unit, _ in plan.stages)]
    ports = [
        Port(names[unit], mailboxes[names[unit]], used[:place].count(unit))
        for place, unit in enumerate(used[len(PRIORITY) :], len(PRIORITY))
    ]
    big = stage_jobs(whole, own[0], slots, [16] * len(plan.stages), device, ports)
    for (unit, _), stage in zip(plan.stages, big, strict=True):
        jobs[unit].append(stage)
    rungs = []
    for number, way in enumerate(plan.ways):
        shares = []
        for unit, mine in enumerate(jobs):
            parts = []
            for one in mine:
                if one.priority:
                    deadline_ns = 10**9 // way.rate_hz
                    parts.append(Part(one.execution, one.first_program, one.estimates_ns, deadline_ns))
                    continue
                stage = one.position
                finest = part(plan, bridges[stage], first_programs[-1], executions[-1].bounds, way.slots)
                parts.append(part(plan, own[number][stage], first_programs[number], way.bounds, way.slots, finest))
            due = [(0 if not unit else way.eyes_ns, 0)] if unit < len(PRIORITY) else []
            turns = [1 + number] * sum(not one.priority for one in mine)
            shares.append(Share([due], GUARD_NS, parts, turns))
        rungs.append(Rung(Grid(float(way.rate_hz)), shares, name=str(number), number=number))
    assignments = {
        name: UnitAssignment(
            mine, Rotation(sum(not one.priority for one in mine)), rungs[0].shares[unit].reserved, GUARD_NS
        )
        for unit, (name, mine) in enumerate(zip(names, jobs, strict=True))
    }
    switcher, ladder = (None, None) if climb is None else climb(rungs)
    observers = {} if ladder is None else dict(zip(names, ladder.observers, strict=True))
    group = UnitGroup(
        device,
        device.clock,
        assignments,
        rungs[0].grid,
        mailboxes=mailboxes,
        switcher=switcher,
        launch_observers=observers,
    )
    return group, rungs, sink


def cut(plan: Plan, device: FakeDevice, names: Sequence[str]) -> tuple[list[Execution], list[int]]:
    """The background model in all ways and wherever any of them cuts it, with the numbers of their first programs."""
    begins = sorted({first for way in plan.ways for first, _ in way.bounds})
    finest = [(begin, end - 1) for begin, end in itertools.pairwise([*begins, LAYERS])]
    place = {first: number for number, first in enumerate([*begins, LAYERS])}
    together = [(place[first], place[last + 1] - 1) for way in plan.ways for first, last in way.bounds]
    units = [names[[unit for unit, layer in plan.stages if layer <= first][-1]] for first, _ in finest]
    slots = max(way.slots for way in plan.ways)
    whole = Execution(network(LAYERS), finest, device, units, name="big@finest", together=together, slots=slots)
    found = [*(whole.recut(way.bounds, f"big@{number}") for number, way in enumerate(plan.ways)), whole]
    programs = [2, *itertools.accumulate((len(one.bounds) for one in found), initial=2)][1:]
    for one in found:
        for label, (first, last) in zip(one.labels, one.bounds, strict=True):
            plan.longest[label] = sum(plan.layers[first : last + 1])
    return found, programs


def part(
    plan: Plan, stage: Execution, first_program: int, bounds: Bounds, slots: int, finest: Part | None = None
) -> Part:
    """A stage's part, in one of the cuts."""
    before = sum(first < stage.bounds[0][0] for first, _ in bounds)
    estimates = [sum(plan.layers[first : last + 1]) for first, last in stage.bounds]
    begins = [first for first, _ in stage.bounds]
    return Part(stage, first_program + before, estimates, None, begins, finest, slots)


def job(
    execution: Execution,
    program: int,
    estimates_ns: Sequence[int],
    model: int,
    *,
    priority: bool = False,
    sink: ListSink | None = None,
) -> Job:
    """A whole model's."""
    return Job(
        execution=execution,
        first_program=program,
        priority=priority,
        estimates_ns=estimates_ns,
        deadline_ns=None,
        sources={name: NumberStream() for name in ("x", "number")},
        input=FrameChannel(2),
        sinks=[(sink or ListSink(), ["number"])],
        model=model,
        begins=[first for first, _ in execution.bounds],
    )


def assert_sound(
    plan: Plan, group: UnitGroup, rungs: Sequence[Rung], sink: ListSink, windows: int
) -> dict[int, FrameOutcome]:
    """Every frame one fate; every layer of a frame that is done once, in order; outputs in order and right."""
    for model in range(3):
        assert sorted(fates(group, model)) == list(range(windows))
    bounds = {
        part.first_program + number: own
        for rung in rungs
        for share in rung.shares
        for one in share.parts
        for part in (one, one.finest)
        if part is not None and isinstance(part.execution, Execution) and part.first_program >= len(PRIORITY)
        for number, own in enumerate(part.execution.bounds)
    }
    walked: dict[int, list[tuple[int, int]]] = {}
    for row in group.launches.rows().tolist():
        if row[LaunchLog.PROGRAM] in bounds:
            walked.setdefault(row[LaunchLog.FRAME], []).append(bounds[row[LaunchLog.PROGRAM]])
    found = fates(group, 2)
    done = sorted(frame for frame, fate in found.items() if fate == FrameOutcome.DONE)
    for frame in done:
        assert [layer for first, last in walked[frame] for layer in range(first, last + 1)] == list(range(LAYERS))
    assert [frame for frame, _ in sink.taken] == done
    assert all(outputs["number"] == [frame] for frame, outputs in sink.taken)
    return found


@settings(max_examples=50, deadline=None)
@given(plans(), st.integers(0, 2**32 - 1))
def test_nothing_is_lost_or_late_over_changes_of_all_units(plan: Plan, seed: int) -> None:
    """Whatever changes when: priority models begin at their instants on every unit, and frames go on where they are."""
    random = np.random.default_rng(seed)

    def lasts(label: str, _: int) -> int:
        longest = plan.longest[label]
        return longest if random.random() < 0.7 else int(random.integers(1, longest + 1))

    device = FakeDevice(lasts, units=plan.units)
    group, rungs, sink = made(plan, device)
    switcher = group.switcher
    switcher.start_under(rungs[0])
    switcher.expect(rungs)
    for window, number in plan.asked:
        switcher.turn(lambda _, rung=rungs[number]: rung, window)  # type: ignore[misc]
    group.run(50)
    assert_sound(plan, group, rungs, sink, 50)
    in_force = [plan.ways[group.stretch(window).rung.number] for window in range(50)]
    releases = [group.release(window) for window in range(51)]
    assert [b - a for a, b in itertools.pairwise(releases)] == [10**9 // way.rate_hz for way in in_force]
    last = dict(plan.asked)  # of those for one window the last one counts
    assert group.stretches[-1].rung.number == last[max(last)]
    for model, name in enumerate(PRIORITY):
        assert set(fates(group, model).values()) == {FrameOutcome.DONE}
        instants = [at + (way.eyes_ns if model else 0) for at, way in zip(releases, in_force, strict=False)]
        assert [started for label, started, _ in device.launches if label == name] == instants
        unit = device.target.units[model].name
        for label, started, _ in device.launches:
            if label not in PRIORITY and unit_of(plan, label, group) == unit:
                upcoming = next((at for at in instants if at > started), None)
                assert upcoming is None or started + plan.longest[label] + GUARD_NS <= upcoming


def test_no_segment_lasts_into_what_the_next_timetable_reserves() -> None:
    """Under the first one a full unit may go on for 2 ms after a release, under the second one it is reserved then."""
    each = tuple((layer, layer) for layer in range(LAYERS))
    ways = [Way(100, each, 3, 2 * MS), Way(200, each, 3, 0)]
    plan = Plan([int(1.8 * MS)] * LAYERS, [(0, 0), (1, 1)], ways, [], 2)
    device = FakeDevice(lambda label, _: plan.longest[label], units=2)
    group, rungs, _ = made(plan, device)
    group.switcher.start_under(rungs[0])
    group.switcher.expect(rungs)
    group.switcher.turn(lambda _: rungs[1], 5)
    group.run(8)
    eyes = [started for label, started, _ in device.launches if label == "eyes"]
    assert [at - group.release(window) for window, at in enumerate(eyes)] == [2 * MS] * 5 + [0] * 3


def unit_of(plan: Plan, label: str, group: UnitGroup) -> str:
    """Where a segment runs."""
    return next(
        unit
        for unit, dispatcher in group.dispatchers.items()
        for share in [stretch.rung.shares[dispatcher._place] for stretch in group.stretches]
        for one in share.parts
        for part in (one, one.finest)
        if part is not None and label in part.execution.labels
    )


@pytest.mark.timed
@settings(max_examples=4, deadline=None)
@given(plans(), st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_threads_that_change_rungs_at_any_time(plan: Plan, asked: list[int]) -> None:
    """In real time each unit has a thread, and another one asks: all of them change with the same windows."""
    device = FakeDevice(lambda label, _: plan.longest[label] // 4, units=plan.units, clock=RealClock(), on_host=False)
    group, rungs, sink = made(plan, device)
    group.switcher.start_under(rungs[0])
    group.switcher.expect(rungs)
    left = iter(asked)

    def ask(_: int) -> None:
        number = next(left, None)
        if number is not None:
            group.switcher.turn(lambda _: rungs[number % len(rungs)])

    group.run(40, on_idle=ask)
    found = assert_sound(plan, group, rungs, sink, 40)
    assert FrameOutcome.DONE in found.values()
    edges = [stretch.window for stretch in group.stretches]
    assert edges == sorted(edges)


# A ladder over several units


def test_the_unit_that_drifts_most_decides_for_all() -> None:
    """One unit's priority model slows down: the rung that covers it comes into force on both, and goes again."""
    device = FakeDevice(
        lambda label, number: int((1.45 if label == "eyes" and 400 <= number < 800 else 0.9) * DURATIONS[label]),
        units=2,
    )
    plan = Plan([MS // 10] * LAYERS, [(0, 0), (1, 3)], [Way(100, ((0, 2), (3, 5)), 2, 0)] * 3, [], 2)
    covered = [(1.0, 1.0), (1.2, 1.0), (1.5, 1.0)]
    big = dict.fromkeys(range(2, 10), MS // 10 * 3)

    def climb(rungs: list[Rung]) -> tuple[TimetableSwitcher, Ladder]:
        track = [
            Rung(one.grid, one.shares, covers=covers, name=str(covers[0]))
            for one, covers in zip(rungs, covered, strict=True)
        ]
        switcher = TimetableSwitcher(track[0])
        return switcher, Ladder(switcher, [track], [Drift({0: 2 * MS}, big), Drift({1: MS}, big)])

    group, _, _ = made(plan, device, climb)
    group.run(500)
    names = [stretch.rung.name for stretch in group.stretches]
    assert names == ["1.0", "1.5", "1.0"]
    assert 100 <= group.stretches[1].window <= 100 + 16
    assert group.stretches[2].window >= 200 + 32
    assert group.stretches[1].why.startswith("launches take 1.45 x")
    assert set(fates(group, 1).values()) == {FrameOutcome.DONE}
