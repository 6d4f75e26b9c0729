"""``framefit.table``, ``framefit.compare_tables`` and ``framefit.merge_tables``: files in, one answer out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import framefit
from framefit import InputError
from framefit.core.files import write_record
from networks import NETWORKS
from simulated_tables import table_on


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """Tables of two networks on one target, and of one of them on another."""
    made = {
        "plain": table_on("vpu", [NETWORKS["plain"]()]),
        "residual": table_on("vpu", [NETWORKS["residual"]()]),
        "elsewhere": table_on("edge-8", [NETWORKS["plain"]()]),
    }
    for name, table in made.items():
        write_record(tmp_path / f"{name}.table.json", table)
    return {name: tmp_path / f"{name}.table.json" for name in made}


def test_merged_tables_serve_both_models(paths: dict[str, Path], tmp_path: Path) -> None:
    """The file that is written has the entries of both, and estimates each network."""
    whole = framefit.merge_tables([paths["plain"], paths["residual"]], tmp_path / "both.table.json")
    assert framefit.table(tmp_path / "both.table.json") == whole
    for name in ("plain", "residual"):
        assert framefit.estimate(NETWORKS[name](), tmp_path / "both.table.json").coverage_ratio == 1.0


def test_tables_of_different_devices(paths: dict[str, Path], tmp_path: Path) -> None:
    """They are merged only where that is asked for; the facts are named."""
    both = [paths["plain"], paths["elsewhere"]]
    with pytest.raises(InputError, match="target: 'edge-8' in the table, 'vpu' here"):
        framefit.merge_tables(both, tmp_path / "both.table.json")
    assert not (tmp_path / "both.table.json").exists()
    whole = framefit.merge_tables(both, tmp_path / "both.table.json", any_fingerprint=True)
    assert whole.target == "vpu"
    assert set(whole.units) == {"vpu0", framefit.table(paths["elsewhere"]).units[0]}


def test_an_existing_file_is_left_alone(paths: dict[str, Path]) -> None:
    """Also where it is one of the tables to be merged; unless forced."""
    both = [paths["plain"], paths["residual"]]
    before = paths["plain"].read_bytes()
    with pytest.raises(InputError, match="already exists"):
        framefit.merge_tables(both, paths["plain"])
    assert paths["plain"].read_bytes() == before
    whole = framefit.merge_tables(both, paths["plain"], force=True)
    assert framefit.table(paths["plain"]) == whole


def test_tables_are_compared(paths: dict[str, Path], tmp_path: Path) -> None:
    """Each entry there over here."""
    here = framefit.table(paths["plain"])
    slower = tuple(
        msgspec.structs.replace(one, latency_ns=2 * one.latency_ns, interval_ns=tuple(2 * ns for ns in one.interval_ns))
        for one in here.entries[1:]
    )
    write_record(tmp_path / "slower.table.json", msgspec.structs.replace(here, entries=slower))
    found = framefit.compare_tables(paths["plain"], tmp_path / "slower.table.json")
    assert found.ratio == 2
    assert found.differences == ()
    assert found.only_here == here.entries[:1]
    assert len(found.entries) == len(slower)
