"""``framefit report``: one page on runs, plans, profiles, latency tables, searches and fits, or several compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from framefit.core.check import CheckResult
from framefit.core.choice import Choice
from framefit.core.explanation import ModelGraph
from framefit.core.files import check_new, decode_json, from_data, read_bytes, read_record, write_record, write_whole
from framefit.core.fit_results import PLAN_AFTER, PLAN_BEFORE, FitResult
from framefit.core.formats import format_of
from framefit.core.functions import without_functions
from framefit.core.host_view import HostView
from framefit.core.latency_table import read_table
from framefit.core.loss_study import LossStudy
from framefit.core.profile import Profile
from framefit.core.run_record import CycleReport, LatencyEstimate, Metrics, RunInfo
from framefit.core.settings import Notify, silent, verb
from framefit.core.soak import read_soak, soaked
from framefit.core.sparsity import SparsityResult
from framefit.core.timetable import Timetable
from framefit.core.tree_results import RtlReport, TreeifyResult
from framefit.core.workload import Workload
from framefit.errors import FramefitError, InputError
from framefit.planning.explain import explain
from framefit.planning.graphs import graphs_of
from framefit.profiling.pairing import pair_events, run_windows
from framefit.profiling.profile import open_trace, profile_trace
from framefit.profiling.totals import window_use
from framefit.report.csv_files import read_events, read_frames
from framefit.report.description import Subject
from framefit.report.drawing import run_picture
from framefit.report.html import Content, write_report_page
from framefit.report.perfetto import write_perfetto
from framefit.report.sections.fit import FitContent
from framefit.report.sections.plan import PlanContent
from framefit.report.sections.profile import ProfileContent
from framefit.report.sections.run import RunContent
from framefit.report.timeline import Happened
from framefit.runtime.metrics import frame_times
from framefit.workflows.plan import read_plan
from framefit.workflows.profile import happened
from framefit.workflows.record import RunResult, first_shown, recover
from framefit.workflows.settings import ReportSettings

__all__ = ["report_place", "run_content", "write_report", "write_views"]


_PERFETTO = "trace.pftrace"
_SHOWN_WINDOWS = 8  # on a terminal
_DRAWN_FROM = 32  # windows: what began in those shown may end later
_REMEDY = (
    "give folders of framefit run, simulate, plan, profile, inject-loss --repeat, sparsify, treeify, fit, choose or "
    "rtl, or their timetable.json, NAME.table.json, or what --json printed"
)


@verb(ReportSettings, "inputs")
def write_report(settings: ReportSettings, *, notify: Notify = silent) -> Path:
    """Write one page on what files and folders hold; what each is, its content says.

    Several of a kind are compared: charts overlaid, figures with their differences to the first.

    Args:
        settings: what to report on.
        notify: receives what is being done.

    Returns:
        The page's path.

    Raises:
        InputError: no input, one that is none of these or damaged, or the page exists.

    Example:
        >>> framefit.write_report("runs/before", "runs/after", output="report.html")  # doctest: +SKIP
        PosixPath('report.html')
    """
    if not settings.inputs:
        raise InputError("nothing to report on", remedy=_REMEDY)
    paths = [Path(path) for path in settings.inputs]
    place = report_place(paths[0]) if settings.output is None else Path(settings.output)
    check_new(place, force=settings.force)  # before anything is read
    subjects = []
    for path, name in zip(paths, _names(paths), strict=True):
        notify(f"reading {path}")
        recover(path, notify)
        content = _content(path)
        if isinstance(content, RunContent) and place.parent == path and not (path / _PERFETTO).exists():
            write_views(path, content.profile)
        subjects.append(Subject(name, str(path), content))
    notify("writing the page")
    write_report_page(place, subjects, force=settings.force)
    return place


def write_views(folder: Path, profile: Profile | None) -> None:
    """Write what viewers read into a run folder, from its records; of a long run its last windows.

    Args:
        folder: of a run; ``trace.pftrace`` and ``run.svg`` are made of what is in it.
        profile: what the trace says, for ``profile.json``; ``None``: nothing.

    Raises:
        InputError: a record is damaged, or a file cannot be written.
    """
    if profile is not None:
        write_record(folder / "profile.json", profile, force=True)
    if not (folder / "launches.npz").is_file():  # an older or shorter run
        return
    timetable, view = read_record(folder / "timetable.json", Timetable), HostView.read(folder)
    priority = [model.name for model in timetable.models if model.role != "background"]
    pattern = max(len(timetable.windows), 1)
    first = first_shown(view.launches, pattern)
    trace, launches, releases = view.part(first)
    executed = pair_events(trace, view.program, launches)
    write_perfetto(
        folder / _PERFETTO,
        executed,
        view.program,
        launches,
        releases,
        priority,
        in_force=view.in_force_from(int(releases[0]) if len(releases) else 0),
        force=True,
    )
    turn = first % pattern
    reserved, overhang = (
        {unit: ns[turn:] + ns[:turn] for unit, ns in rooms.items()}
        for rooms in (timetable.first_reserved_ns, timetable.overhang_ns)
    )
    rows = run_windows(executed, view.program, launches, releases, priority, reserved_ns=reserved, overhang_ns=overhang)
    with write_whole(folder / "run.svg", force=True) as file:
        file.write(run_picture(rows).encode())


def run_content(result: RunResult) -> RunContent:
    """What a terminal shows of a run: its figures, and its first windows as the host saw them."""
    trace, launches, releases = result.view.part(0, _DRAWN_FROM)
    rows = run_windows(
        pair_events(trace, result.view.program, launches),
        result.view.program,
        launches,
        releases,
        [model.name for model in result.metrics.models if model.role != "background"],
        reserved_ns=result.timetable.first_reserved_ns,
        overhang_ns=result.timetable.overhang_ns,
        windows=_SHOWN_WINDOWS,
    )
    return RunContent(result.metrics, profile=result.profile, rows=rows, notes=result.notes)


def report_place(first: str | Path) -> Path:
    """``report.html`` in the first input's folder, which may be the input."""
    first = Path(first)
    return (first if first.is_dir() else first.parent) / "report.html"


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest end of each path that no other one has; one that is given twice is numbered."""
    parts = [path.resolve().parts for path in paths]
    names: list[str] = []
    for at, path_parts in enumerate(parts):
        others = [other for other in parts if other != path_parts]
        ends = (path_parts[-length:] for length in range(1, len(path_parts) + 1))
        name = "/".join(next((end for end in ends if all(other[-len(end) :] != end for other in others)), path_parts))
        again = parts[:at].count(path_parts)
        names.append(f"{name} ({again + 1})" if again else name)
    return names


def _content(path: Path) -> Content:
    if path.is_dir():
        for mark, read in _FOLDERS.items():
            if (path / mark).is_file():
                return read(path)
        raise InputError("contains nothing that a report can show", where=path, remedy=_REMEDY)
    keys = _keys(path)
    for required, read in _FILES:
        if required <= keys:
            return read(path)
    raise InputError("is not something that a report can show", where=path, remedy=_REMEDY)


def _keys(path: Path) -> set[str]:
    """Keys of a JSON file; other files are nothing that a report shows."""
    raw = read_bytes(path)
    if raw.lstrip()[:1] != b"{":
        known = format_of(path)
        what = "not a JSON object" if known is None else known.name
        raise InputError(f"is not something that a report can show: it is {what}", where=path, remedy=_REMEDY)
    try:
        return set(decode_json(raw, dict[str, msgspec.Raw]))
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", where=path, remedy="give the whole file") from error


def _run(folder: Path) -> RunContent:
    """A run folder; of an older or shorter run not all files are there."""
    info, notes = read_record(folder / "run.json", RunInfo), []
    metrics = read_record(folder / "metrics.json", Metrics)
    program, launches, events, profile, use = None, None, None, None, None
    if (folder / "program.json").is_file() and (folder / "trace.npz").is_file():
        source = open_trace(folder)
        program, launches = source.program, source.launches
        try:
            profiled = profile_trace(source)
            events, profile = happened(profiled), profiled.profile
            if events.windows is not None:
                priority = [model.name for model in metrics.models if model.role != "background"]
                use = window_use(events.log, events.program, events.windows.releases_ns, priority)
        except InputError as error:
            notes.append(f"there is no timeline: {error.what}")
    else:
        notes.append("there is no timeline: the folder has no trace.npz and program.json")
    frames = folder / "frames.csv"
    timetable, workload = read_record(folder / "timetable.json", Timetable), _workload(info)
    return RunContent(
        info=info,
        metrics=metrics,
        timetable=timetable,
        workload=workload,
        explanation=None if workload is None else explain(timetable, workload),
        graphs=_graphs(folder / "timetable.json"),
        times=frame_times(metrics.models, read_frames(frames), program, launches) if frames.is_file() else {},
        use=use,
        happened=events,
        profile=profile,
        soak=read_soak(folder) if soaked(folder) else None,
        notes=tuple(notes),
    )


def _workload(info: RunInfo) -> Workload | None:
    """That a run was of; one of another version may have other keys."""
    try:
        return from_data(info.workload, Workload, "run.json")
    except InputError:
        return None


def _plan(path: Path) -> PlanContent:
    """A stored plan, and what it was made of."""
    timetable = read_record(path, Timetable)
    if timetable.source is None:
        return PlanContent(timetable)
    workload = timetable.source.workload
    return PlanContent(timetable, workload, explain(timetable, workload), _graphs(path))


def _graphs(timetable: Path) -> tuple[ModelGraph, ...]:
    """The layers of a stored plan's models, where these and the device are still the same.

    A plan whose workload or device names functions has none: whoever opens a report runs nobody's program.
    """
    with contextlib.suppress(FramefitError), without_functions("a report runs nothing"):
        return graphs_of(read_plan(timetable))
    return ()


def _profile(folder: Path) -> ProfileContent:
    """A profile folder; of ``profile.json`` alone there are no events."""
    profile = read_record(folder / "profile.json", Profile)
    events = folder / "events.csv"
    return ProfileContent(profile, Happened(*read_events(events)) if events.is_file() else None)


def _fit(record: Path) -> FitContent:
    """The record of a fit; an older one has no timetables beside it."""
    places = (record.parent / name for name in (PLAN_BEFORE, PLAN_AFTER))
    before, after = (read_record(path, Timetable) if path.is_file() else None for path in places)
    return FitContent(read_record(record, FitResult), before, after)


_FOLDERS: dict[str, Callable[[Path], Content]] = {  # by the file that only such a folder has
    "fit.json": lambda folder: _fit(folder / "fit.json"),
    "run.json": _run,
    "profile.json": _profile,
    "loss_study.json": lambda folder: read_record(folder / "loss_study.json", LossStudy),
    "choice.json": lambda folder: read_record(folder / "choice.json", Choice),
    "result.json": lambda folder: _content(folder / "result.json"),
    "report.json": lambda folder: _content(folder / "report.json"),
    "timetable.json": lambda folder: _content(folder / "timetable.json"),
}
_FILES: tuple[tuple[set[str], Callable[[Path], Content]], ...] = (  # by keys that only such a file has
    ({"hyperperiod_windows", "models", "windows"}, _plan),
    ({"fingerprint", "entries"}, read_table),
    ({"dense", "configurations"}, lambda path: read_record(path, SparsityResult)),
    ({"original", "candidates"}, lambda path: read_record(path, TreeifyResult)),
    ({"settings", "before", "after"}, _fit),
    ({"drawn", "buffers", "sizes"}, lambda path: read_record(path, LossStudy)),
    ({"app", "cells"}, lambda path: read_record(path, Choice)),
    ({"core", "yosys", "groups"}, lambda path: read_record(path, RtlReport)),
    ({"total_cycles", "layers"}, lambda path: read_record(path, CycleReport)),
    ({"plain_sum_ns", "layers"}, lambda path: read_record(path, LatencyEstimate)),
    ({"against", "decision"}, lambda path: read_record(path, CheckResult)),
    ({"totals_by_kind", "events"}, lambda path: _profile(path.parent)),
    ({"residual_utilisation_ratio", "misses"}, lambda path: _run(path.parent)),
    ({"command", "workload", "host"}, lambda path: _run(path.parent)),
)
