"""The profile folder: where it may lie, what is in it, and how it comes there whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from framefit.core.files import check_folder, claimed_folder, write_record, write_whole_folder
from framefit.profiling.expectation import window_releases
from framefit.profiling.losses import long_losses
from framefit.report.files.chrome import write_chrome
from framefit.report.files.event_logs import write_events, write_lost
from framefit.report.files.perfetto import write_perfetto
from framefit.report.pages.profile import write_timeline_page
from framefit.report.pages.timeline import Happened, LossRegion, TimelineWindows
from framefit.workflows.profiles.profiled import Profiled

__all__ = [
    "check_profile_folder",
    "happened",
    "own_profile_folder",
    "write_numbered_profile",
    "write_profile_folder",
]

_MARK = "profile.json"


def own_profile_folder(trace: Path) -> Path | None:
    """``RUN/profile`` of a run folder; ``None``: a trace has none."""
    return trace / "profile" if trace.is_dir() else None


def write_numbered_profile(trace: Path, found: Profiled) -> Profiled:
    """Write a profile as ``profiles/TRACE-N``, the first N that is free.

    Args:
        trace: the file, or ``-``.
        found: its profile.

    Returns:
        It, with its folder.

    Raises:
        InputError: the files cannot be written.
    """
    name = "stream" if str(trace) == "-" else trace.name.split(".")[0] or "trace"
    if name == "trace":
        name = trace.resolve().parent.name or name
    with claimed_folder(Path("profiles") / name) as folder:
        _write(folder, found, force=False, claimed=True)
    return dataclasses.replace(found, folder=folder)


def check_profile_folder(folder: Path, *, force: bool) -> None:
    """Whether a profile may be written there: nothing else of the user's is ever replaced.

    Raises:
        InputError: something is there, without ``force`` or not a profile.
    """
    check_folder(folder, _MARK, "a profile", force=force)


def write_profile_folder(folder: Path, found: Profiled, *, force: bool = False) -> None:
    """The profile's files: made beside their place, then renamed.

    Args:
        folder: where they will lie.
        found: the profile.
        force: replace a profile that is there.

    Raises:
        InputError: something is there that may not be replaced, or the files cannot be written.
    """
    _write(folder, found, force=force, claimed=False)


def _write(folder: Path, found: Profiled, *, force: bool, claimed: bool) -> None:
    """See :func:`write_profile_folder`."""
    log, source = found.log, found.source
    program, launches, timetable = source.program, source.launches, source.timetable
    seen, releases, priority = happened(found), None, []
    if seen.windows is not None and timetable is not None:
        releases = seen.windows.releases_ns
        priority = [model.name for model in timetable.models if model.role == "priority"]
    with write_whole_folder(folder, _MARK, "a profile", force=force, claimed=claimed) as part:
        write_record(part / _MARK, found.profile)
        write_events(part / "events.csv", log, program)
        write_lost(part / "lost.csv", log, program)
        write_lost(part / "lost.json", log, program)
        write_events(part / "events.json", log, program)
        write_perfetto(part / "trace.pftrace", log, program, launches, releases, priority)
        write_chrome(part / "trace.json", log, program, launches)
        write_timeline_page(part / "timeline.html", seen, title=source.where, profile=found.profile)


def happened(found: Profiled) -> Happened:
    """What a trace says, with the beat and the losses around it.

    Args:
        found: its profile.
    """
    log, source = found.log, found.source
    program, launches, timetable, windows = source.program, source.launches, source.timetable, None
    if launches is not None and len(launches) and timetable is not None and timetable.windows and len(log):
        _, releases, reserved = window_releases(log, program, launches, timetable)
        periods = [
            np.stack([releases[one.at] + one.opens_ns, releases[one.at] + one.closes_ns], 1)[one.planned]
            for one in reserved
        ]
        together = np.concatenate([np.zeros((0, 2), np.int64), *periods])
        windows = TimelineWindows(releases, together[np.argsort(together[:, 0], kind="stable")])
    losses = tuple(
        LossRegion(start_ns=begin, end_ns=end, label=f"{count} events lost")
        for begin, end, count in zip(*(part.tolist() for part in long_losses(log)), strict=True)
    )
    return Happened(log, program, launches, windows, losses)
