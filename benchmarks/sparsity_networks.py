"""Sparsity on many networks: what each loses at some part of its cycles, with labels or without.

    python benchmarks/sparsity_networks.py --work DIR [NAME=MODEL.onnx,DATA.npz,PATTERN,CYCLES ...]

Networks of ``examples/`` are trained first: three convolutions, a perceptron, depthwise convolutions with gates,
branches that are concatenated, and convolutions along time. They and those that are named are pruned once, with default
options, on "vpu" (a drop of two points is allowed, five without labels), and the row says what the gate said. Claims:
with labels at most two points are lost, and the model is deployed; without labels the outputs agree better than with
random zeros.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from stored import store

import framefit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
OURS = (
    ("conv", "unstructured", 0.6),
    ("mlp", "unstructured", 0.6),
    ("gates", "channel", 0.8),
    ("branches", "channel", 0.75),
    ("vibration", "channel", 0.8),
)
DROP, AGREEMENT_DROP = 0.02, 0.05


def trained(work: Path) -> list[str]:
    """Networks of ``examples/``, written to a folder, as they are given on the command line."""
    import digits
    import vibration

    given = []
    for name, pattern, cycles in OURS:
        model, data = work / f"{name}.onnx", work / f"{name}.npz"
        if not model.is_file():
            if name == "vibration":
                vibration.write_network(vibration.write_data(data), model)
            else:
                digits.write_network(digits.NETWORKS[name](), digits.write_data(data, images=name != "mlp"), model)
        given.append(f"{name}={model},{data},{pattern},{cycles}")
    return given


def pruned(given: str, work: Path) -> dict[str, object]:
    """One row: the network pruned, and what the gate says."""
    name, rest = given.split("=", 1)
    model, data, pattern, cycles = rest.split(",")
    labelled = labelled_data(data)
    print(f"{name}: {pattern}, {cycles} of the cycles", flush=True)
    result = framefit.sparsify(
        *(model, data, "vpu"),
        pattern=pattern,
        cycles=float(cycles),
        accuracy_drop=DROP if labelled else AGREEMENT_DROP,
        compare=False,
        output=work / f"{name}-{pattern}",
        force=True,
    ).result
    assert result.chosen is not None
    assert result.acceptance is not None
    row = result.configurations[result.chosen]
    accepted = result.acceptance
    return {
        "network": name,
        "pattern": result.pattern,
        "measure": accepted.measure,
        "examples": accepted.examples,
        "cycles_ratio": row.cycles_ratio,
        "pruned_ratio": row.sparsity_ratio,
        "before": accepted.before,
        "after": accepted.after,
        "after_without_fine_tuning": row.top1_before_finetune,
        "drop_interval": accepted.interval,
        "random_zeros": [one.top1 for one in result.configurations if one.solver == "random zeros"],
        "decision": result.decision,
        "seconds": result.ledger.seconds,
        "reasons": result.reasons,
    }


def labelled_data(data: str) -> bool:
    """Whether an ``.npz`` has labels."""
    from framefit.core.arrays import ArrayFile

    return any(name.startswith("y") for name in ArrayFile(Path(data)).names)


def main() -> None:
    """Prune all networks, and store the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    names = " ".join(given.split("=", 1)[0] + "=..." for given in options.networks)
    for given in itertools.chain(trained(options.work), options.networks):
        rows.append(pruned(given, options.work))
        print(rows[-1], flush=True)
        store("sparsity_networks", {"rows": rows}, f"sparsity_networks.py --work DIR {names}".strip())


if __name__ == "__main__":
    main()
