"""Pieces of pages."""

from __future__ import annotations

import re
from html import unescape

from hypothesis import given
from hypothesis import strategies as st

from framefit.report.markup import Markup, bullet_list, cards, panel, quantity, shares, table, verdict

ODD = st.text(max_size=20) | st.sampled_from(["<b>", "a & b", '"x"', "</table>", "</script>"])


def texts(markup):
    """What a reader sees of it, piece by piece."""
    return [unescape(text) for text in re.findall(r">([^<]*)", markup)]


@given(ODD, ODD, ODD)
def test_plain_text_is_shown_as_it_is(one, two, three):
    """Whatever a name holds, it is text: in tables, lists, cards, panels and verdicts."""
    found = table("label", [(one, two, three)], left=("a",), right=("b",), words=("c",))
    assert [unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", found, re.S)] == [one, two, three]
    for made in (
        bullet_list([one]),
        cards([(one, two, three)]),
        panel(one, Markup(""), two),
        verdict("fits", one, two),
    ):
        assert one in "\n".join(texts(made))
        assert "<b></b>" not in made or not one


def test_markup_stays_as_it_is():
    """What is markup already is not escaped again."""
    assert "<td>&lt;" not in table("label", [(quantity(1.5, "1.5 ms", "of 2"),)], right=("b",))
    assert '<data value="1.5">1.5 ms</data> <small>of 2</small>' in quantity(1.5, "1.5 ms", "of 2")


def test_tables_sort_where_it_helps():
    """Short tables do not sort, long ones do and are cut; plain ones neither."""
    rows = [(str(number),) for number in range(40)]
    assert 'class=""' in table("label", rows[:2], right=("n",))
    assert 'class="sorts"' in table("label", rows[:9], right=("n",))
    assert 'class="sorts long"' in table("label", rows, right=("n",))
    assert 'class=""' in table("label", rows, right=("n",), plain=True)


def test_shares_fill_the_bar():
    """Parts lie side by side, as long as they are, and each is named beside the bar."""
    found = shares([("work", 0.5, "a"), ("guard", 0.125, "b"), ("rest", 0.375, "c")])
    boxes = [tuple(map(float, pair)) for pair in re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', found)]
    assert boxes == [(0, 50), (50, 12.5), (62.5, 37.5)]
    assert 'aria-label="work 50.0 %, guard 12.5 %, rest 37.5 %"' in found
