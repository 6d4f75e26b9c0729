"""``framefit report`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from console import Framefit

from framefit.core.files import write_record
from framefit.core.latency_table import LatencyTable


def test_a_page_and_its_path(framefit: Framefit, tmp_path: Path) -> None:
    """The page is written where it is asked for, its path is printed, and it is not overwritten unasked."""
    write_record(tmp_path / "a.table.json", LatencyTable(target="board", fingerprint={}))
    write_record(tmp_path / "b.table.json", LatencyTable(target="board", fingerprint={}))
    ended = framefit("report", tmp_path / "a.table.json", tmp_path / "b.table.json")
    assert (ended.code, ended.err) == (0, "")
    assert str(tmp_path / "report.html") in ended.out.replace("\n", "")
    assert "Latency tables compared" in (tmp_path / "report.html").read_text(encoding="utf-8")
    again = framefit("report", tmp_path / "a.table.json")
    assert again.code == 2
    assert "--force" in again.err
    told = framefit("report", tmp_path / "a.table.json", "--force", "--json")
    assert json.loads(told.out) == {"schema_version": 1, "page": str(tmp_path / "report.html")}
    assert framefit("report", tmp_path / "a.table.json", "-o", tmp_path / "new" / "page.html").code == 0
    assert (tmp_path / "new" / "page.html").is_file()


def test_what_is_no_result(framefit: Framefit, tmp_path: Path) -> None:
    """Another file ends with exit code 2 and one message that says what is accepted."""
    (tmp_path / "notes.txt").write_text("hello")
    ended = framefit("report", tmp_path / "notes.txt")
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("framefit: ")
    assert "folders of framefit run" in ended.err
