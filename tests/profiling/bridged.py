"""Logs with a known truth: edges struck at random, and put back in closed form."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from framefit.core.profile import How, OperationLog
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram
from framefit.profiling.sequence import PacketClass, Reconstruction, Sequence

Z90 = NormalDist().inv_cdf(0.95)


def program_of(
    kinds: str, *, expected_ns: int = 10_000, sigma_ratio: float = 0.05, window_ns: int = 0, cores: str = ""
) -> Program:
    """One segment of one model: an operation a letter, named after it and its place, on the core of its digit."""
    cores = cores or "0" * len(kinds)
    operations = tuple(
        Operation(
            index=index,
            name=f"{kind}{index}",
            layer=f"layer{index}",
            kind=kind,
            unit=f"npu{core}",
            expected_ns=expected_ns,
            sigma_ratio=sigma_ratio,
            op=kind,
            configuration={"place": index},
        )
        for index, (kind, core) in enumerate(zip(kinds, cores, strict=True))
    )
    half = len(operations) // 2
    groups = (Group(index=0, operations=operations[:half]), Group(index=1, operations=operations[half:]))
    return Program(
        window_ns=window_ns,
        units=tuple(ProgramUnit(name=f"npu{core}", core=int(core)) for core in sorted(set(cores))),
        programs=(SegmentProgram(name="net.0", model="net", segment=0, groups=groups),),
    )


@dataclass(frozen=True)
class Bridged:
    """A log, and what really happened."""

    reconstruction: Reconstruction
    sequence: Sequence
    program: Program
    true_ns: npt.NDArray[np.int64]
    """Duration of each operation of the log."""


def bridged(
    program: Program,
    inferences: int,
    *,
    loss: float = 0.1,
    burst: int = 1,
    seed: int = 0,
    factors: tuple[float, ...] = (),
    idle_ns: int = 300,
    open_ends: bool = False,
) -> Bridged:
    """Play a program on one core, lose edges, and put them back between their neighbours.

    Args:
        program: its first segment repeats.
        inferences: how often.
        loss: part of the edges that are struck.
        burst: how many together.
        seed: of durations and losses.
        factors: actual over expected duration of each operation; default: 1.
        idle_ns: mean time between two operations.
        open_ends: whether the first and the last edges may be lost too.

    Raises:
        ValueError: nothing was left.
    """
    random = np.random.default_rng(seed)
    sequence = Sequence.of(program, None, ())
    count = len(sequence.operations)
    mean = sequence.expected_ns * (np.array(factors) if factors else 1.0)
    sigma = sequence.sigma_ratio * mean
    busy = np.maximum(random.normal(mean, sigma, (inferences, count)), 1)
    idle = random.gamma(9.0, idle_ns / 9, (inferences, count))
    steps = np.stack([idle, busy], 2).reshape(-1)
    truth = np.round(np.cumsum(steps)).astype(np.int64) + 1_000
    lost = np.zeros(len(truth), np.bool_)
    for at in np.flatnonzero(random.random(len(truth)) < loss / burst):
        lost[at : at + burst] = True
    lost[[0, -1]] = open_ends
    kind = np.tile(np.arange(2 * count), inferences)  # of the step before each edge
    taken, known = np.diff(truth), ~lost[1:] & ~lost[:-1]
    middle, spread = np.empty(2 * count), np.empty(2 * count)
    for one in range(2 * count):
        seen = taken[known & (kind[1:] == one)]
        told = (float(idle_ns), idle_ns / 3) if one % 2 == 0 else (mean[one // 2], sigma[one // 2])
        middle[one], spread[one] = (np.median(seen), seen.std()) if len(seen) > 2 else told
    edge, half = truth.astype(np.float64), np.zeros(len(truth))
    kept = np.flatnonzero(~lost)
    if not len(kept):
        raise ValueError("nothing was left")
    for p, q in itertools.pairwise(kept):
        if q - p > 1:
            inside = kind[p + 1 : q + 1]
            c, v = np.cumsum(middle[inside]), np.cumsum(spread[inside] ** 2)
            edge[p + 1 : q] = truth[p] + c[:-1] + v[:-1] / v[-1] * (truth[q] - truth[p] - c[-1])
            half[p + 1 : q] = Z90 * np.sqrt(v[:-1] * (v[-1] - v[:-1]) / v[-1])
    if open_ends:
        p, q = kept[-1], kept[0]
        edge[p + 1 :] = truth[p] + np.cumsum(middle[kind[p + 1 :]])
        half[p + 1 :] = Z90 * np.sqrt(np.cumsum(spread[kind[p + 1 :]] ** 2))
        edge[:q] = truth[q] - np.cumsum(middle[kind[1 : q + 1]][::-1])[::-1]
        half[:q] = Z90 * np.sqrt(np.cumsum(spread[kind[1 : q + 1]][::-1] ** 2))[::-1]
    placed = np.round(edge).astype(np.int64)
    low, high = np.floor(edge - half).astype(np.int64), np.ceil(edge + half).astype(np.int64)
    how = np.where(lost, How.BETWEEN, How.MEASURED).astype(np.uint8)
    event = np.where(lost, -1, np.cumsum(~lost) - 1)
    log = OperationLog(
        inference=np.repeat(np.arange(inferences), count),
        program=np.zeros(inferences * count, np.int32),
        operation=np.tile(np.arange(count, dtype=np.int32), inferences),
        kind=np.tile(sequence.kind, inferences),
        core=np.tile(sequence.core, inferences),
        unit=np.tile(sequence.unit, inferences),
        start_ns=placed[0::2],
        end_ns=placed[1::2],
        start_how=how[0::2],
        end_how=how[1::2],
        start_low_ns=np.where(lost, low, placed)[0::2],
        start_high_ns=np.where(lost, high, placed)[0::2],
        end_low_ns=np.where(lost, low, placed)[1::2],
        end_high_ns=np.where(lost, high, placed)[1::2],
        start_event=event[0::2],
        end_event=event[1::2],
        kinds=sequence.kinds,
    )
    received = int(np.count_nonzero(~lost))
    reconstruction = Reconstruction(
        log=log,
        packet_class=np.full(received, PacketClass.MATCHED, np.uint8),
        out_of_order=np.zeros(received, np.bool_),
        calibrated=True,
    )
    return Bridged(reconstruction, sequence, program, truth[1::2] - truth[0::2])
