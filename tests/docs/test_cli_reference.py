"""The reference of commands is the one that the settings records make."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from framefit.cli.commands import COMMANDS
from framefit.core.settings import Option, options

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = [
    pytest.param(each, id=f"{name}-{each.name}")
    for name, records in COMMANDS.items()
    for record in records[:2]
    if record is not None
    for each in options(record).values()
]


def test_the_page_is_what_the_records_make() -> None:
    """``python docs/make_cli.py`` would change nothing."""
    made = runpy.run_path(str(ROOT / "docs" / "make_cli.py"))["reference"]()
    assert (ROOT / "docs" / "cli.md").read_text() == made, "run python docs/make_cli.py"


@pytest.mark.parametrize("each", OPTIONS)
def test_every_option_is_described_by_sentences(each: Option) -> None:
    """Each begins with a capital letter and ends with a full stop; the default is within the limits."""
    assert each.text.endswith("."), each.text
    assert each.text[0].isupper(), each.text
    if not each.required:
        each.check(each.default)


def test_no_command_has_an_option_twice() -> None:
    """The verb's options and those of the command line alone have different flags."""
    for verb, screen, _ in COMMANDS.values():
        flags = [
            part
            for record in (verb, screen)
            if record is not None
            for each in options(record).values()
            for part in (each.flags or (each.flag,))
        ]
        assert len(flags) == len(set(flags))
