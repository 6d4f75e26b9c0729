"""Reads profiles of ONNX Runtime (``SessionOptions.enable_profiling``) as traces, with the program that they show.

Each kernel's event (category ``Node``, name ``NODE_kernel_time``) becomes a START and an END. A run
of the model (``model_run``) is an inference: the nodes of the longest run, in their order, are
the program, and their medians the expected durations. Nodes inside a ``Loop``, ``If`` or
``Scan`` are part of that operator.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec
import numpy as np

from framefit.core.events import EventType, Trace, TraceMeta
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram
from framefit.errors import InputError
from framefit.profiling.formats.chrome import EventTable, JsonEvent, duration_ns, time_ns
from framefit.stats import robust_deviation

_MOST_EVENTS = 1_000_000  # core/common/profiler.cc, global_max_num_events_: later ones are dropped
_SUFFIX = "_kernel_time"
_RESOLUTION_NS = 1000
_LEAST_SIGMA, _MOST_SIGMA = 0.02, 2.0
_LOOKED_AT = 1000  # events by which such a profile is recognised


class _Arguments(msgspec.Struct):
    op_name: str = ""


@dataclass(frozen=True)
class _Node:
    """One execution of a node."""

    begin_ns: int
    end_ns: int
    name: str
    kind: str
    core: int


def is_ort_profile(events: list[JsonEvent]) -> bool:
    """Whether the events are those of ONNX Runtime."""
    return any(
        (event.cat == "Node" and (event.name or "").endswith(_SUFFIX))
        or (event.cat == "Session" and event.name in ("model_run", "session_initialization"))
        for event in events[:_LOOKED_AT]
    )


def read_ort_events(events: list[JsonEvent], where: str, name: str) -> tuple[Trace, Program, tuple[str, ...]]:
    """Make the trace and the program that it shows; ``where`` is the file, ``name`` becomes the model's name.

    Raises :class:`~framefit.errors.InputError` if no event is that of a kernel.
    """
    warnings = []
    if len(events) == _MOST_EVENTS:
        warnings.append(
            f"the profile has exactly {_MOST_EVENTS} events: ONNX Runtime stopped recording there; profile fewer runs"
        )
    table = EventTable(where)
    nodes, odd = _kernel_nodes(events, table)
    if not nodes:
        raise InputError(
            f"none of {len(events)} events is that of a kernel",
            where=where,
            remedy="run the model while it is profiled",
        )
    if odd:
        warnings.append(f"{odd} kernels have no time, or an impossible one, and were left out")
    other_categories = sum(event.cat not in ("Node", "Session") for event in events)
    if other_categories:
        warnings.append(f"{other_categories} events are of other categories than Node and Session and were left out")
    nodes, inner = _keep_outermost(nodes)
    if inner:
        warnings.append(f"{inner} kernels ran inside another one (Loop, If, Scan) and count as part of it")
    main = Counter(node.core for node in nodes).most_common(1)[0][0]
    if beside := sum(node.core != main for node in nodes):
        warnings.append(f"{beside} kernels ran on other threads than most and are not in the program")
    runs = _split_runs([node for node in nodes if node.core == main], events)
    program = _program(runs, main, name)
    index = {op.layer: op.index for op in program.programs[0].groups[0].operations}
    number = [index.get(node.name, -1) if node.core == main else -1 for node in nodes]
    if len(index) < len(program.programs[0].groups[0].operations):  # names that occur twice identify nothing
        number = [-1] * len(nodes)
    elif unknown := sum(
        operation_number < 0 and node.core == main for operation_number, node in zip(number, nodes, strict=True)
    ):
        warnings.append(f"{unknown} kernels are not in every run of the model")
    for node, operation in zip(nodes, number, strict=True):
        table.add(node.begin_ns, node.kind, EventType.START, node.core, operation)
        table.add(node.end_ns, node.kind, EventType.END, node.core, operation)
    return table.trace(by_time=True, meta=TraceMeta(resolution_ns=_RESOLUTION_NS)), program, tuple(warnings)


def _kernel_nodes(events: list[JsonEvent], table: EventTable) -> tuple[list[_Node], int]:
    """Return kernels by time, and the number of unusable ones."""
    nodes, odd = [], 0
    kinds: dict[str, str] = {}
    for event in events:
        if event.cat != "Node" or event.name is None or not event.name.endswith(_SUFFIX):
            continue
        begin, length = time_ns(event), duration_ns(event)
        if begin is None or length is None:
            odd += 1
            continue
        name = event.name.removesuffix(_SUFFIX)
        if name not in kinds:
            kinds[name] = _kind(event) or name
        nodes.append(_Node(begin, begin + length, name, kinds[name], table.core(event)))
    # Those that contain others first; those of no length before, in the order in which they ended.
    nodes.sort(key=lambda node: (node.begin_ns, node.end_ns > node.begin_ns, -node.end_ns))
    return nodes, odd


def _kind(event: JsonEvent) -> str:
    """Return the operator of a kernel; empty if the profile does not say it."""
    if event.args is None:
        return ""
    try:
        return msgspec.json.decode(event.args, type=_Arguments).op_name
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _keep_outermost(nodes: list[_Node]) -> tuple[list[_Node], int]:
    """Leave out kernels that run inside another one of their thread; those of no length are inside none."""
    until: dict[int, int] = {}
    kept = []
    for node in nodes:
        if node.end_ns <= until.get(node.core, node.begin_ns - 1) and node.begin_ns < until[node.core]:
            continue
        kept.append(node)
        until[node.core] = max(until.get(node.core, node.end_ns), node.end_ns)
    return kept, len(nodes) - len(kept)


def _split_runs(nodes: list[_Node], events: list[JsonEvent]) -> list[list[_Node]]:
    """Split kernels into runs: by the recorded runs, and after the last of these by the first node."""
    ends = sorted(
        begin + length
        for event in events
        if event.cat == "Session"
        and event.name == "model_run"
        and (begin := time_ns(event)) is not None
        and (length := duration_ns(event)) is not None
    )
    run_of = np.searchsorted(np.array(ends, np.int64), [node.begin_ns for node in nodes], "right")
    runs: list[list[_Node]] = []
    latest = -1
    for node, number in zip(nodes, run_of.tolist(), strict=True):
        if number != latest or (number == len(ends) and runs and node.name == runs[-1][0].name):
            runs.append([])
            latest = number
        runs[-1].append(node)
    return runs


def _program(runs: list[list[_Node]], core: int, name: str) -> Program:
    """Make the program from the longest run of the model (the most frequent one of these), with median durations."""
    orders = Counter(tuple(node.name for node in run) for run in runs)
    order = max(orders, key=lambda names: (len(names), orders[names]))
    kind = {node.name: node.kind for run in runs for node in run}
    durations: dict[str, list[int]] = {}
    for run in runs:
        for node in run:
            durations.setdefault(node.name, []).append(node.end_ns - node.begin_ns)
    unit = f"thread{core}"
    operations = []
    for number, layer in enumerate(order):
        taken = np.array(durations[layer], np.float64)
        middle = max(float(np.median(taken)), _RESOLUTION_NS / 2)
        spread = robust_deviation(taken, middle) / middle
        operations.append(
            Operation(
                index=number,
                name=layer,
                layer=layer,
                kind=kind[layer],
                unit=unit,
                expected_ns=round(middle),
                sigma_ratio=min(max(spread, _LEAST_SIGMA), _MOST_SIGMA),
            )
        )
    begun = sorted(run[0].begin_ns for run in runs)
    window = int(np.median(np.diff(begun))) if len(begun) > 1 else runs[0][-1].end_ns - begun[0]
    return Program(
        window_ns=max(window, 1),
        units=(ProgramUnit(name=unit, core=core),),
        programs=(
            SegmentProgram(name=name, model=name, segment=0, groups=(Group(index=0, operations=tuple(operations)),)),
        ),
        repeats=len(runs),
    )
