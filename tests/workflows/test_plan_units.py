"""Plans on several units: of described targets, and of this machine's cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framefit.core.model import GraphBuilder
from framefit.core.timetable import Timetable
from framefit.devices.device import Completion
from framefit.devices.host import available_cores
from framefit.devices.measure import Measurement
from framefit.errors import InputError
from framefit.execution.unit_support import usable_units
from framefit.planning.check import check_timetable
from framefit.planning.plan import Plan
from framefit.workflows.plan import plan
from workloads import no_noise, write_app, write_models, write_target

TWO = ('name = "a"', 'name = "b"\ncore = 1')
LINK = '[[links]]\nbetween = ["a", "b"]\nlatency_ns = 20_000\nbandwidth_gbps = 0.5\n'
Board = Callable[..., Plan]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Plans of ``small`` and ``chain`` (0.03 ms and 18 ms) on a board with these units."""
    write_models(tmp_path)

    def planned(units: Sequence[str] = TWO, *, links: str = "", target: str = "", **app: object) -> Plan:
        path = write_target(tmp_path, "units.toml", units=units, **({"processor": target} if target else {}))
        path.write_text(path.read_text() + links)
        keys: dict[str, object] = {"rate_hz": 100, "guard_ms": None, "schedule": ""}
        return plan(write_app(tmp_path, target="units.toml", **(keys | app)))  # type: ignore[arg-type]

    return planned


def stages(timetable: Timetable, model: str) -> list[str]:
    """Units that a model passes, in order."""
    return [stage[0].unit for stage in timetable.model(model).stages]


def throughput(timetable: Timetable, model: str) -> float:
    """Launches a window."""
    return timetable.launches_of(model) / timetable.hyperperiod_windows


def test_two_units_serve_what_one_cannot(board: Board) -> None:
    """The chain takes almost two windows: one unit serves half of its frames, two serve 1.6 times as many at least."""
    one = board(TWO[:1]).timetable
    two = board().timetable
    assert one.feasible
    assert two.feasible
    assert set(stages(two, "chain")) == {"a", "b"} == set(two.units)
    assert throughput(two, "chain") >= 1.6 * throughput(one, "chain")
    assert two.model("chain").slots >= len(stages(two, "chain"))
    assert 0 <= two.model("chain").max_relative_difference <= 1e-4
    assert two.bound is not None
    assert two.gap_ratio is not None
    assert any("least-served model" in reason for reason in two.reasons)
    assert check_timetable(two) == []


def test_the_executions_are_those_of_the_plan(board: Board) -> None:
    """Each segment is compiled for its unit, with as many frames in flight as planned."""
    result = board()
    for compiled, model in zip(result.opened().models, result.timetable.models, strict=True):
        assert compiled.planned == model
        assert compiled.execution.units == tuple(segment.unit for segment in model.segments)
        assert compiled.execution.bounds == model.spans
        assert compiled.execution.slots == model.slots
        assert len(compiled.whole.parts) == 1


def test_memory_is_given_by_unit(board: Board) -> None:
    """What executions allocate, on the unit where it lies: what crosses once for each frame in flight."""
    result = board(links=LINK, rate_hz=90)
    timetable, needed = result.timetable, dict.fromkeys(("a", "b"), 0)
    (link,) = timetable.links
    assert set(link.between) == {"a", "b"}
    for compiled in result.opened().models:
        for unit, count in compiled.execution.unit_bytes.items():
            needed[unit] += count
    assert timetable.memory_bytes == needed
    crossing = [s.boundary_bytes for s in timetable.model("chain").segments]
    assert min(needed.values()) >= min(crossing[:-1]) * timetable.model("chain").slots


def test_a_unit_with_too_little_memory(board: Board) -> None:
    """Tensors that do not fit are named with their unit; on a larger one the same workload fits."""
    small = ('name = "a"\nmemory_mib = 0.02', 'name = "b"\ncore = 1\nmemory_mib = 0.02')
    timetable = board(small).timetable
    assert not timetable.feasible
    assert "unit" in (timetable.binding_constraint or "")
    one_large = ('name = "a"\nmemory_mib = 0.02', 'name = "b"\ncore = 1\nmemory_mib = 4')
    timetable = board(one_large).timetable
    assert timetable.feasible
    assert timetable.memory_bytes.get("a", 0) <= 0.02 * 2**20
    assert "b" in stages(timetable, "chain")


def test_three_units_of_different_speed(board: Board) -> None:
    """Where one unit is twice as fast as the others the model has more of its layers there, and each launch fits."""
    units = (*TWO, 'name = "c"\ncore = 2\nspeed_ratio = 2.0')
    timetable = board(units, rate_hz=120).timetable
    assert timetable.feasible
    assert check_timetable(timetable) == []
    assert "c" in stages(timetable, "chain")
    assert timetable.model("chain").duration_ns < 18_000_000


def test_an_operator_that_one_unit_lacks_runs_on_the_other(board: Board) -> None:
    """The pooling at the end goes to the slow unit that has it; the difference is that of any cut."""
    units = ('name = "a"\nunsupported = ["GlobalAveragePool"]', 'name = "b"\ncore = 1\nspeed_ratio = 0.2')
    result = board(units, rate_hz=30)
    timetable = result.timetable
    assert timetable.feasible
    assert stages(timetable, "chain") == ["a", "b"]
    assert timetable.model("chain").segments[-1].first_layer.startswith("GlobalAveragePool")
    assert timetable.model("chain").max_relative_difference <= 1e-4
    assert timetable.model("chain").segmentation_overhead_ratio == pytest.approx(0, abs=0.01)
    assert stages(timetable, "small") == ["b"]


def test_where_no_unit_has_a_whole_model_its_parts_are_compared(board: Board) -> None:
    """Neither unit supports all of the chain: the uncut model is two parts."""
    units = ('name = "a"\nunsupported = ["GlobalAveragePool"]', 'name = "b"\ncore = 1\nunsupported = ["Resize"]')
    result = board(units, rate_hz=30)
    assert result.timetable.feasible
    chain = next(model for model in result.opened().models if model.name == "chain")
    assert chain.home == ""
    assert len(chain.whole.parts) == 2
    assert stages(result.timetable, "chain") == ["a", "b"]


def test_units_of_a_model_are_obeyed(board: Board) -> None:
    """``units`` restricts each model; where all name the same one, it is planned as if there were no other."""
    apart = board(model='units = ["b"]', last='units = ["a"]', rate_hz=50).timetable
    assert stages(apart, "small") == ["b"]
    assert stages(apart, "chain") == ["a"]
    together = board(model='units = ["b"]', last='units = ["b"]', rate_hz=50).timetable
    alone = board(('name = "b"\ncore = 1',), rate_hz=50).timetable
    assert together.units == ("b",)
    assert together.models == alone.models
    assert together.windows == alone.windows


def test_units_that_are_not_there(board: Board) -> None:
    """The nearest name is told, and an empty list is none."""
    with pytest.raises(InputError, match=r"no unit 'bb'; did you mean 'b'\?") as error:
        board(last='units = ["bb"]')
    assert str(error.value.where).endswith("$.models[1].units")
    with pytest.raises(InputError, match="names no unit"):
        board(last="units = []")


def test_an_operator_that_no_allowed_unit_supports(board: Board) -> None:
    """The other unit has it, but the model may not go there."""
    units = ('name = "a"\nunsupported = ["GlobalAveragePool"]', 'name = "b"\ncore = 1')
    with pytest.raises(InputError, match="'a' lacks GlobalAveragePool") as error:
        board(units, last='units = ["a"]')
    assert "model 'chain'" in str(error.value.where)


def test_infeasible_with_verified_fixes(board: Board) -> None:
    """A deadline that the slow unit misses: named, and what helps is a later one, or leave to use the fast unit."""
    units = ('name = "a"', 'name = "b"\ncore = 1\nspeed_ratio = 0.5')
    bad = {"last": 'units = ["b"]\ndeadline_ms = 30', "rate_hz": 20}
    timetable = board(units, **bad).timetable
    assert not timetable.feasible
    assert "'chain'" in (timetable.binding_constraint or "")
    assert timetable.fixes
    assert all(fix.verified for fix in timetable.fixes)
    assert any(fix.change == "no units for 'chain'" for fix in timetable.fixes)
    assert board(units, last="deadline_ms = 30", rate_hz=20).timetable.feasible


def test_models_that_read_others(board: Board, tmp_path: Path) -> None:
    """A reader follows its source on another unit, over the link, with what it is given counted."""
    b = GraphBuilder("reader", 3)
    b.output(b.op("Relu", b.input("given", (1, 24, 1, 1))), "read")
    b.build().save(tmp_path / "reader.onnx")
    reader = (
        '[[models]]\nname = "reader"\npath = "reader.onnx"\npriority = "background"\nunits = ["b"]\n'
        'inputs = { given = "chain.pooled" }\n'
    )
    timetable = board(links=LINK, last='units = ["a"]', more=reader, rate_hz=40).timetable
    assert timetable.feasible
    assert timetable.model("reader").after == ("chain",)
    assert timetable.model("chain").segments[-1].boundary_bytes == 24 * 4
    ages = {model.name: model.result_age_windows for model in timetable.models}
    assert ages["reader"] >= ages["chain"]
    slots = [(window.index * 25e6, slot) for window in timetable.windows for slot in window.slots]
    done = {slot.frame: begin + slot.start_ns + slot.duration_ns for begin, slot in slots if slot.model == "chain"}
    readers = [(begin, slot) for begin, slot in slots if slot.model == "reader"]
    assert readers
    assert all(begin + slot.start_ns >= done[slot.frame] + 20_000 for begin, slot in readers)


def test_every_unit_has_its_list_of_instructions(board: Board) -> None:
    """Each launch of the timetable is run once, by the unit that has it."""
    result = board()
    runs = {unit: [step for step in steps if step.kind == "run"] for unit, steps in result.instructions.items()}
    assert set(runs) == set(result.timetable.units)
    launches = [slot for window in result.timetable.windows for slot in window.slots]
    assert sum(map(len, runs.values())) == len(launches)
    assert all(step.unit == unit for unit, steps in runs.items() for step in steps)


def test_other_conditions_are_planned_with_the_same_prices(board: Board, tmp_path: Path) -> None:
    """Priority or background models that take longer: durations in that proportion, nothing else."""
    app = tmp_path / "app.toml"
    board(rate_hz=30)
    now, slower = plan(app).timetable, plan(app, priority_ratio=1.5, background_ratio=1.2).timetable
    assert slower.model("small").duration_ns == pytest.approx(1.5 * now.model("small").duration_ns, abs=2)
    assert slower.model("chain").duration_ns == pytest.approx(1.2 * now.model("chain").duration_ns, rel=0.02)
    assert [model.level for model in slower.models] == [model.level for model in now.models]


needs_two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="this process may use one core only")


@needs_two_cores
def test_two_cores_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``cores`` gives one unit a core; a model longer than the window is spread over both, and its outputs agree."""
    no_noise(monkeypatch)
    write_models(tmp_path)
    first, second = available_cores()[:2]
    app = write_app(tmp_path, rate_hz=400, guard_ms=0.1)
    app.write_text(app.read_text().replace("rate_hz", f"cores = [{first}, {second}]\nrate_hz", 1))
    result = plan(app)
    timetable = result.timetable
    assert timetable.feasible
    assert set(timetable.units) <= {f"cpu{first}", f"cpu{second}"}
    assert len(set(stages(timetable, "chain"))) == 2
    assert timetable.model("chain").max_relative_difference <= 1e-4
    assert result.device.host_core == first
    assert check_timetable(timetable) == []
    app.write_text(app.read_text().replace(f"cores = [{first}, {second}]", f"cores = [{first}, {first}]"))
    with pytest.raises(InputError, match="names a core twice"):
        plan(app)


@needs_two_cores
def test_cores_of_differing_speed_are_measured_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of one kind are not taken to be alike: each model is measured on each of them.

    Named ``[[units]]`` are those that models and timetables name.
    """
    measure = no_noise(monkeypatch)
    asked = set()

    def by_unit(launches: Sequence[Callable[[], Completion]], **limits: Any) -> list[Measurement]:
        found = []
        for launch, measured in zip(launches, measure(launches, **limits), strict=True):
            execution, index = getattr(launch, "__defaults__")  # noqa: B009 - of a lambda
            asked.add(execution.units[index])
            slower = 3 if execution.units[index] == "little" else 1
            found.append(Measurement(measured.samples_ns * slower))
        return found

    monkeypatch.setattr("framefit.planning.durations.measure", by_unit)
    write_models(tmp_path)
    first, second = available_cores()[:2]
    units = "".join(f'[[units]]\nname = "{n}"\ncores = [{c}]\n' for n, c in (("little", first), ("big", second)))
    app = write_app(tmp_path, rate_hz=25, guard_ms=0.1, more=units)
    fast = plan(app, cache=False).timetable
    assert asked == {"little", "big"}
    assert {segment.unit for model in fast.models for segment in model.segments} == {"big"}
    write_app(tmp_path, rate_hz=25, guard_ms=0.1, more=units, model='units = ["little"]')
    slow = plan(app, cache=False).timetable
    assert slow.model("small").segments[0].unit == "little"
    assert slow.model("small").duration_ns == pytest.approx(3 * fast.model("small").duration_ns, rel=0.1)


@needs_two_cores
@pytest.mark.parametrize("same", [False, True])
def test_units_that_are_said_to_be_the_same_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Whole models are launched on one of them; the plan uses both."""
    measure = no_noise(monkeypatch)
    asked: dict[tuple[str, ...], list[str]] = {}

    def noted(launches: Sequence[Callable[[], Completion]], **limits: Any) -> list[Measurement]:
        taken = [getattr(launch, "__defaults__") for launch in launches]  # noqa: B009 - of lambdas
        campaign = tuple(execution.parts[index].digest for execution, index in taken)
        asked.setdefault(campaign, []).append(taken[0][0].units[taken[0][1]])
        return measure(launches, **limits)

    monkeypatch.setattr("framefit.planning.durations.measure", noted)
    write_models(tmp_path)
    first, second = available_cores()[:2]
    more = f'[[units]]\nname = "a"\ncores = [{first}]\n[[units]]\nname = "b"\ncores = [{second}]\n'
    app = write_app(
        tmp_path, rate_hz=150, guard_ms=0.1, background=["chain1", "chain2"], more=more + 'same_as = "a"' * same
    )
    timetable = plan(app, cache=False).timetable
    assert {segment.unit for model in timetable.models for segment in model.segments} == {"a", "b"}
    whole_models = next(iter(asked))
    assert asked[whole_models] == (["a"] if same else ["a", "b"])


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1))
def test_every_feasible_plan_passes_the_check(board: Board, seed: int) -> None:
    """Any two or three units, with links, missing operators and restrictions: checked, or what binds is named."""
    random = np.random.default_rng(seed)
    names = ["a", "b", "c"][: int(random.integers(2, 4))]
    units = [
        f'name = "{name}"\ncore = {number}\nspeed_ratio = {random.choice([0.5, 1.0, 2.0])}'
        + ('\nunsupported = ["GlobalAveragePool"]' if number and random.random() < 0.3 else "")
        for number, name in enumerate(names)
    ]
    links = LINK if random.random() < 0.5 else ""
    restricted = f'units = ["{random.choice(names[:1])}"]' if random.random() < 0.3 else ""
    result = board(units, links=links, model=restricted, rate_hz=int(random.choice([25, 60, 110])))
    timetable = result.timetable
    if not timetable.feasible:
        assert timetable.binding_constraint
        return
    assert check_timetable(timetable) == []
    assert [wired.entry.name for wired in result.wired] == [model.name for model in timetable.models]
    assert usable_units(result.workload, result.device, result.app) == names
