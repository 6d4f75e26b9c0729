"""Blocks of descriptions as pages show them."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.report.charts import Axis, Chart, Line
from framefit.report.description import (
    Cell,
    Description,
    Facts,
    Quantity,
    Section,
    Sentences,
    Shares,
    Verdict,
    columns,
)
from framefit.report.html import _environment, rendered

ODD = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20) | st.sampled_from(
    ["<b>", "a & b", '"x"', "</table>", "</script>", "{{ 1 + 1 }}", "{% raw %}"]
)


def page(*blocks, verdict=None, quantities=()):
    """The body of a page with these blocks."""
    description = Description(verdict or Verdict("plain", "word", "text"), quantities, blocks)
    return str(rendered("single.html", description=description, name=""))


def texts(markup):
    """What a reader sees of it, piece by piece."""
    return [unescape(text) for text in re.findall(r">([^<]*)", markup)]


def section(count, **changed):
    """A table of so many rows."""
    rows = [(Cell(str(number), number),) for number in range(count)]
    return Section("label", columns(figures=("n",)), rows, **changed)


@given(ODD, ODD, ODD)
def test_plain_text_is_shown_as_it_is(one, two, three):
    """Whatever a name holds, it is text: in tables, lists, facts, cards, panels and verdicts."""
    table = Section(one, columns(("a",), ("b",), ("c",)), [(one, Cell(two, 1.0), three)], three)
    found = page(table)
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", found, re.S)]
    assert [unescape(cell) for cell in cells] == [text if text != "-" else "\u2013" for text in (one,)] + [two] + [
        three if three != "-" else "\u2013"
    ]
    for made in (
        found,
        page(Sentences(two, [one])),
        page(Sentences(two, [(one, three)])),
        page(Shares(one, [(one, 0.5, two)])),
        page(quantities=[Quantity(one, 1.0, one, one, card=True)]),
        page(verdict=Verdict("fits", one, two)),
    ):
        assert one in "\n".join(texts(made)) or f"{one}:" in "\n".join(texts(made))
        assert "<b></b>" not in made or not one
    if one:
        assert one in texts(page(Facts("title", [("name", one)])))


def test_figures_are_sorted_by_their_value():
    """A cell says its value to the script; its remark stands behind it, and good and bad stand out."""
    cell = Cell("1.5 ms", 1.5, "of 2", "bad")
    found = page(Section("label", columns(figures=("b",)), [(cell,)]))
    assert '<data value="1.5" class="bad">1.5 ms</data> <small>of 2</small>' in found
    assert '<span class="bar" style="width:25.00%">' in page(
        Section("label", columns(figures=("b",)), [(Cell("25 %", 0.25, bar=0.25),)])
    )


def test_tables_sort_where_it_helps():
    """Short tables do not sort, long ones do and are cut; plain ones neither."""
    assert 'class=""' in page(section(2))
    assert 'class="sorts"' in page(section(9))
    assert 'class="sorts long"' in page(section(40))
    assert 'class=""' in page(section(40, plain=True))


def test_shares_fill_the_bar():
    """Parts lie side by side, as long as they are, and each is named beside the bar."""
    found = page(Shares("where", [("work", 0.5, "a"), ("guard", 0.125, "b"), ("rest", 0.375, "c")]))
    boxes = [tuple(map(float, pair)) for pair in re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', found)]
    assert boxes == [(0, 50), (50, 12.5), (62.5, 37.5)]
    assert [text for text in texts(found) if text in ("work", "guard", "rest")] == ["work", "guard", "rest"]


def test_a_figure_holds_its_data():
    """The page's script finds the chart as it was made, and readers find its title and summary as text."""
    chart = Chart(
        title="a & b</script>",
        summary="half <x>",
        x=Axis(name="t", unit="ms"),
        y=Axis(name="n"),
        lines=(Line(name="one", kind="line", data=((0.0, 1.0),)),),
    )
    made = str(_environment().get_template("blocks.html").module.charts([chart]))
    told = json.loads(re.search(r'<script type="application/json">(.*?)</script>', made, re.S)[1])
    assert told["lines"][0]["data"] == [[0, 1]]
    assert told["title"] == chart.title
    assert unescape(re.search(r"<figcaption>(.*?)</figcaption>", made)[1]) == chart.summary
    assert "</script>" not in made[: made.index("<script")]


@pytest.mark.parametrize("kind", ["fits", "fails", "plain"])
def test_a_verdict_says_its_kind(kind):
    """How it stands out is in its class."""
    assert f'<p class="verdict {kind}"><b>word</b> text</p>' in page(verdict=Verdict(kind, "word", "text"))
