"""Every reader of files, with valid files to make wrong ones of."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from bounds import bounded
from mutations import Mutation, bytes_changed, json_changed, npz_changed, onnx_changed, toml_changed
from PIL import Image

import framefit
from framefit import FramefitError, Model
from framefit.core.files import read_record, to_json, write_record
from framefit.core.latency_table import compared, read_table
from framefit.core.profile import Profile
from framefit.core.program import Program
from framefit.core.run_record import Metrics, RunInfo
from framefit.core.target import BUILTIN_TARGETS, target_file
from framefit.core.timetable import InstructionLists, Timetable
from framefit.core.trees import Forest, evaluate, read_forest
from framefit.core.workload import StreamEntry, load_workload
from framefit.execution.streams import opened_image, stored_frames
from framefit.latency.subjects import GridSpec, grid_models
from framefit.profiling.formats.readers import read_trace
from framefit.profiling.formats.stp import StpMapping
from framefit.training.data import load_data
from lossy_runs import as_raw, played, program, segment
from networks import NETWORKS
from simulated_tables import table_on
from stp_streams import Stream
from trees_cases import random_ensemble
from workloads import write_app, write_models, write_target

__all__ = ["READERS", "Reader", "Trial", "changed"]

_MUTATIONS: Mapping[str, Mutation] = {
    ".onnx": onnx_changed,
    ".json": json_changed,
    ".toml": toml_changed,
    ".npz": npz_changed,
}


@dataclass(frozen=True)
class Reader:
    """What reads a kind of file.

    Attributes:
        write: valid files, into a folder.
        read: one of them, as far as a command would.
        files: pattern of those that are made wrong, one in each trial.
    """

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    files: str


class Trial:
    """A reader in a folder of its own.

    Args:
        reader: which.
        root: an empty folder; the files lie deep in it, so that a path that leads out still ends there.

    Attributes:
        valid: the files that can be made wrong, with what they hold.
    """

    def __init__(self, reader: Reader, root: Path) -> None:
        self._read, self._root = reader.read, root
        self._folder = root / "a" / "b" / "c" / "files"
        self._folder.mkdir(parents=True)
        reader.write(self._folder)
        paths = sorted(path for path in self._folder.glob(reader.files) if path.is_file())
        self.valid: Mapping[Path, bytes] = {path: path.read_bytes() for path in paths}

    def read(self, path: Path, content: bytes) -> FramefitError | None:
        """Read a file as if it held this; the error with which it was refused.

        Raises:
            Exception: anything else, which no reader should.
        """
        output = self._folder / "out"
        try:
            path.write_bytes(content)
            with bounded(self._root, output):
                self._read(path)
        except FramefitError as error:
            return error
        finally:
            shutil.rmtree(output, ignore_errors=True)
            path.write_bytes(self.valid[path])
        return None


def changed(random: Random, path: Path, content: bytes) -> bytes:
    """The content with a few things wrong, in the way of files of this name; what is wrong already gets other bytes."""
    with contextlib.suppress(Exception):
        return _MUTATIONS.get(path.suffix, bytes_changed)(random, content)
    return bytes_changed(random, content)


# Networks, workloads, targets, tables, records --------------------------------------------------


def _write_networks(folder: Path) -> None:
    for name in ("plain", "lstm", "branching", "looping", "quantised", "dynamic", "selecting"):
        NETWORKS[name]().save(folder / f"{name}.onnx")


def _read_network(path: Path) -> None:
    model = Model.load(path)
    assert len(model.nodes) == len(model.layers)
    for cut in model.legal_cuts[:2]:
        assert model.segment(0, cut.position - 1).layers
    model.weight_zeros()


def _write_workload(folder: Path) -> None:
    write_target(write_models(folder))
    stream = "queue = 3\nrates_hz = [10, 40]\nchanges = [{ after_s = 5, rate_hz = 10 }]"
    model = 'deadline_ms = 20\nevery = 2\nframes = 1\naggregate = 4\ninputs = { image = "camera" }'
    more = '[[outputs]]\nmodel = "chain"\nsink = "out/chain.npz"\ntensors = ["pooled"]\n'
    write_app(folder, target="target.toml", stream=stream, model=model, schedule="quantile = 0.9", more=more)


def _write_targets(folder: Path) -> None:
    for name in BUILTIN_TARGETS:
        if name != "cpu":  # which has no cycles
            shutil.copy(target_file(name), folder)


def _write_table(folder: Path) -> None:
    (folder / "board.table.json").write_text(to_json(table_on("vpu", [NETWORKS["plain"](), NETWORKS["lstm"]()])))


def _read_table(path: Path) -> None:
    table = read_table(path)
    assert compared(table, table).only_here == ()
    framefit.estimate(NETWORKS["plain"](), table, fallback=True, any_fingerprint=True)


def _write_run(folder: Path) -> None:
    _write_workload(folder)
    framefit.simulate(folder / "app.toml", windows=20, output=folder / "run")
    for path in (folder / "run").iterdir():
        path.rename(folder / path.name)
    grid = '[[layers]]\nop = "Conv"\nshapes = [[1, 3, 8, 8]]\nchannels = [4, 8]\nkernel = [3]\nstride = [1, 2]\n'
    (folder / "grid.toml").write_text(grid)
    write_record(folder / "mapping.json", StpMapping())


_KINDS: Mapping[str, Any] = {
    "timetable.json": Timetable,
    "metrics.json": Metrics,
    "profile.json": Profile,
    "run.json": RunInfo,
    "program.json": Program,
    "instructions.json": InstructionLists,
    "mapping.json": StpMapping,
    "grid.toml": GridSpec,
}


def _read_record(path: Path) -> None:
    record = read_record(path, _KINDS[path.name]) if path.name in _KINDS else None
    if isinstance(record, GridSpec):
        list(itertools.islice(grid_models(record), 3))
    if record is not None:
        assert to_json(record)


# Trees ------------------------------------------------------------------------------------------


def _write_trees(folder: Path) -> None:
    random = np.random.default_rng(1)
    for kind in ("vote", "vector"):
        ensemble = random_ensemble(random, kind=kind, free=kind == "vote")
        write_record(folder / f"{kind}.trees.json", Forest(model="net", ensembles=(ensemble,)))


def _read_trees(path: Path) -> None:
    for ensemble in read_forest(path).ensembles:
        if np.prod(ensemble.input_shape) * ensemble.positions < 1 << 20:
            evaluate(ensemble, np.zeros((2, *ensemble.input_shape), np.float32))


# Traces -----------------------------------------------------------------------------------------

_RUN = played(program(segment("net", ("conv", "npu0", 4000), ("pool", "npu0", 900))), 12)


def _write_traces(folder: Path) -> None:
    _RUN.write(folder / "own.npz")
    (folder / "raw.bin").write_bytes(as_raw(_RUN))
    stream = Stream().begin().frequency(1_000_000_000)
    events: list[dict[str, Any]] = []
    for time, kind, type_, core in zip(_RUN.time_ns.tolist(), _RUN.id, _RUN.type, _RUN.core, strict=True):
        stream.address(int(core), 0).data(int(kind) << 1 | int(type_), 8, time)
        events.append({"name": _RUN.kinds[kind], "ph": "BE"[type_], "ts": time / 1000, "pid": 0, "tid": int(core)})
    (folder / "system.stp").write_bytes(stream.lost().raw())
    (folder / "chrome.json").write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
    kernels = [
        {"cat": "Node", "pid": 1, "tid": 9, "dur": 40, "ts": 100 * at, "ph": "X", "name": f"{name}_kernel_time"}
        | {"args": {"op_name": name, "provider": "CPUExecutionProvider"}}
        for at, name in enumerate(("Conv", "Relu", "Gemm") * 5)
    ]
    runs = [
        {"cat": "Session", "pid": 1, "tid": 9, "dur": 299, "ts": 300 * at, "ph": "X", "name": "model_run", "args": {}}
        for at in range(5)
    ]
    (folder / "runtime.json").write_text(json.dumps(kernels + runs))


def _read_profile(path: Path) -> None:
    framefit.profile(
        path.parent, method="rule" if path.stat().st_size % 3 == 0 else "align", output=path.parent / "out"
    )


# Frames and data --------------------------------------------------------------------------------


def _write_frames(folder: Path) -> None:
    np.savez(folder / "frames.npz", x=np.zeros((5, 3, 8, 8), np.float32))
    pixels = np.random.default_rng(2).integers(0, 255, (12, 16, 3)).astype(np.uint8)
    for suffix in ("png", "jpg", "bmp", "webp"):
        Image.fromarray(pixels).save(folder / f"image.{suffix}")


def _read_frames(path: Path) -> None:
    if path.suffix == ".npz":
        stored_frames(StreamEntry(name="camera", source=str(path)))
    else:
        opened_image(path, "camera").close()


def _write_data(folder: Path) -> None:
    random = np.random.default_rng(3)
    x, y = random.standard_normal((60, 1, 6, 6)).astype(np.float32), random.integers(0, 3, 60)
    np.savez(folder / "data.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for number in range(8):
            image = Image.fromarray(random.integers(0, 255, (8, 8, 3)).astype(np.uint8))
            image.save(folder / label / f"{number}.png")


def _read_data(path: Path) -> None:
    data = load_data(path if path.suffix == ".npz" else path.parent.parent)
    assert len(data.train) + len(data.test) > 0


READERS: Mapping[str, Reader] = {
    "network": Reader(_write_networks, _read_network, "*.onnx"),
    "workload": Reader(_write_workload, load_workload, "app.toml"),
    "plan": Reader(_write_workload, lambda path: framefit.plan(path.parent / "app.toml"), "*.toml"),
    "target": Reader(_write_targets, lambda path: framefit.cycles(NETWORKS["plain"](), path), "*.toml"),
    "table": Reader(_write_table, _read_table, "*.json"),
    "record": Reader(_write_run, _read_record, "*.[jt]*"),
    "trees": Reader(_write_trees, _read_trees, "*.json"),
    "trace": Reader(_write_traces, read_trace, "*"),
    "profile": Reader(_write_run, _read_profile, "[tpl][rai][aomu]*.[nj]*"),
    "frames": Reader(_write_frames, _read_frames, "*"),
    "data": Reader(_write_data, _read_data, "**/*.[np]*"),
}
"""By what they read."""
