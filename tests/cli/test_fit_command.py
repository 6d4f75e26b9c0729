"""``framefit fit``: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

from console import Framefit

from framefit.core.files import from_data
from framefit.core.fit_results import FitResult
from workloads import write_app, write_target


def write_slow(models: Path, rate_hz: float = 80) -> Path:
    """A background model that gets two of three frames."""
    write_target(models)
    return write_app(models, target="target.toml", rate_hz=rate_hz, guard_ms=None, schedule="")


def test_steps_are_proposed_with_what_they_cost(framefit: Framefit, models: Path) -> None:
    """Exit code 1, the shortfall, the steps, and that nothing was changed."""
    app = write_slow(models)
    ended = framefit("fit", app)
    assert (ended.code, ended.err) == (1, "")
    for told in ("Fits with fewer frames.", "'chain' gets 53.33 of 80 Hz", "give 2 of 3 frames", "--data chain=DATA"):
        assert told in " ".join(ended.out.split())
    assert "--apply" in ended.out
    assert not (Path.cwd() / "app-fit").exists()


def test_steps_are_taken_and_proven(framefit: Framefit, models: Path) -> None:
    """Exit code 0, a workload that plans, the JSON as in the folder, and no folder overwritten unasked."""
    app = write_slow(models)
    ended = framefit("fit", app, "--apply", "--verify-seconds", "1", "--json", steps=True)
    assert ended.code == 0
    first, second = (line for line in ended.err.splitlines() if line.startswith("step "))
    assert re.fullmatch(r"step 1 of 2: give 2 of 3 frames to 'chain', 1,\d+ s left", first)
    assert re.fullmatch(r"step 2 of 2: simulate the plan, 1,\d+ s left", second)
    folder = Path.cwd() / "app-fit"
    result = from_data(json.loads(ended.out), FitResult, "output")
    assert from_data(json.loads((folder / "fit.json").read_text()), FitResult, "file") == result
    assert result.fits
    assert [step.outcome for step in result.steps] == ["kept", "verified"]
    assert framefit("plan", folder / "app.toml").code == 0
    ended = framefit("fit", app, "--apply")
    assert ended.code == 2
    assert "--force" in ended.err
    ended = framefit("fit", app, "--apply", "--force", "--verify-seconds", "1")
    assert ended.code == 0
    for told in (
        "Fits with fewer frames. 'chain' gets 53.33 of 80 Hz. After 1 step, a simulation proves it",
        "2 of 3 frames",
        "verified",
        str(folder / "app.toml")[-20:],
    ):
        assert "".join(told.split()) in "".join(ended.out.split())  # a long path is wrapped


def test_a_fit_goes_on_in_its_folder(framefit: Framefit, models: Path) -> None:
    """--resume needs nothing else, and keeps the settings that are not given."""
    first = framefit("fit", write_slow(models), "--apply", "--exclude", "rate", "--max-drop", "0.02", "--json")
    assert (first.code, first.err) == (1, "")
    again = framefit("fit", "--resume", Path.cwd() / "app-fit", "--max-drop", "0.03", "--json")
    assert (again.code, again.err) == (1, "")
    kept = json.loads(first.out)["settings"]
    assert json.loads(again.out)["settings"] == kept | {"max_drop": 0.03}
    assert (kept["exclude"], kept["max_drop"]) == (["rate"], 0.02)


def test_a_fit_that_nothing_helps_ends_with_what_was_tried(framefit: Framefit, models: Path) -> None:
    """Exit code 1, with the steps that would need something."""
    ended = framefit("fit", write_slow(models), "--apply", "--exclude", "rate", "--json")
    assert ended.code == 1
    result = json.loads(ended.out)
    assert (result["fits"], result["applied"], result["steps"]) == (False, True, [])
    assert {one["needs"] for one in result["proposals"]} == {"needs data: --data chain=DATA"}


def test_bad_input_ends_with_one_clear_error(framefit: Framefit, models: Path) -> None:
    """Exit code 2, and nothing on stdout."""
    app = write_slow(models)
    for arguments in (
        ("fit",),
        ("fit", models / "none.toml"),
        ("fit", app, "--data", "chain=none.npz"),
        ("fit", app, "--data", "nobody=none.npz"),
        ("fit", app, "--data", "a=x.npz", "--data", "a=y.npz"),
        ("fit", app, "--exclude", "everything"),
        ("fit", app, "--max-drop", "1.0"),
        ("fit", app, "--target", "none"),
        ("fit", "--resume", models),
        ("fit", app, "--resume", models),
        ("fit", app, "--apply", "-o", models),
    ):
        ended = framefit(*arguments)
        assert ended.code == 2, arguments
        assert ended.out == "", arguments
        assert ended.err
