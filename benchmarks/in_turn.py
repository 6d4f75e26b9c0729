"""Run benchmarks with two source trees in turn (A B B A), and store what the second takes as a part of the first.

    python benchmarks/in_turn.py BEFORE [AFTER] [--only dispatch_path ...] [--shared dispatch_path ...] [--turns ABBA]

BEFORE and AFTER are checkouts (default AFTER: this one); each runs its own benchmarks on its own ``src``, with a cache
of measurements of its own, so nothing that one tree measured is read by the other. ``--shared`` takes the script of
AFTER for both, where a benchmark itself has changed. ``results/in_turn.json`` keeps, for each figure, the runs of both
trees and the ratio of their medians: above 1 means that AFTER's figure is larger.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec
from stored import RESULTS, store

SETTINGS = {
    "planning": ["--repeats", "5"],
    "placement": ["--first", "100", "--seeds", "2", "--seconds", "3"],
    "profiling_speed": ["--packets", "300000", "--rounds", "3", "--memory", "100000"],
    "dispatch_path": ["--windows", "200", "--rounds", "6"],
    "runtime_cpu": ["--windows", "1500"],
    "start_up": [],
}
FIGURES = {  # by their path in the stored result
    "planning": r"^(seconds|reading_seconds)\.median$",
    "placement": r"^figures\.(heuristic_(seconds|gap_ratio)|timetable_(seconds|share))\.(median|worst)$",
    "profiling_speed": r"(events_per_s|reference_per_s)\.median$|peak_memory",
    "dispatch_path": r"_ns\.median$|(missed|segments|launches)$",
    "runtime_cpu": r"(start_ns|finish_ns)\[0\]$|missed$|background_hz$",
    "start_up": r".",
}
START_UP = {
    "import_framefit": "import framefit",
    "help": "import sys; sys.argv = ['framefit', '--help']; from framefit.cli.app import main; main()",
}


def leaves(value: object, where: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a stored result, with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{where}[{index}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield where, float(value)


def run_benchmark(name: str, checkout: Path, cache: Path, arguments: list[str]) -> dict[str, float]:
    """The figures of one run of one benchmark in one checkout, whose stored results stay as they were."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout / "src"),
        "FRAMEFIT_CACHE": str(cache),
        "PYTHONPYCACHEPREFIX": str(cache / "bytecode"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if name == "start_up":
        return start_up(checkout, environment)
    results = checkout / "benchmarks" / "results"
    for old in results.glob(f"{name}*.json"):
        old.unlink()
    command = [sys.executable, f"benchmarks/{name}.py", *SETTINGS[name], *arguments]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    written = sorted(results.glob(f"{name}*.json"))
    if done.returncode or not written:
        raise SystemExit(f"{' '.join(command)} in {checkout} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return dict(leaves(msgspec.json.decode(written[0].read_bytes())))


def start_up(checkout: Path, environment: dict[str, str]) -> dict[str, float]:
    """Seconds of a process that imports the package, and of its help text: the least of ten."""
    figures = {}
    for what, code in START_UP.items():
        seconds = []
        for _ in range(10):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], cwd=checkout, env=environment, capture_output=True, check=True)
            seconds.append(time.perf_counter() - begin)
        figures[what] = min(seconds)
    return figures


def main() -> None:
    """Run, print a table with a row for each figure, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument(
        "--shared", nargs="*", default=[], choices=list(SETTINGS), help="take the script of AFTER in both"
    )
    parser.add_argument("--turns", default="ABBA")
    parser.add_argument("--face", type=Path, help="the priority model of runtime_cpu (see there)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkouts = {}
        for side, tree in (("A", options.before), ("B", options.after)):
            checkouts[side] = folder / side
            for part in ("src", "benchmarks", "tests"):
                shutil.copytree(tree / part, checkouts[side] / part, ignore=shutil.ignore_patterns("__pycache__"))
        for benchmark in options.shared:
            shutil.copy(checkouts["B"] / "benchmarks" / f"{benchmark}.py", checkouts["A"] / "benchmarks")
        for benchmark in options.only:
            face = options.face if benchmark == "runtime_cpu" else None
            arguments = [] if face is None else ["--face", str(face.resolve())]
            runs: dict[str, list[dict[str, float]]] = {"A": [], "B": []}
            for side in options.turns:
                runs[side].append(run_benchmark(benchmark, checkouts[side], folder / f"cache-{side}", arguments))
            rows: dict[str, object] = {}
            print(f"{benchmark:60} {'before':>12} {'after':>12}  ratio")
            for figure in runs["A"][0]:
                if re.search(FIGURES[benchmark], figure) is None or any(figure not in run for run in runs["B"]):
                    continue
                before, after = ([run[figure] for run in runs[side]] for side in "AB")
                ratio = median(after) / median(before) if median(before) else None
                rows[figure] = {"before": before, "after": after, "ratio": ratio}
                shown = "-" if ratio is None else f"{ratio:.3f}"
                print(f"  {figure:58} {median(before):12.6g} {median(after):12.6g}  {shown}", flush=True)
            # What other calls stored of other benchmarks stays.
            stored = RESULTS / "in_turn.json"
            kept = msgspec.json.decode(stored.read_bytes())["benchmarks"] if stored.exists() else {}
            settings = {"turns": options.turns, "arguments": SETTINGS[benchmark]}
            store("in_turn", {"benchmarks": kept | {benchmark: settings | rows}}, "in_turn.py BEFORE AFTER")


if __name__ == "__main__":
    main()
