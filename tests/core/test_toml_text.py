"""Records as TOML text: what is read back is what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit import Workload
from framefit.core.files import Record, from_data, read_record, to_toml
from framefit.core.target import BUILTIN_TARGETS, Target, resolve_target


class Inner(Record, kw_only=True):
    """A record inside another one."""

    name: str = ""
    number: float = 0.0
    pairs: dict[str, str] = {}


class Outer(Record, kw_only=True):
    """Everything that a file may hold."""

    schema_version: int = 1
    text: str = ""
    flag: bool = False
    many: tuple[int, ...] = ()
    nothing: int | None = None
    one: Inner = Inner()
    rows: tuple[Inner, ...] = ()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INNER = st.builds(Inner, name=TEXT, number=st.floats(allow_nan=False), pairs=st.dictionaries(TEXT, TEXT, max_size=2))
OUTER = st.builds(
    Outer,
    text=TEXT,
    flag=st.booleans(),
    many=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple),
    nothing=st.none() | st.integers(0, 9),
    one=INNER,
    rows=st.lists(INNER, max_size=3).map(tuple),
)


@given(OUTER)
def test_records_come_back(record: Outer) -> None:
    """Whatever text, numbers and tables hold."""
    import tomllib

    assert from_data(tomllib.loads(to_toml(record)), Outer, "text") == record


@pytest.mark.parametrize("name", [name for name in BUILTIN_TARGETS if name != "cpu"])
def test_targets_come_back(name: str, tmp_path: Path) -> None:
    """Tables, arrays of tables and inline tables of real files."""
    target = resolve_target(name)
    path = tmp_path / "target.toml"
    path.write_text(to_toml(target))
    assert read_record(path, Target) == target


def test_workloads_come_back(tmp_path: Path) -> None:
    """Those of the benchmarks; what is at its default is left out."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks" / "workloads"
    for given_path in sorted(folder.glob("*.toml")):
        workload = read_record(given_path, Workload)
        path = tmp_path / given_path.name
        path.write_text(to_toml(workload))
        assert read_record(path, Workload) == workload
        assert "preemption" not in path.read_text() or workload.schedule.preemption != "auto"
