"""``framefit targets fit``: a described device whose cycle model takes as long for layers as a table's device does.

A layer takes the longest of its terms (:mod:`framefit.devices.npu.cycles`), so the fastest layers by each quantity
(products, elements, bytes) bound the rates from below (a roofline; Williams, Waterman and Patterson, 2009). From there
a pattern search (Hooke and Jeeves, 1961, "Direct Search Solution of Numerical and Statistical Problems") minimises the
mean size of the latencies' logarithmic errors, for each form of the arithmetic: channels rounded up to a granule, or an
array of rows and columns. Figures of terms that bind no layer of the table stay as they began: the table does not
determine them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import to_toml, write_whole
from framefit.core.latency_table import LatencyTable, Overhead, read_table
from framefit.core.target import Cache, Host, Memory, Processor, Target, Unit
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.npu.work import LayerWork
from framefit.errors import InputError
from framefit.latency.calibrate import entry_work, work_bytes
from framefit.stats import Z90

__all__ = ["fit_target"]


Floats = npt.NDArray[np.float64]
_CLOCK_MHZ = 500.0  # of forms without an array, where only products of clock and numbers count
_FORMS = (*((granule, 0) for granule in (1, 4, 8, 16, 32)), *((1, side) for side in (8, 16, 32, 64)))
_FIRST_TURNS, _TURNS, _FINALISTS = 10, 30, 2
_STEP, _LONGER, _SHORTER, _SETTLED = 0.5, 1.5, 0.6, 1e-3  # of a figure's logarithm
_PARTS = 4  # of the layers, each left out in turn
_LEAST_LAYERS = 20
_PRECISIONS = ("int8", "fp16", "fp32")
_CACHE_KIB = 512.0


@dataclass(frozen=True)
class _Layers:
    """Work and measured latency of a table's layers."""

    works: tuple[LayerWork, ...]
    latency_ns: Floats

    def rows(self, which: npt.NDArray[np.bool_]) -> _Layers:
        return _Layers(
            tuple(work for work, kept in zip(self.works, which, strict=True) if kept), self.latency_ns[which]
        )


@dataclass(frozen=True)
class _Form:
    """What is not searched: channels are rounded up to the granule, or an array has so many rows and columns."""

    granule: int
    side: int

    def target(self, logarithms: Floats, name: str = "fitted", unit: str = "npu0") -> Target:
        """The device with these figures, as logarithms.

        Products, elements, bytes read, written and on-chip in each ns; ns of a layer; KiB of the cache.
        """
        products, elements, read, written, on_chip, layer_ns, cache_kib = np.exp(logarithms).tolist()
        clock_mhz = products * 1e3 / self.side**2 if self.side else _CLOCK_MHZ
        array = {"array_rows": self.side, "array_columns": self.side} if self.side else {}
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
            memory=(
                Memory(read_bandwidth_gbps=read, write_bandwidth_gbps=written, read_bus_bits=4096, write_bus_bits=4096),
            ),
            cache=Cache(size_kib=cache_kib, word_bits=max(round(on_chip * 8e3 / clock_mhz), 1)),
            units=(Unit(name=unit),),
        )

    def errors(self, logarithms: Floats, layers: _Layers) -> Floats:
        """Logarithms of modelled over measured latencies."""
        model = CycleModel(self.target(logarithms))
        modelled = model.layer_ns(model.evaluate(model.table(layers.works), 0.0).cycles)
        return np.log(np.maximum(modelled, 1) / layers.latency_ns)

    def searched(self, begin: Floats, layers: _Layers, turns: int) -> tuple[float, Floats]:
        """Least mean size of the errors that was found, and where."""
        best, steps = begin, np.full(len(begin), _STEP)
        least = float(np.abs(self.errors(best, layers)).mean())
        for _ in range(turns):
            for index in range(len(best)):
                steps[index] *= _SHORTER
                for step in (steps[index] / _SHORTER, -steps[index] / _SHORTER):
                    trial = best.copy()
                    trial[index] = np.clip(trial[index] + step, -7, 14)
                    mean = float(np.abs(self.errors(trial, layers)).mean())
                    if mean < least:
                        best, least = trial, mean
                        steps[index] = abs(step) * _LONGER
                        break
            if steps.max() < _SETTLED:
                break
        return least, best


def fit_target(table: str | Path | LatencyTable, output: str | Path, *, force: bool = False) -> Target:
    """Describe the device of a table, so that its layers take as long there, and write the ``target.toml``.

    Args:
        table: the latency table; its first unit's entries are used.
        output: the file to write; its name is the target's.
        force: whether to overwrite it.

    Returns:
        The target; its description states how far layers differ that were left out of the fit.

    Raises:
        InputError: the table cannot be read or has too few layers, or the file exists.
    """
    output = Path(output)
    if output.exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    read = table if isinstance(table, LatencyTable) else read_table(table)
    layers = _layers(read)
    begin = _roofline(layers)
    first = sorted(((_Form(*form).searched(begin, layers, _FIRST_TURNS), form) for form in _FORMS), key=_mean)
    final = [(_Form(*form).searched(where, layers, _TURNS), form) for (_, where), form in first[:_FINALISTS]]
    (_, where), chosen = min(final, key=_mean)
    form, off = _Form(*chosen), np.zeros(len(layers.works))
    part = np.random.default_rng(0).permutation(len(off)) % _PARTS
    for left_out in range(_PARTS):
        others = layers.rows(part != left_out)
        _, where_others = form.searched(_roofline(others), others, _TURNS)
        off[part == left_out] = np.abs(np.expm1(form.errors(where_others, layers.rows(part == left_out))))
    target = msgspec.structs.replace(
        form.target(where, output.stem, read.units[0]),
        description=f"Fitted to {len(off)} layers measured on {read.target}: layers that were left out of the fit "
        f"differ by {100 * np.median(off):.1f} % (median), nine of ten by at most {100 * np.quantile(off, 0.9):.0f} %.",
        host=_host(read.overhead),
    )
    with write_whole(output, force=force) as file:
        file.write(to_toml(target).encode())
    return target


def _mean(result: tuple[tuple[float, Floats], tuple[int, int]]) -> float:
    return result[0][0]


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


def _roofline(layers: _Layers) -> Floats:
    """Where the search begins: the rates that the fastest layers reach, and the time of the shortest layer."""
    overhead_ns = 0.9 * layers.latency_ns.min()
    rest_ns = np.maximum(layers.latency_ns - overhead_ns, 0.02 * layers.latency_ns)

    def rate(amounts: Sequence[float]) -> float:
        rates = np.asarray(amounts, np.float64) / rest_ns
        return float(np.quantile(rates[rates > 0], 0.95)) if (rates > 0).any() else 1.0

    bytes_ns = rate([sum(work_bytes(work)) for work in layers.works])
    products_ns = rate([sum(product.macs for product in work.products) for work in layers.works])
    elements_ns = rate([work.elements for work in layers.works])
    return np.log([products_ns, elements_ns, bytes_ns, bytes_ns, 4 * bytes_ns, overhead_ns, _CACHE_KIB])


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
