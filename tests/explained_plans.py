"""Plans made up in code: times that one can add up in one's head, in milliseconds."""

from __future__ import annotations

from msgspec.structs import replace

from framefit.core.timetable import Fix, PlannedModel, PriorityPeriod, Segment, Slot, Timetable, Window
from framefit.core.workload import ModelEntry, Schedule, StreamEntry, Workload

__all__ = ["interrupted_plan", "late_plan", "long_plan", "plan_of_three", "two_unit_plan", "workload_of"]

MS = 1_000_000


def ns(milliseconds: float) -> int:
    """Nanoseconds."""
    return round(milliseconds * MS)


def segment(index: int, takes: float, unit: str = "npu0", **changed: object) -> Segment:
    """A segment of layers whose names want quoting."""
    return replace(
        Segment(
            index=index,
            unit=unit,
            fill_layer=f"/net/stage{index}/<conv>",
            first_layer=f"/net/stage{index}/<conv>",
            last_layer=f"/net/stage{index}/relu",
            output_layers=(f"/net/stage{index}/relu",),
            duration_ns=ns(takes),
            median_ns=ns(0.9 * takes),
            boundary_bytes=1024 * (index + 1),
            tensors=("t",),
        ),
        **changed,
    )


def slot(model: str, index: int, frame: int, start: float, takes: float, unit: str = "npu0") -> Slot:
    """A planned launch."""
    return Slot(unit=unit, start_ns=ns(start), duration_ns=ns(takes), model=model, segment=index, frame=frame)


def face(takes: float = 2.0) -> PlannedModel:
    """A priority model."""
    return PlannedModel(
        name="face",
        role="priority",
        level=10,
        reasons=('priority = "every-window" in the workload',),
        duration_ns=ns(takes),
        segments=(segment(0, takes),),
        result_age_windows=1,
    )


def depth(*, count: int = 4, takes: float = 3.0, units: tuple[str, ...] = ("npu0",)) -> PlannedModel:
    """A background model that is cut; its name is no markup."""
    return PlannedModel(
        name="depth[red]<b>",
        role="background",
        level=2,
        reasons=("+3 base", "-1 big", "11.40 ms whole: cut into 4 segments (fill)"),
        duration_ns=ns(count * takes),
        segments=tuple(segment(index, takes, units[index % len(units)]) for index in range(count)),
        result_age_windows=3,
        segmentation_overhead_ratio=0.05,
        max_relative_difference=3e-7,
    )


def window(index: int, *slots: Slot, period: float = 2.1, length: float = 10.0, takes: float = 2.0) -> Window:
    """A window that begins with the priority model; its period is a bit longer."""
    own = slot("face", 0, index, 0, takes)
    reserved = PriorityPeriod(unit="npu0", start_ns=0, end_ns=ns(period), model="face")
    return Window(
        index=index,
        length_ns=ns(length),
        priority=(reserved,),
        residual_ns=(ns(length - period),),
        slots=(own, *slots),
    )


def plan_of_three() -> Timetable:
    """Three windows of 10 ms, 7.9 ms residual, 0.5 ms guard; one frame in two windows, the third one idle."""
    name = "depth[red]<b>"
    return Timetable(
        feasible=True,
        worst_slack_ns=ns(1.4),
        hyperperiod_windows=3,
        window_ns=ns(10),
        priority_ns=ns(2.1),
        residual_ns=ns(7.9),
        guard_ns=ns(0.5),
        units=("npu0",),
        windows=(
            window(0, slot(name, 0, 0, 2.1, 3), slot(name, 1, 0, 5.1, 3)),
            window(1, slot(name, 2, 0, 2.1, 3), slot(name, 3, 0, 5.1, 3)),
            window(2),
        ),
        models=(face(), depth()),
        memory_bytes={"npu0": 5 << 20},
        bound=1.5,
        gap_ratio=0.5,
        reasons=("one unit is planned; the other 1 stay idle",),
    )


def two_unit_plan() -> Timetable:
    """Windows of 10 and 6 ms; a model is pipelined over two units: two of its frames are in flight at once."""
    name = "depth[red]<b>"
    model = depth(count=2, takes=3.5, units=("npu0", "npu1"))
    first = window(0, slot(name, 0, 0, 2.1, 3.5), slot(name, 1, 0, 5.6, 3.5, "npu1"), slot(name, 0, 1, 5.6, 3.5))
    second = window(1, slot(name, 1, 1, 0.5, 3.5, "npu1"), length=6.0)
    return replace(
        plan_of_three(),
        hyperperiod_windows=2,
        window_ns=ns(6),
        residual_ns=ns(3.9),
        units=("npu0", "npu1"),
        windows=(first, second),
        models=(face(), model),
        memory_bytes={"npu0": 5 << 20, "npu1": 1 << 20},
    )


def interrupted_plan() -> Timetable:
    """A unit that can be interrupted: one launch goes on after the next window's priority period."""
    name = "depth[red]<b>"
    whole = replace(depth(count=1, takes=12), reasons=("12.00 ms whole: runs whole",), segmentation_overhead_ratio=0.0)
    return replace(
        plan_of_three(),
        preemptive=True,
        guard_ns=0,
        hyperperiod_windows=2,
        windows=(window(0, slot(name, 0, 0, 2.1, 7.9)), window(1, slot(name, 0, 0, 2.1, 4.1))),
        models=(face(), whole),
    )


def late_plan() -> Timetable:
    """Infeasible: the priority period of 12.1 ms is longer than the window of 10 ms."""
    background = replace(depth(), result_age_windows=None)
    return replace(
        plan_of_three(),
        feasible=False,
        worst_slack_ns=-ns(2.1),
        hyperperiod_windows=1,
        priority_ns=ns(12.1),
        residual_ns=-ns(2.1),
        windows=(replace(window(0, period=12.1, takes=12.0), residual_ns=(-ns(2.1),)),),
        models=(replace(face(12.0), result_age_windows=None), background),
        gap_ratio=None,
        binding_constraint="'face' is ready <12.1 ms> after its release; its deadline is 10 ms",
        fixes=(
            Fix(change="rate_hz = 78.3", effect="windows of 12.8 ms & more hold everything", verified=True),
            Fix(change="'face' at 70 % of its cost", effect="a smaller, pruned or quantised model", verified=False),
        ),
    )


def long_plan(windows: int) -> Timetable:
    """Many windows, a whole frame of two segments in each; the beat of ``plan_of_three``."""
    name = "depth[red]<b>"
    made = [window(at, slot(name, 0, at, 2.1, 3), slot(name, 1, at, 5.1, 3)) for at in range(windows)]
    return replace(plan_of_three(), hyperperiod_windows=windows, windows=tuple(made), models=(face(), depth(count=2)))


def workload_of(
    timetable: Timetable,
    schedule: Schedule | None = None,
    streams: tuple[StreamEntry, ...] = (),
    **changed: object,
) -> Workload:
    """The workload of a made-up plan; ``changed`` are settings of its background model."""
    entries = [ModelEntry(name=model.name, path="x.onnx") for model in timetable.models]
    entries[-1] = replace(entries[-1], **changed)
    return Workload(window_ms=10, models=tuple(entries), streams=streams, schedule=schedule or Schedule())
