"""A plan explained on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from explained_plans import interrupted_plan, late_plan, long_plan, plan_of_three, two_unit_plan, workload_of
from framefit.planning.explain import explain
from framefit.report.sections.plan import PlanContent
from framefit.report.terminal import view


def explained(plan):
    """A plan with its windows, and how each model came to its part."""
    workload = workload_of(plan)
    return view(PlanContent(plan, workload, explain(plan, workload)), detail="full")


class Ascii(io.StringIO):
    """A stream that takes ASCII only."""

    encoding = "ascii"

    def write(self, text):
        """As an old terminal or a pipe would."""
        return super().write(text.encode("ascii").decode())


def shown(plan, width=100, **options):
    """What a console without colour shows."""
    console = Console(file=options.pop("file", io.StringIO()), width=width, no_color=True, highlight=False, **options)
    console.print(explained(plan), markup=False)
    return console.file.getvalue()


def rows(text):
    """Window and cells of each row."""
    return [(int(n), cells) for n, cells in re.findall(r"^ *(\d+) [│|](.*)[│|]\S*\s*$", text, re.M)]


def test_every_window_is_a_row_to_scale():
    """Segments begin in the cell that their time falls into, and each one is labelled."""
    found = rows(shown(plan_of_three()))
    assert [number for number, _ in found] == [0, 1, 2]
    for (_, cells), labels in zip(found, ("01", "23", ""), strict=True):
        assert cells.startswith("face")
        for at, label in zip((2.1, 5.1), labels, strict=False):
            assert cells[round(at * len(cells) / 10)] == label
        assert cells[-1] == "/"
        assert cells.count("/") == round(0.05 * len(cells))
        assert cells[round(0.205 * len(cells))] == "·"  # the period's last 0.1 ms


def test_frames_stand_below_their_segments():
    """The line under a row says of which frame a run of segments is."""
    lines = shown(plan_of_three()).splitlines()
    at = next(number for number, line in enumerate(lines) if re.match(r" *1 [│|]", line))
    assert lines[at + 1].split() == ["frame", "1", "frame", "0"]
    assert lines[at + 1].index("frame 0") == lines[at].index("2▒")


def test_a_short_window_is_a_short_row():
    """Rows of windows of differing length have one scale; each unit has a picture of its own."""
    text = shown(two_unit_plan())
    assert text.count("Unit npu") == 2
    first, second, other, last = (cells for _, cells in rows(text))
    assert len(first) == len(other)
    assert len(second) == len(last) == round(0.6 * len(first))
    assert "face" not in other
    assert last[round(0.5 * len(first) / 10)] == "1"


def test_a_long_plan_is_folded():
    """Of many windows the first and the last are shown, and it is said which are not."""
    text = shown(long_plan(40))
    assert [number for number, _ in rows(text)] == [0, 1, 2, 3, 4, 5, 6, 7, 38, 39]
    assert "windows 8 to 37 are left out" in text
    assert "left out" not in shown(long_plan(12))


def test_an_infeasible_plan():
    """What binds and what would help come before the picture, and what is beyond the window's end is marked."""
    text = shown(late_plan())
    assert text.startswith(
        "DOES NOT FIT. Where everything takes its p99, 2.10 ms are missing in the tightest window.\n"
    )
    assert text.index("<12.1 ms>") < text.index("rate_hz = 78.3") < text.index("Unit npu0")
    assert "planned again: fits" in text
    assert "not verified" in text
    assert re.search(r"[│|]!+\s*$", text, re.M)
    assert "Where the residuals go" not in text


def test_a_unit_that_can_be_interrupted_has_no_guard():
    """Neither in the legend nor in a row."""
    text = shown(interrupted_plan())
    assert "/" not in "".join(cells for _, cells in rows(text))
    assert "// guard" not in text


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("plan", [plan_of_three(), two_unit_plan(), late_plan(), long_plan(13)])
def test_width(plan, width):
    """No line is wider than the console."""
    assert max(map(len, shown(plan, width).splitlines())) <= width


def test_nothing_is_said_twice():
    """No sentence and no table stands there twice."""
    lines = [line.strip() for line in shown(plan_of_three(), 200).splitlines()]
    said = [line for line in lines if len(line) > 40 and not re.match(r"\d+ [│|]", line)]
    assert len(said) == len(set(said))
    text = "\n".join(lines)
    assert text.count("one unit is planned") == 1
    assert text.count("Where the residuals go") == 1


def test_without_colour_and_without_unicode():
    """A pipe that takes ASCII gets ASCII; a terminal without colour gets no escape codes."""
    text = shown(plan_of_three(), file=Ascii())
    assert "frame 0" in text
    assert "\x1b" not in shown(plan_of_three(), force_terminal=True, color_system=None)


def test_colour():
    """With colours, models differ by them, and the text is the same size."""
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor", no_color=False)
    console.print(explained(plan_of_three()), markup=False)
    assert "\x1b[38;2;37;99;235m" in console.file.getvalue()


def test_names_are_no_markup():
    """Brackets in a model's name are shown."""
    assert "depth[red]<b>" in shown(plan_of_three())
