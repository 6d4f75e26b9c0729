"""A fit on a terminal: the verdict first, then figures, steps and what is left."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from framefit.core.fit_results import (
    FinalAccuracy,
    FitResult,
    FitSettings,
    FitStep,
    FittedModel,
    FrontPlan,
    ProposedStep,
    ServedModel,
    Standing,
    StepAccuracy,
    Verification,
)
from framefit.report.terminal import view


def standing(*, fits: bool) -> Standing:
    """Two models, the second of which gets half of its frames or all."""
    models = (
        ServedModel(name="face", role="priority", duration_ns=5_000_000, asked_hz=30, served_hz=30),
        ServedModel(name="[tags]", role="background", duration_ns=9_000_000, asked_hz=30, served_hz=30 if fits else 15),
    )
    binding = None if fits else "'[tags]' gets 15 of 30 frames a second"
    return Standing(
        verdict="fits" if fits else "fits with fewer frames",
        load_ratio=0.9 if fits else 1.25,
        worst_slack_ns=1_000_000,
        models=models,
        binding=binding,
    )


RESULT = FitResult(
    settings=FitSettings(app="/somewhere/app.toml"),
    target="board",
    verdict="fits",
    fits=True,
    applied=True,
    before=standing(fits=False),
    after=standing(fits=True),
    verified=Verification(by="simulated", windows=300, missed=0),
    steps=(
        FitStep(
            number=1,
            key="int8: [tags]",
            name="int8",
            model="[tags]",
            what="quantise '[tags]' to int8",
            cost="accuracy",
            predicted=0.37,
            gained=0.35,
            load_ratio=(1.25, 0.9),
            share_ratio=(0.5, 1.0),
            accuracy=StepAccuracy(before=0.91, after=0.905, interval=(0.89, 0.92), images=1000, on="validation"),
            outcome="kept",
            seconds=3.25,
        ),
        FitStep(
            number=2,
            key="verify 1",
            name="verify",
            what="simulate the plan",
            load_ratio=(0.9, 0.9),
            share_ratio=(1.0, 1.0),
            outcome="verified",
            detail="every frame of every model was done in time in 300 windows",
            seconds=1,
        ),
    ),
    models=(
        FittedModel(
            name="[tags]",
            original="/somewhere/tags.onnx",
            float_path="/somewhere/tags.onnx",
            path="models/tags.onnx",
            int8="all",
            test=FinalAccuracy(top1=(0.91, 0.9), interval=(0.88, 0.92), images=1000),
        ),
    ),
    table="measured.table.json",
)


def shown(result: FitResult, folder: Path | None) -> str:
    """Without colours, 120 columns wide."""
    console = Console(file=io.StringIO(), width=120)
    console.print(view(result, folder=folder), markup=False)
    file = console.file
    assert isinstance(file, io.StringIO)
    return " ".join(file.getvalue().split())


def test_a_fit_that_succeeded_shows_how() -> None:
    """Verdict, load before and after, each step with its gain and accuracy, and where the files lie."""
    text = shown(RESULT, Path("out"))
    assert text.startswith(
        "FITS. After 1 step, a simulation proves it: the models ask for 90.0 % of the units' time on board, "
        "125.0 % before."
    )
    for told in (
        "[tags] background 9.00 ms 9.00 ms 15 of 30 Hz 30 of 30 Hz",
        "1 kept 88.0 % 125.0 % 90.0 % 91.00 % -> 90.50 % 3.2 s quantise",
        "[tags] 91.00 % 90.00 % (88.00 to 92.00 %) 1.00 points 1,000 0.00 points [tags] int8",
        "out/app.toml",
        "out/measured.table.json",
    ):
        assert told in text


def test_ways_to_make_it_fit_stand_beside_each_other() -> None:
    """What each loses and leads to, and which one was chosen."""
    front = (
        FrontPlan(steps=("int8",), frames_lost_ratio=0, accuracy_lost=0.01, load_ratio=0.9, served_hz={}, chosen=True),
        FrontPlan(steps=("give 2 of 3 frames",), frames_lost_ratio=0.25, accuracy_lost=0, load_ratio=0.8, served_hz={}),
    )
    text = shown(msgspec.structs.replace(RESULT, front=front), Path("out"))
    assert "chosen 0 % 1.00 points 90.0 % int8" in text
    assert "planned 25.0 % 0.00 points 80.0 % give 2 of 3 frames" in text


def test_what_is_left_is_listed_with_its_cost() -> None:
    """A workload that does not fit: what binds, proposals, what they need, and that nothing was changed."""
    proposals = (
        ProposedStep(key="a", name="sparsify", what="sparsify 'x'", cost="accuracy", needs="needs data", enough=True),
        ProposedStep(key="b", name="rate", what="fewer frames", cost="rate", predicted_load_ratio=0.8, enough=True),
    )
    before = standing(fits=False)
    result = msgspec.structs.replace(
        RESULT,
        verdict="fits with fewer frames",
        fits=False,
        applied=False,
        after=before,
        verified=None,
        steps=(),
        models=(),
        proposals=proposals,
    )
    text = shown(result, None)
    assert text.startswith("Fits with fewer frames. '[tags]' gets 15")
    assert "the models ask for 125.0 %" in text
    for told in (
        "gets 15 of 30 frames",
        "sparsify 'x': costs accuracy; asked of the units then: unknown; enough: yes (needs data)",
        "fewer frames: costs frames; asked of the units then: 80.0 %; enough: yes",
    ):
        assert told in text
    assert "--apply" in text


def test_a_plan_that_was_not_proven_is_no_success() -> None:
    """The verdict says what is missing."""
    text = shown(msgspec.structs.replace(RESULT, verdict="does not fit", fits=False, verified=None), Path("out"))
    assert text.startswith("DOES NOT FIT")
    assert "no simulation or run has proved it" in text
    assert "it lost too much" in shown(msgspec.structs.replace(RESULT, verdict="does not fit", fits=False), Path("out"))
