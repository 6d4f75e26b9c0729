"""One verdict in all commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from framefit import fit, plan, simulate
from workloads import write_app, write_models, write_target


@pytest.mark.parametrize(
    ("rate_hz", "verdict"), [(40.0, "fits"), (100.0, "fits with fewer frames"), (40_000.0, "does not fit")]
)
def test_plan_simulate_and_fit_agree(rate_hz: float, verdict: str, tmp_path: Path) -> None:
    """The same word everywhere, and the same frames a second where they were served."""
    write_models(tmp_path)
    write_target(tmp_path)
    app = write_app(tmp_path, rate_hz=rate_hz, target="target.toml")
    planned = plan(app).timetable
    proposed = fit(app).result
    assert planned.verdict == verdict
    assert proposed.verdict == proposed.before.verdict == verdict
    served_hz = [model.served_hz for model in planned.models]
    assert [model.asked_hz for model in planned.models] == pytest.approx([rate_hz, rate_hz])
    assert [model.served_hz for model in proposed.before.models] == served_hz
    if verdict == "does not fit":
        assert served_hz == [0, 0]
        return
    metrics = simulate(app, seconds=2, output=tmp_path / "run").metrics
    assert metrics.judged == metrics.verdict == verdict
    assert [model.served_hz for model in metrics.models] == pytest.approx(served_hz, rel=0.03)
