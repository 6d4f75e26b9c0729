"""Ctrl-C in each part of a step: what was done is kept, and goes on."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fit_workloads import fitted, outcomes, write_fit_app
from framefit import InputError, fit
from framefit.core.files import read_record
from framefit.core.fit_results import FitResult
from framefit.fit.accuracy import Labelled
from framefit.fit.situation import Situation

WHOLE = [("int8", "kept"), ("verify", "verified")]
LOOP, STEP = (import_module(f"framefit.fit.{name}") for name in ("loop", "step"))
PLACES: dict[str, tuple[Any, str, int, int]] = {
    "in a step": (STEP, "quantised", 1, 0),
    "planning again": (Situation, "of", 2, 0),
    "in the verification": (LOOP, "proven", 1, 1),
    "in the final judgement": (Labelled, "final", 1, 2),
}
"""Whose function is called, in which of its calls Ctrl-C comes, and how many steps were done then."""


@pytest.mark.parametrize("when", PLACES)
def test_a_fit_goes_on_where_it_was_interrupted(place: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """What was done is kept and not done twice, and the end is that of a fit without a break."""
    owner, name, number, done_before = PLACES[when]
    app = write_fit_app(place, macs="fp32 = 64, int8 = 256")
    with monkeypatch.context() as patch:
        real: Any = getattr(owner, name)
        calls: list[object] = []

        def stopped(*arguments: Any, **options: Any) -> Any:
            calls.append(arguments)
            if len(calls) == number:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        patch.setattr(owner, name, stopped)
        first = fitted(app, data=place / "data.npz")
    assert (first.result.interrupted, first.result.fits) == (True, False)
    assert outcomes(first) == WHOLE[:done_before]
    assert read_record(place / "out" / "fit.json", FitResult) == first.result
    second = fit(resume=place / "out")
    assert second.result.fits
    assert outcomes(second)[:2] == WHOLE
    assert second.result.steps[:done_before] == first.result.steps
    (model,) = second.result.models
    assert model.path == "models/net.onnx"
    assert model.test is not None


def test_a_fit_that_was_killed_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is one of a fit from the beginning, whatever ends the process."""

    def killed(*_: object, **__: object) -> None:
        raise SystemExit(1)

    app = write_fit_app(place, rate_hz=300)
    with monkeypatch.context() as patch:
        patch.setattr(LOOP, "proven", killed)
        with pytest.raises(SystemExit):
            fitted(app)
    assert read_record(place / "out" / "fit.json", FitResult).interrupted
    with pytest.raises(InputError, match="already exists"):
        fitted(app)
    assert fit(resume=place / "out").result.fits
