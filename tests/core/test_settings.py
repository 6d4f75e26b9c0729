"""Settings records as options of Python functions."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from framefit import InputError
from framefit.core.settings import Settings, option, options, settings_of, verb


class BrewSettings(Settings, kw_only=True):
    """Options of a verb."""

    beans: Annotated[Any, option("What is brewed.", argument=True, metavar="BEANS", python="a bag of them")]
    cups: Annotated[int, option("Cups to brew.", ge=1, le=12)] = 2
    strength: Annotated[float | None, option("Part of the water that is coffee.", gt=0, lt=1)] = 0.5
    grind: Annotated[Literal["fine", "coarse"] | None, option("How fine.", none="auto")] = "fine"
    pours: Annotated[tuple[float, ...], option("Seconds of each pour.", joined=True)] = ()
    output: Annotated[str | None, option("The cup.", "-o", "--output")] = None
    resume: Annotated[str | None, option("An earlier brew.")] = None


def stored(given: Any) -> dict[str, Any]:
    """What an earlier brew was made with."""
    return {"beans": "earlier", "cups": 7} if "resume" in given else {}


@verb(BrewSettings, "beans", earlier=stored)
def brew(settings: BrewSettings, *, notify: Any = None) -> tuple[BrewSettings, Any]:
    """Brew.

    Args:
        settings: what to brew.
        notify: receives what is being done.
    """
    return settings, notify


def test_options_and_a_record_say_the_same() -> None:
    """Fields by name or position, a record, a record with changes; the function's own parameters stay."""
    made = BrewSettings(beans="arabica", cups=3)
    assert brew("arabica", cups=3) == brew(beans="arabica", cups=3) == brew(made) == (made, None)
    assert brew(made, cups=4, notify="me") == (BrewSettings(beans="arabica", cups=4), "me")


def test_values_take_the_types_of_the_fields(tmp_path: Path) -> None:
    """Paths become text, arrays and their numbers Python's own; objects stay; None is as if nothing was given."""
    bag = object()
    settings, _ = brew(bag, cups=np.int64(3), pours=np.array([1.5, 2]), output=tmp_path / "cup", strength=None)
    assert settings.beans is bag
    assert settings == BrewSettings(beans=bag, cups=3, pours=(1.5, 2.0), output=str(tmp_path / "cup"))
    assert brew(tmp_path)[0].beans == str(tmp_path)


def test_a_word_stands_for_none_where_that_is_no_default() -> None:
    """The default is what the field says, and the word chooses None."""
    assert brew("x")[0].grind == "fine"
    assert brew("x", grind="auto")[0].grind is None


@pytest.mark.parametrize(
    ("given", "message", "remedy"),
    [
        ({"cup": 3}, "unknown option 'cup'; did you mean 'cups'?", "known options: beans, cups"),
        ({"zzz": 3}, "unknown option 'zzz'", "known options: beans, cups"),
        ({"cups": 0}, "cups must be at least 1 and at most 12, is 0", "correct"),
        ({"cups": 13}, "is 13", "correct"),
        ({"cups": "many"}, "cups is 'many': Expected `int`", "correct"),
        ({"strength": 1}, "strength must be greater than 0 and less than 1, is 1.0", "correct"),
        ({"strength": float("nan")}, "strength must be greater than 0", "correct"),
        ({"grind": "rough"}, "grind is 'rough'", "choose from fine, coarse or auto"),
        ({"beans": None}, "BEANS missing", "--resume DIR"),
    ],
)
def test_what_cannot_be_used_is_one_message(given: dict[str, Any], message: str, remedy: str) -> None:
    """An InputError that names the option, the value and what would do."""
    with pytest.raises(InputError) as error:
        brew(**({"beans": "x"} | given))
    assert message in error.value.what
    assert remedy in str(error.value.remedy)
    with pytest.raises(InputError):
        settings_of(BrewSettings, {"beans": "x"} | given)


def test_limits_hold_for_records_made_by_hand() -> None:
    """A record beyond its limits is never made."""
    with pytest.raises(ValueError, match="cups must be at least 1"):
        BrewSettings(beans="x", cups=0)


def test_an_earlier_result_gives_what_is_not_given() -> None:
    """Given options come before those of the folder, and those before the defaults."""
    assert brew(resume="there")[0] == BrewSettings(beans="earlier", cups=7, resume="there")
    assert brew("new", resume="there", cups=1)[0] == BrewSettings(beans="new", cups=1, resume="there")


def test_wrong_calls_are_type_errors() -> None:
    """As of any Python function."""
    with pytest.raises(TypeError, match="takes 1 positional arguments, 2 were given"):
        brew("a", "b")
    with pytest.raises(TypeError, match="beans twice"):
        brew("a", beans="b")
    with pytest.raises(TypeError, match="beside BrewSettings"):
        brew(BrewSettings(beans="a"), "b")


def test_signature_and_docstring_list_all_options() -> None:
    """Every field with its default and text, and what the function takes beside them."""
    signature = inspect.signature(brew)
    assert list(signature.parameters) == [*options(BrewSettings), "notify"]
    assert signature.parameters["cups"].default == 2
    text = inspect.getdoc(brew)
    assert text is not None
    assert "    beans: What is brewed. In Python also a bag of them.\n" in text
    assert "    notify: receives what is being done." in text
    assert "settings:" not in text


class AllSettings(Settings, kw_only=True):
    """A verb of several inputs."""

    inputs: Annotated[tuple[str, ...], option("Files.", argument=True)]
    depth: Annotated[int, option("How deep.")] = 1


def test_the_last_positional_may_take_all_that_follow(tmp_path: Path) -> None:
    """Inputs by position are one tuple."""

    @verb(AllSettings, "inputs")
    def walk(settings: AllSettings) -> AllSettings:
        """Walk.

        Args:
            settings: where.
        """
        return settings

    assert walk("a", tmp_path, depth=2) == AllSettings(inputs=("a", str(tmp_path)), depth=2)
    assert walk(["a", tmp_path], depth=2) == AllSettings(inputs=("a", str(tmp_path)), depth=2)
    with pytest.raises(InputError, match="INPUTS missing"):
        walk()
