"""Names are made of the field's words, not of metaphors."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from syntax import parsed

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "framefit"
REPLACED = {
    "aside": "spill file",
    "bell": "wake-up",
    "course": "the loop or thread by its job",
    "crew": "unit group",
    "desk": "mailbox",
    "duty": "unit assignment",
    "duties": "unit assignments",
    "fated": "outcome",
    "guest": "migrated job",
    "handed": "message",
    "lodge": "failover",
    "lodging": "failover",
    "rehearse": "warm-up",
    "rehearsal": "warm-up",
    "told": "modelled, or text",
    "understudy": "warm-up",
    "yardstick": "throughput bound",
    "yardsticks": "throughput bounds",
}
"""Metaphors of older names, and the word of docs/architecture.md that stands for each."""
PARTICIPLES = {"asked", "found", "said", "told"}
PLAIN_ROOMS = {
    "boards",
    "cli",
    "core",
    "devices",
    "execution",
    "fit",
    "latency",
    "planning",
    "report",
    "runtime",
    "sparsity",
    "training",
    "trees",
    "workflows",
}


def words_of(name: str) -> list[str]:
    """Words of a name in any case: ``UnitGroup`` and ``unit_group`` have the same."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def names_in(path: Path) -> set[str]:
    """Names of a module, its classes, functions and constants."""
    tree = parsed(path)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {path.stem} | defined | assigned


def test_words_of_names() -> None:
    """Names are taken apart as readers do it."""
    assert words_of("UnitGroup") == words_of("unit_group") == ["unit", "group"]
    assert words_of("_ONNXCourse2") == ["onnx", "course", "2"]


def test_no_metaphors() -> None:
    """No class, function, constant or module is named by a metaphor that has been replaced."""
    metaphors = [
        f"{path.relative_to(SOURCE)}: {name} (say: {REPLACED[word]})"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in sorted(names_in(path))
        for word in words_of(name)
        if word in REPLACED
    ]
    assert metaphors == []


def variables_in(path: Path) -> set[str]:
    """Names of a module's variables and parameters."""
    nodes = list(ast.walk(parsed(path)))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def test_no_metaphors_in_tests_and_benchmarks() -> None:
    """No test, and no function of a benchmark or an example, is named by such a metaphor."""
    scripts = {path: names_in(path) for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")}
    tests = {path: names_in(path) for path in (ROOT / "tests").rglob("test_*.py")}
    names = [(path, name) for path, found in scripts.items() for name in found]
    names += [(path, name) for path, found in tests.items() for name in found if name.startswith("test_")]
    metaphors = [
        f"{path.relative_to(ROOT)}: {name} (say: {REPLACED[word]})"
        for path, name in sorted(names)
        for word in words_of(name)
        if word in REPLACED
    ]
    assert metaphors == []


def test_variables_are_nouns() -> None:
    """In these rooms, a variable is the noun that it holds, not a participle."""
    participles = [
        f"{path.relative_to(SOURCE)}: {name}"
        for room in sorted(PLAIN_ROOMS)
        for path in sorted((SOURCE / room).rglob("*.py"))
        for name in sorted(variables_in(path) & PARTICIPLES)
    ]
    assert participles == []
