"""A plan as a page: its content, and the page in a browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape

import pytest
from browser import needs_browser, opened
from msgspec.structs import replace

from explained_plans import interrupted_plan, late_plan, long_plan, ns, plan_of_three, two_unit_plan, workload_of
from framefit import InputError
from framefit.planning.explain import explain
from framefit.report.html import write_plan_page
from framefit.report.sections.plan import PlanContent

PLANS = {
    "three": plan_of_three(),
    "two units": two_unit_plan(),
    "interrupted": interrupted_plan(),
    "infeasible": late_plan(),
    "long": long_plan(20),
}


def explained(plan):
    """A plan with the workload that it was made for."""
    workload = workload_of(plan)
    return PlanContent(plan, workload, explain(plan, workload))


def written(folder, plan, title="app"):
    """The page of a plan, and its path."""
    path = folder / "plan.html"
    write_plan_page(path, explained(plan), title=title, force=True)
    return path.read_text(), path


def figures(text):
    """The picture of each window, by its number."""
    found = re.findall(
        r'<figure class="cell" data-window="(\d+)">.*?(<svg class="window".*?</svg>)\s*</figure>', text, re.S
    )
    return {int(window): ET.fromstring(svg) for window, svg in found}


def slots(svg):
    """Place, start, duration, model, segment, frame of each slot, and the left edge and width drawn, in percent."""
    for group in svg.iter("g"):
        if group.get("class") == "slot":
            box = group.find("rect")
            told = tuple(map(int, group.get("data-slot").split(",")))
            yield told, float(box.get("x").rstrip("%")), float(box.get("width").rstrip("%"))


@pytest.mark.parametrize("name", PLANS)
def test_every_slot_appears_once(name, tmp_path):
    """In its window, on its unit's track, with its frame, to the scale of the longest window."""
    plan = PLANS[name]
    names = [model.name for model in plan.models]
    text, _ = written(tmp_path, plan)
    pictures = figures(text)
    ends = [period.end_ns for window in plan.windows for period in window.priority]
    span = max([window.length_ns for window in plan.windows] + ends)
    assert sorted(pictures) == [window.index for window in plan.windows]
    for place, window in enumerate(plan.windows):
        drawn = list(slots(pictures[window.index]))
        told = sorted((at, start, length, names[m], s, f) for (at, start, length, m, s, f), _, _ in drawn)
        assert told == sorted(
            (place, slot.start_ns, slot.duration_ns, slot.model, slot.segment, slot.frame) for slot in window.slots
        )
        for (_, start, length, *_), left, width in drawn:
            assert left == pytest.approx(100 * start / span, abs=0.01)
            assert width == pytest.approx(100 * length / span, abs=0.01)
    assert text.count('class="slot"') == sum(len(window.slots) for window in plan.windows)


def test_periods_residuals_and_guards_are_to_scale(tmp_path):
    """What is shaded, named and hatched lies where the plan says."""
    svg = figures(written(tmp_path, plan_of_three())[0])[0]
    (reserved,) = (box for box in svg.iter("rect") if box.get("class") == "reserved")
    assert (reserved.get("x"), reserved.get("width")) == ("0.0000%", "21.0000%")
    (guard,) = (box for box in svg.iter("rect") if box.get("class") == "guard")
    assert (guard.get("x"), guard.get("width")) == ("95.0000%", "5.0000%")
    words = {text.get("data-texts", "").partition("|")[0] for text in svg.iter("text")}
    assert {"priority 2.10 ms", "residual 7.90 ms"} <= words


def test_arcs_lead_from_release_to_result(tmp_path):
    """Each frame in flight is drawn in every window that it crosses: a dot at its release, an arrow at its result."""
    pictures = figures(written(tmp_path, plan_of_three())[0])

    def of_depth(window):
        return [g for g in pictures[window].iter("g") if g.get("class") == "way" and g.get("data-way") == "1/0"]

    (first,), (second,) = of_depth(0), of_depth(1)
    assert of_depth(2) == []
    assert first.find("circle").get("cx") == "0.0000%"
    assert first.find("svg/path") is None
    assert second.find("circle") is None
    assert second.find("svg/path") is not None
    assert float(second.findall("svg")[0].get("x").rstrip("%")) == pytest.approx(81, abs=0.01)
    assert first.get("data-flight") == f"0,{ns(2.1)},{ns(18.1)},{ns(18.1)}"
    waits, works = first.findall("line")
    assert (waits.get("class"), waits.get("x2"), works.get("x2")) == ("waits", "21.0000%", "100.0000%")


def test_frames_in_flight_at_once_have_lanes_of_their_own(tmp_path):
    """Two frames of a pipelined model are drawn on two heights, and the caption counts them."""
    text, _ = written(tmp_path, two_unit_plan())
    first = figures(text)[0]
    ways = [g for g in first.iter("g") if g.get("class") == "way" and g.get("data-way", "").startswith("1/")]
    heights = {way.find("rect").get("y") for way in ways}
    assert len(ways) == len(heights) == 2
    assert "3 frames in flight" in text
    assert [t.text for t in first.iter("text") if t.get("class") == "unit"] == ["npu0", "npu1"]


def test_a_long_plan_is_folded(tmp_path):
    """Windows beyond the first dozen are folded, those beyond the page's limit are left out, and it says so."""
    text, _ = written(tmp_path, long_plan(20))
    head, more = text.split('<div class="more">')
    assert sorted(figures(head)) == list(range(12))
    assert sorted(figures(more)) == list(range(12, 20))
    text, _ = written(tmp_path, long_plan(300))
    assert sorted(figures(text)) == list(range(240))
    assert "60 more windows are left out" in text


def test_an_infeasible_plan_says_what_binds_and_helps(tmp_path):
    """The constraint and every fix with what it gives come before the windows."""
    text, _ = written(tmp_path, late_plan())
    top = unescape(text[: text.index('class="stage"')])
    assert "Does not fit." in top
    for part in ("ready <12.1 ms> after", "rate_hz = 78.3", "windows of 12.8 ms & more", "planned again: fits"):
        assert part in top
    assert top.count("not verified") == 1
    assert "What binds" not in written(tmp_path, plan_of_three())[0]
    assert 'class="reserved over"' in text


def test_words_and_tables_stand_in_the_page(tmp_path):
    """Without a script it holds each model's sentences, the table of models and the one of segments."""
    text = unescape(written(tmp_path, plan_of_three())[0])
    assert "release of window 0 \u2192 segments 0-1 in window 0" in text
    assert "one unit is planned" in text
    for part in ("overhead", "difference", "fill layer", "output layers", "stage3/<conv>", "Where the residuals go"):
        assert part in text


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    """The page names no other file, and neither its style nor its script fetches one."""
    text, _ = written(tmp_path, plan_of_three())
    assert not re.search(r"""\s(src|href|action)\s*=""", text)
    assert not re.search(r"https?://|@import|url\((?!#)|\bfetch\(|XMLHttpRequest|\bimport\b", text)


def test_names_cannot_break_the_page(tmp_path):
    """Markup and placeholders in a title or a name are text."""
    text, _ = written(tmp_path, plan_of_three(), title="</script><b>@windows@")
    assert "</script><b>" not in text
    assert "depth[red]<b>" not in text
    assert text.count("</script>") == 2
    assert "@windows@" in text


def test_a_plan_without_windows(tmp_path):
    """Memory may rule a plan out before there is one: the page says why, and nothing fails."""
    plan = replace(plan_of_three(), feasible=False, windows=(), units=(), binding_constraint="no memory", fixes=())
    text, _ = written(tmp_path, plan)
    assert "no memory" in text
    assert "There are no windows." in text


def test_overwriting_a_page(tmp_path):
    """A file is overwritten only with ``force``."""
    plan = plan_of_three()
    _, path = written(tmp_path, plan)
    with pytest.raises(InputError, match="--force"):
        write_plan_page(path, explained(plan), title="app")


@needs_browser
def test_touching_a_segment_tells_of_it(tmp_path):
    """The tip names layers, durations, bytes and frame, and the frame's whole way stands out."""
    text, path = written(tmp_path, plan_of_three())
    touch = """<script type="module">
    const slot = document.querySelector('.slot[data-slot^="1,2100000,"]');
    slot.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 300, clientY: 300 }));
    document.querySelector(".plan").dataset.touched = document.querySelectorAll(".lit").length;
    </script></body>"""
    path.write_text(text.replace("</body>", touch))
    state, dom = opened(path, part="plan")
    assert unescape(state["tip"]) == "depth[red]<b>, segment 2 (3 of 4)"
    assert int(state["touched"]) == 4 + 2
    tip = unescape(re.sub(r"<[^>]*>", " ", dom[dom.index('class="tip"') : dom.index("application/json")]))
    for part in ("2.10 ms to 5.10 ms in window 1", "3.00 ms (p99), 2.70 ms (p50)", "stage2/<conv>", "3.0 KiB", "npu0"):
        assert part in tip


@needs_browser
@pytest.mark.parametrize(("name", "size"), [("long", "1280,900"), ("two units", "400,800")])
def test_the_page_in_a_browser(name, size, tmp_path):
    """It is ready with every slot, picks out the frame that its address names, and is no wider than the screen."""
    plan = PLANS[name]
    _, path = written(tmp_path, plan)
    state, dom = opened(path, "#way=1/0", size=size, part="plan")
    assert state["state"] == "ready"
    assert int(state["slots"]) == sum(len(window.slots) for window in plan.windows)
    assert int(state["windows"]) == len(plan.windows)
    own = [slot for window in plan.windows for slot in window.slots if (slot.model[:5], slot.frame) == ("depth", 0)]
    assert int(state["lit"]) == len(own) + 1  # and one arc: the frame is done in its first window
    assert state["wide"] == "false"
    assert int(state["labels"]) > 0
    assert "<title>depth" not in dom  # the tooltip says more
