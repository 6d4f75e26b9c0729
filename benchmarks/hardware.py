"""Trees in hardware: what they take beside int8 multiply-accumulates and ternary weights, and cycles a node.

    python benchmarks/hardware.py

Claims: 9 oblivious trees of depth 6 on ternary inputs take at most 20 look-up tables of six inputs an
output; the programmable core takes at most 1.1 cycles a node; both give what the model gives in every row.

``digits``: trees fitted to the last two hidden layers (128-128-64) of a network for load_digits. ``random``:
nobody fitted them, so no table is simpler than it has to be. Of each a votes form; of digits also vector
leaves. Tables are counted without carry chains. The weights beside them are drawn, constant, and every
product has a multiplier of its own.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from stored import store

from framefit.core.trees import Encoder, Ensemble, Forest, Levels, ObliviousTree
from framefit.report.terminal import view
from framefit.trees.boosting import Boosting
from framefit.trees.fitting import Place, fit_ensemble
from framefit.trees.rtl import rtl

HIDDEN = (128, 128, 64)
LAYERS = tuple(itertools.pairwise(HIDDEN))  # that the trees replace
VOTES, DEPTH = 9, 6
LIMIT_S = 1500.0


def random_votes() -> Ensemble:
    """Nine trees for each of 64 ternary outputs on 128 ternary features."""
    random = np.random.default_rng(0)
    features, outputs = HIDDEN[0], HIDDEN[-1]
    trees = tuple(
        ObliviousTree(
            inputs=tuple(random.permutation(features)[:DEPTH].tolist()),
            bits=tuple(random.integers(0, 2, DEPTH).tolist()),
            leaves=tuple(random.integers(0, 2, 1 << DEPTH).tolist()),
        )
        for _ in range(outputs * VOTES)
    )
    third = float(np.float32(0.66))
    return Ensemble(
        name="random-votes",
        input="x",
        output="y",
        input_shape=(features,),
        output_shape=(outputs,),
        kind="vote",
        encoder=Encoder(low=(-third,) * features, high=(third,) * features),
        trees=trees,
        levels=Levels(low=(4,) * outputs, high=(6,) * outputs, values=((-1.0, 0.0, 1.0),) * outputs),
    )


def digits() -> list[Ensemble]:
    """Votes and vector leaves, fitted on what the two hidden layers of a trained network read and give."""
    data = load_digits()
    x, y = (data.data / 16).astype(np.float32), data.target
    network = MLPClassifier(HIDDEN, max_iter=60, random_state=0).fit(x, y)
    reads, gives = x, x
    for number, (weight, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        if number == 1:
            reads = gives
        if number == len(HIDDEN):
            break
        gives = np.maximum(gives @ weight + bias, 0).astype(np.float32)
    ensembles = []
    for name, settings in (
        ("digits-votes", Boosting(method="ada", trees=VOTES, depth=DEPTH, loss="exponential")),
        ("digits-vectors", Boosting(method="gradient", trees=32, depth=DEPTH)),
    ):
        ensembles.append(fit_ensemble(reads, gives, Place(name, "x", "y"), settings).ensemble)
    return ensembles


# Forms of each: core, registers, whether it is counted.
FORMS = {
    "random-votes": (("fixed", False, True), ("programmable", False, True)),
    "digits-votes": (("fixed", False, True), ("fixed", True, False), ("programmable", True, False)),
    "digits-vectors": (("fixed", False, True), ("programmable", False, False)),
}


def main() -> None:
    """Build, simulate and count all; print a table, write the result."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for ensemble in (random_votes(), *digits()):
            forest = Forest(model=ensemble.name, ensembles=(ensemble,))
            for core, pipelined, count in FORMS[ensemble.name]:
                done = rtl(
                    forest,
                    core=core,
                    pipelined=pipelined,
                    layers=LAYERS,
                    count=count,
                    max_seconds=LIMIT_S,
                    output=Path(name) / f"{ensemble.name}-{core}-{pipelined}",
                )
                rows += [{"pipelined": pipelined, "core": core, **msgspec.to_builtins(g)} for g in done.report.groups]
                Console().print(view(done.report))
    store("hardware", {"layers": LAYERS, "yosys": done.report.yosys, "groups": rows}, "hardware.py")


if __name__ == "__main__":
    main()
