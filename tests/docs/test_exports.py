"""``__all__`` lists what another room uses, and nothing else: all other names are the room's own affair."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from syntax import parsed

SOURCE = Path(__file__).resolve().parents[2] / "src"


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of each module."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): parsed(path)
        for path in sorted(SOURCE.rglob("*.py"))
    }


def room(module: str) -> str:
    """The room of a module; the package's own face is one, too."""
    return [*module.split("."), ""][1]


def exports(tree: ast.Module) -> list[str]:
    """Names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def uses() -> set[tuple[str, str]]:
    """Modules and their names that another room imports, or a package hands out as its own."""
    found = set()
    for user, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules():
                hands_out = node.module.startswith(f"{user}.")
                if room(user) != room(node.module) or hands_out:
                    found |= {(node.module, alias.name) for alias in node.names}
                found |= {
                    (f"{node.module}.{alias.name}", "")
                    for alias in node.names
                    if f"{node.module}.{alias.name}" in modules() and room(user) != room(f"{node.module}.{alias.name}")
                }
    return found


def test_what_is_exported_is_used_by_another_room() -> None:
    """A name that only its own room uses is not exported."""
    used = uses()
    packages = {module for module in modules() if any(other.startswith(f"{module}.") for other in modules())}
    unused = [
        f"{module}.{name}"
        for module, tree in modules().items()
        if module not in packages and (module, "") not in used and module != "framefit.testing"  # for other packages
        for name in exports(tree)
        if (module, name) not in used
    ]
    assert unused == []


def test_a_name_is_exported_in_one_place() -> None:
    """A name that its package hands out is not exported by its module, too."""
    twice = [
        f"{package}.{name}"
        for package, tree in modules().items()
        for name in exports(tree)
        for module, inner in modules().items()
        if module.startswith(f"{package}.") and package != "framefit" and name in exports(inner)
    ]
    assert twice == []
