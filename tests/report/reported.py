"""Made-up contents of reports, one of each kind; names want escaping."""

from __future__ import annotations

from msgspec import to_builtins

from explained_plans import plan_of_three, workload_of
from framefit.core.fit_results import (
    FinalAccuracy,
    FitResult,
    FitSettings,
    FitStep,
    FittedModel,
    ServedModel,
    Standing,
    StepAccuracy,
    Verification,
)
from framefit.core.latency_table import LatencyEntry, LatencyTable, Overhead
from framefit.core.run_record import Metrics, Miss, ModelMetrics, Percentiles, RunInfo, StreamMetrics
from framefit.core.sparsity import (
    Configuration,
    DenseModel,
    LayerSparsity,
    SearchPoint,
    SparsityResult,
    Spent,
    Threshold,
)
from framefit.core.tree_results import Candidate, ChosenGroup, Original, TreeifiedModel, TreeifyResult
from framefit.planning.explain import explain
from framefit.report.sections.run import RunContent

__all__ = ["ODD", "fit", "model_metrics", "run", "sparsity", "table", "trees"]

ODD = '<b>odd & "name"</b></script>'
NOTHING = Percentiles.of(())


def model_metrics(name: str, role: str, *, missed: int = 0, **changed: object) -> ModelMetrics:
    """A model of 1,000 frames; they were begun after 10 us and finished after 2 ms."""
    told = {
        "name": name, "role": role, "releases": 1000, "completed": 1000 - missed, "missed": missed, "dropped": 0,
        "throughput_hz": 100.0, "fluid_bound_hz": 120.0 if role == "background" else None, "packing_bound_hz": None,
        "release_to_start_ns": Percentiles.of([10_000]), "release_to_finish_ns": Percentiles.of([2_000_000]),
        "miss_ratio_upper": (missed + 3) / 1000, "result_age_windows_max": 1, "segmentation_overhead_ratio": 0.0,
        "max_relative_difference": 0.0,
    }  # fmt: skip
    return ModelMetrics(**(told | changed))


def run(*, missed: int = 0, priority: bool = True, **changed: object) -> RunContent:
    """A run of :func:`plan_of_three` without its larger files."""
    plan = plan_of_three()
    models = [
        model_metrics(model.name, model.role, missed=missed if model.role == "priority" else 0)
        for model in plan.models
        if priority or model.role == "background"
    ]
    metrics = Metrics(
        windows=1000, models=tuple(models), residual_utilisation_ratio=0.8, guard_loss_ratio=0.05,
        packing_loss_ratio=0.15, floor_release_to_start_ns=Percentiles.of([3_000, 9_000]), estimate_exceeded_ratio=0.01,
        dispatch_ns=Percentiles.of([7_000]), peak_memory_bytes=5 << 20, rung_switches=0,
        streams=(StreamMetrics(name=ODD, received=1000, dropped=0),),
        misses=tuple(Miss(window=n, model="face", cause="late wake-up", detail=ODD) for n in range(missed)),
    )  # fmt: skip
    info = {
        "command": f"framefit run {ODD}", "created": "2026-01-01", "seed": 0, "interrupted": False,
        "workload": to_builtins(workload_of(plan)), "host": {"cpu": ODD, "virtualised": True},
        "warnings": (f"about {ODD}",),
    }  # fmt: skip
    return RunContent(
        info=RunInfo(**(info | changed)),
        metrics=metrics,
        timetable=plan,
        workload=workload_of(plan),
        explanation=explain(plan, workload_of(plan)),
    )


def table(scale: float = 1.0) -> LatencyTable:
    """Thirty convolutions, and an overhead."""
    entries = tuple(
        LatencyEntry(
            op=f"Conv{ODD}" if n == 0 else "Conv",
            configuration={"inputs": [f"1x{n}x8x8 float32"], "outputs": ["1x8x8x8 float32"], "kernel": [3, 3]},
            unit="npu0",
            latency_ns=round(scale * 1_000_000 / (n + 1)),
            interval_ns=(round(scale * 990_000 / (n + 1)), round(scale * 1_010_000 / (n + 1))),
            samples_ns=(round(scale * 1_000_000 / (n + 1)),) * 9,
        )
        for n in range(30)
    )
    overhead = Overhead(input_ns_per_byte=0.1, output_ns_per_byte=0.2, intercept_ns=5_000, condition_number=4.0)
    return LatencyTable(
        target="board", fingerprint={"cpu": ODD, "scale": scale}, overhead=overhead, entries=entries, warnings=(ODD,)
    )


def sparsity(*, deployed: bool = True, chosen: int | None = 1) -> SparsityResult:
    """Two configurations of two layers; the second one is as good as the dense model."""

    def row(solver: str, top1: float, ratio: float) -> Configuration:
        layers = tuple(
            LayerSparsity(
                name=f"layer{n}", sparsity_ratio=0.3 + 0.4 * n, activation_sparsity_ratio=0.1, cycles=400,
                share_ratio=0.5, cycles_ratio=ratio,
            )
            for n in range(2)
        )  # fmt: skip
        return Configuration(
            solver=solver, hardware=True, validation_top1=top1, top1_before_finetune=top1 - 0.02, top1=top1,
            top1_interval=(top1 - 0.01, top1 + 0.01), top5=0.99, parameters=1000, zeros=500, sparsity_ratio=0.5,
            cycles=round(1000 * ratio), cycles_ratio=ratio, difference_top1=100 * (top1 - 0.9), finetune_epochs=5.0,
            layers=layers,
        )  # fmt: skip

    return SparsityResult(
        model=ODD, target="board", unit="npu0", pattern="unstructured", target_cycles_ratio=0.5, seed=0,
        dense=DenseModel(top1=0.9, top1_interval=(0.89, 0.91), top5=0.99, cycles=1000, parameters=1000, images=500),
        dense_layers=(), configurations=(row("uniform", 0.86, 0.5), row("auto", 0.9, 0.48)), chosen=chosen,
        decision="deploy" if deployed else "discard", deployed=deployed, reasons=(ODD,), additive_bound=0.0,
        additive_error=0.0,
        thresholds=(Threshold(round=0, top1=0.89, cycles_ratio=0.5, source="given", reason=ODD),),
        curve=tuple(
            SearchPoint(solver="auto", evaluations=n, images_forwarded=n, seconds=n, top1=0.8 + n / 100, cycles=500)
            for n in range(5)
        ),
        ledger=Spent(images_forwarded=500, seconds=12.0, evaluations=5),
    )  # fmt: skip


def trees(*, chosen: bool = True) -> TreeifyResult:
    """Three groups were tried, two of them with trees."""
    group = ChosenGroup(
        first_layer=1, last_layer=2, depth=6, trees=256, kind="vector", accumulator_bits=12, fit_seconds=3.0
    )
    hybrid = TreeifiedModel(
        groups=(group,), top1=0.88, top1_before_finetune=0.85, validation_top1=0.88, latency_ns=90_000, lut6=1234,
        bytes=5000, finetune_seconds=1.0,
    )  # fmt: skip
    return TreeifyResult(
        model=ODD,
        seed=0,
        original=Original(top1=0.9, validation_top1=0.9, latency_ns=120_000),
        candidates=tuple(
            Candidate(
                first_layer=n,
                last_layer=n + 1,
                bound_top1=0.89,
                top1=(None, 0.85, 0.87)[n],
                latency_ns=20_000 * n,
                lut6=None,
            )
            for n in range(3)
        ),
        chosen=hybrid if chosen else None,
        notes=(ODD,),
    )


def fit(*, fits: bool = True) -> FitResult:
    """Sparsity made the net fit, and a simulation showed it; or nothing did."""

    def standing(load: float, *, good: bool) -> Standing:
        served = ServedModel(
            name="net",
            role="background",
            duration_ns=round(2e6 * load),
            asked_hz=100.0,
            served_hz=100.0 if good else 60.0,
        )
        return Standing(
            verdict="fits" if good else "fits with fewer frames",
            load_ratio=load, worst_slack_ns=90_000, models=(served,),
            binding=None if good else f"'net' gets 60 of 100 frames {ODD}",
        )  # fmt: skip

    steps = (
        FitStep(
            number=1, key="sparsify", name="sparsify", model="net", what="sparsify 'net' to 0.5 of its cycles",
            cost="accuracy", predicted=0.6, gained=0.62 if fits else None,
            load_ratio=(1.4, 0.78 if fits else None), share_ratio=(0.6, 1.0),
            accuracy=StepAccuracy(before=0.9, after=0.89, interval=(0.88, 0.9), images=500, on="validation"),
            outcome="kept" if fits else "failed", detail=ODD, seconds=4.0,
        ),
    )  # fmt: skip
    return FitResult(
        settings=FitSettings(app="/somewhere/app.toml"),
        target="board",
        verdict="fits" if fits else "does not fit",
        fits=fits,
        applied=True,
        before=standing(1.4, good=False),
        after=standing(0.78, good=True) if fits else standing(1.4, good=False),
        verified=Verification(by="simulated", windows=300, missed=0) if fits else None,
        steps=steps,
        models=(
            FittedModel(
                name="net", original="net.onnx", float_path="models/net.onnx", path="models/net.onnx", cycles_ratio=0.5,
                test=FinalAccuracy(top1=(0.9, 0.88), interval=(0.87, 0.89), images=500),
            ),
        ) if fits else (),
        seconds=9.0,
    )  # fmt: skip
