"""The command line in this process: what it prints, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from framefit.cli.app import main

__all__ = ["Ended", "Framefit", "framefit_in"]


@dataclass(frozen=True)
class Ended:
    """Exit code and streams of one call."""

    code: int
    out: str
    err: str


Framefit = Callable[..., Ended]


def framefit_in(patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Framefit:
    """A function that calls ``framefit`` with its arguments, as the console script does; quietly if not told else."""

    def call(*arguments: object, steps: bool = False) -> Ended:
        words = [*map(str, arguments)]
        quiet = not steps and len(words) > 1 and not words[0].startswith("-")
        patch.setattr(sys, "argv", ["framefit", *words, *["-q"] * quiet])
        capture.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        streams = capture.readouterr()
        return Ended(int(end.value.code or 0), streams.out, streams.err)

    return call
