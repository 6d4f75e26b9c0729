"""``framefit demo``: plans, runs and reports on built-in models, one verb after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from framefit.core.files import write_whole
from framefit.core.model.builtin import BUILTIN
from framefit.core.settings import Notify, silent, verb
from framefit.planning.plan import Plan
from framefit.workflows.plan import plan
from framefit.workflows.record import RunResult
from framefit.workflows.report import write_report
from framefit.workflows.run import run, simulate
from framefit.workflows.settings import DemoSettings

__all__ = ["demo"]


_ELSEWHERE = "micro-npu"
_SIMULATED = (
    "the models do not fit on this machine as it is now (busy, or slow: see framefit doctor); this is a simulation "
    f"on the target {_ELSEWHERE}"
)
_APP = """\
# A camera at 30 frames a second: the detector sees every frame, depth runs in what is left.
schema_version = 1
target = "cpu"
rate_hz = 30

[schedule]
preemption = "never"          # cut, as for a unit that cannot be interrupted; without this
                              # line real-time priorities are used where they are permitted

[[streams]]
name = "camera"
source = "synthetic"          # random frames in each model's own size

[[models]]
name = "detector"
path = "detector.onnx"
priority = "every-window"
inputs = { image = "camera" }

[[models]]
name = "depth"
path = "depth.onnx"
priority = "background"
inputs = { image = "camera" }
"""


@verb(DemoSettings, "output")
def demo(
    settings: DemoSettings,
    *,
    notify: Notify = silent,
    stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[int, int], None] | None = None,
) -> tuple[Plan, RunResult]:
    """Write built-in models and a workload, plan and run them; ``report.html`` lies in the run folder.

    The folder gets ``detector.onnx``, ``depth.onnx`` and ``app.toml``; an ``app.toml`` that is there already is used as
    it is.

    Args:
        settings: where, and for how long.
        notify: receives what is being done.
        stop: asked in every window.
        on_idle: called with (windows begun, windows).

    Where the workload as it was written does not fit on this machine, which may be busy, it is simulated on a
    described device.

    Raises:
        InfeasibleError: a workload that was changed does not fit.
    """
    notify("building models")
    seconds, seed = settings.seconds, settings.seed
    app = write_demo(settings.output, seed)
    planned = plan(app, in_real_time=True, notify=notify)
    if planned.timetable.feasible or app.read_text() != _APP:
        result = run(planned, seconds=seconds, seed=seed, notify=notify, stop=stop, on_idle=on_idle)
    else:
        planned = plan(app, target=_ELSEWHERE, notify=notify)
        result = simulate(planned, seconds=seconds, seed=seed, notify=notify, stop=stop, on_idle=on_idle)
        result = dataclasses.replace(result, warnings=(*result.warnings, _SIMULATED))
    write_report(result.folder, notify=notify)
    return planned, result


def write_demo(folder: str | Path, seed: int = 0) -> Path:
    """Write the demo's models, and its workload unless there is one.

    Args:
        folder: gets ``detector.onnx``, ``depth.onnx`` and ``app.toml``.
        seed: of weights.

    Returns:
        The workload's path.
    """
    folder = Path(folder)
    for name in ("detector", "depth"):
        BUILTIN[name](seed).save(folder / f"{name}.onnx", force=True)
    app = folder / "app.toml"
    if not app.exists():
        with write_whole(app) as file:
            file.write(_APP.encode())
    return app
