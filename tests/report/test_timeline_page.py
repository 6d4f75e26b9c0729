"""The page's data, read back by a decoder that shares nothing with the writer; and the page in a browser."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from html import unescape

import numpy as np
import pytest
from browser import needs_browser, opened

from framefit import InputError
from framefit.core.program import Launches
from framefit.report.drawing import looks_of
from framefit.report.html import write_timeline_page
from framefit.report.timeline import Happened, LossRegion


def written(path, made, *, title="face & depth", summary=True, **changed):
    """The page of everything that is made up."""
    told = {"windows": made.windows, "losses": made.losses} | changed
    happened = Happened(made.log, made.program, made.launches, **told)
    write_timeline_page(path, happened, title=title, profile=made.profile if summary else None)
    return path.read_text()


def scripts(text):
    """Texts of the scripts by name."""
    return {
        (name or "code"): content
        for name, content in re.findall(r'<script(?: data-part="(\w+)")?[^>]*>(.*?)</script>', text, re.S)
    }


def decoded(text):
    """The page's record, and a function that reads one of its columns."""
    texts = scripts(text)
    blob = zlib.decompress(base64.b64decode(texts["data"]))

    def column(told):
        count = told["count"]
        values = [
            sum(blob[told["at"] + plane * count + i] << 8 * plane for plane in range(told["planes"]))
            for i in range(count)
        ]
        if told["signed"]:
            values = [-(value + 1) // 2 if value % 2 else value // 2 for value in values]
        return np.cumsum(values).tolist() if told["summed"] else values

    return json.loads(texts["page"]), column


def test_every_operation_is_in_the_page(profiled, tmp_path):
    """Times, names, provenance, intervals, windows and losses come back as they were."""
    page, column = decoded(written(tmp_path / "timeline.html", profiled))
    log, origin = profiled.log, int(page["origin_ns"])
    assert origin == log.start_ns.min()
    seen = 0
    for track, core in zip(page["tracks"], (4, 7), strict=True):
        at = np.flatnonzero(log.core == core)
        at = at[np.argsort(log.start_ns[at], kind="stable")]
        seen += len(at)
        start, duration = np.array(column(track["start"])), np.array(column(track["duration"]))
        assert (start + origin).tolist() == log.start_ns[at].tolist()
        assert (start + duration + origin).tolist() == log.end_ns[at].tolist()
        assert column(track["inference"]) == log.inference[at].tolist()
        assert column(track["how"]) == (log.start_how[at] + 16 * log.end_how[at].astype(int)).tolist()
        inferred = at[log.inferred[at]]
        margins = [column(margin) for margin in track["margins"]]
        assert margins[0] == (log.start_ns - log.start_low_ns)[inferred].tolist()
        assert margins[3] == (log.end_high_ns - log.end_ns)[inferred].tolist()
        for place, row in zip(at, column(track["operation"]), strict=True):
            name, kind, unit, layer, program, model, segment, index = page["operations"][row]
            told = profiled.program.programs[log.program[place]]
            operation = [op for group in told.groups for op in group.operations][log.operation[place]]
            assert [page["texts"][text] for text in (name, kind, unit, layer, program, model)] == [
                operation.name, operation.kind, operation.unit, operation.layer, told.name, told.model,
            ]  # fmt: skip
            assert (segment, index) == (told.segment, operation.index)
    assert seen == len(log)
    releases = profiled.windows.releases_ns
    assert np.add(column(page["releases"]), origin).tolist() == [*releases, releases[-1] + profiled.program.window_ns]
    assert column(page["priority"][1]) == [70_000] * len(releases)
    assert column(page["launches"][1]) == profiled.launches.frame.tolist()
    assert [origin + page["losses"][0][0], page["losses"][0][2]] == [
        profiled.losses[0].start_ns,
        profiled.losses[0].label,
    ]


def test_nothing_is_loaded_from_elsewhere(profiled, tmp_path):
    """The page names no other file, and neither its style nor its script fetches one."""
    text = written(tmp_path / "timeline.html", profiled)
    assert not re.search(r"""\s(src|href|action)\s*=""", text.replace(scripts(text)["code"], ""))
    without_data = text.replace(scripts(text)["data"], "")
    assert not re.search(r"https?://|@import|url\(|\bfetch\(|XMLHttpRequest|\bimport\b", without_data)


def test_names_cannot_break_the_page(profiled, tmp_path):
    """Markup and placeholders in a title or a name are text."""
    title = '</script><b>@data@ & "x"</b>'
    text = written(tmp_path / "timeline.html", profiled, title=title)
    page, _ = decoded(text)
    assert title in unescape(text)
    assert "</script><b>" not in text
    assert any("</script>" in name for name in page["texts"])


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_operation(profiled, tmp_path, count):
    """An empty log and one operation give a page; so does a log without launches, windows and summary."""
    arrays = {f.name: getattr(profiled.log, f.name) for f in dataclasses.fields(profiled.log)}
    few = {name: array[:count] for name, array in arrays.items() if name != "kinds"}
    made = dataclasses.replace(profiled, log=dataclasses.replace(profiled.log, **few))
    none = Launches(*(np.zeros(0, np.int64),) * 4)
    for launches in (None, none):
        text = written(
            tmp_path / f"{launches is None}.html",
            dataclasses.replace(made, launches=launches),
            windows=None,
            losses=(),
            summary=False,
        )
        page, column = decoded(text)
        assert sum(len(column(track["start"])) for track in page["tracks"]) == count


def test_far_times(profiled, tmp_path):
    """Clocks that count from 1970 lose no nanosecond."""
    move = 1_790_000_000_123_456_789 - int(profiled.log.start_ns.min())
    names = [name for name in (f.name for f in dataclasses.fields(profiled.log)) if name.endswith("_ns")]
    moved = dataclasses.replace(profiled.log, **{name: getattr(profiled.log, name) + move for name in names})
    text = written(tmp_path / "t.html", dataclasses.replace(profiled, log=moved), windows=None, losses=())
    page, column = decoded(text)
    starts = sorted(value + int(page["origin_ns"]) for track in page["tracks"] for value in column(track["start"]))
    assert starts == sorted(moved.start_ns.tolist())


def test_overwriting_a_page(profiled, tmp_path):
    """No file is overwritten."""
    path = tmp_path / "timeline.html"
    written(path, profiled)
    with pytest.raises(InputError, match="--force"):
        written(path, profiled)


@needs_browser
def test_the_page_opens_where_its_address_says(profiled, tmp_path):
    """At an address it draws exactly the operations of that time, without those that are inferred."""
    path = tmp_path / "timeline.html"
    written(path, profiled)
    log = profiled.log
    state, dom = opened(path, "#t=400us&w=200us&hide=1&q=conv", part="timeline")
    assert state["state"] == "ready"
    assert int(state["operations"]) == len(log)
    assert int(state["inferred"]) == log.inferred.sum()
    assert (int(state["start"]), int(state["width"])) == (400_000, 200_000)
    start, end = (times - log.start_ns.min() for times in (log.start_ns, log.end_ns))
    shown = (end > 400_000) & (start < 600_000) & ~log.inferred
    assert int(state["drawn"]) == shown.sum() > 5
    names = [[op.name for group in one.groups for op in group.operations] for one in profiled.program.programs]
    searched = ["conv" in names[p][o] for p, o in zip(log.program, log.operation, strict=True)]
    assert int(state["found"]) == sum(searched)
    assert "Why events were lost" in dom
    assert "face &amp; depth" in dom


@pytest.mark.slow
@needs_browser
def test_a_million_events(profiled, repeated, tmp_path):
    """A page of a million events draws columns of the whole, and single operations close up."""
    log, many = profiled.log, repeated(profiled, 4_000)
    assert 2 * len(many.log) > 1_500_000
    path = tmp_path / "timeline.html"
    losses = tuple(LossRegion(start_ns=at, end_ns=at + 9_000, label="lost") for at in range(10**9, 4 * 10**9, 10**6))
    written(path, many, losses=losses, windows=None)
    whole, _ = opened(path, seconds=5, part="timeline")
    assert int(whole["operations"]) == len(many.log)
    assert int(whole["drawn"]) == 0
    assert 1_200 < int(whole["columns"]) < 10_000
    close, _ = opened(path, "#t=5s&w=300us", seconds=5, part="timeline")
    start, end = many.log.start_ns - log.start_ns.min(), many.log.end_ns - log.start_ns.min()
    assert int(close["drawn"]) == ((end > 5e9) & (start < 5e9 + 300_000)).sum() > 5


def test_models_have_the_colours_of_other_pictures(profiled, tmp_path):
    """Those of the drawn windows, which go by priority."""
    names = list(dict.fromkeys(segment.model for segment in profiled.program.programs))
    page, _ = decoded(written(tmp_path / "timeline.html", profiled, priority_models=(names[-1],)))
    assert page["colours"] == {name: look.fill for name, look in looks_of(names, names[-1:]).items()}
