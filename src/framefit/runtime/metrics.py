"""From a run's log to its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from framefit.core.results import Frame, Miss, ModelMetrics, Percentiles
from framefit.core.timetable import PlannedModel, Timetable
from framefit.runtime.log import Fate, FrameLog, LaunchLog

__all__ = ["RunFigures", "figures", "frame_records", "miss_ratio_upper", "misses", "model_metrics"]

_FATES: dict[Fate, tuple[Literal["done", "late", "dropped", "skipped"], str]] = {
    Fate.DONE: ("done", ""),
    Fate.LATE: ("late", "finished after its deadline"),
    Fate.QUEUE_FULL: ("dropped", "a newer frame took its place in the queue"),
    Fate.RUN_ENDED: ("dropped", "the run ended"),
}


@dataclass(frozen=True)
class RunFigures:
    """How the residual was used, and how good the estimates were."""

    residual_utilisation_ratio: float
    guard_loss_ratio: float
    packing_loss_ratio: float
    estimate_exceeded_ratio: float
    dispatch_ns: Percentiles


def miss_ratio_upper(missed: int, releases: int) -> float:
    """95 % upper bound on the miss ratio: 3/N for none, else Wilson's (1927) one-sided bound."""
    if releases == 0:
        return 1.0
    if missed == 0:
        return min(3 / releases, 1.0)
    z, ratio = 1.645, missed / releases
    centre = ratio + z * z / (2 * releases)
    spread = z * math.sqrt(ratio * (1 - ratio) / releases + z * z / (4 * releases**2))
    return min((centre + spread) / (1 + z * z / releases), 1.0)


def model_metrics(
    index: int,
    planned: PlannedModel,
    frames: FrameLog,
    *,
    windows: int,
    rate_hz: float,
    bounds_hz: tuple[float, float] | None,
    overhead_ratio: float,
) -> ModelMetrics:
    """One model's figures.

    Args:
        index: the model's number in the log.
        planned: its part in the plan.
        frames: fates of all frames.
        windows: begun in the run.
        rate_hz: windows a second.
        bounds_hz: fluid and packing bound; background models only.
        overhead_ratio: of its segmentation, as measured around the run.
    """
    rows = frames.rows()
    rows = rows[rows[:, 0] == index]
    finished = rows[np.isin(rows[:, 2], (Fate.DONE, Fate.LATE))]
    late = int((rows[:, 2] == Fate.LATE).sum())
    unfinished = len(rows) - len(finished)
    missed = late + unfinished if planned.role == "priority" else late
    seconds = windows / rate_hz
    age = finished[:, 5] - finished[:, 3]
    fluid, packing = bounds_hz or (None, None)
    return ModelMetrics(
        name=planned.name,
        role=planned.role,
        releases=len(rows),
        completed=len(finished),
        missed=missed,
        dropped=unfinished,
        throughput_hz=len(finished) / seconds if seconds else 0.0,
        fluid_bound_hz=fluid,
        packing_bound_hz=packing,
        release_to_start_ns=Percentiles.of(finished[:, 4] - finished[:, 3]),
        release_to_finish_ns=Percentiles.of(age),
        miss_ratio_upper=miss_ratio_upper(missed, len(rows)),
        result_age_windows_max=int(np.ceil(age.max() * rate_hz / 1e9)) if len(age) else 0,
        segmentation_overhead_ratio=overhead_ratio,
        max_relative_difference=planned.max_relative_difference,
    )


def figures(timetable: Timetable, launches: LaunchLog, *, windows: int, rate_hz: float) -> RunFigures:
    """Use of the residual over the whole run.

    The residual offered is what the windows had left beside the priority models. A
    window whose last background launch ended early lost the guard (as far as it
    lasted) and the rest to packing: no segment that was due would have fitted.
    """
    rows = launches.rows()
    models = timetable.models
    program_model = np.repeat(np.arange(len(models)), [len(model.segments) for model in models])
    quantiles = np.asarray([segment.duration_ns for model in models for segment in model.segments])
    background = np.asarray([model.role == "background" for model in models], bool)
    if not len(rows) or not windows:
        return RunFigures(0, 0, 0, 0, Percentiles.of([]))
    duration = rows[:, 4] - rows[:, 3]
    is_background = background[program_model[rows[:, 0]]]
    total = windows * 1e9 / rate_hz
    offered = total - float(duration[~is_background].sum())
    used = float(duration[is_background].sum())
    utilisation = used / offered if offered > 0 else 0.0
    guard = min(timetable.guard_ns * windows / offered, 1 - utilisation) if offered > 0 and background.any() else 0.0
    followed = rows[:, 5] == 1
    dispatch: npt.NDArray[np.int64] = (rows[:, 3] - rows[:, 6])[followed]
    return RunFigures(
        residual_utilisation_ratio=utilisation,
        guard_loss_ratio=max(guard, 0.0),
        packing_loss_ratio=max(1 - utilisation - guard, 0.0) if background.any() else 0.0,
        estimate_exceeded_ratio=float((duration > quantiles[rows[:, 0]]).mean()),
        dispatch_ns=Percentiles.of(dispatch),
    )


def frame_records(frames: FrameLog, models: Sequence[str], streams: Mapping[str, str], start_ns: int) -> list[Frame]:
    """The fate of every frame, in order of release; times relative to the first release.

    Args:
        frames: the log.
        models: names by number.
        streams: model -> name of the stream that its frames are counted by.
        start_ns: first release on the run's clock.
    """
    rows = frames.rows()
    order = np.lexsort((rows[:, 0], rows[:, 1]))
    records = []
    for model, frame, fate, released, _, finished in rows[order].tolist():
        text, reason = _FATES[Fate(fate)]
        records.append(
            Frame(
                stream=streams[models[model]],
                frame=frame,
                model=models[model],
                fate=text,
                reason=reason,
                released_ns=released - start_ns,
                finished_ns=finished - start_ns if finished >= 0 else None,
            )
        )
    return records


def misses(
    timetable: Timetable, launches: LaunchLog, frames: FrameLog, *, window_ns: int, floor_p99_ns: int
) -> list[Miss]:
    """Every miss of a priority model, explained.

    A frame that waited in the queue while an earlier one ran was caught in a backlog;
    one that was started late because a segment ran over its window suffered an
    overrun; one that was started late without that, a late wake-up; the rest took too
    long themselves.
    """
    rows, launched = frames.rows(), launches.rows()
    labels = [f"{model.name}[{segment.index}]" for model in timetable.models for segment in model.segments]
    quantiles = [segment.duration_ns for model in timetable.models for segment in model.segments]
    found = []
    for model, frame, fate, released, started, finished in rows.tolist():
        planned = timetable.models[model]
        if planned.role != "priority" or fate == Fate.DONE:
            continue
        detail = ""
        cause: Literal["late wake-up", "overrun", "own duration", "backlog", "run ended"] = "own duration"
        if fate == Fate.RUN_ENDED:
            cause, detail = "run ended", "unfinished at the end of the run"
        elif fate == Fate.QUEUE_FULL:
            cause, detail = "backlog", "earlier frames took longer than their windows"
        else:
            lateness = started - released
            before = launched[(launched[:, 3] < released) & (launched[:, 4] > released)]
            if len(before):
                program = int(before[-1, 0])
                took = int(before[-1, 4] - before[-1, 3])
                over = int(before[-1, 4]) - released
                cause = "overrun"
                detail = (
                    f"{labels[program]} took {took / 1e6:.2f} ms, planned {quantiles[program] / 1e6:.2f} ms, "
                    f"and ended {over / 1e6:.2f} ms into the window"
                )
            elif lateness >= window_ns:
                cause, detail = "backlog", f"it waited {lateness / 1e6:.2f} ms for earlier frames"
            elif lateness > max(10 * floor_p99_ns, 1_000_000):
                cause, detail = "late wake-up", f"started {lateness / 1e6:.2f} ms late, nothing ran before"
            else:
                took = finished - started
                detail = f"took {took / 1e6:.2f} ms, planned {planned.duration_ns / 1e6:.2f} ms"
        found.append(Miss(window=frame, model=planned.name, cause=cause, detail=detail))
    return found
