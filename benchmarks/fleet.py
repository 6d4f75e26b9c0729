"""Claim: more workers give the same result in less time, and a store's index of a fleet can be read.

python benchmarks/fleet.py [MODEL.onnx DATA.npz] [--records 1000000]

Ray is measured where it is installed, on two nodes of this machine, of which one is killed in the middle in a second
run. The index is that of boards that push a table and a profile a day; records have the size of real ones.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from stored import store

import framefit
from framefit.core.executor import executor_of
from framefit.core.store import Store
from framefit.core.stored import StoredFile

TASKS, TASK_S = 12, 1.0


def busy(_: None, number: int) -> int:
    """A task of one second."""
    end = time.perf_counter() + TASK_S
    while time.perf_counter() < end:
        pass
    return number


def overhead(workers: int | str) -> float:
    """Time of tasks of one second, over that of their work, less 1; workers have begun before."""
    with executor_of(workers) as executor:
        dict(executor.each(busy, None, range(executor.workers)))
        begin = time.perf_counter()
        dict(executor.each(busy, None, range(TASKS)))
        return (time.perf_counter() - begin) / (TASKS * TASK_S / executor.workers) - 1


def searched(model: str, data: str, workers: int | str, folder: Path) -> dict[str, Any]:
    """Seconds of a search for trees, and the hash of what it found."""
    begin = time.perf_counter()
    done = framefit.treeify(
        model,
        data,
        output=str(folder),
        workers=workers,
        target="vpu",
        trees=48,
        examples=1000,
        finetune="none",
        max_drop=0.5,
    )
    found = [(one.bound_top1, one.top1) for one in done.result.candidates]
    digest = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
    trees = folder / "trees.json"
    return {
        "seconds": time.perf_counter() - begin,
        "candidates": digest,
        "trees": hashlib.sha256(trees.read_bytes()).hexdigest()[:16] if trees.is_file() else None,
    }


@contextlib.contextmanager
def two_nodes() -> Iterator[Any]:
    """A Ray cluster here, and its second node."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    where = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=where)
    try:
        yield lambda: cluster.remove_node(node)
    finally:
        ray.shutdown()
        cluster.shutdown()


def index(count: int, folder: Path) -> dict[str, float]:
    """Seconds to read an index of so many records, and their bytes."""
    places = {kind: folder / "index" / kind / "board" for kind in ("table", "profile")}
    for place in places.values():
        place.mkdir(parents=True)
    total = 0
    for number in range(count):
        board, day = number % 10_000, number // 20_000
        sha256 = hashlib.sha256(str(number).encode()).hexdigest()
        record = StoredFile(
            object=sha256,
            name=f"board-{board:05d}.{'table' if number % 20_000 < 10_000 else 'profile'}.json",
            bytes=40_000,
            kind="table" if number % 20_000 < 10_000 else "profile",
            time=f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}T{board % 24:02d}:00:00Z",
            version="0.1.0",
            command="framefit measure models/*.onnx",
            fingerprint={"target": "cpu", "kind": "ort", "cpu": "0x41 0xd0b 1, Raspberry Pi 5", "cores": 4},
            models=(hashlib.sha256(b"model").hexdigest(),),
        )
        data = msgspec.json.encode(record)
        total += len(data)
        (places[record.kind] / f"{record.time.replace(':', '')}-{sha256[:12]}-{number:08x}.json").write_bytes(data)
    begin = time.perf_counter()
    files, damaged = Store(str(folder)).records()
    assert (len(files), len(damaged)) == (count, 0)
    return {"seconds": time.perf_counter() - begin, "bytes": total}


def main() -> None:
    """Tasks, a search, and indexes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", nargs="*")
    parser.add_argument("--records", type=int, default=100_000)
    given = parser.parse_args()
    figures: dict[str, Any] = {"overhead_ratio": {"2": overhead(2)}}
    with contextlib.suppress(ImportError), two_nodes():
        figures["overhead_ratio"]["ray"] = overhead("ray")
    print(figures, flush=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if given.inputs:
            model, data = given.inputs
            searched(model, data, 1, folder / "first")  # what is loaded and compiled once
            runs = {str(workers): searched(model, data, workers, folder / f"w{workers}") for workers in (1, 2)}
            with contextlib.suppress(ImportError), two_nodes() as kill:
                runs["ray"] = searched(model, data, "ray", folder / "ray")
                timer = threading.Timer(runs["ray"]["seconds"] / 2, kill)
                timer.start()
                runs["ray, a node killed"] = searched(model, data, "ray", folder / "killed")
                timer.join()
            figures["search"] = runs
            figures["equal"] = len({(one["candidates"], one["trees"]) for one in runs.values()}) == 1
            print(runs, figures["equal"], flush=True)
        figures["index"] = {}
        count = 1000
        while count <= given.records:
            figures["index"][str(count)] = index(count, folder / f"index{count}")
            print(count, figures["index"][str(count)], flush=True)
            count *= 10
    store("fleet", figures, f"fleet.py MODEL.onnx DATA.npz --records {given.records}")


if __name__ == "__main__":
    main()
