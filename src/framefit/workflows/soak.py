"""``framefit soak``: whether launches get slower while a device gets warm, and by how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framefit.core.settings import Notify, silent, verb
from framefit.core.soak import SoakResult, read_soak
from framefit.workflows.run import sampled
from framefit.workflows.settings import RunSettings, SoakSettings

__all__ = ["soak"]


@verb(SoakSettings, "app")
def soak(
    settings: SoakSettings,
    *,
    notify: Notify = silent,
    stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[int, int], None] | None = None,
) -> SoakResult:
    """Run a workload for many minutes, with clocks, temperatures and power, where the machine has sensors for them.

    The run folder is that of a run, with ``conditions.jsonl``. The first minute is the reference, so begin with a cool
    device.

    Args:
        settings: what to run, and for how long.
        notify: receives what is being done.
        stop: asked between launches; true ends the run, and what was seen until then is the result.
        on_idle: called with (windows begun, windows) where a window leaves time.

    Raises:
        InputError: see :func:`framefit.run`; a described device, which does not get warm.
        InfeasibleError: the plan does not fit.
        DeviceError: the device failed in mid-run; what happened until then is saved.

    Example:
        >>> framefit.soak("app.toml", minutes=30).sustained  # doctest: +SKIP
        {'priority': 1.12, 'background': 1.15}
    """
    given: dict[str, Any] = {
        name: getattr(settings, name) for name in ("app", "target", "cache", "output", "force", "seed")
    }
    result = sampled(RunSettings(**given, seconds=settings.minutes * 60), notify, stop, on_idle)
    return read_soak(result.folder)
