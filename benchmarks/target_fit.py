"""Descriptions of devices that ``framefit targets fit`` finds, where the true description is known and hidden.

    python benchmarks/target_fit.py

Eight random networks are measured on a simulated device, with 1 % noise; the layers of six others take as long on the
fitted device as on the hidden one within 5 % in the median. Two of the devices are built for this; the others are the
built-in ones.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from stored import store

from framefit.core.target import BUILTIN_TARGETS, resolve_target
from framefit.devices.npu.cycles import CycleModel
from framefit.latency.target_fit import fit_target

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "latency"))
from simulated import fused, noisy_table, true_layers_ns, with_overhead
from test_target_fit import LEFT_OUT, MEASURED, hidden


def main() -> None:
    """Fit each device, print a table, store it."""
    devices = {"hidden, one memory": hidden(1), "hidden, two memories": hidden(2)}
    devices |= {name: resolve_target(name) for name in BUILTIN_TARGETS if name not in ("cpu", "vpu-two-queues")}
    rows = []
    print(f"{'device':20} {'median':>8} {'p90':>8} {'memories':>9} {'seconds':>8}")
    for name, device in devices.items():
        table = with_overhead(noisy_table(MEASURED, device, np.random.default_rng(0)), 80_000)
        begun = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            fitted = fit_target(table, Path(folder) / "board.toml")
        seconds = time.process_time() - begun
        off = np.asarray(
            [
                abs(layer.latency_ns / ns - 1)
                for model in map(fused, LEFT_OUT)
                for layer, ns in zip(CycleModel(fitted).layers(model), true_layers_ns(model, device), strict=True)
                if ns
            ]
        )
        row = {
            "device": name,
            "median": float(np.median(off)),
            "p90": float(np.quantile(off, 0.9)),
            "memories": len(fitted.memory),
            "checked": fitted.checked,
            "seconds": round(seconds, 1),
        }
        rows.append(row)
        print(f"{name:20} {np.median(off):8.2%} {np.quantile(off, 0.9):8.2%} {len(fitted.memory):9} {seconds:8.1f}")
    store("target_fit", {"devices": rows}, "target_fit.py")


if __name__ == "__main__":
    main()
