"""Wrong files by the ten thousand: each ends in a result or in one error, and soon.

    python benchmarks/fuzz.py [--seconds 600] [--only trace] [--seed 0] [--keep FOLDER]

Claim: whatever a file holds that Framefit reads, reading it ends in a result or in one FramefitError: no other
exception, no more than 20 s of processor time, no more than 600 MiB of memory, no file outside of the output folder.

Each reader runs in a process of its own for so many seconds. Valid files (``tests/fuzz/fuzzed_readers.py``) are
changed (``mutations.py``: bytes, keys, values, fields, claimed sizes). Where Atheris is installed (``pip install
atheris``), what reaches lines of Framefit that nothing had reached is changed further; else what led to an error that
had not been seen. With ``--only`` the other readers' rows stay as stored. Files on which a reader fails go to the
folder that ``--keep`` names.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib.metadata
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fuzzed_readers import Trial

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "fuzz")]
NAMES = ("network", "workload", "plan", "target", "table", "record", "trees", "trace", "profile", "frames", "data")
MOST_KEPT = 300
MOST_BYTES = 100_000
"""Files that led to new errors, from which others are made: how many, and how large."""


@dataclasses.dataclass
class Tally:
    """How often what happened with one reader; files that it failed on, and the last one, lie in the folder."""

    trial: Trial
    folder: Path
    trials: int = 0
    results: int = 0
    messages: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: list[str] = dataclasses.field(default_factory=list)

    def read(self, path: Path, content: bytes) -> bool:
        """Read a file; whether it was refused for a reason that is new."""
        self.trials += 1
        (self.folder / "last").write_bytes(content)  # what a crash leaves behind
        try:
            error = self.trial.read(path, content)
        except BaseException as failure:
            if isinstance(failure, KeyboardInterrupt):
                raise
            self.failures.append(f"{path.name}: {type(failure).__name__}: {_portable(str(failure), self.folder)[:200]}")
            (self.folder / f"failure-{len(self.failures)}-{path.name}").write_bytes(content)
            return False
        self.results += error is None
        message = "" if error is None else re.sub(r"[\d'\"].*", "", error.what)[:80]
        self.messages[message] += 1
        if self.trials % 20 == 0:
            self.save()
        return self.messages[message] == 1

    def save(self) -> None:
        """Write what is known so far."""
        counts = {"trials": self.trials, "results": self.results, "refused": self.messages.total() - self.results}
        found = {**counts, "different_refusals": len(self.messages) - ("" in self.messages), "failures": self.failures}
        found["processor_seconds"] = time.process_time()
        (self.folder / "tally.json").write_text(json.dumps(found))


def _portable(text: str, folder: Path) -> str:
    """A message without paths of this machine."""
    return text.replace(str(folder), "").replace(str(TESTS.parent), "")


def guided(name: str, seconds: float, seed: int, folder: Path) -> None:
    """Change what reaches new lines; the process ends with it."""
    import atheris

    with atheris.instrument_imports(include=["framefit"], enable_loader_override=False):
        from fuzzed_readers import READERS, Trial, changed
    tally = Tally(Trial(READERS[name], folder / "root"), folder)
    files = list(tally.trial.valid.items())

    def read(data: bytes) -> None:
        if data:
            tally.read(files[data[0] % len(files)][0], data[1:])

    def change(data: bytes, most: int, seed: int) -> bytes:
        first = data[:1] or b"\0"
        return (first + changed(Random(seed), files[first[0] % len(files)][0], data[1:]))[:most]

    corpus = folder / "corpus"
    corpus.mkdir()
    for number, (_, content) in enumerate(files):
        (corpus / str(number)).write_bytes(bytes([number]) + content)
    limits = (
        f"-max_total_time={seconds:.0f}",
        f"-seed={seed + 1}",
        "-max_len=1000000",
        "-rss_limit_mb=0",
        "-verbosity=0",
    )
    atheris.Setup([sys.argv[0], *limits, str(corpus)], read, custom_mutator=change)
    atheris.Fuzz()


def unguided(name: str, seconds: float, seed: int, folder: Path) -> None:
    """Change valid files, and those that led to new errors."""
    from fuzzed_readers import READERS, Trial, changed

    tally = Tally(Trial(READERS[name], folder / "root"), folder)
    kept = list(tally.trial.valid.items())
    valid = len(kept)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        random = Random(f"{seed} {tally.trials}")
        path, content = random.choice(kept if random.random() < 0.5 else kept[:valid])
        content = changed(random, path, content)
        if tally.read(path, content) and len(kept) < MOST_KEPT and len(content) < MOST_BYTES:
            kept.append((path, content))
    tally.save()


def version() -> str | None:
    """Of Atheris; ``None``: it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("atheris")
    return None


def child(name: str, seconds: float, seed: int, folder: Path) -> dict[str, object]:
    """One reader in a process of its own, which may crash."""
    command = [sys.executable, __file__, "--only", name, "--seconds", str(seconds), "--seed", str(seed)]
    environment = os.environ | {"FRAMEFIT_CACHE": str(folder / "cache")}
    ended = subprocess.run([*command, "--folder", str(folder)], capture_output=True, env=environment, check=False)
    tally = folder / "tally.json"
    found: dict[str, object] = {"reader": name, "seconds": seconds, "atheris": version()}
    found |= json.loads(tally.read_text()) if tally.is_file() else {"failures": []}
    if ended.returncode:
        said = _portable(ended.stderr.decode(errors="replace"), folder)
        crash = f"ended with {ended.returncode}: {said[-300:]}"
        found["failures"] = [*found["failures"], crash]  # type: ignore[misc]
    return found


def main() -> None:
    """All readers, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of each reader")
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for files that failed; default: they are not kept")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of a single reader's own process
    given = parser.parse_args()
    if given.folder is not None:
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        (guided if version() else unguided)(given.only, given.seconds, given.seed, given.folder)
        return
    from stored import RESULTS, store

    rows = []
    for name in [given.only] if given.only else NAMES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(child(name, given.seconds, given.seed, Path(folder)))
            if given.keep is not None and rows[-1]["failures"]:
                shutil.copytree(folder, given.keep / name, dirs_exist_ok=True)
        print(rows[-1], file=sys.stderr)
    table = Table("reader", "files", "results", "refused", "different refusals", "processor s", "failures")
    for row in rows:
        shown = (row.get(key, 0) for key in ("trials", "results", "refused", "different_refusals", "processor_seconds"))
        table.add_row(str(row["reader"]), *map("{:.0f}".format, shown), str(len(row["failures"])))  # type: ignore[arg-type]
    Console().print(table)
    if given.only is not None:  # the others stay as they are stored
        before = json.loads((RESULTS / "fuzz.json").read_text())["readers"] if (RESULTS / "fuzz.json").is_file() else []
        known = {str(row["reader"]): row for row in [*before, *rows]}
        rows = [known[name] for name in NAMES if name in known]
    store("fuzz", {"seed": given.seed, "readers": rows}, f"fuzz.py --seconds {given.seconds:g}")


if __name__ == "__main__":
    main()
