"""The events of a profile as tables, read back."""

from __future__ import annotations

import csv
import dataclasses
import json

import numpy as np
import pytest

from framefit import InputError
from framefit.core.profile import How
from framefit.report.csv_files import read_events, write_events, write_lost
from framefit.report.operations import NamedOperations

COLUMNS = ["inference", "operation", "name", "kind", "unit", "type", "time_ns", "source", "lo_ns", "hi_ns"]


def rows(path):
    """Lines of the file by column."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return list(reader.fieldnames), list(reader)


def test_events(profiled, tmp_path):
    """Each operation gives its START and its END, in the program's order, with names that need quoting."""
    path = tmp_path / "events.csv"
    write_events(path, profiled.log, profiled.program)
    columns, found = rows(path)
    log = profiled.log
    assert columns[: len(COLUMNS)] == COLUMNS
    assert len(found) == 2 * len(log)
    for at in range(len(log)):
        start, end = found[2 * at : 2 * at + 2]
        told = profiled.program.programs[log.program[at]]
        operation = [op for group in told.groups for op in group.operations][log.operation[at]]
        assert (start["type"], end["type"]) == ("START", "END")
        for row in (start, end):
            assert (row["name"], row["kind"], row["unit"]) == (operation.name, operation.kind, operation.unit)
            assert (int(row["inference"]), int(row["operation"])) == (log.inference[at], log.operation[at])
            assert row["program"] == told.name
        assert [int(start[name]) for name in ("time_ns", "lo_ns", "hi_ns")] == [
            log.start_ns[at], log.start_low_ns[at], log.start_high_ns[at],
        ]  # fmt: skip
        assert [int(end[name]) for name in ("time_ns", "lo_ns", "hi_ns")] == [
            log.end_ns[at], log.end_low_ns[at], log.end_high_ns[at],
        ]  # fmt: skip
        assert start["source"] == ("inferred" if log.start_how[at] else "measured")
        assert end["source"] == ("inferred" if log.end_how[at] else "measured")


def test_lost(profiled, tmp_path):
    """The lost events are the inferred ones of the whole table, each with its rule."""
    write_events(tmp_path / "events.csv", profiled.log, profiled.program)
    write_lost(tmp_path / "lost.csv", profiled.log, profiled.program)
    columns, lost = rows(tmp_path / "lost.csv")
    assert columns[-1] == "rule"
    rules = [row.pop("rule") for row in lost]
    assert lost == [row for row in rows(tmp_path / "events.csv")[1] if row["source"] == "inferred"]
    how = np.stack([profiled.log.start_how, profiled.log.end_how], axis=1).reshape(-1)
    assert rules == [How(int(one)).name.lower() for one in how[how > 0]]
    assert len(lost) == profiled.profile.events.lost


@pytest.mark.parametrize("write", [write_events, write_lost])
def test_json_holds_the_same(profiled, tmp_path, write):
    """The JSON has the same columns with the same values."""
    write(tmp_path / "log.csv", profiled.log, profiled.program)
    write(tmp_path / "log.json", profiled.log, profiled.program)
    columns, found = rows(tmp_path / "log.csv")
    told = json.loads((tmp_path / "log.json").read_text())
    assert told["count"] == len(found)
    assert list(told["columns"]) == columns
    for name in columns:
        assert [str(value) for value in told["columns"][name]] == [row[name] for row in found]
    assert all(isinstance(value, int) for value in told["columns"]["time_ns"])


@pytest.mark.parametrize("write", [write_events, write_lost])
def test_events_of_nothing(profiled, tmp_path, write):
    """An empty log gives a head without lines, and JSON with empty columns; nothing is overwritten."""
    arrays = {f.name: getattr(profiled.log, f.name)[:0] for f in dataclasses.fields(profiled.log)}
    empty = dataclasses.replace(profiled.log, **(arrays | {"kinds": profiled.log.kinds}))
    write(tmp_path / "log.csv", empty, profiled.program)
    write(tmp_path / "log.json", empty, profiled.program)
    assert rows(tmp_path / "log.csv")[1] == []
    assert set(map(tuple, json.loads((tmp_path / "log.json").read_text())["columns"].values())) == {()}
    with pytest.raises(InputError, match="--force"):
        write(tmp_path / "log.csv", empty, profiled.program)


def test_unknown_to_the_program(profiled, tmp_path):
    """An operation that the program does not have is named after its kind and its core's unit."""
    program = profiled.log.program.copy()
    program[2] = -1
    log = dataclasses.replace(profiled.log, program=program)
    write_events(tmp_path / "events.csv", log, profiled.program)
    row = rows(tmp_path / "events.csv")[1][4]
    kind = log.kinds[log.kind[2]]
    assert (row["operation"], row["name"], row["kind"], row["unit"], row["program"]) == ("-1", kind, kind, "npu0", "")


def test_events_come_back(profiled, tmp_path):
    """Every operation is read as it was written, with its name, kind, unit, interval and how it is known."""
    write_events(tmp_path / "events.csv", profiled.log, profiled.program)
    write_lost(tmp_path / "lost.csv", profiled.log, profiled.program)
    log, program = read_events(tmp_path / "events.csv")
    told = profiled.log
    for name in ("inference", "start_ns", "end_ns", "start_how", "end_how", "start_low_ns", "end_high_ns"):
        assert getattr(log, name).tolist() == getattr(told, name).tolist()
    found, known = (NamedOperations.of(*pair) for pair in ((log, program), (told, profiled.program)))
    for name in ("name", "kind", "unit", "program"):
        columns = ([getattr(one.named[row], name) for row in one.row] for one in (found, known))
        assert next(columns) == next(columns)
    assert (log.start_event < 0).tolist() == (told.start_how > 0).tolist()
    (tmp_path / "lost.csv").unlink()
    again, _ = read_events(tmp_path / "events.csv")
    assert again.inferred.tolist() == told.inferred.tolist()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:0], "line 1"),
        (lambda text: text[: text.rindex("\n", 0, -1) + 1], "no END"),
        (lambda text: text.replace(",END,", ",START,", 1), "take turns"),
        (lambda text: text[:-30], "line"),
        (lambda text: text.replace(",measured,", ",measured,x", 1), "line 2"),
    ],
)
def test_damaged_events_are_one_error(damage, message, profiled, tmp_path):
    """The message says where the file is not as it was written."""
    path = tmp_path / "events.csv"
    write_events(path, profiled.log, profiled.program)
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError, match=message):
        read_events(path)
