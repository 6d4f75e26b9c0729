"""Claim: of 4 x 1,000 pushed tables none is lost, 100 kills damage nothing, and 10,000 records are read in 2 s.

python benchmarks/store.py
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from stored import store

import framefit
from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.core.store import Store

EACH, KILLS, RECORDS = 1000, 100, 10_000


def table(number: int) -> bytes:
    """A latency table of 20 entries."""
    entries = tuple(
        LatencyEntry(
            op="Conv",
            configuration={"kernel": [3, 3], "inputs": [f"1x{n + 1}x8x8 float32"]},
            unit="cpu0",
            latency_ns=1000 + number,
            interval_ns=(990 + number, 1010 + number),
        )
        for n in range(20)
    )
    return msgspec.json.encode(LatencyTable(target="pi5", fingerprint={"cpu": "A76"}, entries=entries))


def push_many(url: str, folder: Path, process: int, count: int) -> None:
    """Push tables one after the other."""
    for number in range(count):
        path = folder / f"{process}-{number}.table.json"
        path.write_bytes(table(process * count + number))
        framefit.push(str(path), store=url)


def sound(url: str) -> int:
    """Number of records of which every one's file is whole."""
    shared = Store(url)
    files, damaged = shared.records()
    assert not damaged
    for file in files:
        shared.read(file)
    return len(files)


def main() -> None:
    """Push, kill and read."""
    context, draw = multiprocessing.get_context("fork"), random.Random(0)
    framefit.push  # noqa: B018 - loaded before processes are forked
    with TemporaryDirectory() as place:
        folder = Path(place)
        url = str(folder / "pushed")
        begun = time.perf_counter()
        processes = [context.Process(target=push_many, args=(url, folder, n, EACH)) for n in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        push_s = time.perf_counter() - begun
        pushed = sound(url)
        killed_url = str(folder / "killed")
        for number in range(KILLS):
            process = context.Process(target=push_many, args=(killed_url, folder, number, 10_000))
            process.start()
            time.sleep(draw.uniform(0.01, 0.1))
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        survived = sound(killed_url)
        left = len(list((folder / "killed" / "temporary").iterdir()))
        index = folder / "pushed" / "index"
        record = next(index.rglob("*.json")).read_bytes()
        for number in range(RECORDS - pushed):
            (index / f"more-{number}.json").write_bytes(record)
        begun = time.perf_counter()
        files = framefit.log(url).files
        read_s = time.perf_counter() - begun
    figures = {
        "pushed": pushed,
        "milliseconds_each": 1000 * push_s / pushed,
        "kills": KILLS,
        "files_after_kills": survived,
        "damaged": 0,
        "left_in_temporary": left,
        "records_read": len(files),
        "read_s": read_s,
    }
    print(figures)
    store("store", figures, "store.py")


if __name__ == "__main__":
    main()
