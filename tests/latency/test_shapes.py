"""Which shapes of a grid are measured."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest
from simulated import UNIT, noisy_table

from framefit import Model, resolve_target
from framefit.core.latency_table import LatencyEntry
from framefit.core.model import epilogue_groups
from framefit.latency.interpolation import Interpolation, ShapeChoice
from framefit.latency.subjects import GridSpec, LayerGrid, Subject, distinct_layers, grid_models

GRID = GridSpec(
    layers=(
        LayerGrid(
            op="Conv",
            shapes=tuple((1, channels, side, side) for channels in (8, 24, 64, 192) for side in (7, 14, 28, 56)),
            channels=(8, 32, 96, 256),
            kernel=(1, 3),
            activation=("Relu",),
        ),
    )
)
MEASURED = 24


@functools.cache
def models() -> list[Model]:
    """A layer of each shape of the grid."""
    return list(grid_models(GRID))


@functools.cache
def subjects() -> list[Subject]:
    """The layers, as they are measured."""
    return [distinct_layers(model, epilogue_groups, UNIT)[0][0] for model in models()]


def chosen(entries: dict[str, LatencyEntry], count: int) -> list[str]:
    """In batches, each after a look at what the former ones gave."""
    choice = ShapeChoice(subjects())
    taken: list[str] = []
    while len(taken) < count:
        batch = choice.take([entries[key] for key in taken], min(6, count - len(taken)))
        taken += [subject.key for subject in batch]
    return taken


def error(entries: dict[str, LatencyEntry], measured: list[str]) -> float:
    """Mean error of the logarithm at left-out shapes; one that nothing tells counts as off by a factor e."""
    between = Interpolation([entries[key] for key in measured])
    off = []
    for key in entries.keys() - set(measured):
        found = between.find(entries[key].op, entries[key].configuration)
        off.append(1.0 if found is None else abs(found[0] - np.log(entries[key].latency_ns)))
    return float(np.mean(off))


@pytest.mark.parametrize("name", ["vpu", "micro-npu"])
def test_chosen_shapes_tell_the_others_better_than_random_or_regular_ones(name: str) -> None:
    """Of equal number, in the median of three seeds."""
    target = resolve_target(name)
    errors: dict[str, list[float]] = {"chosen": [], "random": [], "regular": []}
    keys = [subject.key for subject in subjects()]
    for seed in range(3):
        random = np.random.default_rng(seed)
        entries = dict(zip(keys, noisy_table(models(), target, random).entries, strict=True))
        regular = ((np.arange(MEASURED) + random.random()) * len(keys) / MEASURED).astype(int)
        errors["chosen"].append(error(entries, chosen(entries, MEASURED)))
        errors["random"].append(error(entries, list(random.permutation(keys)[:MEASURED])))
        errors["regular"].append(error(entries, [keys[place] for place in regular]))
    median = {arm: np.median(found) for arm, found in errors.items()}
    assert median["chosen"] < min(median["random"], median["regular"])


def test_every_shape_is_taken_once() -> None:
    """Until there is none left; layers of unknown size come first."""
    strange = Subject("Loop", {"inputs": ["?"], "weights": [], "outputs": ["?"]}, ("loop",), models()[0])
    choice, taken = ShapeChoice([*subjects()[:20], strange]), []
    while batch := choice.take((), 6):
        taken += [subject.key for subject in batch]
    assert taken[0] == strange.key
    assert sorted(taken) == sorted(subject.key for subject in [*subjects()[:20], strange])
    assert ShapeChoice([]).take((), 3) == []


def test_a_family_that_is_hard_to_tell_gets_more() -> None:
    """Two families of equal shapes, one of which follows no trend."""
    entries = noisy_table(models(), resolve_target("vpu"), np.random.default_rng(0)).entries
    pairs = list(zip(subjects(), entries, strict=True))
    random = np.random.default_rng(1)
    rough = [
        msgspec.structs.replace(entry, latency_ns=round(entry.latency_ns * np.exp(random.normal(0, 1.5))))
        if entry.configuration["kernel"] == [3, 3]
        else entry
        for _, entry in pairs
    ]
    choice = ShapeChoice(subjects())
    first = [subject.key for subject in choice.take((), 24)]
    known = [entry for (subject, _), entry in zip(pairs, rough, strict=True) if subject.key in first]
    kernels = [subject.configuration["kernel"] for subject in choice.take(known, 12)]
    assert kernels.count([3, 3]) > kernels.count([1, 1])
