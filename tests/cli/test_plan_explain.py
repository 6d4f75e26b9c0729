"""``framefit plan --explain`` and ``--page``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from console import Framefit

from framefit import Timetable
from framefit.core.files import read_record
from workloads import listing, write_app, write_target

SCRIPT = Path(sys.executable).with_name("framefit")


@pytest.fixture
def described(models: Path) -> Path:
    """A workload for a described board: planning measures nothing, and one model is cut."""
    write_target(models)
    return write_app(models, target="target.toml", rate_hz=80, schedule="", guard_ms=None)


def test_explaining(framefit: Framefit, described: Path, tmp_path: Path) -> None:
    """Pictures and the way to each model's part; the tables that say the same are left away."""
    ended = framefit("plan", described, "--explain", "-o", tmp_path / "timetable.json")
    assert (ended.code, ended.err) == (0, "")
    text = " ".join(ended.out.split())
    plan = read_record(tmp_path / "timetable.json", Timetable)
    assert ended.out.startswith("Fits with fewer frames. 'chain' gets 53.33 of 80 Hz.")
    assert "Unit npu0" in ended.out
    segments = plan.model("chain").segments
    assert len(segments) > 1
    assert f"into {len(segments)} segments" in text
    assert f"within {plan.model('chain').result_age_windows} window" in text
    assert re.search(r"release of window \d+ -> segments? 0", text)
    assert "Where the residuals go" in text
    assert "Models" not in ended.out
    assert "Models" in framefit("plan", described).out


def test_a_page(framefit: Framefit, described: Path) -> None:
    """It is written where it was asked for, which is said, and holds the whole plan; JSON stays as it is."""
    page = Path("out") / "plan.html"
    ended = framefit("plan", described, "--page", page)
    assert (ended.code, ended.err) == (0, "")
    assert f"page: {page} (open it in a browser)" in ended.out
    first = page.read_text()
    plain = framefit("plan", described, "--json")
    ended = framefit("plan", described, "--json", "--page", page, "--force")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == plain.out
    assert page.read_text() == first
    plan = json.loads(plain.out)
    assert first.count('class="slot"') == sum(len(window["slots"]) for window in plan["windows"])
    assert "<title>app.toml: small + chain</title>" in first


def test_an_infeasible_plan_is_explained(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """Exit code 1; screen and page name what binds and what would help."""
    write_target(models)
    workload = write_app(models, target="target.toml", model="deadline_ms = 0.001")
    ended = framefit("plan", workload, "--explain", "--page", tmp_path / "plan.html")
    assert (ended.code, ended.err) == (1, "")
    assert ended.out.startswith("DOES NOT FIT")
    page = (tmp_path / "plan.html").read_text()
    for part in ("What binds", "What would help", "deadline_ms"):
        assert part in ended.out
        assert part in page


def test_an_existing_page_is_refused(framefit: Framefit, described: Path, tmp_path: Path) -> None:
    """Before anything is planned, and nothing is left behind."""
    page = tmp_path / "plan.html"
    page.write_text("mine")
    before = listing(tmp_path)
    ended = framefit("plan", described, "--page", page, "-o", tmp_path / "timetable.json")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"framefit: {page}: already exists")
    assert "--force" in ended.err
    assert listing(tmp_path) == before


def test_json_stands_alone(framefit: Framefit, described: Path) -> None:
    """``--explain`` is for people: beside ``--json`` it is a usage error, not ignored."""
    ended = framefit("plan", described, "--json", "--explain")
    assert (ended.code, json.loads(ended.out)["error"]) == (2, "InputError")
    assert "--explain" in ended.err


def test_a_pipe_that_takes_ascii_only(described: Path, tmp_path: Path) -> None:
    """Neither rules nor blocks nor a shortened name break it, and there are no escape codes in it."""
    settings = {**os.environ, "PYTHONIOENCODING": "ascii", "FRAMEFIT_CACHE": str(tmp_path / "cache")}
    command = [SCRIPT, "plan", described, "--explain"]
    ended = subprocess.run(command, capture_output=True, env=settings, timeout=60, check=True)
    text = ended.stdout.decode("ascii")
    assert "small" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
