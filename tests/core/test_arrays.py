"""Archives of arrays: what is in them, and what they only claim."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from framefit import InputError
from framefit.core import arrays
from framefit.core.arrays import ArrayFile


def test_names_and_arrays(tmp_path: Path) -> None:
    """All of them, or those that are asked for; members of other kinds are none."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(6).reshape(2, 3), y=np.zeros(2))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "no array")
    file = ArrayFile(path)
    assert file.names == ("x", "y")
    assert file.bytes >= 6 * 8 + 2 * 8
    assert list(file.read(["y"])) == ["y"]
    np.testing.assert_array_equal(file.read()["x"], [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(InputError, match="not a readable"):
        file.read(["z"])


def test_an_archive_may_not_claim_more_than_it_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a size that is always let through: more than a hundred times the file's. Uncompressed ones always may."""
    monkeypatch.setattr(arrays, "_ALWAYS_BYTES", 10_000)
    many = np.zeros(1_000_000, np.uint8)
    np.savez(tmp_path / "stored.npz", x=many)
    assert ArrayFile(tmp_path / "stored.npz").bytes > len(many)
    np.savez_compressed(tmp_path / "packed.npz", x=many)
    with pytest.raises(InputError, match="claims to hold 1000128 bytes"):
        ArrayFile(tmp_path / "packed.npz")
    np.savez_compressed(tmp_path / "small.npz", x=many[:9_000])
    assert ArrayFile(tmp_path / "small.npz").names == ("x",)


@pytest.mark.parametrize("wide", ["int64", "uint64", "uint8", "bool"])
def test_whole_numbers_of_any_width_are_taken(tmp_path: Path, wide: str) -> None:
    """What counts is that the values fit, not how the program that wrote them stores them."""
    np.savez(tmp_path / "a.npz", type=np.array([0, 1, 1], wide))
    found = arrays.read_arrays(tmp_path / "a.npz", {"type": "u1"})["type"]
    assert (found.dtype, found.tolist()) == (np.uint8, [0, 1, 1])


@pytest.mark.parametrize("wrong", [np.array([0, 300]), np.array([-1, 0]), np.array([0.0, 1.5]), np.array(["a"])])
def test_values_that_do_not_fit_are_refused_by_name(tmp_path: Path, wrong: np.ndarray) -> None:
    """Numbers out of range, fractions and text."""
    np.savez(tmp_path / "a.npz", type=wrong)
    with pytest.raises(InputError, match="'type'"):
        arrays.read_arrays(tmp_path / "a.npz", {"type": "u1"})
