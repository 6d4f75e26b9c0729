"""Claim: on real profiles, thinned, alignment finds at least as many packets' operations as the rule does.

ONNX Runtime profiles itself on networks from code; each kernel is a START and an END. Packets are lost at random,
in bursts of 20 (of some networks most of an inference), by overflow, or STARTs alone; packets name their operation
or only its kind. A packet counts as matched where inference, operation and type are right. Means over seeds.

    python benchmarks/profiling_real.py --runs 60 --seeds 3
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from stored import store

from framefit.core.events import Trace
from framefit.core.model.builtin import depth, detector
from framefit.core.model.model import Model
from framefit.core.profile import OperationLog
from framefit.profiling import rule
from framefit.profiling.align import aligner as align
from framefit.profiling.formats.readers import ReadTrace, read_trace
from framefit.profiling.inject import drop_packets
from framefit.profiling.sequence import Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import networks

LOSSES = (("random", 0.1), ("burst", 0.1), ("random", 0.4), ("burst", 0.4), ("overflow", 0.2), ("start-only", 0.2))
NETWORKS = {
    "inverted residual": networks.inverted_residual,
    "dense block": networks.dense_block,
    "unet": networks.unet,
    "attention": networks.attention,
    "detector": detector,
    "depth": depth,
}


def recorded(model: Model, runs: int, folder: str) -> ReadTrace:
    """The profile of a network, run so often on one thread."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(folder) / "net")
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.to_bytes(), options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    feeds = {
        one.name: generator.normal(size=[size if isinstance(size, int) else 1 for size in one.shape]).astype(np.float32)
        for one in session.get_inputs()
    }
    for _ in range(runs):
        session.run(None, feeds)
    return read_trace(Path(session.end_profiling()))


def labels_of(log: OperationLog, packets: int) -> npt.NDArray[np.int64]:
    """Inference, operation and type of each packet as one number; -1: none."""
    name = 2 * (log.inference * 100_000 + log.operation)
    found = np.full(packets, -1, np.int64)
    for edge, event in enumerate((log.start_event, log.end_event)):
        found[event[event >= 0]] = (name + edge)[event >= 0]
    return found


def main() -> None:
    """Run all, print the table, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    table: list[dict[str, Any]] = []
    for name, made in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            read = recorded(made(), options.runs, folder)
        assert read.program is not None
        sequence = Sequence.of(read.program, None, read.trace.kinds)
        truth = labels_of(rule.reconstruct(read.trace, sequence, {}).log, len(read.trace))
        for kind, rate in LOSSES:
            for named in (True, False):
                matched: dict[str, list[float]] = {"align": [], "rule": []}
                for seed in range(options.seeds):
                    lossy = drop_packets(read.trace, read.program, None, kind=kind, rate=rate, seed=seed)  # type: ignore[arg-type]
                    thin: Trace = lossy.trace
                    if not named:
                        thin = replace(thin, operation=np.full(len(thin), -1, np.int64))
                    for method, log in (
                        ("align", align.reconstruct(thin, sequence).log),
                        ("rule", rule.reconstruct(thin, sequence, {}).log),
                    ):
                        matched[method].append(float(np.mean(labels_of(log, len(thin)) == truth[lossy.kept])))
                table.append(
                    {
                        "network": name,
                        "operations": len(sequence.operations),
                        "loss": kind,
                        "rate": rate,
                        "packets": "named" if named else "kinds",
                        **{method: {"mean": float(np.mean(one)), "seeds": one} for method, one in matched.items()},
                    }
                )
                row = table[-1]
                print(
                    f"{name:18} {kind:10} {rate:.0%} {row['packets']:6} "
                    f"align {row['align']['mean']:.4f}  rule {row['rule']['mean']:.4f}",
                    flush=True,
                )
    store("profiling_real", {"table": table}, f"profiling_real.py --runs {options.runs} --seeds {options.seeds}")


if __name__ == "__main__":
    main()
