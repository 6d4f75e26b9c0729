"""Plans and measurements as tables for a terminal; the caller prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.results import Metrics, Miss, ModelMetrics, Percentiles
from framefit.core.timetable import PlannedModel, Timetable

__all__ = ["format_bytes", "format_duration", "format_ratio", "metrics_view", "plan_view"]

_MAX_SEGMENTS = 40
_MAX_MISSES = 5
_BAR_CELLS = 40


def format_duration(ns: float) -> str:
    """A duration with about three digits, in ms, or in us below 1 ms.

    Args:
        ns: nanoseconds.
    """
    us = abs(ns) / 1e3
    sign = "-" if ns < 0 else ""
    if ns == 0:
        return "0 ms"
    if us < 9.95:
        return f"{sign}{us:.1f} us"
    if us < 999.5:
        return f"{sign}{us:.0f} us"
    ms = us / 1e3
    digits = 2 if ms < 9.995 else 1 if ms < 999.95 else 0
    return f"{sign}{ms:.{digits}f} ms"


def format_ratio(ratio: float) -> str:
    """A ratio as a percentage; small ones keep a digit that is not 0.

    Args:
        ratio: 1 is 100 %.
    """
    percent = 100 * ratio
    if percent == 0:
        return "0 %"
    digits = 1 if abs(percent) >= 0.95 else 2 if abs(percent) >= 0.095 else 3
    return f"{percent:.{digits}f} %" if abs(percent) >= 0.001 else f"{percent:.0e} %"


def format_bytes(count: int) -> str:
    """A number of bytes with a binary unit.

    Args:
        count: bytes.
    """
    if count < 1024:
        return f"{count} B"
    size, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if size < 1023.5:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if size < 99.95 else f"{size:.0f} {unit}"


def plan_view(timetable: Timetable, *, segments: bool = True) -> RenderableType:
    """A plan: whether it fits, its models and segments, and what binds where it does not fit.

    Args:
        timetable: the plan.
        segments: whether to list the segments.

    Returns:
        A rich renderable, at its best from 80 columns.
    """
    blocks: list[RenderableType] = [_plan_headline(timetable), _plan_facts(timetable), _plan_models(timetable)]
    if segments and timetable.models:
        blocks.append(_plan_segments(timetable.models))
    if not timetable.feasible and timetable.binding_constraint:
        blocks.append(_headed("What binds", _indented(Text(timetable.binding_constraint))))
    if timetable.fixes:
        blocks.append(_headed("What would help", _plan_fixes(timetable)))
    reasons = [(None, reason) for reason in timetable.reasons]
    of_models = [(model.name, reason) for model in timetable.models for reason in model.reasons]
    if reasons or of_models:
        blocks.append(_headed("Why", _bullets([*reasons, *of_models])))
    return _spaced(blocks)


def metrics_view(metrics: Metrics) -> RenderableType:
    """A run: misses and their causes, jitter beside the machine's floor, throughput beside its bounds, losses.

    Args:
        metrics: what the run measured.

    Returns:
        A rich renderable, at its best from 80 columns.
    """
    blocks: list[RenderableType] = [_run_headline(metrics), _frames(metrics)]
    if metrics.misses:
        blocks.append(_misses(metrics.misses))
    blocks.append(_jitter(metrics))
    background = [model for model in metrics.models if model.role == "background"]
    if background:
        blocks += [_throughput(background), _headed("Residual", _residual(metrics))]
    blocks.append(_run_facts(metrics))
    return _spaced(blocks)


def _spaced(blocks: Sequence[RenderableType]) -> Group:
    """One under the other, an empty line between."""
    return Group(blocks[0], *(Padding(block, (1, 0, 0, 0)) for block in blocks[1:]))


def _headed(title: str, block: RenderableType) -> Group:
    return Group(Text(title, style="bold"), block)


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))


def _table(title: str, left: Sequence[str], right: Sequence[str] = (), *, caption: str = "") -> Table:
    """A table without frame: text columns, then figures flush right. Where it is narrow, names give way."""
    table = Table(title=title, caption=caption or None, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    table.title_style, table.header_style, table.caption_style = "bold", "dim", "dim"
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name not in ("model", "detail", "layers"))
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _name(name: str, role: str = "") -> Text:
    """A name on one line, shortened where there is no room."""
    style = {"priority": "bold blue", "background": "yellow"}.get(role, "")
    return Text(name, style=style, no_wrap=True, overflow="ellipsis")


def _add_row(table: Table, *cells: RenderableType, style: str = "") -> None:
    """Add a row whose strings are text, not markup: names may contain brackets."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style or None)


def _facts(facts: Iterable[tuple[str, RenderableType]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        _add_row(grid, name, value)
    return grid


def _bullets(reasons: Iterable[tuple[str | None, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, reason in reasons:
        _add_row(grid, " -", Text.assemble((f"{name}: ", "bold"), reason) if name else Text(reason))
    return grid


def _hz(rate_hz: float) -> str:
    return f"{rate_hz:.2f} Hz" if rate_hz < 99.95 else f"{rate_hz:.1f} Hz"


def _plan_headline(timetable: Timetable) -> Text:
    slack = timetable.worst_slack_ns
    if timetable.feasible:
        return Text.assemble(("FITS", "bold green"), f"  worst slack {format_duration(slack)}")
    # a plan can also fail for a reason other than time: memory, or an operator
    why = f"  short by {format_duration(-slack)}" if slack < 0 else f"  worst slack {format_duration(slack)}"
    return Text.assemble(("DOES NOT FIT", "bold red"), why)


def _plan_facts(timetable: Timetable) -> Table:
    window = f"{format_duration(timetable.window_ns)} ({1e9 / timetable.window_ns:.4g} Hz)"
    if timetable.hyperperiod_windows > 1:
        window += f", the plan repeats after {timetable.hyperperiod_windows}"
    facts: list[tuple[str, RenderableType]] = [
        ("window", window),
        ("priority", f"{format_duration(timetable.priority_ns)} ({format_ratio(_share(timetable))} of the window)"),
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
    return _facts(facts)


def _share(timetable: Timetable) -> float:
    return timetable.priority_ns / timetable.window_ns


def _plan_models(timetable: Timetable) -> Table:
    right = ["duration", "segments", "age", "overhead", "difference"]
    caption = "age: of a result, in windows; overhead, difference: of cutting"
    table = _table("Models", ["model", "role"], right, caption=caption)
    for model in timetable.models:
        age = "no bound" if model.result_age_windows is None else str(model.result_age_windows)
        cut = len(model.segments) > 1
        _add_row(
            table,
            _name(model.name, model.role),
            model.role,
            format_duration(model.duration_ns),
            str(len(model.segments)),
            age,
            format_ratio(model.segmentation_overhead_ratio) if cut else "-",
            _difference(model.max_relative_difference) if cut else "-",
        )
    return table


def _difference(ratio: float | None) -> str:
    return "not compared" if ratio is None else "0" if ratio == 0 else f"{ratio:.1e}"


def _plan_segments(models: Sequence[PlannedModel]) -> RenderableType:
    listed = [(model, segment) for model in models for segment in model.segments]
    more = len(listed) - _MAX_SEGMENTS
    caption = f"... {more} more" if more > 0 else ""
    right = ["duration", "median", "hands on"]
    table = _table("Segments", ["model", "segment", "unit"], right, caption=caption)
    table.columns[1].justify = "right"
    table.add_column("layers")
    prefixes = {model.name: _common_prefix(model) for model in models}
    for model, segment in listed[:_MAX_SEGMENTS]:
        ends = [layer.removeprefix(prefixes[model.name]) for layer in (segment.first_layer, segment.last_layer)]
        _add_row(
            table,
            _name(model.name, model.role) if segment.index == 0 else "",
            str(segment.index),
            segment.unit,
            format_duration(segment.duration_ns),
            format_duration(segment.median_ns),
            format_bytes(segment.boundary_bytes),
            _name(" .. ".join(dict.fromkeys(ends))),
        )
    return table


def _common_prefix(model: PlannedModel) -> str:
    """What all layer names of a cut model begin with, up to a slash."""
    names = [name for segment in model.segments for name in (segment.first_layer, segment.last_layer)]
    if not names:
        return ""
    first, last = min(names), max(names)
    equal = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[: first.rfind("/", 0, equal) + 1]


def _plan_fixes(timetable: Timetable) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for fix in timetable.fixes:
        verdict = ("  planned again: fits", "green") if fix.verified else ("  not verified", "dim")
        _add_row(grid, " -", Text.assemble((fix.change, "bold"), f": {fix.effect}", verdict))
    return grid


def _run_headline(metrics: Metrics) -> Text:
    priority = [model for model in metrics.models if model.role == "priority"]
    missed, releases = sum(model.missed for model in priority), sum(model.releases for model in priority)
    if not priority:
        return Text.assemble((f"{metrics.windows} windows", "bold"), ", no priority model")
    if missed == 0:
        headline, style = f"NO MISS in {releases} priority frames", "bold green"
    else:
        noun = "MISS" if missed == 1 else "MISSES"
        headline, style = f"{missed} {noun} in {releases} priority frames", "bold red"
    rate = f"  worst model {format_ratio(metrics.miss_ratio)}" if missed else ""
    return Text.assemble((headline, style), f"{rate}  ({metrics.windows} windows)")


def _frames(metrics: Metrics) -> Table:
    right = ["released", "completed", "missed", "dropped", "miss ratio", "age"]
    caption = "miss ratio: upper bound, 95 %; age: greatest, in windows"
    table = _table("Frames", ["model", "role"], right, caption=caption)
    for model in metrics.models:
        _add_row(
            table,
            _name(model.name, model.role),
            model.role,
            str(model.releases),
            str(model.completed),
            Text(str(model.missed), style="bold red" if model.missed and model.role == "priority" else ""),
            str(model.dropped),
            f"< {format_ratio(model.miss_ratio_upper)}",
            str(model.result_age_windows_max),
        )
    return table


def _misses(misses: Sequence[Miss]) -> RenderableType:
    causes = ", ".join(f"{count} x {cause}" for cause, count in Counter(miss.cause for miss in misses).most_common())
    more = len(misses) - _MAX_MISSES
    table = _table("Misses: " + causes, ["window", "model", "cause", "detail"], caption=f"... {more} more" * (more > 0))
    table.columns[0].justify = "right"
    for miss in misses[:_MAX_MISSES]:
        _add_row(table, str(miss.window), _name(miss.model), miss.cause, miss.detail)
    return table


def _jitter(metrics: Metrics) -> Table:
    table = _table("From release", ["model", "to"], ["p50", "p90", "p99", "p99.9", "max", "count"])
    for model in metrics.models:
        name = _name(model.name, model.role)
        _add_row(table, name, "start", *_percentiles(model.release_to_start_ns))
        _add_row(table, "", "finish", *_percentiles(model.release_to_finish_ns))
    floor = metrics.floor_release_to_start_ns
    if floor.max:  # nobody wakes up late in virtual time
        table.add_section()
        _add_row(table, "idle machine", "start", *_percentiles(floor), style="dim")
    return table


def _percentiles(of: Percentiles) -> list[str]:
    if of.count == 0:
        return ["-"] * 5 + ["0"]
    return [*(format_duration(ns) for ns in (of.p50, of.p90, of.p99, of.p999, of.max)), str(of.count)]


def _throughput(models: Sequence[ModelMetrics]) -> Table:
    right = ["reached", "fluid bound", "ratio", "packing bound", "ratio"]
    table = _table("Background throughput", ["model"], right)
    for model in models:
        row = [_hz(model.throughput_hz)]
        for bound_hz in (model.fluid_bound_hz, model.packing_bound_hz):
            row += ["-", "-"] if not bound_hz else [_hz(bound_hz), f"{model.throughput_hz / bound_hz:.3f}"]
        _add_row(table, _name(model.name, model.role), *row)
    return table


def _residual(metrics: Metrics) -> RenderableType:
    """Where the residual went, also as a bar whose parts differ without colour."""
    shares = (
        ("used", metrics.residual_utilisation_ratio, "#", "green"),
        ("guard", metrics.guard_loss_ratio, "-", "yellow"),
        ("packing", metrics.packing_loss_ratio, ".", "red"),
    )
    bar, reached, cells = Text("["), 0.0, 0
    for _, ratio, mark, style in shares:
        reached = min(1.0, reached + max(0.0, ratio))
        until = round(reached * _BAR_CELLS)
        bar.append(mark * (until - cells), style=style)
        cells = until
    bar.append(" " * (_BAR_CELLS - cells) + "]")
    legend = Text("   ").join(
        Text.assemble((mark, style), f" {name} {format_ratio(ratio)}") for name, ratio, mark, style in shares
    )
    return Group(bar, legend)


def _run_facts(metrics: Metrics) -> RenderableType:
    dispatch = metrics.dispatch_ns
    facts: list[tuple[str, RenderableType]] = [
        ("segments over their estimate", format_ratio(metrics.estimate_exceeded_ratio)),
        *(
            [("dispatch", f"p50 {format_duration(dispatch.p50)}, p99 {format_duration(dispatch.p99)}")]
            if dispatch.max  # nothing in virtual time
            else []
        ),
        ("peak memory", format_bytes(metrics.peak_memory_bytes)),
    ]
    cut = [model for model in metrics.models if model.segmentation_overhead_ratio or model.max_relative_difference]
    facts += [
        (
            f"cutting {model.name}",
            f"overhead {format_ratio(model.segmentation_overhead_ratio)}, difference "
            + _difference(model.max_relative_difference),
        )
        for model in cut
    ]
    if metrics.rung_switches:
        facts.append(("switches of granularity", str(metrics.rung_switches)))
    for stream in metrics.streams:
        waited = f", waited in {stream.waited_windows} windows" if stream.waited_windows else ""
        facts.append((f"stream {stream.name}", f"{stream.received} frames received, {stream.dropped} dropped{waited}"))
    return _facts(facts)
