"""Claim: of 200 equal pairs at most 1 % are called slower, and of 100 with a tenth more layers at least 95 % are found.

python benchmarks/check.py [--seconds 1] [--equal 200] [--slower 100]
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from stored import store

from framefit import GraphBuilder, Model
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.measure import launch_of
from framefit.devices.pieces import HostDevice
from framefit.workflows.check import in_both_orders, judged

LAYERS, MOST = 20, 1.05


def layers(count: int, size: int) -> Model:
    """A chain of equal convolutions."""
    b = GraphBuilder("net", 0)
    x = b.input("x", (1, 16, size, size))
    for _ in range(count):
        x = b.conv(x, 16, activation="Relu")
    b.output(x, "y")
    return b.build()


def main() -> None:
    """Judge pairs of models of some 0.3 and 3 ms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--equal", type=int, default=200)
    parser.add_argument("--slower", type=int, default=100)
    given = parser.parse_args()
    figures: dict[str, object] = {}
    with TemporaryDirectory() as place:
        device = HostDevice(cache=Path(place))
        unit = device.target.units[0].name
        for kind, count, more in (("equal", given.equal, 0), ("a tenth more", given.slower, LAYERS // 10)):
            decisions: Counter[str] = Counter()
            ratios = []
            for number in range(count):
                size = 20 if number % 2 else 64
                here, there = layers(LAYERS + more, size), layers(LAYERS, size)
                with pinned(device.host_core), flushed_denormals():
                    samples = in_both_orders(
                        lambda pair=(here, there): [launch_of(device, model, unit) for model in pair],  # type: ignore[misc]
                        given.seconds,
                    )
                result = judged("net", samples, MOST)
                decisions[result.decision] += 1
                ratios.append(result.ratio)
            figures[kind] = {"pairs": count, "decisions": dict(decisions), "ratios": [min(ratios), max(ratios)]}
            print(kind, figures[kind], flush=True)
    store("check", {"most": MOST, "seconds": given.seconds, "pairs": figures}, f"check.py --seconds {given.seconds:g}")


if __name__ == "__main__":
    main()
