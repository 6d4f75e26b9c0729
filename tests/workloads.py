"""Small workloads for tests: networks of a known order of magnitude, and their ``app.toml``."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from framefit import Plan
from framefit.core.model import GraphBuilder, Layer, Model
from framefit.devices.device import Completion
from framefit.devices.measure import Measurement
from framefit.planning.planner import _DISPATCH_NS

__all__ = [
    "LATE_NS",
    "RATE_HZ",
    "WINDOW_MS",
    "Quiet",
    "chain",
    "listing",
    "no_noise",
    "small",
    "stopping",
    "write_app",
    "write_models",
    "write_target",
]

RATE_HZ = 20
WINDOW_MS = 50.0


class Quiet:
    """Stands in for ``measure``: what a launch costs follows from its layers, so that no test hangs on the machine.

    40 us, 160 ns for each pixel that a convolution makes, however many channels a runtime pads it to, and 1 ns
    for each 32 other MACs. It counts its calls; ``scales[n]`` multiplies the durations of call n.
    """

    def __init__(self, scales: Sequence[float] = ()) -> None:
        self.calls = 0
        self._scales = scales

    def __call__(self, launches: Sequence[Callable[[], Completion]], **limits: Any) -> list[Measurement]:
        """Durations of launches as the planner makes them: execution and segment are their defaults."""
        scale = self._scales[self.calls] if self.calls < len(self._scales) else 1.0
        self.calls += 1
        found = []
        for launch in launches:
            execution, index = getattr(launch, "__defaults__")  # noqa: B009 - of a lambda
            work = sum(map(self._work_ns, execution.parts[index].layers))
            found.append(Measurement(np.full(limits["least_rounds"], int((40_000 + work) * scale), np.int64)))
        return found

    @staticmethod
    def _work_ns(layer: Layer) -> int:
        if "Conv" not in layer.op:
            return layer.macs // 32
        return 160 * math.prod((layer.outputs[0].shape or ())[2:])


LATE_NS = 120_000  # of a window's first launch, on a machine without noise


def no_noise(patch: pytest.MonkeyPatch, scales: Sequence[float] = ()) -> Quiet:
    """Let plans see no noise: durations as :class:`Quiet` says, and wake-ups 20 us late."""
    fake = Quiet(scales)
    patch.setattr("framefit.planning.durations.measure", fake)
    patch.setattr("framefit.planning.durations.measure_floor", lambda *_: np.full(100, LATE_NS - _DISPATCH_NS))
    return fake


@functools.cache
def small() -> Model:
    """A fraction of a millisecond; reads "image", 1 x 3 x 16 x 16, gives "pooled"."""
    b = GraphBuilder("small", 1)
    x = b.conv(b.input("image", (1, 3, 16, 16)), 8, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    return b.build()


@functools.cache
def chain() -> Model:
    """Ten convolutions of like cost, a few milliseconds together; reads "image", 1 x 3 x 16 x 16, gives "pooled"."""
    b = GraphBuilder("chain", 2)
    x = b.upsample(b.input("image", (1, 3, 16, 16)), 3)
    for _ in range(10):
        x = b.conv(x, 24, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    return b.build()


def write_models(folder: Path, *, brief: bool = False) -> Path:
    """``small.onnx`` and ``chain.onnx`` in a folder; returns it.

    ``brief`` is for what another process plans by measurements, which are over the sooner the less is launched: both
    files are small.
    """
    folder.mkdir(parents=True, exist_ok=True)
    small().save(folder / "small.onnx", force=True)
    (small() if brief else chain()).save(folder / "chain.onnx", force=True)
    return folder


def write_app(
    folder: Path,
    *,
    priority: Sequence[str] = ("small",),
    background: Sequence[str] = ("chain",),
    rate_hz: float = RATE_HZ,
    guard_ms: float | None = 1.0,
    stream: str = 'source = "synthetic"',
    schedule: str = 'preemption = "never"',
    model: str = "",
    last: str = "",
    more: str = "",
    target: str | None = None,
    table: str | None = None,
) -> Path:
    """An ``app.toml`` over models of the folder.

    Args:
        folder: gets it.
        priority: names of models that run in every window; "NAME:X" has priority X instead.
        background: names of those that run in what is left; likewise.
        rate_hz: windows a second.
        guard_ms: kept free before each; ``None``: not given.
        stream: lines of the only stream.
        schedule: further lines of the schedule.
        model: further lines of the first model.
        last: further lines of the last one.
        more: further tables, at the end.
        target: name or path; ``None``: not given.
        table: path of a latency table; likewise.
    """
    text = "schema_version = 1\n" + ("" if target is None else f'target = "{target}"\n') + f"rate_hz = {rate_hz}\n"
    text += "" if table is None else f'table = "{table}"\n'
    text += "[schedule]\n" + ("" if guard_ms is None else f"guard_ms = {guard_ms}\n") + f"{schedule}\n"
    text += f'[[streams]]\nname = "camera"\n{stream}\n'
    entries = [*((name, '"every-window"') for name in priority), *((name, '"background"') for name in background)]
    for index, (entry, role) in enumerate(entries):
        name, _, given = entry.partition(":")
        file = "chain" if name.startswith("chain") else name
        text += f'[[models]]\nname = "{name}"\npath = "{file}.onnx"\npriority = {given or role}\n'
        text += f"{model}\n" if index == 0 else ""
        text += f"{last}\n" if index == len(entries) - 1 else ""
    app = folder / "app.toml"
    app.write_text(text + more)
    return app


def write_target(
    folder: Path,
    name: str = "target.toml",
    *,
    units: Sequence[str] = ('name = "npu0"\ncore = 3',),
    head: str = "",
    **tables: str,
) -> Path:
    """The description of a board on which ``small`` takes 0.03 ms and ``chain`` 17 ms, varied by 2 %.

    Args:
        folder: gets it.
        name: of the file.
        units: lines of each unit.
        head: further lines before the first table.
        tables: their lines, instead of those of the board.
    """
    board = {
        "processor": "clock_mhz = 100\nmacs_per_cycle = { fp32 = 64 }",
        "host": "inference_ns = 20_000",
        "variation": "sigma_ratio = 0.02",
    }
    text = f'schema_version = 1\nname = "board"\nkind = "npu"\n{head}\n'
    text += "".join(f"[[units]]\n{unit}\n" for unit in units)
    text += "".join(f"[{table}]\n{lines}\n" for table, lines in (board | tables).items())
    path = folder / name
    path.write_text(text)
    return path


def stopping(planned: Plan) -> Plan:
    """A plan of which any launch that fails ends a run."""
    wired = tuple(
        dataclasses.replace(model, entry=msgspec.structs.replace(model.entry, on_error="stop"))
        for model in planned.wired
    )
    return dataclasses.replace(planned, wired=wired)


def listing(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: path -> content, None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
