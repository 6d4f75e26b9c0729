"""The list of requirements names what there is."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from syntax import parsed

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(r"^\| ([A-Z]\d+) \|(.*)\|$", (ROOT / "docs" / "requirements.md").read_text(), re.MULTILINE)
COUNTS = {"W": 14, "L": 6, "N": 7, "P": 8, "S": 10, "T": 8}
"""How many requirements each capability has."""
FURTHER = {
    "B1",
    "B10",
    "B2",
    "B3",
    "B4",
    "B5",
    "B6",
    "B7",
    "B8",
    "B9",
    "D1",
    "D2",
    "D3",
    "D4",
    "D5",
    "D6",
    "F1",
    "F2",
    "F3",
    "F4",
    "F5",
    "K1",
    "K2",
    "K3",
    "K4",
    "K5",
    "K6",
    "L11",
    "L12",
    "L13",
    "L14",
    "L7",
    "L8",
    "L9",
    "N8",
    "P10",
    "P11",
    "P12",
    "P14",
    "P15",
    "P16",
    "P9",
    "R1",
    "R2",
    "R3",
    "R4",
    "R5",
    "R6",
    "R7",
    "R8",
    "S11",
    "S12",
    "S13",
    "S14",
    "S15",
    "S17",
    "S18",
    "S19",
    "S20",
    "S21",
    "T10",
    "T11",
    "T12",
    "T13",
    "T14",
    "T9",
    "U2",
    "U3",
    "U4",
    "U5",
    "U6",
    "U7",
    "U8",
    "U9",
    "W15",
    "W16",
    "W17",
    "W18",
    "W19",
    "W20",
    "W21",
    "W22",
    "W23",
}
"""What foreign workloads and traces showed must hold, as far as it is done."""


def test_every_requirement_has_one_row() -> None:
    """No id is missing, or there twice."""
    expected = {f"{letter}{number + 1}" for letter, count in COUNTS.items() for number in range(count)} | FURTHER
    assert Counter(row[0] for row in ROWS) == Counter(expected)


@pytest.mark.parametrize(("number", "row"), ROWS, ids=[row[0] for row in ROWS])
def test_what_a_row_names_exists(number: str, row: str) -> None:
    """At least one module and one test function, each of them there."""
    requirement, holds, modules, tests = (cell.strip() for cell in row.split("|"))
    assert requirement
    assert holds.startswith(("yes", "in part: ", "no: "))
    named = re.findall(r"`([^`]+)`", modules)
    assert named
    assert [name for name in named if not (ROOT / "src" / "framefit" / name).is_file()] == []
    checks = re.findall(r"`([^`]+)::([^`]+)`", tests)
    assert checks
    assert [f"{path}::{name}" for path, name in checks if name not in _functions(ROOT / path)] == []


def _functions(path: Path) -> set[str]:
    tree = parsed(path) if path.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
