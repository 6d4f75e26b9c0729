"""Reports on what the other workflows leave behind: recognised by content, damaged ones refused, old ones read."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from framefit import InputError, cycles, plan, profile, simulate
from framefit.core.check import CheckedModel, CheckResult
from framefit.core.files import write_record
from framefit.core.run_record import LatencyEstimate, LayerLatency
from framefit.core.tree_results import RtlReport
from framefit.workflows.inject import inject_loss
from framefit.workflows.report import report_place, write_report, write_views
from networks import write_dynamic
from workloads import write_app, write_models, write_target

WINDOWS = 60


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a table that it has updated, and a profile of its trace, thinned."""
    folder = write_models(tmp_path_factory.mktemp("reported"))
    write_target(folder)
    app = write_app(folder, target="target.toml", rate_hz=74, guard_ms=None, schedule="")
    run = simulate(app, windows=WINDOWS, output=folder / "run", update_table=folder / "board.table.json")
    write_views(run.folder, run.profile)
    inject_loss(folder / "run", rate=0.05, burst=3, seed=1, output=folder / "thin.npz")
    profile(folder / "thin.npz", folder / "run" / "program.json", output=folder / "thin")
    return folder


@pytest.fixture
def copied(left: Path, tmp_path: Path) -> Path:
    """The run, to be damaged."""
    return Path(shutil.copytree(left / "run", tmp_path / "run"))


def sections(page: Path) -> list[str]:
    """Kinds of the page's parts, in order."""
    return re.findall(r'<section class="part" id="([\w-]+)"', page.read_text(encoding="utf-8"))


def test_a_folder_of_a_plan_is_shown_as_its_plan(left: Path, tmp_path: Path) -> None:
    """``framefit plan -o FOLDER`` writes it, with the instructions of the units."""
    folder = tmp_path / "plan"
    folder.mkdir()
    shutil.copy(left / "run" / "timetable.json", folder)
    assert sections(write_report(folder)) == ["plan-1"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("run", "run-1"),
        ("run/metrics.json", "run-1"),
        ("run/run.json", "run-1"),
        ("run/timetable.json", "plan-1"),
        ("run/profile.json", "profile-1"),
        ("thin", "profile-1"),
        ("thin/profile.json", "profile-1"),
        ("board.table.json", "latency-table-1"),
    ],
)
def test_inputs_are_known_by_what_they_hold(left: Path, tmp_path: Path, name: str, kind: str) -> None:
    """Folders and files are what their content says; names do not matter."""
    page = write_report(left / name, output=tmp_path / "report.html")
    assert sections(page) == [kind]
    if (left / name).is_file() and kind in ("plan-1", "latency-table-1"):
        renamed = tmp_path / "whatever.txt"
        shutil.copy(left / name, renamed)
        assert sections(write_report(renamed, output=tmp_path / "again.html")) == [kind]


def test_a_run_is_shown_in_full(left: Path, tmp_path: Path) -> None:
    """The page of a run has its timeline, its charts and the plan, with the ways of frames."""
    page = write_report(left / "run", output=tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Fits with fewer frames:" in page
    for part in (
        'class="stage timeline"',
        "frames against their deadline",
        "Residual in use",
        "Time by layer",
        "data-way=",
    ):
        assert part in page


def test_paths_that_are_not_utf8(tmp_path: Path) -> None:
    """A workload in such a folder is planned, stored, run from its plan and reported on, all of it in that folder."""
    folder = tmp_path / os.fsdecode(b"models\xe9")
    folder.mkdir()
    write_models(folder)
    write_target(folder)
    app = write_app(folder, target="target.toml", rate_hz=74, guard_ms=None, schedule="")
    planned = plan(app, output=folder / "plan.json")
    again = simulate(folder / "plan.json", windows=20, output=folder / "run")
    assert planned.timetable.feasible
    assert simulate(app, windows=20, output=folder / "second").metrics == again.metrics
    assert json.loads((folder / "run" / "run.json").read_text())["app"] == str(app)
    assert "models\\udce9" in write_report(folder / "run", folder / "plan.json").read_text(encoding="utf-8")


def test_cleaned_files_are_named(tmp_path: Path) -> None:
    """Plan and run, in the terminal's words and on their pages, say what reading an old file put in order."""
    write_dynamic(tmp_path / "old.onnx")
    app = tmp_path / "app.toml"
    app.write_text('target = "vpu"\nrate_hz = 30\n[[models]]\nname = "old"\npath = "old.onnx"\n')
    said = "old: 5 initializers were moved out of the graph&#39;s inputs"
    planned = plan(app, output=tmp_path / "plan.json")
    assert any(reason.startswith(html.unescape(said)) for reason in planned.timetable.reasons)
    simulate(app, windows=10, output=tmp_path / "run")
    for name in ("plan.json", "run"):
        assert said in write_report(tmp_path / name, output=tmp_path / f"{name}.html").read_text(encoding="utf-8")


def test_mixed_and_several(left: Path, copied: Path, tmp_path: Path) -> None:
    """Two runs are compared, other inputs stand beside them; names are the shortest that tell them apart."""
    page = write_report(left / "run", copied, left / "thin", left / "board.table.json", output=tmp_path / "r.html")
    assert sections(page) == ["run-compared", "run-1", "run-2", "profile-1", "latency-table-1"]
    headings = re.findall(r"<h2>([^<]*?)\s*<small>", page.read_text(encoding="utf-8"))
    assert headings == [f"{left.name}/run", f"{tmp_path.name}/run", "thin", "board.table.json"]


def test_the_same_twice(left: Path, tmp_path: Path) -> None:
    """One input given twice is numbered."""
    page = write_report(left / "run", left / "run", output=tmp_path / "r.html")
    assert "run (2)" in page.read_text(encoding="utf-8")


def test_where_the_page_goes(copied: Path) -> None:
    """Without a place it lies in the folder, or beside the file; it is overwritten only when asked."""
    assert write_report(copied) == report_place(copied) == copied / "report.html"
    with pytest.raises(InputError, match="already exists"):
        write_report(copied / "timetable.json")
    assert write_report(copied / "timetable.json", force=True) == copied / "report.html"


def test_what_viewers_read_is_made_with_the_page(copied: Path, tmp_path: Path) -> None:
    """A run records only; its trace for viewers, picture and profile come beside its page, and nowhere else."""
    written = ("trace.pftrace", "run.svg", "profile.json")
    for name in written:
        (copied / name).unlink()
    write_report(copied, output=tmp_path / "report.html")
    assert not any((copied / name).exists() for name in written)
    write_report(copied)
    assert all((copied / name).stat().st_size for name in written)
    assert "<svg" in (copied / "run.svg").read_text(encoding="utf-8")[:200]


def test_old_runs(copied: Path) -> None:
    """A run without the files and keys that came later is told as far as it goes, and the page says what lacks."""
    for name in ("frames.csv", "trace.npz", "instructions.json", "profile.json"):
        (copied / name).unlink()
    info = json.loads((copied / "run.json").read_text())
    del info["warnings"], info["app"], info["error"]
    info["workload"]["streams"][0]["colour"] = "red"  # what this version does not know
    (copied / "run.json").write_text(json.dumps(info))
    metrics = json.loads((copied / "metrics.json").read_text())
    del metrics["units"], metrics["switches"]
    (copied / "metrics.json").write_text(json.dumps(metrics))
    page = write_report(copied).read_text(encoding="utf-8")
    assert "there is no timeline: the folder has no trace.npz" in page
    assert "Fits with fewer frames:" in page
    assert 'class="slot"' in page


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.json", lambda raw: raw[: len(raw) // 2]),
        ("timetable.json", lambda raw: raw.replace(b"feasible", b"feasibly")),
        ("run.json", lambda raw: raw[:0]),
        ("frames.csv", lambda raw: raw[: len(raw) // 2]),
        ("trace.npz", lambda raw: raw[: len(raw) // 2]),
        ("program.json", lambda raw: raw[1:]),
    ],
)
def test_damaged_runs_are_refused(copied: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    """One error names the file, and no page is left."""
    path = copied / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=name):
        write_report(copied)
    assert not report_place(copied).exists()


def test_a_report_runs_no_function_of_a_plan(tmp_path: Path) -> None:
    """Whoever opens what another one sends runs nothing of theirs; without functions the layers are there."""
    folder = write_models(tmp_path / "sent")
    write_target(folder)
    mark = tmp_path / "ran"
    (folder / "reported_post.py").write_text(
        f"open({str(mark)!r}, 'w').close()\ndef same(outputs):\n    return outputs\n"
    )
    for name, model in (("with", 'postprocess = "reported_post:same"'), ("without", "")):
        app = write_app(folder, target="target.toml", guard_ms=None, schedule="", model=model)
        write_record(tmp_path / f"{name}.json", plan(app).stored)
    assert mark.exists()  # planning imports it
    mark.unlink()
    sys.modules.pop("reported_post", None)
    texts = []
    for name in ("with", "without"):
        write_report(tmp_path / f"{name}.json", output=tmp_path / f"{name}.html")
        texts.append((tmp_path / f"{name}.html").read_text())
    assert not mark.exists()
    assert ["Layers of chain" in text for text in texts] == [False, True]


def test_results_that_were_printed_as_json_are_shown(tmp_path: Path) -> None:
    """Of cycles, estimates, checks and circuits, as their commands print them or leave them in a folder."""
    layer = LayerLatency(name="a", op="Conv", latency_ns=9, interval_ns=(8, 10), source="measured")
    estimate = LatencyEstimate(
        model="net", target="vpu", unit="vpu0", total_ns=10, interval_ns=(9, 11), plain_sum_ns=10, correction_ns=0,
        overhead_ns=1, coverage_ratio=1.0, estimated_ns=0, layers=(layer,),
    )  # fmt: skip
    check = CheckResult(
        app="a.toml", against="b.toml", target="vpu", most=1.05, decision="pass",
        models=(CheckedModel(name="net", decision="pass", same=True),),
    )  # fmt: skip
    folder = tmp_path / "rtl"
    folder.mkdir()
    write_record(folder / "report.json", RtlReport(model="net", core="fixed", yosys=None, seed=0, groups=()))
    results = {"cycles": cycles("detector", "vpu"), "estimate": estimate, "check": check}
    for name, result in results.items():
        write_record(tmp_path / f"{name}.json", result)
        write_report(tmp_path / f"{name}.json", output=tmp_path / f"{name}.html")
    write_report(folder)
    texts = {name: (tmp_path / f"{name}.html").read_text() for name in results}
    assert "detector" in texts["cycles"]
    assert "No model is slower" in texts["check"]
    assert "measured" in texts["estimate"]
    assert "rows are equal to the model" in (folder / "report.html").read_text()


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"a": 1}', b'{"windows": [', b"\x93NUMPY", b"<html>"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """What is not something that a report can show is one error, which says what is accepted."""
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        write_report(path)
    assert caught.value.where == str(path)
    assert caught.value.remedy
    with pytest.raises(InputError, match="contains nothing"):
        write_report(tmp_path)


def test_nothing_and_nowhere(tmp_path: Path) -> None:
    """No input, and one that is not there, are errors."""
    with pytest.raises(InputError, match="nothing to report on"):
        write_report()
    with pytest.raises(InputError, match="no such file"):
        write_report(tmp_path / "nowhere")
