"""What happened as a timeline within a page, which reads it back with ``assets/timeline/data.js``.

The page holds every operation, not a picture of them. Columns of integers are split into
their bytes (all lowest bytes, then all second ones, ...), which deflate squeezes best, and
the whole travels as base64 text; see there for the way back.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record
from framefit.core.profile import HOW_WORDS, How, OperationLog
from framefit.core.program import Launches, Program
from framefit.report.drawing import looks_of
from framefit.report.formats import format_duration
from framefit.report.operations import NamedOperations, UnitTrack, unit_tracks

__all__ = ["Happened", "LossRegion", "TimelineWindows"]


_COMPRESSION = 6
_Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class TimelineWindows:
    """The beat.

    Attributes:
        releases_ns: int64, one release a window, ascending, on the log's clock.
        priority_ns: int64, (count, 2), start and end of the priority periods.
    """

    releases_ns: npt.NDArray[np.int64]
    priority_ns: npt.NDArray[np.int64]


class LossRegion(Record, kw_only=True):
    """A time in which events were lost.

    Attributes:
        label: what is known of it, such as "23 events lost: the buffer was full".
    """

    start_ns: int
    end_ns: int
    label: str


@dataclass(frozen=True)
class Happened:
    """What a trace says of a run.

    Attributes:
        log: every operation, with how its times are known.
        program: names units, models, segments and layers.
        launches: window and frame of each inference; ``None``: they are not shown.
        windows: the beat, on the log's clock; ``None``: no windows are shown.
        losses: times in which events were lost.
        priority_models: names of those that have a priority period: colours go by that.
    """

    log: OperationLog
    program: Program
    launches: Launches | None = None
    windows: TimelineWindows | None = None
    losses: tuple[LossRegion, ...] = ()
    priority_models: tuple[str, ...] = ()


class _Column(Record, kw_only=True):
    """Where a column lies in the data: ``planes`` times ``count`` bytes from ``at``.

    Attributes:
        signed: zigzag.
        summed: differences to the value before.
    """

    at: int
    count: int
    planes: int
    signed: bool
    summed: bool


class _Track(Record, kw_only=True):
    name: str
    start: _Column
    duration: _Column
    operation: _Column
    inference: _Column
    how: _Column
    margins: tuple[_Column, _Column, _Column, _Column]


class _Page(Record, kw_only=True):
    """What the page's script reads; times are from ``origin_ns``, itself text: scripts count to 2**53 only.

    Attributes:
        operations: name, kind, unit, layer, program, model, segment, index; texts are places in ``texts``.
        colours: of models, as in the pictures of a run.
        launches: window and frame by inference.
        priority: start and duration.
    """

    origin_ns: str
    span_ns: int
    texts: tuple[str, ...]
    hows: tuple[str, ...]
    operations: tuple[tuple[int, ...], ...]
    tracks: tuple[_Track, ...]
    colours: dict[str, str]
    launches: tuple[_Column, _Column] | None
    releases: _Column | None
    priority: tuple[_Column, _Column] | None
    losses: tuple[tuple[int, int, str], ...]


class _Blob:
    """Columns one after the other."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def add(self, values: _Integers, *, signed: bool = False, summed: bool = False) -> _Column:
        """Append one column; values are not negative unless ``signed``."""
        values = values.astype(np.int64)
        if summed and len(values):
            values = np.diff(values, prepend=0)
        if signed:
            values = (values << 1) ^ (values >> 63)
        greatest = int(values.view(np.uint64).max(initial=0))
        planes = (greatest.bit_length() + 7) // 8
        rows = values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :planes]
        part = np.ascontiguousarray(rows.T).tobytes()
        column = _Column(at=self._length, count=len(values), planes=planes, signed=signed, summed=summed)
        self._parts.append(part)
        self._length += len(part)
        return column

    def text(self) -> str:
        return base64.b64encode(zlib.compress(b"".join(self._parts), _COMPRESSION)).decode()


@dataclass(frozen=True)
class TimelineData:
    """A timeline as its script reads it.

    Attributes:
        summary: for those who do not see it.
        page: names, and where each column lies in ``data``.
        data: compressed columns, base64.
    """

    summary: str
    page: Record
    data: str


def timeline_data(happened: Happened) -> TimelineData:
    """Every operation, and what is known around it, for a page's script.

    Args:
        happened: what a trace says.
    """
    blob = _Blob()
    page = _page(blob, happened)
    tracks = len(page.tracks)
    summary = (
        f"Timeline of {len(happened.log):,} operations on {tracks} unit{'s' * (tracks != 1)}, in "
        f"{format_duration(page.span_ns)}"
    )
    return TimelineData(summary, page, blob.text())


def _page(blob: _Blob, happened: Happened) -> _Page:
    log, program, launches = happened.log, happened.program, happened.launches
    windows, losses = happened.windows, happened.losses
    bounds = [bound for times in (log.start_ns, log.end_ns) if len(times) for bound in (times.min(), times.max())]
    bounds += [bound for loss in losses for bound in (loss.start_ns, loss.end_ns)]
    origin_ns, last_ns = int(min(bounds, default=0)), int(max(bounds, default=0))
    named_operations = NamedOperations.of(log, program)
    texts: dict[str, int] = {}
    operations = tuple(
        (
            *(
                texts.setdefault(text, len(texts))
                for text in (op.name, op.kind, op.unit, op.layer, op.program, op.model)
            ),
            op.segment,
            op.index,
        )
        for op in named_operations.named
    )
    releases = priority = None
    if windows is not None and len(windows.releases_ns):
        beat = np.append(windows.releases_ns, windows.releases_ns[-1] + program.period_ns)
        releases = blob.add(beat - origin_ns, signed=True, summed=True)
        periods = windows.priority_ns.reshape(-1, 2)
        priority = (
            blob.add(periods[:, 0] - origin_ns, signed=True, summed=True),
            blob.add(periods[:, 1] - periods[:, 0], signed=True),
        )
    looks = looks_of((segment.model for segment in program.programs), happened.priority_models)
    return _Page(
        origin_ns=str(origin_ns),
        span_ns=last_ns - origin_ns,
        texts=tuple(texts),
        hows=tuple(HOW_WORDS[how] for how in How),
        operations=operations,
        tracks=tuple(_track(blob, track, log, named_operations, origin_ns) for track in unit_tracks(log, program)),
        colours={model: look.fill for model, look in looks.items()},
        launches=None
        if launches is None
        else (blob.add(launches.window, signed=True, summed=True), blob.add(launches.frame, signed=True, summed=True)),
        releases=releases,
        priority=priority,
        losses=tuple((loss.start_ns - origin_ns, loss.end_ns - origin_ns, loss.label) for loss in losses),
    )


def _track(blob: _Blob, track: UnitTrack, log: OperationLog, named: NamedOperations, origin_ns: int) -> _Track:
    at = track.entries
    start_ns, end_ns = log.start_ns[at], log.end_ns[at]
    inferred = at[log.inferred[at]]
    margins = (
        log.start_ns[inferred] - log.start_low_ns[inferred],
        log.start_high_ns[inferred] - log.start_ns[inferred],
        log.end_ns[inferred] - log.end_low_ns[inferred],
        log.end_high_ns[inferred] - log.end_ns[inferred],
    )
    low, high, end_low, end_high = (blob.add(margin, signed=True) for margin in margins)
    return _Track(
        name=f"core {track.core} > {track.name}" if track.shares_core else track.name,
        start=blob.add(start_ns - origin_ns, summed=True),
        duration=blob.add(end_ns - start_ns, signed=True),
        operation=blob.add(named.row[at]),
        inference=blob.add(log.inference[at], signed=True, summed=True),
        how=blob.add(log.start_how[at].astype(np.int64) | log.end_how[at].astype(np.int64) << 4),
        margins=(low, high, end_low, end_high),
    )
