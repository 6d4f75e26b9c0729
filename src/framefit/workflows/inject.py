"""``framefit inject-loss``: loses packets on purpose, once, or often to see what losses cost and size a buffer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from framefit.core.files import check_folder, check_new, write_record, write_whole_folder
from framefit.core.loss_study import LossStudy
from framefit.core.program import Launches
from framefit.core.settings import Notify, silent, verb
from framefit.errors import InputError
from framefit.profiling.inject import ThinnedTrace, thin_trace
from framefit.profiling.loss_study import study_losses
from framefit.profiling.profile import open_trace
from framefit.profiling.settings import InjectLossSettings
from framefit.report.description import Subject
from framefit.report.html import write_report_page
from framefit.report.sections.losses import write_loss_picture

__all__ = ["inject_loss"]

_MARK = "loss_study.json"


@dataclass(frozen=True)
class StudiedLosses:
    """What ``inject_loss`` with ``repeat`` returns.

    Attributes:
        study: buffers and errors.
        folder: where it was written; ``None`` if it was not.
    """

    study: LossStudy
    folder: Path | None = None


@verb(InjectLossSettings, "trace")
def inject_loss(
    settings: InjectLossSettings, *, launches: Launches | None = None, notify: Notify = silent
) -> ThinnedTrace | StudiedLosses:
    """Remove packets from a trace as a device loses them; with ``repeat``, in many ways, and profile what is left.

    A study needs the program. Its folder holds ``loss_study.json``, the curve of errors ``loss_study.svg``, and
    ``report.html`` with the smallest buffer that would have lost nothing.

    Args:
        settings: the trace, and how many packets it loses.
        launches: of a ``program`` that is given as an object.
        notify: receives progress messages.

    Returns:
        The thinned trace, and which packets it kept; or the study.

    Raises:
        InputError: a file cannot be used, or the loss is not possible.

    Example:
        >>> framefit.inject_loss("runs/first", rate=0.1, output="thin.npz").lost  # doctest: +SKIP
        2000
    """
    output = None if settings.output is None else Path(settings.output)
    if settings.repeat is not None:
        return _study(settings, output, launches, notify)
    check_new(output, force=settings.force)
    injected = thin_trace(settings, launches)
    if output is not None:
        injected.trace.write(output, force=settings.force)
    return injected


def _study(
    settings: InjectLossSettings, folder: Path | None, launches: Launches | None, notify: Notify
) -> StudiedLosses:
    single = [name for name in ("rate", "kind", "burst") if getattr(settings, name) is not None]
    if single:
        raise InputError(
            f"--{single[0]} is of one loss, and --repeat asks for many", remedy="give --rates and --bursts instead"
        )
    if folder is not None:
        check_folder(folder, _MARK, "a study of losses", force=settings.force)
    source = open_trace(settings.trace, settings.program, launches)
    study = study_losses(
        source,
        repeats=settings.repeat or 1,
        rates=settings.rates,
        bursts=settings.bursts,
        drain_rate_hz=settings.drain_rate,
        seed=settings.seed,
        notify=notify,
    )
    if folder is not None:
        with write_whole_folder(folder, _MARK, "a study of losses", force=settings.force) as part:
            write_record(part / _MARK, study)
            write_loss_picture(part / "loss_study.svg", study)
            write_report_page(part / "report.html", [Subject(folder.name, source.where, study)])
    return StudiedLosses(study, folder)
