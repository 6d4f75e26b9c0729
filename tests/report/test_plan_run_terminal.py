"""Plans and measurements as a terminal shows them."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from framefit.core.run_record import Metrics, Miss, ModelMetrics, Percentiles, StreamMetrics, UnitMetrics
from framefit.core.timetable import Fix, PlannedModel, Refusal, Segment, Timetable
from framefit.report.formats import format_bytes, format_duration, format_ratio
from framefit.report.sections.run import RunContent
from framefit.report.terminal import view


def shown(renderable, width=80):
    """The text that a console without colour shows."""
    console = Console(width=width, file=io.StringIO(), no_color=True)
    console.print(renderable)
    return console.file.getvalue()


def segment(index):
    """A segment of a model whose layers have long names."""
    stage = f"/backbone/stage{index}"
    return Segment(
        index=index,
        unit="cpu1",
        fill_layer=f"{stage}/conv",
        first_layer=f"{stage}/conv",
        last_layer=f"{stage}/relu",
        output_layers=(f"{stage}/relu",),
        duration_ns=4_000_000 + 500_000 * index,
        median_ns=3_800_000,
        boundary_bytes=200_000,
        tensors=("t",),
    )


def plan(segments=9):
    """A face model and a model in segments."""
    face = PlannedModel(
        name="face",
        role="priority",
        level=9,
        reasons=("runs on every frame",),
        duration_ns=6_021_000,
        segments=(segment(0),),
        result_age_windows=0,
    )
    big = PlannedModel(
        name="segment[red]",
        role="background",
        level=2,
        reasons=(),
        duration_ns=54_000_000,
        segments=tuple(segment(index) for index in range(segments)),
        result_age_windows=3,
        segmentation_overhead_ratio=0.0213,
        max_relative_difference=3.2e-7,
    )
    return Timetable(
        feasible=True,
        worst_slack_ns=2_310_000,
        hyperperiod_windows=3,
        window_ns=33_333_333,
        priority_ns=6_600_000,
        residual_ns=26_733_333,
        guard_ns=300_000,
        units=("cpu1",),
        windows=(),
        models=(face, big),
        memory_bytes={"cpu1": 12_345_678},
    )


def metrics(misses=0):
    """A run of the same two models."""

    def around(ns):
        return Percentiles(p50=ns, p90=ns + 1, p99=2 * ns, p999=3 * ns, max=4 * ns, count=3000)

    face = ModelMetrics(
        name="face",
        role="priority",
        releases=3000,
        completed=3000,
        missed=misses,
        dropped=0,
        throughput_hz=30.0,
        fluid_bound_hz=None,
        packing_bound_hz=None,
        release_to_start_ns=around(61_000),
        release_to_finish_ns=around(6_061_000),
        miss_ratio_upper=0.001,
        result_age_windows_max=0,
        segmentation_overhead_ratio=0.0,
        max_relative_difference=0.0,
    )
    big = replace(
        face,
        name="segment[red]",
        role="background",
        missed=0,
        throughput_hz=14.2,
        fluid_bound_hz=15.1,
        packing_bound_hz=14.6,
    )
    return Metrics(
        windows=3000,
        models=(face, big),
        residual_utilisation_ratio=0.872,
        guard_loss_ratio=0.031,
        packing_loss_ratio=0.097,
        floor_release_to_start_ns=around(55_000),
        estimate_exceeded_ratio=0.0123,
        dispatch_ns=around(8_400),
        peak_memory_bytes=123_456_789,
        rung_switches=0,
        streams=(StreamMetrics(name="camera", received=3000, dropped=2),),
        misses=tuple(
            Miss(window=7 * place, model="face", cause="overrun" if place else "late wake-up", detail="segment 3")
            for place in range(misses)
        ),
    )


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (840, "0.8 us"),
        (61_400, "61 us"),
        (999_600, "1.00 ms"),
        (6_021_000, "6.02 ms"),
        (9_996_000, "10.0 ms"),
        (33_333_333, "33.3 ms"),
        (1_234_000_000, "1234 ms"),
        (-3_200_000, "-3.20 ms"),
    ],
)
def test_format_duration(ns, text):
    """Durations have about three digits, in ms or us."""
    assert format_duration(ns) == text


@pytest.mark.parametrize(("ratio", "text"), [(0, "0 %"), (0.872, "87.2 %"), (0.001, "0.10 %"), (2e-6, "2e-04 %")])
def test_format_ratio(ratio, text):
    """Small ratios keep a digit that is not 0."""
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(("count", "text"), [(512, "512 B"), (12_345_678, "11.8 MiB"), (5 << 40, "5120 GiB")])
def test_format_bytes(count, text):
    """Bytes have a binary unit."""
    assert format_bytes(count) == text


def test_feasible_plan():
    """A plan that fits says so first, with its slack, and shows models and segments."""
    text = shown(view(plan()))
    assert text.startswith("FITS. The worst slack is 2.31 ms.\n")
    assert re.search(r"Window +33.3 ms +30 Hz", text)
    line = next(line for line in text.splitlines() if line.startswith("segment[red]"))
    assert line.split()[1:] == ["background", "54.0", "ms", "9", "-", "3", "2.1", "%"]
    assert "stage3/conv" in text
    assert "What binds" not in text


def test_infeasible_plan():
    """A plan that does not fit names the constraint that binds and the changes that help."""
    fixes = (Fix(change="rate_hz = 27.5", effect="longer windows", verified=True),)
    text = shown(
        view(
            replace(
                plan(), feasible=False, worst_slack_ns=-3_200_000, binding_constraint="layer c is long", fixes=fixes
            )
        )
    )
    assert text.startswith("DOES NOT FIT. 3.20 ms are missing in the tightest window.\n")
    assert "layer c is long" in text
    assert "rate_hz = 27.5: longer windows (planned again: fits)" in text


@pytest.mark.parametrize(
    ("refusal", "texts"),
    [
        (
            Refusal(kind="proved", reason="too much", searched_s=0.12, lateness_ns=1_500_000, bound_ns=1_500_000),
            ["Proved in 0.12 s. At best the latest frame is 1.50 ms late."],
        ),
        (
            Refusal(kind="not found", reason="none", searched_s=10.0, lateness_ns=3_000_000, bound_ns=1_000_000),
            [
                "nothing fits. It was searched for 10 s; search_s",
                "was found is 3.00 ms late, none is less than 1.00 ms",
            ],
        ),
        (Refusal(kind="proved", reason="layer", searched_s=0.0), ["This is proved."]),
    ],
)
def test_a_refusal_says_how_sure_it_is(refusal, texts):
    """With its proof, or the best that was found and its bound; what is free elsewhere is no slack of such a plan."""
    refused = replace(
        plan(), feasible=False, worst_slack_ns=7_850_000, binding_constraint=refusal.reason, proof=refusal
    )
    text = " ".join(shown(view(refused)).split())
    assert all(part in text for part in texts)
    assert "Worst slack" not in text
    assert "7.85" not in text
    late = shown(view(replace(refused, worst_slack_ns=-1_500_000)))
    assert re.search(r"Lateness +1.50 ms", late)


def test_many_segments():
    """A long list of segments ends with the number of those left out; in brief there is none."""
    text = shown(view(plan(60)))
    assert "... 21 more" in text
    assert len(re.findall(r"cpu1 {4,}\d", text)) == 40
    assert "... 1 more" not in shown(view(plan(39)))
    assert not re.search(r"cpu1 {4,}\d", shown(view(plan(60), detail="brief")))


def test_guards_of_segments():
    """Where shorter segments keep less free, the guard is named as the greatest of them."""
    planned = plan()
    assert "300 us kept free before each reserved instant" in " ".join(shown(view(planned)).split())
    face, big = planned.models
    own = tuple(replace(one, guard_ns=50_000 + 31_250 * number) for number, one in enumerate(big.segments))
    text = " ".join(shown(view(replace(planned, models=(face, replace(big, segments=own))))).split())
    assert "300 us at most kept free before a reserved instant; behind the shortest segments 50 us" in text


def test_metrics():
    """A run without a miss shows jitter beside the floor, throughput beside its bounds, and losses."""
    text = shown(view(metrics()))
    assert text.startswith("FITS: 0 misses in 3,000 priority frames")
    assert "cause" not in text
    for part in ("idle machine", "< 0.10 %", "0.940", "0.973", "87.2 %", "9.7 %", "1.2 %", "idle machine: p99 110 us"):
        assert part in " ".join(text.split())
    (line,) = [line for line in text.splitlines() if line.startswith("between launches")]
    assert "8.4 us" in line
    assert "17 us" in line
    assert re.search(r"camera +3,000 +2 *\n", text)
    assert "waited" not in text
    waiting = StreamMetrics(name="camera", received=2900, dropped=0, waited_windows=100)
    text = shown(view(replace(metrics(), streams=(waiting,))))
    assert "windows waited" in text
    assert re.search(r"camera +2,900 +0 +100 *\n", text)


def test_misses():
    """Misses come first, counted by cause, with the first few in full."""
    text = shown(view(metrics(7)))
    assert text.startswith("FITS: 7 misses in 3,000 priority frames; worst model 0.23 %")
    text = " ".join(text.split())
    assert "6 x overrun, 1 x late wake-up" in text
    assert "... 2 more" in text


def test_a_run_in_brief():
    """The answer, the figures that matter and what is to be known of them; no percentiles and no bounds."""
    content = RunContent(metrics(3), notes=("simulated on [edge-8]",))
    text = " ".join(shown(view(content, detail="brief")).split())
    assert text.startswith("FITS: 3 misses in 3,000 priority frames")
    for part in ("idle machine: p99 110 us", "Residual used 87.2 %", "late wake-up", "simulated on [edge-8]"):
        assert part in text
    assert "fluid bound" not in text
    assert "p99.9" not in text
    assert "fluid bound" in shown(view(content))


@pytest.mark.parametrize("width", [80, 120])
def test_width(width):
    """No line is wider than the console, and only the names of layers are shortened."""
    for content in (plan(), metrics(3)):
        lines = shown(view(content), width).splitlines()
        assert max(map(len, lines)) <= width
        assert not any("…" in line.split(" .. ")[0] for line in lines)


def test_several_units_have_a_table():
    """One line each, with where its residual went and its memory beside the plan's; one unit needs none."""
    units = tuple(
        UnitMetrics(
            name=f"npu{number}",
            launches=1000 + number,
            residual_utilisation_ratio=0.9,
            guard_loss_ratio=0.03,
            packing_loss_ratio=0.07,
            estimate_exceeded_ratio=0.01,
            dispatch_ns=Percentiles.of([]),
            planned_memory_bytes=3 << 20,
            peak_memory_bytes=2 << 20,
        )
        for number in range(2)
    )
    text = shown(view(replace(metrics(), units=units)))
    (line,) = [line for line in text.splitlines() if line.startswith("npu1")]
    assert " ".join(line.split()) == "npu1 1,001 90.0 % 3.0 % 7.0 % 1.0 % 2.0 MiB 3.0 MiB"
    assert "over estimate" not in shown(view(replace(metrics(), units=units[:1])))
