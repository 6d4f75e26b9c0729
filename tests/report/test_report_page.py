"""A report of every kind of content: what it says first, what it holds, and the page in a browser."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from browser import needs_browser, opened, told
from reported import ODD, fit, run, sparsity, table, trees

from explained_plans import late_plan, plan_of_three, workload_of
from framefit import InputError
from framefit.report.description import Subject
from framefit.report.html import write_report_page
from framefit.report.sections.plan import PlanContent
from framefit.report.sections.profile import ProfileContent
from framefit.report.timeline import Happened


def subjects_of(**contents):
    """Subjects by name."""
    return [Subject(name, f"/somewhere/{name}", content) for name, content in contents.items()]


def written(folder, subjects):
    """The page's text, and its path."""
    path = folder / "report.html"
    write_report_page(path, subjects, force=True)
    return path.read_text(), path


def read(text):
    """The page as a reader sees it: without scripts, styles and marks."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", text)))


def charts(text):
    """The page's charts by title."""
    found = re.findall(r'<figure class="panel chart.*?<script type="application/json">(.*?)</script>', text, re.S)
    return {chart["title"]: chart for chart in map(json.loads, found)}


@pytest.fixture
def profile(profiled):
    """What lies in a profile folder."""
    happened = Happened(profiled.log, profiled.program, profiled.launches, profiled.windows, profiled.losses)
    return ProfileContent(profiled.profile, happened)


@pytest.fixture
def everything(profile):
    """One of each kind, and two of one."""
    return subjects_of(
        first=run(), second=run(missed=3), plan=PlanContent(late_plan(), None), profile=profile, board=table(),
        zeros=sparsity(), trees=trees(), fit=fit(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "kind", "sentence"),
    [
        (run(), "fits", "Fits: 0 misses in 1,000 priority frames (fewer than 0.30 % at 95 %). The latest result was"),
        (run(missed=3), "fits", "Fits: 3 misses in 1,000 priority frames; worst model 0.30 %"),
        (run(missed=50), "fails", "Does not fit: 50 misses in 1,000 priority frames; worst model 5.0 %"),
        (run(missed=50), "fails", "Causes: 50 x late wake-up."),
        (run(priority=False), "fits", "Fits: 1,000 windows, no priority model"),
        (run(interrupted=True), "fits", "It was interrupted before its end."),
        (run(error="the board went away"), "fits", "It ended early: the board went away"),
        (PlanContent(plan_of_three(), workload_of(plan_of_three())), "fits", "Fits. Where everything takes its p99"),
        (PlanContent(plan_of_three(), None), "fits", "Fits. The worst slack is 1.40 ms."),
        (PlanContent(late_plan(), None), "fails", "Does not fit. 2.10 ms are missing in the tightest window."),
        (table(), "plain", "30 entries of board, unit npu0."),
        (sparsity(), "fits", "Deployed: 48.0 % of the cycles of the dense model, top-1 90.00 % (90 %: 89.00 % to"),
        (sparsity(deployed=False), "plain", "Not deployed (discard): 48.0 %"),
        (sparsity(deployed=False, chosen=0), "fails", "Not deployed (discard): 50.0 %"),
        (sparsity(deployed=False, chosen=None), "fails", "Nothing was found for"),
        (trees(), "plain", "Layers 1 to 2 of"),
        (trees(chosen=False), "fails", "No group was replaced:"),
        (
            fit(),
            "fits",
            "Fits. After 1 step, a simulation proves it: the models ask for 78.0 % of the units' time on board",
        ),
        (fit(fits=False), "fails", "Does not fit. 'net' gets 60 of 100 frames"),
    ],
)
def test_the_answer_comes_first(content, kind, sentence, tmp_path):
    """The first sentence says whether it fits, and by how much; how it stands out says the same."""
    text, _ = written(tmp_path, subjects_of(one=content))
    verdict = re.search(r'<p class="verdict (\w+)">.*?</p>', text, re.S)
    assert verdict[1] == kind
    assert sentence in read(verdict[0])
    assert text.index("verdict " + kind) < text.index('class="card"')


def test_a_run_without_timeline(tmp_path):
    """Figures, bounds, floor, causes, notes and facts stand in the page; files that lack are no error."""
    text, _ = written(tmp_path, subjects_of(first=run(missed=3)))
    seen = read(text)
    for part in ("late wake-up", "idle machine", "120.0 Hz 0.833", "virtualised yes", ODD, "stage2/<conv>"):
        assert part in seen
    assert "Background throughput" in charts(text)
    assert 'class="stage timeline"' not in text


def test_everything_on_one_page(everything, tmp_path):
    """Each subject has its section and its verdict on top; those of one kind are compared."""
    text, _ = written(tmp_path, everything)
    seen = read(text)
    anchors = re.findall(r'<section class="part" id="([\w-]+)"', text)
    assert anchors == [
        "fit-1", "run-compared", "run-1", "run-2", "plan-1", "profile-1", "latency-table-1", "sparsity-search-1",
        "tree-search-1",
    ]  # fmt: skip
    assert set(re.findall(r'href="#([\w-]+)"', text)) == set(anchors)
    titles = {"Accuracy against cycles", "What layers cost", "Time by layer", "Time asked of the units, step by step"}
    assert titles <= set(charts(text))
    assert "Framefit report on a fit and 2 runs and a plan" in seen
    assert "Made by Framefit" in seen
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(set(ids)) == len(ids)


def test_several_of_a_kind_are_compared(tmp_path):
    """Charts are overlaid, figures differ from the first one's, good and bad are told apart."""
    text, _ = written(tmp_path, subjects_of(one=table(), two=table(1.5), three=table(0.5)))
    chart = charts(text)["What layers cost"]
    assert [line["name"] for line in chart["lines"]] == ["one", "two", "three"]
    assert len({line["colour"] for line in chart["lines"]}) == 3
    assert chart["lines"][1]["data"][0][1] == pytest.approx(1.5 * chart["lines"][0]["data"][0][1])
    seen = read(text)
    assert "The median ratio is 1.500; 0 entries only in one, 0 only in two." in seen
    assert 'class="bad">1.500' in text
    assert 'class="good">0.500' in text
    runs, _ = written(tmp_path, subjects_of(calm=run(), late=run(missed=50)))
    row = re.search(r"<tr><td[^>]*>Misses</td>(.*?)</tr>", runs)[1]
    assert read(row).split() == ["0", "50", "worse"]
    assert 'class="bad"' in row


def test_names_cannot_break_the_page(everything, tmp_path):
    """Markup in names, paths, reasons and facts is text."""
    text, _ = written(tmp_path, [Subject(ODD, ODD, one.content) for one in everything[:1]] + everything[1:])
    plain = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S)
    assert "<b>odd" not in plain
    assert ODD in read(text)


def test_nothing_is_loaded_from_elsewhere(everything, tmp_path):
    """The page names no file and no address to load, outside of the library's names of XML."""
    text, _ = written(tmp_path, everything)
    library = text[text.index("/* Apache ECharts") :]
    own = text.replace(library[: library.index("\n// How each kind of series")], "")
    assert not re.search(r"""\s(src|action)\s*=|href="[^#]""", own)
    assert not re.search(r"https?://|@import|url\((?!#)|\bfetch\(|XMLHttpRequest|\bimport\b", own)
    assert set(re.findall(r"https?://[\w./]*", library)) <= {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink", "http://www.w3.org/2000/xmlns/",
        "http://www.w3.org/XML/1998/namespace",
    }  # fmt: skip


def test_overwriting_a_page(tmp_path):
    """A file is overwritten only with ``force``."""
    written(tmp_path, subjects_of(one=table()))
    with pytest.raises(InputError, match="--force"):
        write_report_page(tmp_path / "report.html", subjects_of(one=table()))


@needs_browser
def test_the_page_in_a_browser(everything, tmp_path):
    """On a phone, all charts and the timeline are drawn, tables sort, and nothing is wider than the screen."""
    long = Subject("folder/" * 9 + "a.table.json", "/somewhere", table(2.0))
    text, path = written(tmp_path, [*everything, long])
    sort = """<script type="module">
    const tables = [...document.querySelectorAll("table.sorts")];
    const table = tables.find((one) => one.tHead.textContent.includes("samples"));
    table.tHead.rows[0].cells[2].querySelector("button").click();
    table.tHead.rows[0].cells[2].querySelector("button").click();
    const root = document.documentElement;
    root.dataset.first = table.tBodies[0].rows[0].cells[2].textContent;
    root.dataset.shown = [...table.tBodies[0].rows].filter((row) => row.offsetHeight > 0).length;
    document.getElementById("theme").click();
    const pictures = [...document.querySelectorAll(".plot svg")];
    root.dataset.drawn = pictures.filter((svg) => svg.querySelectorAll("path").length > 3).length;
    const saved = [];
    URL.createObjectURL = (blob) => (saved.push(blob), "data:,");
    HTMLAnchorElement.prototype.click = function () { root.dataset.name = this.download; };
    for (const button of document.querySelectorAll(".csv")) button.click();
    const texts = await Promise.all(saved.map((blob) => blob.text()));
    root.dataset.csv = texts.map((text) => text.split("\\n").filter(Boolean).length).join();
    root.dataset.columns = texts.map((text) => text.split("\\n")[0]).join("|");
    root.dataset.undefined = texts.some((text) => /undefined|NaN|object/.test(text));
    </script></body>"""
    path.write_text(text.replace("</body>", sort))
    state, dom = opened(path, size="390,900")
    assert state["state"] == "ready"
    assert state["wide"] == "false"
    assert int(state["charts"]) == int(state["drawn"]) == len(re.findall(r'class="panel chart', text)) >= 11
    rows = [int(count) for count in state["csv"].split(",")]
    assert len(rows) == int(state["charts"])
    assert min(rows) > 1  # the names of the columns, and data
    assert "name,&quot;share of execution time, %&quot;,low,high" in state["columns"].split("|")
    assert state["undefined"] == "false"
    assert state["name"].endswith(".csv")
    assert state["theme"] == "dark"
    assert state["first"].startswith("33")  # us: the shortest of 1 ms / 1 .. 30
    assert int(state["shown"]) == 12
    timeline = told(dom, "profile-1-timeline")
    assert timeline["state"] == "ready"
    assert int(timeline["drawn"]) > 0
    assert 'aria-sort="ascending"' in dom


@pytest.mark.slow
@needs_browser
def test_a_million_events(profiled, repeated, tmp_path):
    """The page of two profiles of a million events each stays small, and both timelines are drawn."""
    many = repeated(profiled, 2_600)
    assert 2 * len(many.log) > 1_000_000
    content = ProfileContent(many.profile, Happened(many.log, many.program, many.launches, None, many.losses))
    _, path = written(tmp_path, subjects_of(one=content, two=content))
    assert path.stat().st_size < 20e6
    _, dom = opened(path, seconds=5)
    for name in ("profile-1-timeline", "profile-2-timeline"):
        timeline = told(dom, name)
        assert timeline["state"] == "ready"
        assert int(timeline["operations"]) == len(many.log)
        assert int(timeline["columns"]) > 1_000
