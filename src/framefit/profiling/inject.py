"""Removes packets from a trace as devices lose them, to see what a profile makes of the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace, unwrapped_ns
from framefit.core.program import Launches, Program
from framefit.errors import InputError
from framefit.profiling.profile import open_trace
from framefit.profiling.sequence import Sequence
from framefit.profiling.settings import InjectLossSettings, LossKind

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
_BISECTIONS = 40
"""Halvings of the drain rate: a packet in a quarter of an hour is less than any run drains."""


@dataclass(frozen=True)
class ThinnedTrace:
    """A trace that lost packets, and which packets it lost.

    Attributes:
        trace: the remaining packets, in order of arrival.
        kept: bool, for each packet of the complete trace: whether it remains.
    """

    trace: Trace
    kept: Bools

    @property
    def lost(self) -> int:
        """Number of packets that were removed."""
        return len(self.kept) - int(np.count_nonzero(self.kept))


def drop_packets(
    trace: Trace,
    program: Program,
    launches: Launches | None,
    *,
    kind: LossKind,
    rate: float,
    burst: int = 20,
    seed: int,
    buffer_events: int = 64,
) -> ThinnedTrace:
    """Remove packets from a trace, the same ones for the same seed.

    Of all packets, ``rate`` (0 to 1) are lost, rounded to whole ones:

    - "random": each packet alike.
    - "burst": runs of ``burst`` packets in order of arrival, with at least one packet left
      between two runs where the rate permits it; the last run may be shorter.
    - "overflow": each core has a buffer of ``buffer_events`` packets, and a packet that finds it
      full is lost. All drain at one rate, which is chosen such that as many are lost as asked
      for. The device reports these losses in ``loss_after`` and ``meta``. Where one
      step of the drain rate loses too many, the first ones of some losses are given back.
    - "start-only": only packets of type START are lost.
    - "inference": whole launches; ``rate`` is of the launches. Only this kind uses ``program`` and
      ``launches`` (``None``: the first program repeats).

    The trace should be complete; losses that it already reports stay where they are. A buffer holds at most as many
    packets as the rate leaves. Raises :class:`~framefit.errors.InputError` for a rate, kind, burst or buffer that is
    not possible.
    """
    _check_arguments(kind, rate, burst, buffer_events)
    generator = np.random.default_rng(seed)
    size = len(trace)
    packet_count = round(rate * size)
    if kind == "overflow":
        return _drop_on_overflow(trace, packet_count, buffer_events, generator)
    if kind == "random":
        lost = generator.choice(size, packet_count, replace=False)
    elif kind == "burst":
        lost = _choose_bursts(size, packet_count, burst, generator)
    elif kind == "start-only":
        starts = np.flatnonzero(trace.type == EventType.START)
        if packet_count > len(starts):
            raise InputError(
                f"{rate:.3g} of {size} packets are to be lost, but only {len(starts)} are STARTs",
                where="--rate",
                remedy=f"choose a rate up to {len(starts) / size:.3g}",
            )
        lost = generator.choice(starts, packet_count, replace=False)
    else:
        launch = launch_of_packets(trace, program, launches)
        count = int(launch.max(initial=-1)) + 1
        lost = np.flatnonzero(np.isin(launch, generator.choice(count, round(rate * count), replace=False)))
    kept = np.ones(size, np.bool_)
    kept[lost] = False
    return ThinnedTrace(_thin(trace, kept, np.zeros(0, np.int64)), kept)


def _check_arguments(kind: str, rate: float, burst: int, buffer_events: int) -> None:
    if kind not in get_args(LossKind):
        raise InputError(
            f"unknown kind of loss {kind!r}", where="--kind", remedy=f"choose from {', '.join(get_args(LossKind))}"
        )
    if not 0 <= rate <= 1:
        raise InputError(
            f"the rate must be between 0 and 1, not {rate}", where="--rate", remedy="0.1 loses every tenth packet"
        )
    if burst < 1:
        raise InputError(
            f"a burst must have at least 1 packet, not {burst}", where="--burst", remedy="choose 1 or more"
        )
    if buffer_events < 1:
        raise InputError(f"a buffer must hold at least 1 packet, not {buffer_events}", remedy="choose 1 or more")


def _choose_bursts(size: int, count: int, burst: int, generator: np.random.Generator) -> Ints:
    """Choose positions of bursts: runs put between kept packets, at places drawn without replacement."""
    runs = -(-count // burst)
    places = size - count + 1
    before = np.sort(generator.choice(places, runs, replace=runs > places))  # kept packets before each run
    lengths = np.full(runs, burst)
    if runs:
        lengths[-1] = count - burst * (runs - 1)
    begins = before + np.cumsum(lengths) - lengths
    within = np.arange(count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.repeat(begins, lengths) + within)


def _drop_on_overflow(trace: Trace, count: int, buffer_events: int, generator: np.random.Generator) -> ThinnedTrace:
    """Drop packets by a bounded buffer for each core, at the drain rate that drops as many as wanted."""
    size = len(trace)
    cores, counts = np.unique(trace.core, return_counts=True)
    time_ns = unwrapped_ns(trace.time_ns, trace.meta)
    buffer_events = min(buffer_events, max(int(counts.max(initial=1)), 1))
    while np.minimum(counts, buffer_events).sum() > size - count and buffer_events > 1:
        buffer_events //= 2
    packets = [np.flatnonzero(trace.core == core) for core in cores]

    def kept_at(per_ns: float) -> Bools:
        kept = np.zeros(size, np.bool_)
        for positions in packets:
            kept[positions[_admitted_packets(time_ns[positions], buffer_events, per_ns)]] = True
        return kept

    kept, low, high = np.ones(size, np.bool_), 0.0, 0.0
    if count:
        kept, high = kept_at(0.0), 1.0  # a packet a nanosecond on each core
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            here = kept_at(middle)
            if np.count_nonzero(~here) >= count:
                low, kept = middle, here
            else:
                high = middle
    lost = np.flatnonzero(~kept)
    if len(lost) > count:
        first = lost[np.concatenate([[True], np.diff(lost) > 1])]
        excess = len(lost) - count
        kept[generator.choice(first if len(first) >= excess else lost, excess, replace=False)] = True
    elif len(lost) < count:  # a single packet's buffer keeps the first one of each core
        kept[generator.choice(np.flatnonzero(kept), count - len(lost), replace=False)] = False
    thinned = _thin(trace, kept, _reported_losses(kept, packets))
    if count:
        meta = msgspec.structs.replace(
            trace.meta,
            buffer_events=buffer_events,
            drain_rate_hz=low * 1e9,
            lost_events=(trace.meta.lost_events or 0) + count,
        )
        thinned = replace(thinned, meta=meta)
    return ThinnedTrace(thinned, kept)


def drop_by_buffer(trace: Trace, buffer_events: int, drain_rate_hz: float) -> ThinnedTrace:
    """Remove the packets that find the buffer of their core full, of ``buffer_events`` that drain at a known rate."""
    time_ns, kept = unwrapped_ns(trace.time_ns, trace.meta), np.zeros(len(trace), np.bool_)
    packets = [np.flatnonzero(trace.core == core) for core in np.unique(trace.core)]
    for positions in packets:
        kept[positions[_admitted_packets(time_ns[positions], buffer_events, drain_rate_hz / 1e9)]] = True
    thinned = _thin(trace, kept, _reported_losses(kept, packets))
    lost = (trace.meta.lost_events or 0) + int(np.count_nonzero(~kept))
    meta = msgspec.structs.replace(
        trace.meta, buffer_events=buffer_events, drain_rate_hz=drain_rate_hz, lost_events=lost
    )
    return ThinnedTrace(replace(thinned, meta=meta), kept)


def _admitted_packets(time_ns: Ints, size: int, per_ns: float) -> Ints:
    """Return positions of the packets that find room in a buffer."""
    from framefit.devices.npu.packets import RECORDED, admit

    rows = np.zeros((len(time_ns), 6), np.int64)
    rows[:, 0] = time_ns
    rows[:, 4] = np.arange(len(time_ns))
    rows[:, 5] = RECORDED
    kept = admit(rows, size, per_ns, 0.0, int(time_ns[0]), losing=False, resolution_ns=1, mask=-1)[0]
    return np.asarray(rows[:kept, 4])


def _reported_losses(kept: Bools, packets: list[Ints]) -> Ints:
    """Return numbers of kept packets after which a core's next packet reports that some were dropped."""
    rank = np.concatenate([[0], np.cumsum(kept)])
    reported = []
    for positions in packets:
        here = kept[positions]
        left = positions[here]
        dropped_before = np.diff(np.concatenate([[0], np.cumsum(~here)[here]])) > 0
        reported.append(rank[left[dropped_before]])
        if len(here) and not here[-1]:
            reported.append(rank[-1:])
    return np.unique(np.concatenate(reported)) if reported else np.zeros(0, np.int64)


def _thin(trace: Trace, kept: Bools, reported: Ints) -> Trace:
    """Return the remaining packets; losses reported before keep their place among them."""
    rank = np.concatenate([[0], np.cumsum(kept)])
    marks = rank[np.clip(trace.loss_after, 0, len(kept))]
    return Trace(
        time_ns=trace.time_ns[kept],
        id=trace.id[kept],
        type=trace.type[kept],
        core=trace.core[kept],
        operation=trace.operation[kept],
        kinds=trace.kinds,
        loss_after=np.unique(np.concatenate([marks, reported])).astype(np.int64),
        meta=trace.meta,
    )


def launch_of_packets(trace: Trace, program: Program, launches: Launches | None) -> Ints:
    """Return the launch that each packet of a complete trace belongs to (int64, from 0).

    Packets of one core, kind and type are assigned to the launches in order, so units may
    run side by side. In a trace that has already lost packets the later ones are assigned to
    launches too early. A packet that no program can send belongs with the previous one.
    """
    sequence = Sequence.of(program, launches, trace.kinds)
    launch = np.full(len(trace), -1, np.int64)
    program_of = np.repeat(np.arange(len(sequence.first) - 1), np.diff(sequence.first))
    stream = (trace.core.astype(np.int64) << 40) + (trace.id.astype(np.int64) << 8) + trace.type
    order = np.argsort(stream, kind="stable")
    for positions in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
        if not len(positions):
            continue
        sends = (sequence.core == trace.core[positions[0]]) & (sequence.kind == trace.id[positions[0]])
        each = np.bincount(program_of[sends], minlength=len(sequence.first) - 1)
        if sequence.launch_program is not None:
            ends = np.cumsum(each[sequence.launch_program])
            positions = positions[: int(ends[-1]) if len(ends) else 0]
            launch[positions] = np.searchsorted(ends, np.arange(len(positions)), "right")
        elif each[0]:
            launch[positions] = np.arange(len(positions)) // each[0]
    known = np.maximum.accumulate(np.where(launch >= 0, np.arange(len(trace)), -1))
    return np.where(known >= 0, launch[np.maximum(known, 0)], 0)


_EMPTY_PROGRAM = Program(units=(), programs=())


def thin_trace(settings: InjectLossSettings, launches: Launches | None = None) -> ThinnedTrace:
    """Remove packets from a trace once, as settings say; ``launches`` are of a program that is given as an object.

    Raises :class:`~framefit.errors.InputError` if a file cannot be used, or the loss is not possible.
    """
    trace, program = settings.trace, settings.program
    if settings.rate is None:
        raise InputError(
            "--rate missing", remedy="say which part of the packets is lost, such as --rate 0.1, or --repeat 20"
        )
    kind: LossKind = settings.kind or ("random" if settings.burst is None else "burst")
    if settings.burst is not None and kind != "burst":
        raise InputError(f"--burst applies to kind burst only, not to {kind}", remedy="leave out --burst or --kind")
    if isinstance(trace, Trace) and kind != "inference":
        source, executed, listed = trace, program if isinstance(program, Program) else _EMPTY_PROGRAM, launches
    else:
        opened = open_trace(trace, program, launches, needs_program=kind == "inference")
        source, executed, listed = opened.trace, opened.program, opened.launches
    return drop_packets(
        source,
        executed,
        listed,
        kind=kind,
        rate=settings.rate,
        burst=20 if settings.burst is None else settings.burst,
        seed=settings.seed,
        buffer_events=settings.buffer_events,
    )
