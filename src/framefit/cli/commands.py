"""Every command: its settings record, the function that does its work, and what shows the result.

A command's docstring is its help text. What the verb takes comes from its settings record; the functions are imported
when they are called, so that ``--help`` costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from framefit.cli.options import Command, Screen, add_command
from framefit.cli.screen import Interrupt, Progress, show, show_json
from framefit.core.settings import Settings, option
from framefit.devices.settings import CyclesSettings
from framefit.errors import InputError
from framefit.latency.settings import EstimateSettings, MeasureSettings
from framefit.profiling.settings import InjectLossSettings

__all__ = ["COMMANDS"]


S = TypeVar("S", bound=Settings)
COMMANDS: dict[str, tuple[type[Settings] | None, type[Settings], Command[Any]]] = {}
"""Name -> the verb's settings, what the command line has beside them, and what does the work."""


def _command(
    verb: type[Settings] | None, screen: type[S], name: str | None = None
) -> Callable[[Command[S]], Command[S]]:
    def add(command: Command[S]) -> Command[S]:
        COMMANDS[name or command.__name__.replace("_", "-")] = (verb, screen, command)
        return command

    return add


def add_commands(app: typer.Typer) -> None:
    """Give the application all commands."""
    for name, (verb, screen, command) in COMMANDS.items():
        add_command(app, name, verb, screen, command)


@_command(CyclesSettings, Screen)
def cycles(given: dict[str, Any], screen: Screen) -> None:
    """Show what each layer of a model costs on a described target, and what limits it.

    Nothing is executed: the cycles come from the target's description.

    Example: framefit cycles face.onnx --target vpu --weight-sparsity 0.5
    """
    from framefit.devices.npu.costs import cycles
    from framefit.report.terminal.cycle_table import cycles_view

    report = cycles(**given)
    show_json(report) if screen.json else show(cycles_view(report))


class MeasureScreen(Screen, kw_only=True):
    """Options of the command ``measure`` beside those of the verb."""

    no_audit: Annotated[bool, option("The same as --audit none.")] = False


@_command(MeasureSettings, MeasureScreen)
def measure(given: dict[str, Any], screen: MeasureScreen) -> int:
    """Measure what each layer of a model costs on a device, and write a latency table.

    Only the start and end of launches are used: it works on devices that report no time for single layers. Ctrl-C
    keeps what was measured (exit code 130), and --resume continues. A few whole networks are measured beside the
    layers: what they take beyond the sum of their layers corrects the estimates.

    Example: framefit measure face.onnx --target vpu -o board.table.json

    Example: framefit measure face.onnx --audit a.onnx --audit b.onnx --audit c.onnx

    Example: framefit measure --grid convolutions.toml --max-shapes 40 -o board.table.json
    """
    if screen.no_audit:
        if "audit" in given:
            raise InputError("--audit and --no-audit contradict each other", remedy="leave one of them out")
        given["audit"] = "none"
    from framefit.latency.verbs import measure
    from framefit.report.terminal.latency_tables import table_view

    with Interrupt() as interrupt, Progress() as progress:
        table = measure(**given, stop=interrupt, notify=progress, on_round=progress.rounds)
    lost = (f"not measured: {layer.op} ({', '.join(layer.layers)}): {layer.reason}" for layer in table.unmeasured)
    show_json(table) if screen.json else show(table_view(table), *lost)
    return 130 if interrupt.asked else 0


@_command(EstimateSettings, Screen)
def estimate(given: dict[str, Any], screen: Screen) -> None:
    """Estimate how long a model takes on a device, from the device's latency table.

    Nothing is executed. A layer that the table does not have is an error, unless --fallback is given.

    Example: framefit estimate face.onnx --table board.table.json
    """
    from framefit.latency.verbs import estimate
    from framefit.report.terminal.latency_tables import estimate_view

    estimated = estimate(**given)
    show_json(estimated) if screen.json else show(estimate_view(estimated))


@_command(InjectLossSettings, Settings)
def inject_loss(given: dict[str, Any], screen: Settings) -> None:  # noqa: ARG001 - it prints one line
    """Remove packets from a trace, to see what a profile recovers from the rest.

    The same seed removes the same packets.

    Example: framefit inject-loss runs/first --rate 0.1 --burst 20 --seed 1 -o thin.npz
    """
    if "output" not in given:
        raise InputError("-o missing", remedy="name the file for the remaining trace with -o")
    from framefit.profiling.inject import inject_loss

    injected = inject_loss(**given)
    show(f"{injected.lost} of {len(injected.kept)} events lost: {given['output']}")
