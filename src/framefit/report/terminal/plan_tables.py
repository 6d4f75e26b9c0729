"""A plan as tables for a terminal; the caller prints them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.timetable import PlannedModel, Timetable, reserved_share
from framefit.report.formats import format_bytes, format_difference, format_duration, format_ratio
from framefit.report.sections.plan import common_prefix, format_beat
from framefit.report.terminal.tables import add_row, bullets, facts_grid, headed, name_text, plain_table, spaced

__all__ = ["plan_facts", "plan_headline", "plan_help", "plan_view"]


_MAX_SEGMENTS = 40


def plan_view(timetable: Timetable, *, segments: bool = True) -> RenderableType:
    """A plan: whether it fits, its models and segments, and what binds where it does not fit.

    Args:
        timetable: the plan.
        segments: whether to list the segments.

    Returns:
        A rich renderable, at its best from 80 columns.
    """
    blocks: list[RenderableType] = [plan_headline(timetable), plan_facts(timetable), _plan_models(timetable)]
    if segments and timetable.models:
        blocks.append(_plan_segments(timetable.models))
    blocks += plan_help(timetable)
    reasons = [(None, reason) for reason in timetable.reasons]
    of_models = [(model.name, reason) for model in timetable.models for reason in model.reasons]
    if reasons or of_models:
        blocks.append(headed("Why", bullets([*reasons, *of_models])))
    return spaced(blocks)


def plan_headline(timetable: Timetable) -> Text:
    """Whether a plan fits, and by how much."""
    slack = timetable.worst_slack_ns
    if timetable.feasible:
        return Text.assemble(("FITS", "bold green"), f"  worst slack {format_duration(slack)}")
    # a plan can also fail for a reason other than time: memory, or an operator
    why = f"  short by {format_duration(-slack)}" if slack < 0 else f"  worst slack {format_duration(slack)}"
    return Text.assemble(("DOES NOT FIT", "bold red"), why)


def plan_facts(timetable: Timetable) -> Table:
    """The beat, what is reserved in it, and on what."""
    window = format_beat(timetable)
    if timetable.hyperperiod_windows > 1:
        window += f", the plan repeats after {timetable.hyperperiod_windows}"
    facts: list[tuple[str, RenderableType]] = [
        ("window", window),
        (
            "priority",
            f"{format_duration(timetable.priority_ns)} ({format_ratio(reserved_share(timetable))} of the window)",
        ),
        ("residual", format_duration(timetable.residual_ns)),
        ("guard", format_duration(timetable.guard_ns)),
        ("units", ", ".join(timetable.units)),
    ]
    if timetable.memory_bytes:
        used = ", ".join(f"{unit} {format_bytes(count)}" for unit, count in timetable.memory_bytes.items())
        facts.append(("memory", used))
    if timetable.bound is not None:
        gap = "" if timetable.gap_ratio is None else f", this plan is {format_ratio(timetable.gap_ratio)} above"
        facts.append(("bound", f"{timetable.bound:.3g} windows a frame at least{gap}"))
    return facts_grid(facts)


def _plan_models(timetable: Timetable) -> Table:
    right = ["duration", "segments", "age", "overhead", "difference"]
    caption = "age: of a result, in windows; overhead, difference: of cutting"
    table = plain_table("Models", ["model", "role"], right, caption=caption)
    for model in timetable.models:
        age = "no bound" if model.result_age_windows is None else str(model.result_age_windows)
        cut = len(model.segments) > 1
        add_row(
            table,
            name_text(model.name, model.role),
            model.role,
            format_duration(model.duration_ns),
            str(len(model.segments)),
            age,
            format_ratio(model.segmentation_overhead_ratio) if cut else "-",
            format_difference(model.max_relative_difference) if cut else "-",
        )
    return table


def _plan_segments(models: Sequence[PlannedModel]) -> RenderableType:
    listed = [(model, segment) for model in models for segment in model.segments]
    more = len(listed) - _MAX_SEGMENTS
    caption = f"... {more} more" if more > 0 else ""
    right = ["duration", "median", "hands on"]
    table = plain_table("Segments", ["model", "segment", "unit"], right, caption=caption)
    table.columns[1].justify = "right"
    table.add_column("layers")
    prefixes = {model.name: common_prefix(model) for model in models}
    for model, segment in listed[:_MAX_SEGMENTS]:
        ends = [layer.removeprefix(prefixes[model.name]) for layer in (segment.first_layer, segment.last_layer)]
        add_row(
            table,
            name_text(model.name, model.role) if segment.index == 0 else "",
            str(segment.index),
            segment.unit,
            format_duration(segment.duration_ns),
            format_duration(segment.median_ns),
            format_bytes(segment.boundary_bytes),
            name_text(" .. ".join(dict.fromkeys(ends))),
        )
    return table


def plan_help(timetable: Timetable) -> list[RenderableType]:
    """What binds a plan that does not fit, and what would help it."""
    blocks: list[RenderableType] = []
    if not timetable.feasible and timetable.binding_constraint:
        blocks.append(headed("What binds", Padding(Text(timetable.binding_constraint), (0, 0, 0, 2))))
    if timetable.fixes:
        blocks.append(headed("What would help", _plan_fixes(timetable)))
    return blocks


def _plan_fixes(timetable: Timetable) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for fix in timetable.fixes:
        verdict = ("  planned again: fits", "green") if fix.verified else ("  not verified", "dim")
        add_row(grid, " -", Text.assemble((fix.change, "bold"), f": {fix.effect}", verdict))
    return grid
