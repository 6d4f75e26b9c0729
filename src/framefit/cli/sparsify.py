"""``framefit sparsify MODEL --data D --target T``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from framefit.cli.screen import Progress, parse_numbers, show, show_json

__all__ = ["sparsify"]


class Solver(StrEnum):
    """What ``--solver`` takes."""

    AUTO = "auto"
    DP = "dp"
    SPDY = "spdy"
    SWAPS = "swaps"
    DDPG = "ddpg"
    DDPG_WARM = "ddpg-warm"
    RANDOM = "random"
    UNIFORM = "uniform"
    ERK = "erk"
    LAMP = "lamp"


class Pattern(StrEnum):
    """What ``--pattern`` takes."""

    AUTO = "auto"
    UNSTRUCTURED = "unstructured"
    N_M = "n:m"
    CHANNEL = "channel"


class Reward(StrEnum):
    """What ``--reward`` takes."""

    ACCURACY = "accuracy-log-cycles"
    ERROR = "error-log-cycles"


class Override(StrEnum):
    """What ``--override`` takes."""

    DEPLOY = "deploy"
    RETRAIN = "retrain"


_PATTERNS: dict[Pattern | None, Literal["unstructured", "n:m", "channel"] | None] = {
    None: None,
    Pattern.AUTO: None,
    Pattern.UNSTRUCTURED: "unstructured",
    Pattern.N_M: "n:m",
    Pattern.CHANNEL: "channel",
}


def sparsify(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="An ONNX file, or module:function that gives a PyTorch module."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="An image folder, or an .npz.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="A built-in target, or a target.toml.")] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="Of the target (default: the first able one).")] = None,
    cycles: Annotated[
        str | None, typer.Option("--cycles", help="Part of the dense cycles, 0 to 1, or derived (default: 0.5).")
    ] = None,
    accuracy_drop: Annotated[
        str | None, typer.Option("--accuracy-drop", help="Of top-1, 0 to 1, or derived (default: 0.01).")
    ] = None,
    dynamic: Annotated[
        bool | None,
        typer.Option("--dynamic/--fixed", help="Move the threshold on cycles as it is met (default: no)."),
    ] = None,
    dynamic_accuracy: Annotated[
        bool | None,
        typer.Option(
            "--dynamic-accuracy/--fixed-accuracy",
            help="Train on and move the threshold on accuracy, at the same cycles (default: no).",
        ),
    ] = None,
    solver: Annotated[Solver | None, typer.Option("--solver", help="Default: auto.")] = None,
    pattern: Annotated[Pattern | None, typer.Option("--pattern", help="Default: what the target rewards.")] = None,
    reward: Annotated[Reward | None, typer.Option("--reward", help="Default: accuracy-log-cycles.")] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", min=1, help="Evaluations of a search at most.")] = None,
    images: Annotated[int | None, typer.Option("--images", min=1, help="In each evaluation (default: 2000).")] = None,
    agreement: Annotated[
        float | None,
        typer.Option("--agreement", min=0, help="Of predicted and received reward, where ddpg ends (default: 0.002)."),
    ] = None,
    finetune_epochs: Annotated[
        float | None, typer.Option("--finetune-epochs", min=0, help="Of the best model (default: 5, or 1,000 steps).")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0, help="Learning rate of fine-tuning.")] = None,
    decay: Annotated[float | None, typer.Option("--decay", min=0, help="Weight decay of fine-tuning.")] = None,
    mean: Annotated[str | None, typer.Option("--mean", metavar="R,G,B", help="Of images, values 0 to 1.")] = None,
    std: Annotated[str | None, typer.Option("--std", metavar="R,G,B", help="Of images, values 0 to 1.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", min=0, help="Of the search; fine-tuning comes on top.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Also run rules, and the same search without the hardware.")
    ] = True,
    deploy_to: Annotated[
        list[str] | None, typer.Option("--deploy-to", metavar="TARGET", help="Compile for these (default: the target).")
    ] = None,
    override: Annotated[
        Override | None, typer.Option("--override", help="Deploy against the gates, or fine-tune once more.")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the search there.")] = None,
    feedback: Annotated[
        str | None, typer.Option("--feedback", metavar="DATA", help="New labelled data for the model of --resume.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder (default: MODEL-sparse).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of splits, draws, training (default: 0).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Find zeros that a target rewards, fine-tune the best model, and say whether it may be deployed.

    Ctrl-C keeps what was found (exit code 130); --resume goes on. Exit code 1: the cycles are out of
    reach, or the model is below its thresholds.

    Example: framefit sparsify net.onnx --data data.npz --target vpu --cycles 0.5
    """
    from framefit.workflows.search import sparsify as sparsify_workflow

    progress = Progress()
    try:
        done = sparsify_workflow(
            model,
            data,
            target,
            unit=unit,
            cycles=_ratio(cycles, "--cycles"),
            solver=None if solver is None else solver.value,
            pattern=_PATTERNS[pattern],
            accuracy_drop=_ratio(accuracy_drop, "--accuracy-drop"),
            dynamic=dynamic,
            dynamic_accuracy=dynamic_accuracy,
            reward=None if reward is None else reward.value,
            episodes=episodes,
            images=images,
            agreement=agreement,
            finetune_epochs=finetune_epochs,
            rate=rate,
            decay=decay,
            max_seconds=max_seconds,
            mean=parse_numbers(mean, "--mean"),
            std=parse_numbers(std, "--std"),
            seed=seed,
            compare=compare,
            deploy_to=deploy_to or (),
            override=None if override is None else override.value,
            resume=resume,
            feedback=feedback,
            output=output,
            force=force,
            notify=progress,
        )
    finally:
        progress.end()
    if json:
        show_json(done.result)
    else:
        from framefit.report.terminal import view

        show(view(done.result), f"\nresult: {done.folder}")
    if done.result.interrupted:
        raise typer.Exit(130)
    if not done.result.satisfied:
        raise typer.Exit(1)


def _ratio(text: str | None, option: str) -> float | Literal["derived"] | None:
    if text is None:
        return None
    if text == "derived":
        return "derived"
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number; write 0.5 or derived", param_hint=option) from None
