"""What users write on the command line, in the types of a settings record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
import typer
from typer.testing import CliRunner

from framefit.cli.inputs import check_inputs
from framefit.cli.options import add_command
from framefit.cli.screen import Screen
from framefit.core.settings import Settings, option, options, settings_of
from framefit.core.sparsity import SolverName
from framefit.errors import InputError
from framefit.fit.settings import FitOptions
from framefit.fit.steps import step_names
from framefit.sparsity.solvers import SOLVERS
from framefit.workflows.settings import RunSettings


class WalkSettings(Settings, kw_only=True):
    """Options of every form."""

    start: Annotated[Any, option("Where.", argument=True, metavar="START")]
    steps: Annotated[int, option("Steps.", ge=1)] = 3
    ratio: Annotated[float | None, option("Part.", none="derived", gt=0)] = 0.5
    depth: Annotated[Literal["auto"] | int, option("Depth.", metavar="auto|N")] = "auto"
    pace: Annotated[Literal["slow", "fast"] | None, option("Pace.", none="any")] = None
    fuse: Annotated[bool, option("Fuse.", "--fuse/--no-fuse")] = True
    loud: Annotated[bool, option("Loud.")] = False
    mean: Annotated[tuple[float, ...] | None, option("Mean.", metavar="R,G,B", joined=True)] = None
    layers: Annotated[tuple[tuple[int, int], ...], option("Layer.", "--layer", metavar="INxOUT", example="8x4")] = ()
    luts: Annotated[tuple[Literal[4, 6], ...], option("Inputs.", "--lut")] = (6, 4)
    shapes: Annotated[dict[str, tuple[int, ...]], option("Shape.", "--shape", metavar="INPUT=1,3")] = {}
    values: Annotated[dict[str, Any], option("Value.", "--value", metavar="INPUT=NUMBER")] = {}
    data: Annotated[dict[str, str], option("Data.", metavar="[MODEL=]DATA")] = {}
    audit: Annotated[Any, option("Network.", many=True)] = None
    output: Annotated[str | None, option("File.", "-o", "--output", metavar="PATH")] = None


Walk = Callable[..., tuple[int, str, dict[str, Any] | None]]


@pytest.fixture
def walk() -> Walk:
    """A command line of one command: exit code, messages, and what its verb was given."""
    app = typer.Typer(rich_markup_mode=None)
    seen: list[dict[str, Any]] = []

    def command(given: dict[str, Any], screen: Screen) -> int:
        """Walk."""
        settings_of(WalkSettings, given)
        seen.append(given)
        return 7 if screen.json else 0

    add_command(app, "walk", WalkSettings, Screen, command)

    def call(*words: str) -> tuple[int, str, dict[str, Any] | None]:
        seen.clear()
        ended = CliRunner().invoke(app, words)
        return ended.exit_code, ended.output, seen[0] if seen else None

    return call


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("", {}),
        ("--steps 3", {"steps": 3}),
        ("--ratio .25", {"ratio": 0.25}),
        ("--ratio 1e-3", {"ratio": 0.001}),
        ("--ratio derived", {"ratio": "derived"}),
        ("--depth 4 --pace any", {"depth": 4, "pace": "any"}),
        ("--depth auto --pace fast", {"depth": "auto", "pace": "fast"}),
        ("--no-fuse --loud", {"fuse": False, "loud": True}),
        ("--mean 0.5,1,.25", {"mean": (0.5, 1.0, 0.25)}),
        ("--layer 128x64 --layer 8x4", {"layers": ((128, 64), (8, 4))}),
        ("--lut 4", {"luts": (4,)}),
        ("--shape a=b=1,3 --shape x=2", {"shapes": {"a=b": (1, 3), "x": (2,)}}),
        ("--value sr=16000", {"values": {"sr": 16000.0}}),
        ("--data tags=t.npz --data other.npz", {"data": {"tags": "t.npz", "": "other.npz"}}),
        ("--audit a --audit b", {"audit": ["a", "b"]}),
        ("-o out", {"output": "out"}),
    ],
)
def test_what_is_written_is_given_in_its_type(walk: Walk, words: str, given: dict[str, Any]) -> None:
    """Only what the user wrote, so that defaults and earlier settings stay what they are."""
    assert walk("here", *words.split()) == (0, "", {"start": "here"} | given)


def test_the_exit_code_is_the_commands(walk: Walk) -> None:
    """Options of the screen are not given to the verb."""
    assert walk("here", "--json") == (7, "", {"start": "here"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("here --ratio half", "'half' is not of the form a number or derived"),
        ("here --depth deep", "'deep' is not of the form auto|N"),
        ("here --mean 1,b", "'1,b' is not of the form R,G,B"),
        ("here --layer 128", "'128' is not of the form INxOUT, such as 8x4"),
        ("here --layer 1x2x3", "'1x2x3' is not of the form INxOUT"),
        ("here --lut 5", "'5' is unknown; choose from 4, 6"),
        ("here --shape 1,3", "'1,3' is not of the form INPUT=1,3"),
        ("here --shape a=1.5", "'a=1.5' is not of the form INPUT=1,3"),
        ("here --value sr=x", "'sr=x' is not of the form INPUT=NUMBER"),
        ("here --data a=x --data a=y", "data of a are given twice"),
        ("here --data x --data y", "data of one model are given twice"),
        ("here --steps 0", "--steps: steps must be at least 1, is 0"),
        ("here --steps 1.5", "--steps: '1.5' is not of the form a whole number"),
        ("here --pace mad", "'mad' is unknown; choose from slow, fast, any"),
        ("here --pace fats", "'fats' is unknown; did you mean 'fast'?"),
        ("", "START"),
    ],
)
def test_another_form_is_a_usage_error(walk: Walk, words: str, message: str) -> None:
    """Exit code 2, and the value or the option is named."""
    code, output, given = walk(*words.split())
    assert (code, given) == (2, None)
    assert message in " ".join(output.replace("│", " ").split())


def test_what_records_list_is_what_there_is() -> None:
    """Names in light records that stand for things in rooms that load slowly."""
    assert set(get_args(SolverName)) == set(SOLVERS)
    assert options(FitOptions)["exclude"].choices == step_names()


def test_the_folder_of_a_run_that_was_cut_off_is_let_through(tmp_path: Path) -> None:
    """It holds neither a workload nor a plan yet; without --resume that is an error."""
    check_inputs(options(RunSettings), {"app": str(tmp_path), "resume": True})
    with pytest.raises(InputError, match="is a folder"):
        check_inputs(options(RunSettings), {"app": str(tmp_path)})
