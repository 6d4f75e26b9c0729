"""``framefit targets fit``: a described device whose cycle model takes as long for layers as a table's device does.

A layer takes the longest of its terms (:mod:`framefit.devices.npu.cycles`), so the fastest layers by each quantity
(products, elements, bytes) bound the rates from below (a roofline; Williams, Waterman and Patterson, 2009). From there
a pattern search (Hooke and Jeeves, 1961, "Direct Search Solution of Numerical and Statistical Problems") minimises the
mean size of the latencies' logarithmic errors, for each form of the device. A form is a way of its arithmetic (channels
rounded up to a granule, or an array of rows and columns), and one memory or two (one on the chip for tensors that it
holds, one off the chip for weights and the rest). One memory or two is decided by layers that were left out of the fit
(Hastie, Tibshirani and Friedman, 2009, "The Elements of Statistical Learning", section 7.10); the same fits give the
figures' intervals (the jackknife; Efron and Tibshirani, 1993, "An Introduction to the Bootstrap", chapter 11). Figures
of terms that bind no layer of the table stay as they began: the table does not determine them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import check_new, to_toml, write_whole
from framefit.core.latency_table import LatencyTable, Overhead, read_table
from framefit.core.target import Cache, Host, Memory, Processor, Target, Unit
from framefit.devices.npu.cycles import CycleModel, WorkTable
from framefit.devices.npu.work import LayerWork
from framefit.errors import InputError
from framefit.latency.calibrate import entry_work, work_bytes
from framefit.stats import Z90

__all__ = ["fit_target"]


Floats = npt.NDArray[np.float64]
_CLOCK_MHZ = 100.0  # of forms without an array, where only products of clock and numbers count
_ARITHMETIC = (*((granule, 0) for granule in (1, 4, 8, 16, 32)), *((1, side) for side in (8, 16, 32, 64)))
_FIRST_TURNS, _TURNS, _FINALISTS = 4, 20, 2
_STEP, _LONGER, _SHORTER, _SETTLED = 0.5, 1.5, 0.6, 2e-3  # of a figure's logarithm
_PARTS = 4  # of the layers, each left out in turn
_GOOD = 0.01  # mean error of layers left out, at which one memory is enough
_GAIN = 0.9  # a second memory has to reduce the errors of layers left out to this part of what they were
_LEAST_LAYERS = 20
_PRECISIONS = ("int8", "fp16", "fp32")
_CACHE_KIB = 512.0
_LATENCY_NS = 30.0
_WIDER = 32  # bits more than a bus needs, in search of a width whose derating suits both directions
_FIGURES = (
    "cache, KiB",
    "multiply-accumulates in a ns",
    "elements in a ns",
    "bytes of the cache in a ns",
    "fixed ns of a layer",
    "bytes read in a ns",
    "bytes written in a ns",
    "ns until the first byte",
    "memory on the chip, KiB",
    "bytes read on the chip in a ns",
    "bytes written on the chip in a ns",
)
_WIDE = math.log(2)  # half an interval beyond which a figure is called not determined
_SIZES = (0, 8)  # figures of the cache's and the near memory's size
_SIZES_KIB = np.log(2.0 ** np.arange(3, 16))
_SCANS = 8  # turns


@dataclass(frozen=True)
class _Layers:
    """Work and measured latency of a table's layers."""

    works: tuple[LayerWork, ...]
    latency_ns: Floats

    @functools.cached_property
    def table(self) -> WorkTable:
        """The layers as columns of a cycle model."""
        form = _Form(granule=1, side=0, memories=1)
        return CycleModel(form.target(form.begin(self))).table(self.works)

    def rows(self, which: npt.NDArray[np.bool_]) -> _Layers:
        return _Layers(
            tuple(work for work, kept in zip(self.works, which, strict=True) if kept), self.latency_ns[which]
        )


@dataclass(frozen=True)
class _Form:
    """What is not searched: granule of channels, rows and columns of an array (0: none), number of memories."""

    granule: int
    side: int
    memories: int

    def target(self, logarithms: Floats, name: str = "fitted", unit: str = "npu0") -> Target:
        """The device with these figures, as logarithms; a form with one memory has no others."""
        cache_kib, products, elements, word, layer_ns, read, written, latency_ns, *near = np.exp(logarithms).tolist()
        clock_mhz = products * 1e3 / self.side**2 if self.side else _CLOCK_MHZ
        array = {"array_rows": self.side, "array_columns": self.side} if self.side else {}
        memory = [Memory(name="ddr", latency_ns=latency_ns, **_widths(read, written, clock_mhz))]
        if near:
            size_kib, read, written = near
            widths = _widths(read, written, clock_mhz)
            memory.append(Memory(name="sram", type="sram", size_mib=size_kib / 1024, **widths))
        return Target(
            name=name,
            kind="npu",
            processor=Processor(
                clock_mhz=clock_mhz,
                macs_per_cycle={} if self.side else dict.fromkeys(_PRECISIONS, products * 1e3 / clock_mhz),
                channel_granule=self.granule,
                vector_lanes=max(round(elements * 1e3 / clock_mhz), 1),
                layer_cycles=round(layer_ns * clock_mhz / 1e3),
                **array,
            ),
            memory=tuple(memory),
            cache=Cache(size_kib=cache_kib, word_bits=max(round(word * 8e3 / clock_mhz), 1)),
            units=(Unit(name=unit),),
        )

    def begin(self, layers: _Layers) -> Floats:
        """Where the search begins: the rates that the fastest layers reach, and the time of the shortest layer."""
        overhead_ns = 0.9 * layers.latency_ns.min()
        rest_ns = np.maximum(layers.latency_ns - overhead_ns, 0.02 * layers.latency_ns)

        def rate(amounts: Sequence[float]) -> float:
            rates = np.asarray(amounts, np.float64) / rest_ns
            return float(np.quantile(rates[rates > 0], 0.95)) if (rates > 0).any() else 1.0

        moved, fixed = np.asarray([work_bytes(work) for work in layers.works]).T
        products_ns = rate([sum(product.macs for product in work.products) for work in layers.works])
        elements_ns = rate([work.elements for work in layers.works])
        near_ns = rate(moved)
        far_ns = rate(fixed) if self.memories > 1 else rate(moved + fixed)
        figures = [_CACHE_KIB, products_ns, elements_ns, 4 * near_ns, overhead_ns, far_ns, far_ns, _LATENCY_NS]
        if self.memories > 1:
            figures += [1.1 * moved.max() / 1024, near_ns, near_ns]
        return np.log(figures)

    def errors(self, logarithms: Floats, layers: _Layers) -> Floats:
        """Logarithms of modelled over measured latencies."""
        model = CycleModel(self.target(logarithms))
        modelled = model.layer_ns(model.evaluate(model.adapted(layers.table), 0.0).cycles)
        return np.log(np.maximum(modelled, 1) / layers.latency_ns)

    def searched(self, begin: Floats, layers: _Layers, turns: int) -> tuple[float, Floats]:
        """Least mean size of the errors that was found, and where."""
        best, steps = begin, np.full(len(begin), _STEP)
        least = float(np.abs(self.errors(best, layers)).mean())
        for turn in range(turns):
            if turn % _SCANS == 0:  # what a size does not hold, no small step of it may show
                for index in _SIZES[: self.memories]:
                    for value in _SIZES_KIB:
                        least, best = min((least, best), self._tried(best, index, value, layers), key=lambda at: at[0])
            for index in range(len(best)):
                steps[index] *= _SHORTER
                for step in (steps[index] / _SHORTER, -steps[index] / _SHORTER):
                    mean, trial = self._tried(best, index, best[index] + step, layers)
                    if mean < least:
                        best, least = trial, mean
                        steps[index] = abs(step) * _LONGER
                        break
            if steps.max() < _SETTLED:
                break
        return least, best

    def _tried(self, logarithms: Floats, index: int, value: float, layers: _Layers) -> tuple[float, Floats]:
        trial = logarithms.copy()
        trial[index] = np.clip(value, -7, 14)
        return float(np.abs(self.errors(trial, layers)).mean()), trial


@dataclass(frozen=True)
class _Fit:
    """A form with its figures.

    Attributes:
        left_out: errors of layers that were left out of fits of the same form.
        others: the figures of these fits, a row for each part of the layers that was left out.
    """

    form: _Form
    logarithms: Floats
    left_out: Floats
    others: Floats

    @property
    def mean(self) -> float:
        return float(np.abs(self.left_out).mean())

    @property
    def comment(self) -> str:
        """The figures with their intervals, as the head of a file."""
        half = Z90 * np.sqrt((_PARTS - 1) * self.others.var(axis=0))
        lines = ["# Fitted figures, with 90 % intervals:"]
        for name, value, wide in zip(_FIGURES, self.logarithms, half, strict=False):
            known = (
                f"({np.exp(value - wide):.3g} to {np.exp(value + wide):.3g})" if wide < _WIDE else "(not determined)"
            )
            lines.append(f"#   {name}: {np.exp(value):.3g} {known}")
        return "\n".join(lines)


def fit_target(table: str | Path | LatencyTable, output: str | Path, *, force: bool = False) -> Target:
    """Describe the device of a table, so that its layers take as long there, and write the ``target.toml``.

    Args:
        table: the latency table; its first unit's entries are used.
        output: the file to write; its name is the target's.
        force: whether to overwrite it.

    Returns:
        The target; ``checked`` states how far layers differ that were left out of the fit.

    Raises:
        InputError: the table cannot be read or has too few layers, or the file exists.
    """
    output = Path(output)
    check_new(output, force=force)
    read = table if isinstance(table, LatencyTable) else read_table(table)
    layers = _layers(read)
    best = _fitted(layers, 1)
    if best.mean > _GOOD:
        two = _fitted(layers, 2)
        best = two if two.mean < _GAIN * best.mean else best
    off = np.abs(np.expm1(best.left_out))
    target = msgspec.structs.replace(
        best.form.target(best.logarithms, output.stem, read.units[0]),
        description=f"fitted to {len(off)} layers measured on {read.target}",
        checked=f"layers that were left out of the fit: they differ by {100 * np.median(off):.1f} % (median), nine of "
        f"ten by at most {100 * np.quantile(off, 0.9):.0f} %",
        host=_host(read.overhead),
    )
    with write_whole(output, force=force) as file:
        file.write(f"{best.comment}\n\n{to_toml(target)}".encode())
    return target


def _fitted(layers: _Layers, memories: int) -> _Fit:
    """The best form with so many memories."""
    forms = [_Form(granule, side, memories) for granule, side in _ARITHMETIC]
    first = sorted(
        ((*form.searched(form.begin(layers), layers, _FIRST_TURNS), form) for form in forms), key=lambda one: one[0]
    )
    final = [(*form.searched(where, layers, _TURNS), form) for _, where, form in first[:_FINALISTS]]
    _, where, form = min(final, key=lambda one: one[0])
    part = np.random.default_rng(0).permutation(len(layers.works)) % _PARTS
    left_out, figures = np.zeros(len(part)), []
    for index in range(_PARTS):
        others = layers.rows(part != index)
        figures.append(form.searched(form.begin(others), others, _TURNS)[1])
        left_out[part == index] = form.errors(figures[-1], layers.rows(part == index))
    return _Fit(form, where, left_out, np.asarray(figures))


def _layers(table: LatencyTable) -> _Layers:
    """The first unit's layers that can be priced and are known to a tenth."""
    pairs = [
        (entry_work(entry.op, entry.configuration), entry.latency_ns)
        for entry in table.entries
        if entry.unit == table.units[0] and entry.latency_ns > 0 and Z90 * entry.deviation_ns <= 0.1 * entry.latency_ns
    ]
    pairs = [(work, ns) for work, ns in pairs if work.method not in ("unknown", "view")]
    if len(pairs) < _LEAST_LAYERS:
        raise InputError(
            f"{len(pairs)} layers of the table are known to 10 %, a fit needs {_LEAST_LAYERS}",
            remedy="measure more models into it, or with more --repeats",
        )
    return _Layers(tuple(work for work, _ in pairs), np.asarray([ns for _, ns in pairs], np.float64))


def _widths(read: float, written: float, clock_mhz: float) -> dict[str, Any]:
    """A memory of these rates, in bytes a ns; the cycle model rounds bandwidths, but not widths, to whole bytes."""
    bits, ratio = read * 8e3 / clock_mhz, written / read
    least = max(math.ceil(bits), 1)
    widths = least + np.arange(_WIDER)
    width = int(widths[np.abs(np.maximum(np.rint(widths * ratio), 1) / widths / ratio - 1).argmin()])
    return {
        "read_bus_bits": width,
        "write_bus_bits": max(round(width * ratio), 1),
        "derating_ratio": bits / width,
    }


def _host(overhead: Overhead | None) -> Host:
    """The host's part, as the table's overhead says."""
    if overhead is None:
        return Host()
    into, out = overhead.input_ns_per_byte, overhead.output_ns_per_byte
    return Host(
        inference_ns=max(overhead.intercept_ns, 0.0),
        input_bandwidth_gbps=1 / into if into > 0 else None,
        output_bandwidth_gbps=1 / out if out > 0 else None,
    )
