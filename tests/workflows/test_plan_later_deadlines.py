"""Priority models that take every n-th frame, and need not be done when the next window begins.

What is planned is held against an exhaustive search that knows nothing of the planner: on one unit, with launches that
nothing interrupts, some order of all frames meets every deadline, or none does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import framefit

MS = 1_000_000
WINDOW_MS = 40
MARGIN = 1.005  # times what launches take, below and above: rounding decides nothing
TARGET = """\
name = "board"
kind = "npu"
[cost]
source = "function"
function = "prices:price"
[variation]
sigma_ratio = 0.0
most_ratio = 0.0
"""


class Demand(NamedTuple):
    """A model: what it takes, windows between its frames, when they are due, and its layers, which are alike."""

    ms: float
    every: int
    due_ms: float
    layers: int = 1


def fits(models: Sequence[Demand], slower: float = 1.0) -> bool:
    """Whether some order meets all deadlines; each launch begins as soon as it can in it."""
    hyperperiod = math.lcm(*(model.every for model in models))
    frames = [
        (window * WINDOW_MS, window * WINDOW_MS + model.due_ms, model.ms * slower)
        for model in models
        for window in range(0, hyperperiod, model.every)
    ]
    for order in itertools.permutations(frames):
        now = 0.0
        for release, due, takes in order:
            now = max(now, release) + takes
            if now > due:
                break
        else:
            return True
    return False


def app_of(folder: Path, models: Sequence[Demand], units: int = 1) -> Path:
    """A workload of one camera, with models whose layers take what their names say."""
    (folder / "prices.py").write_text("def price(layer, unit, target):\n    return float(layer.name.split('_')[1])\n")
    named = "".join(f'[[units]]\nname = "unit{number}"\n' for number in range(units))
    (folder / "target.toml").write_text(TARGET + named)
    text = f'target = "target.toml"\nrate_hz = {1e3 / WINDOW_MS:g}\n'
    for number, (ms, every, due_ms, layers) in enumerate(models):
        tensors = ["x", *(f"t{layer}" for layer in range(1, layers)), "y"]
        nodes = [
            helper.make_node("MatMul", [source, "w"], [target], name=f"ns_{round(ms * MS / layers)}_{target}")
            for source, target in itertools.pairwise(tensors)
        ]
        ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])] for name in ("x", "y")]
        weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
        graph = helper.make_graph(nodes, "chain", *ends, weights)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / f"model{number}.onnx")
        text += f'[[models]]\nname = "model{number}"\npath = "model{number}.onnx"\npriority = "every-window"\n'
        text += f"every = {every}\ndeadline_ms = {due_ms:g}\n"
    (folder / "app.toml").write_text(text)
    return folder / "app.toml"


def drawn(seed: int) -> list[Demand]:
    """Two or three models, at most six frames until they repeat."""
    random = np.random.default_rng(seed)
    everys = ((1, 2), (1, 3), (2, 3), (1, 2, 2), (2, 2, 2), (3, 3, 1))[random.integers(6)]
    shares = random.dirichlet(np.full(len(everys), 3.0)) * random.uniform(0.5, 0.95)
    dues = random.choice([1.0, 1.0, 0.6, 0.8], len(everys))
    return [
        Demand(round(float(share) * every * WINDOW_MS, 2), every, round(float(due) * every * WINDOW_MS, 1))
        for share, every, due in zip(shares, everys, dues, strict=True)
    ]


@pytest.mark.parametrize("seed", range(16))
def test_what_can_be_in_time_is_planned_and_what_cannot_is_refused_with_a_proof(seed: int, tmp_path: Path) -> None:
    """Across windows, too; what is planned misses nothing."""
    models = drawn(seed)
    app = app_of(tmp_path, models)
    timetable = framefit.plan(app).timetable
    if fits(models, MARGIN):
        assert timetable.feasible, timetable.binding_constraint
    if not fits(models, 1 / MARGIN):
        assert not timetable.feasible
        assert timetable.proof is not None
        assert timetable.proof.kind == "proved"
    if timetable.feasible:
        metrics = framefit.simulate(app, windows=120, output=str(tmp_path / "run")).metrics
        assert sum(model.missed for model in metrics.models) == 0


def test_a_model_that_is_due_after_two_windows_runs_on_into_the_second(tmp_path: Path) -> None:
    """Its 45 ms fit into no window of 40 ms, but beside a model of 10 ms in both of them."""
    app = app_of(tmp_path, [Demand(10, 1, 40), Demand(45, 2, 80)])
    assert framefit.plan(app).timetable.feasible
    late = framefit.plan(app_of(tmp_path, [Demand(10, 1, 40), Demand(61, 2, 80)])).timetable
    assert not late.feasible
    assert late.proof is not None
    assert late.proof.kind == "proved"


def test_a_model_is_proposed_to_be_no_cheaper_than_it_has_to_be(tmp_path: Path) -> None:
    """Three units of 40 ms hold 39.9, 17 + 12 and 12 + 25 ms: a model of 42 ms at 95 % fits if that of 24 is parted."""
    models = [Demand(24, 1, 40, layers=2), Demand(17, 1, 40), Demand(25, 1, 40), Demand(42, 1, 40)]
    timetable = framefit.plan(app_of(tmp_path, models, units=3)).timetable
    assert not timetable.feasible
    assert timetable.proof is not None
    assert timetable.proof.kind == "proved"
    assert "'model3' at 95 % of its cost" in [fix.change for fix in timetable.fixes]
    assert all(fix.verified for fix in timetable.fixes)
    cheaper = [*models[:3], Demand(42 * 0.95, 1, 40)]
    assert framefit.plan(app_of(tmp_path, cheaper, units=3)).timetable.feasible


def test_other_units_are_proposed_where_only_a_cut_makes_the_model_fit(tmp_path: Path) -> None:
    """48 ms every third window beside 20 ms in each: its layers of 24 ms fit into different windows of the first unit.

    The second unit is full, and the model may run there only.
    """
    app = app_of(tmp_path, [Demand(20, 1, 40), Demand(48, 3, 120, layers=2), Demand(38, 1, 40)], units=2)
    text = app.read_text().replace("every = 3\n", 'every = 3\nunits = ["unit1"]\n')
    app.write_text(text + 'units = ["unit1"]\n')
    timetable = framefit.plan(app).timetable
    assert not timetable.feasible
    assert "no units for 'model1'" in [fix.change for fix in timetable.fixes]
    app.write_text(text.replace('every = 3\nunits = ["unit1"]\n', "every = 3\n") + 'units = ["unit1"]\n')
    assert framefit.plan(app).timetable.feasible


@pytest.mark.parametrize(("units", "due_ms", "kind"), [(1, 60, "proved"), (2, 49, "proved"), (1, 85, "not found")])
def test_ages_that_do_not_hold_are_refused_with_a_bound(units: int, due_ms: float, kind: str, tmp_path: Path) -> None:
    """A background model of 50 ms beside 10 ms in each window of 40 ms, and another one: 70 ms at least on one unit.

    Where that is no proof, the least excess that was found and the time of the search are stated.
    """
    models = [Demand(10, 1, 40), Demand(50, 1, due_ms, layers=5), Demand(6, 1, 400)]
    app = app_of(tmp_path, models, units)
    first, *others = app.read_text().split("[[models]]\n")[0:2]
    later = app.read_text().split("[[models]]\n")[2:]
    background = [text.replace("every-window", "background") for text in later]
    app.write_text("[[models]]\n".join([first, *others, *background]))
    timetable = framefit.plan(app).timetable
    assert not timetable.feasible
    assert timetable.proof is not None
    assert timetable.proof.kind == kind
    assert timetable.proof.searched_s > 0
    assert timetable.proof.lateness_ns is not None
    assert timetable.proof.bound_ns is not None
    least_ns = round(max({1: 70, 2: 50}[units] - due_ms, 0) * MS)
    assert timetable.proof.bound_ns == pytest.approx(least_ns, abs=0.1 * MS)
    assert timetable.proof.bound_ns <= timetable.proof.lateness_ns
