"""The size and shape of the source: rooms, functions, exported names, who imports whom, what a simulation touches.

    python benchmarks/house.py

Prints a table with a row for each room (a folder of ``src/framefit``; "top" is the files beside them) and the figures
of the whole house, each beside what it was before the redesign. ``results/house.json`` keeps those as "before", the
present ones as "now". Nothing is timed: on one source the figures are always the same.

A line of code has a token that is neither comment nor docstring. A function called once has a name that only one
function of the house has, and that occurs in one other place. A pass-through does nothing but call something with names
or attributes as they are. A name is exported when it is in ``__all__``.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from stored import RESULTS, store

import framefit

SOURCE = Path(framefit.__file__).parent
TESTS = Path(__file__).parents[1] / "tests"
ENGINES = {"latency", "planning", "scheduling", "runtime", "profiling", "sparsity", "trees"}
DEVICE_KINDS = {"npu", "ort", "trees"}
FEW = 60  # lines of code
WINDOWS = 4
LARGEST = 10

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_APP = """target = "micro-npu"
rate_hz = 30

[[models]]
name = "detector"
path = "detector.onnx"
priority = "every-window"

[[models]]
name = "depth"
path = "depth.onnx"
priority = "background"
"""
_TRACED = f"""
import json, sys, threading
from pathlib import Path

files = set()

def seen(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and not (code.co_name[0] == "<" and code.co_name != "<lambda>"):
        files.add(code.co_filename)

import framefit
threading.setprofile(seen)
sys.setprofile(seen)
framefit.simulate(sys.argv[1], windows={WINDOWS}, output=sys.argv[2])
sys.setprofile(None)
house = str(Path(framefit.__file__).parent)
imported = {{str(getattr(module, "__file__", "")) for module in sys.modules.values()}}
print(json.dumps([sum(file.startswith(house) for file in found) for found in (files, imported)]))
"""

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Figures = dict[str, Any]


@dataclass(frozen=True)
class Module:
    """A source file."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree's nodes."""
        return list(ast.walk(self.tree))

    @property
    def name(self) -> str:
        """As it is imported."""
        parts = self.path.relative_to(SOURCE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """The folder of the house in which it is."""
        return room_of(self.name) if self.path.parent != SOURCE else "top"

    @cached_property
    def docstring_lines(self) -> set[int]:
        """Lines that belong to the docstrings of the module, its classes and its functions."""
        documented = [n for n in self.nodes if isinstance(n, ast.Module | ast.ClassDef | Definition)]
        first = [node.body[0] for node in documented if ast.get_docstring(node, clean=False) is not None]
        return {line for node in first for line in range(node.lineno, (node.end_lineno or 0) + 1)}

    @cached_property
    def code_lines(self) -> int:
        """Lines with a token that is neither comment nor docstring."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        return len(lines - self.docstring_lines)

    @property
    def functions(self) -> list[Definition]:
        """Functions, methods, and functions within them."""
        return [node for node in self.nodes if isinstance(node, Definition)]

    @cached_property
    def exported(self) -> list[str]:
        """The names of ``__all__``."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return [str(name) for name in ast.literal_eval(node.value)]
        return []

    @cached_property
    def imports(self) -> list[tuple[str, str]]:
        """Module and name of all imports from the house, wherever they are; no name: the module itself."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found += [(node.module, alias.name) for alias in node.names]
        return [(module, name) for module, name in found if module.split(".")[0] == "framefit"]


def room_of(module: str) -> str:
    """The second part of a module's name."""
    return module.split(".")[1] if "." in module else ""


def read(folder: Path) -> list[Module]:
    """All files below a folder."""
    return [Module(path, path.read_text()) for path in sorted(folder.rglob("*.py"))]


def body_lines(function: Definition) -> int:
    """Lines from the first statement behind the docstring to the last one."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def passes_through(function: Definition) -> bool:
    """Whether all that it does is one call, whose arguments are nothing but names and attributes."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr) or not isinstance(body[0].value, ast.Call):
        return False
    call = body[0].value
    passed = [*call.args, *(keyword.value for keyword in call.keywords)]
    plain = (one.value if isinstance(one, ast.Starred) else one for one in passed)
    return all(isinstance(one, ast.Name | ast.Attribute) for one in plain)


def rooms(house: list[Module]) -> dict[str, Figures]:
    """The table: a row for each room, and "all"."""
    defined = Counter(function.name for module in house for function in module.functions)
    used: Counter[str] = Counter()
    for module in house:
        used.update(node.id for node in module.nodes if isinstance(node, ast.Name))
        used.update(node.attr for node in module.nodes if isinstance(node, ast.Attribute))
    groups: dict[str, list[Module]] = defaultdict(list)
    for module in house:
        groups[module.room].append(module)
    largest_first = sorted(groups.items(), key=lambda group: -sum(module.code_lines for module in group[1]))
    return {room: room_row(modules, defined, used) for room, modules in [*largest_first, ("all", house)]}


def room_row(modules: list[Module], defined: Mapping[str, int], used: Mapping[str, int]) -> Figures:
    """A row of the table."""
    functions = [function for module in modules for function in module.functions]
    lines = sum(len(module.text.splitlines()) for module in modules)
    public = [n for m in modules for n in m.tree.body if not getattr(n, "name", "_").startswith("_")]
    unique = [function.name for function in functions if defined[function.name] == 1 and function.name[:2] != "__"]
    return {
        "files": len(modules),
        "lines": lines,
        "code": sum(module.code_lines for module in modules),
        "docstring_percent": round(100 * sum(len(module.docstring_lines) for module in modules) / max(lines, 1)),
        "public_functions": sum(isinstance(node, Definition) for node in public),
        "public_classes": sum(isinstance(node, ast.ClassDef) for node in public),
        "functions": len(functions),
        "mean_body": round(fmean(map(body_lines, functions)), 1) if functions else 0.0,
        "called_once": sum(used[name] == 1 for name in unique),
        "unique_names": len(unique),
        "pass_through": sum(map(passes_through, functions)),
        "small_files": sum(module.code_lines < FEW for module in modules),
    }


def exports(house: list[Module]) -> Figures:
    """Exported names, by who imports them from the module; a name that a package hands on is exported twice."""
    names = {module.name for module in house}
    users: dict[tuple[str, str], set[str]] = defaultdict(set)  # (module, name) -> modules
    for module in house:
        for source, name in module.imports:
            if f"{source}.{name}" in names:  # a module: its attributes that are used
                held = f"{source}.{name}"
                attributes = (node for node in module.nodes if isinstance(node, ast.Attribute))
                for node in attributes:
                    if ast.unparse(node.value) == name:
                        users[held, node.attr].add(module.name)
            elif name:
                users[source, name].add(module.name)
    found: Counter[str] = Counter()
    for module in house:
        for name in module.exported:
            others = users[module.name, name] - {module.name}
            if any(room_of(other) != room_of(module.name) for other in others):
                found["by_another_room"] += 1
            else:
                found["only_inside_the_room" if others else "by_no_other_file"] += 1
    return {"exported": found.total(), **{key: found[key] for key in sorted(found)}}


def workflows(house: list[Module]) -> dict[str, Figures]:
    """Files and lines of code of ``workflows`` by the number of engines that a file imports."""
    found: dict[str, Figures] = {key: {"files": 0, "code": 0} for key in ("none", "one", "several")}
    for module in house:
        if module.room == "workflows":
            engines = {room_of(source) for source, _ in module.imports} & ENGINES
            row = found[("none", "one", "several")[min(len(engines), 2)]]
            row["files"] += 1
            row["code"] += module.code_lines
    return found


def device_tests(house: list[Module]) -> Figures:
    """Where code outside ``devices`` asks which device it has."""
    classes: list[str] = []
    kinds: list[str] = []
    for module in house:
        for node in module.nodes if module.room != "devices" else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                classes += [module.name] * any(word.endswith("Device") for word in words(node.args[1]))
            elif isinstance(node, ast.Compare) and any(w == "kind" for w in words(node.left)):
                kinds += [module.name] * bool({c.value for c in constants(node)} & DEVICE_KINDS)
    return {"of_class": len(classes), "of_kind": len(kinds), "files": len({*classes, *kinds})}


def words(tree: ast.AST) -> Iterator[str]:
    """Names and attributes in an expression."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def constants(tree: ast.AST) -> Iterator[ast.Constant]:
    """Constants in an expression."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant))


def tests() -> Figures:
    """Files below ``tests``, those that import nothing of the house but its public names, and imports from within."""
    files = read(TESTS)
    inner = [[source for source, _ in module.imports if source != "framefit"] for module in files]
    statements = [
        node
        for module in files
        for node in module.nodes
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("framefit."))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("framefit.") for alias in node.names))
    ]
    return {
        "files": len(files),
        "without_inner_imports": inner.count([]),
        "inner_import_statements": len(statements),
        "inner_modules": len({source for sources in inner for source in sources}),
    }


def simulation() -> Figures:
    """Files of which a function runs when the demo's models are simulated, and files that are imported."""
    from framefit.core.model.builtin import BUILTIN

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app.toml").write_text(_APP)
        for model in ("detector", "depth"):
            BUILTIN[model](0).save(folder / f"{model}.onnx")
        command = [sys.executable, "-c", _TRACED, str(folder / "app.toml"), str(folder / "run")]
        environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(SOURCE.parent)}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    ran, imported = json.loads(done.stdout.splitlines()[-1])
    return {"windows": WINDOWS, "files_that_ran": ran, "files_imported": imported}


def measured() -> Figures:
    """All figures of the present source."""
    house = read(SOURCE)
    largest = sorted(house, key=lambda module: -module.code_lines)[:LARGEST]
    return {
        "rooms": rooms(house),
        "exports": exports(house),
        "workflows_by_engines": workflows(house),
        "device_tests": device_tests(house),
        "tests": tests(),
        "simulation": simulation(),
        "largest_modules": {module.name: module.code_lines for module in largest},
    }


def show(now: Figures, before: Figures) -> None:
    """The table of the rooms, and each other figure beside what it was."""
    columns = list(now["rooms"]["all"])
    print(f"{'room':12}" + "".join(f"{column.replace('_', ' '):>{max(len(column), 6) + 2}}" for column in columns))
    for room, row in now["rooms"].items():
        print(f"{room:12}" + "".join(f"{row[column]:{max(len(column), 6) + 2}}" for column in columns))
    was = before["rooms"]["all"]
    print(f"{'before':12}" + "".join(f"{was[column]:{max(len(column), 6) + 2}}" for column in columns))
    for part, figures in now.items():
        if part != "rooms":
            print(f"\n{part.replace('_', ' ')}")
            for key, value in figures.items():
                print(f"  {key.replace('_', ' '):34} {value}   (before: {before[part].get(key, '-')})")


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    now, stored = measured(), RESULTS / "house.json"
    before = msgspec.json.decode(stored.read_bytes())["before"] if stored.exists() else {"commit": "0ba6c74", **now}
    show(now, before)
    store("house", {"before": before, "now": now}, "house.py")


if __name__ == "__main__":
    main()
