"""Runs as pictures."""

from __future__ import annotations

import dataclasses
import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

from framefit import InputError
from framefit.core.events import EventType
from framefit.core.program import Launches
from framefit.profiling.pairing import run_windows
from framefit.report.drawing import run_picture, terminal_picture

SVG = "{http://www.w3.org/2000/svg}"


def bars(text):
    """Tooltip, fill and left edge of every bar."""
    root = ET.fromstring(text)
    return [
        (group.findtext(f"{SVG}title"), group.find(f"{SVG}rect").get("fill"), float(group.find(f"{SVG}rect").get("x")))
        for group in root.iter(f"{SVG}g")
    ]


def drawn(renderable, **options):
    """Lines that a console shows."""
    console = Console(file=io.StringIO(), **options)
    console.print(renderable)
    return console.file.getvalue().splitlines()


def test_svg_bars(run):
    """Every segment executed in the shown windows is one bar, named in its tooltip."""
    shown = run.launches.window < 12
    found = bars(run_picture(run_windows(*run.arguments)))
    assert len(found) == shown.sum()
    for (tooltip, _, _), which, frame in zip(found, run.launches.program, run.launches.frame, strict=False):
        segment = run.program.programs[which]
        assert tooltip.startswith(f"{segment.model}, segment {segment.segment}, frame {frame}: ")
    assert len({fill for tooltip, fill, _ in found if tooltip.startswith("face")}) == 1
    assert len({fill for tooltip, fill, _ in found if tooltip.startswith("segmenter")}) == 2


def test_a_segment_may_run_on_until_the_next_windows_first_instant(late_run):
    """Where a window's priority period begins later, what runs into it from before is over nobody's end, until then."""
    red = "#e5383b"
    (late,) = [
        n
        for n, w in enumerate(late_run.launches.window)
        if w == 5 and n + 1 < len(late_run.launches) and late_run.launches.window[n + 1] == 6
    ]
    ends = np.sort(late_run.trace.time_ns[late_run.trace.type == EventType.END])
    crossed_ns = int(ends[late] - late_run.releases_ns[6])
    assert crossed_ns > 0
    unit = late_run.program.units[0].name
    for reserved_ns, over in (((crossed_ns,), 0), ((crossed_ns - 1,), 1), ((0, crossed_ns), 1), ((crossed_ns, 0), 0)):
        text = run_picture(run_windows(*late_run.arguments, reserved_ns={unit: reserved_ns}))
        assert sum(fill == red for _, fill, _ in bars(text)) == over
        assert text.count('class="over"') == over
        shown = drawn(
            terminal_picture(run_windows(*late_run.arguments, windows=8, reserved_ns={unit: reserved_ns})),
            width=100,
            no_color=True,
        )
        assert any("▶" in line for line in shown) == bool(over)
    everyone = [segment.model for segment in late_run.program.programs]
    text = run_picture(run_windows(*late_run.arguments[:4], everyone, reserved_ns={unit: (crossed_ns,)}))
    assert text.count('class="over"') == 1  # a priority model has to end in its own window


def test_svg_title_and_rows(run):
    """The title names models and rate; rows are the windows asked for, at most those that there are."""
    text = run_picture(run_windows(*run.arguments, first_window=15, windows=12))
    assert "face + segmenter at 30 Hz" in text
    assert "windows 15 to 19 of 20" in text
    assert text.count('class="row"') == 5


def test_svg_overrun(run, late_run):
    """What runs over a window's end is red in the next window, from its beginning."""
    red = "#e5383b"
    assert not any(fill == red for _, fill, _ in bars(run_picture(run_windows(*run.arguments))))
    text = run_picture(run_windows(*late_run.arguments))
    over = [(tooltip, x) for tooltip, fill, x in bars(text) if fill == red]
    assert len(over) == 1
    assert over[0][0].endswith("over the end of its window")
    left = float(ET.fromstring(text).find(f"{SVG}rect[@class='row']").get("x"))
    assert over[0][1] == pytest.approx(left, abs=0.01)
    assert text.count('class="over"') == 1


@pytest.fixture
def interrupted_run(run):
    """Background launches of 50 ms, around a priority launch of 4 ms at the beginning of each of 6 windows."""
    releases = run.releases_ns[:6].tolist()
    launches, events, start = [], [], releases[0] + 4_100_000
    for window, release in enumerate(releases):
        launches.append((0, window, window, release))
        events += [(release + 50_000, 0, EventType.START), (release + 4_050_000, 0, EventType.END)]
    for frame in range(4):
        end = start + 50_000_000
        launches.append((1, int(np.searchsorted(releases, start)) - 1, frame, start - 10_000))
        events += [(start, 1, EventType.START), (end, 1, EventType.END)]
        start = end + 5_000
    launches.sort(key=lambda launch: launch[3])
    program, window_of, frame_of, submit = (np.array(column) for column in zip(*launches, strict=True))
    # A launch's packets arrive when it ends, so those of an interrupted one come behind the others.
    time, kind, type_ = (np.array(column) for column in zip(*events, strict=True))
    return dataclasses.replace(
        run,
        trace=dataclasses.replace(
            run.trace,
            time_ns=time.astype(np.int64),
            id=kind.astype(np.int32),
            type=type_.astype(np.uint8),
            core=np.full(len(time), 1, np.int16),
            operation=np.zeros(len(time), np.int64),
        ),
        launches=Launches(
            program=program.astype(np.int32),
            window=window_of.astype(np.int64),
            frame=frame_of.astype(np.int64),
            submit_ns=submit.astype(np.int64),
        ),
        releases_ns=run.releases_ns[:6],
    )


def test_svg_interruptions_are_no_overruns(interrupted_run):
    """A background launch that others interrupt goes on in the next windows, in its own colour."""
    text = run_picture(run_windows(*interrupted_run.arguments))
    found = bars(text)
    assert not any(fill == "#e5383b" for _, fill, _ in found)
    assert 'class="over"' not in text
    assert not any("over the end of its window" in tooltip for tooltip, _, _ in found)
    assert sum(tooltip.startswith("face") for tooltip, _, _ in found) == 6
    first = [(tooltip, x) for tooltip, _, x in found if tooltip.startswith("segmenter, segment 0, frame 0:")]
    assert len(first) == 2  # 4.1 to 54.1 ms: in windows 0 and 1
    assert first[1][1] < first[0][1]


@pytest.mark.parametrize("windows", [1, 2, 3, 6])
def test_svg_interruptions_beyond_the_last_row(interrupted_run, windows):
    """What interrupts a launch may lie in the window after those that are shown."""
    text = run_picture(run_windows(*interrupted_run.arguments, windows=windows))
    assert 'class="over"' not in text
    assert text.count('class="row"') == windows


def test_terminal_interruptions_are_no_overruns(interrupted_run):
    """Nor are they in a terminal."""
    lines = drawn(terminal_picture(run_windows(*interrupted_run.arguments, windows=8)), width=100, no_color=True)
    assert not any("▶" in line or "▚" in line for line in lines)


def test_svg_names(run):
    """Names with characters that XML reserves are shown as they are."""
    programs = tuple(
        replace(one, model="a<b>&\"c'" if one.model == "face" else one.model) for one in run.program.programs
    )
    rows = run_windows(run.executed, replace(run.program, programs=programs), run.launches, run.releases_ns, ["x"])
    text = run_picture(rows)
    assert any(tooltip.startswith("a<b>&\"c'") for tooltip, _, _ in bars(text))


def test_svg_legend(run):
    """A legend of many models takes as many lines as it needs; none overlaps another or leaves the picture."""
    programs = tuple(replace(one, model=f"model with a long name {at}") for at, one in enumerate(run.program.programs))
    rows = run_windows(run.executed, replace(run.program, programs=programs), run.launches, run.releases_ns, [])
    root = ET.fromstring(run_picture(rows))
    first_row = float(root.find(f"{SVG}rect[@class='row']").get("y"))
    labels = [label for label in root.findall(f"{SVG}text") if label.text.startswith("model with a long name")][1:]
    assert len(labels) == len(programs)
    assert all(float(label.get("x")) < 960 - 24 and float(label.get("y")) < first_row for label in labels)
    assert len({(label.get("x"), label.get("y")) for label in labels}) == len(labels)


def test_svg_lost_events(run):
    """Where events were lost, an operation's own kind still names its segment, but not its frame."""
    kept = np.arange(len(run.trace)) >= 2
    columns = {name: getattr(run.trace, name)[kept] for name in ("time_ns", "id", "type", "core", "operation")}
    damaged = dataclasses.replace(run, trace=dataclasses.replace(run.trace, **columns))
    found = bars(run_picture(run_windows(*damaged.arguments)))
    assert len(found) == (run.launches.window < 12).sum() - 1
    assert found[0][0].startswith("segmenter, segment 0: ")


@pytest.mark.parametrize(("first", "windows"), [(20, 12), (-1, 12), (0, 0)])
def test_missing_windows(run, first, windows):
    """Windows that the run does not have are refused."""
    with pytest.raises(InputError, match="of a run that has 20"):
        run_windows(*run.arguments, first_window=first, windows=windows)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal(late_run, width):
    """Eight rows as wide as the console show the segments in order, and the overrun."""
    lines = drawn(terminal_picture(run_windows(*late_run.arguments, windows=8)), width=width, no_color=True)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "│" in line]
    assert len(rows) == 8
    assert [digit for digit in "".join(row.split("│")[1] for row in rows[:2]) if digit.isdigit()] == list("01234567")
    assert rows[5].rstrip().endswith("│▶")
    assert rows[6].split("│")[1].startswith("5▚")
    assert lines[-1].rstrip().endswith("33.33 ms")


def test_terminal_lengths(run):
    """A bar is as long as its share of the window."""
    row = next(
        line
        for line in drawn(terminal_picture(run_windows(*run.arguments, windows=8)), width=120, no_color=True)
        if "│" in line
    )
    inside = row.split("│")[1]
    assert inside.index("0") / len(inside) == pytest.approx(6.1 / 33.33, abs=1.5 / len(inside))


def test_terminal_without_unicode(run):
    """A console that knows only ASCII gets ASCII."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=file, width=80).print(terminal_picture(run_windows(*run.arguments, windows=8)))
    file.flush()
    assert b"|face####" in file.buffer.getvalue()
