"""Models that take two of three frames, or another fraction: planned, checked and simulated."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from framefit import plan, simulate
from workloads import write_app, write_models, write_target


def frames_done(folder: Path, model: str) -> list[int]:
    """Numbers of the frames that a model did in time, in order."""
    with (folder / "frames.csv").open() as file:
        return sorted(
            int(row["frame"]) for row in csv.DictReader(file) if (row["model"], row["fate"]) == (model, "done")
        )


@pytest.mark.parametrize("which", ["model", "last"])
def test_two_of_three_frames(which: str, tmp_path: Path) -> None:
    """Evenly spread, of a priority model and of a background model; all others are skipped, and none is late."""
    write_models(tmp_path)
    write_target(tmp_path)
    lines = {"model": 'every = "3/2"'} if which == "model" else {"last": 'every = "3/2"'}
    app = write_app(tmp_path, rate_hz=45, target="target.toml", **lines)
    name = {"model": "small", "last": "chain"}[which]
    timetable = plan(app).timetable
    assert timetable.verdict == "fits"
    assert timetable.model(name).asked_hz == pytest.approx(30)
    ran = simulate(app, windows=90, output=tmp_path / "run")
    metrics = {model.name: model for model in ran.metrics.models}
    assert (metrics[name].releases, metrics[name].missed) == (60, 0)
    assert frames_done(tmp_path / "run", name)[:50] == [number for number in range(75) if number % 3 != 1][:50]
    assert metrics[name].result_age_windows_max <= (timetable.model(name).result_age_windows or 1)


def test_a_model_that_reads_one_of_a_fraction(tmp_path: Path) -> None:
    """It takes two of three of those frames in turn."""
    write_models(tmp_path)
    write_target(tmp_path)
    app = write_app(tmp_path, background=(), rate_hz=45, target="target.toml", model='every = "3/2"')
    text = app.read_text()
    first = text.index("[[models]]")
    reader = '\n[[models]]\nname = "reader"\npath = "reader.onnx"\npriority = "background"\nevery = "3/2"\n'
    from framefit.core.model import GraphBuilder

    b = GraphBuilder("reader", 1)
    b.output(b.op("Relu", b.input("x", (1, 8, 1, 1))), "y")
    b.build().save(tmp_path / "reader.onnx")
    app.write_text(text[:first] + text[first:] + reader + 'inputs = { x = "small.pooled" }\n')
    assert plan(app).timetable.model("reader").asked_hz == pytest.approx(20)
    ran = simulate(app, windows=90, output=tmp_path / "run")
    assert ran.metrics.models[-1].releases == 40
    assert ran.metrics.models[-1].completed >= 38
