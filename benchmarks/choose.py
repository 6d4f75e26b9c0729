"""Claim: six targets at five rates take at most a minute on two cores, and any number of processes gives the same.

The workload is that of ``framefit demo``: a detector in every frame, depth in the remaining time.

    python benchmarks/choose.py
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from stored import store

import framefit
from framefit.core.model.builtin import depth, detector

TARGETS = ("vpu", "edge-8", "micro-npu", "vpu-two-queues", "gpu", "dsp")
RATES = (5.0, 15.0, 30.0, 60.0, 120.0)


def main() -> None:
    """Choose with one process, with two, and again."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        detector().save(folder / "detector.onnx")
        depth().save(folder / "depth.onnx")
        app = folder / "app.toml"
        app.write_text(
            'target = "vpu"\nrate_hz = 30\n'
            '[[models]]\nname = "detector"\npath = "detector.onnx"\n'
            '[[models]]\nname = "depth"\npath = "depth.onnx"\npriority = "background"\n'
        )
        seconds, choices = {}, []
        for workers in (1, 2):
            begun = time.perf_counter()
            output = str(folder / f"choice-{workers}")
            choice = framefit.choose(app, targets=TARGETS, rates=RATES, workers=workers, output=output).choice
            seconds[f"{workers} process{'es' * (workers > 1)}"] = time.perf_counter() - begun
            choices.append(msgspec.json.encode(choice))
        begun = time.perf_counter()
        again = framefit.choose(app, targets=TARGETS, rates=RATES, output=output).choice
        seconds["again"] = time.perf_counter() - begun
        figures = {
            "cells": len(again.cells),
            "seconds": seconds,
            "same": choices[0] == choices[1] == msgspec.json.encode(again),
            "verdicts": {f"{cell.target} at {cell.rate_hz:g} Hz": cell.verdict for cell in again.cells},
        }
    print(figures)
    store("choose", figures, "choose.py")


if __name__ == "__main__":
    main()
