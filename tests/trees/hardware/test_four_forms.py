"""One tree, four forms: as it is trained, the processor's kernel, the ONNX file and circuits agree to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from trees_cases import random_ensemble, random_inputs, simulate_encoder

pytest.importorskip("amaranth", reason="needs the extra hw: pip install 'framefit[hw]'")
pytest.importorskip("torch", reason="needs the extra train: pip install 'framefit[train]'")

import onnxruntime
import torch

from framefit.core.trees import Ensemble, Patch, decode, encode, evaluate
from framefit.devices.trees.kernels import kernel_of
from framefit.training.tree_layer import TreeLayer
from framefit.trees.boosting import Boosting
from framefit.trees.exporting import as_model
from framefit.trees.fitting import Place, fit_ensemble
from framefit.trees.hardware.fixed import FixedFunction, output_bits_of, pack_rows
from framefit.trees.hardware.programmable import ProgrammableCore, load_program
from framefit.trees.hardware.simulation import simulate_core, simulate_fixed


def values_of(ensemble: Ensemble, results: list[int]) -> np.ndarray:
    """Outputs, rows x outputs, that the fixed function's bits stand for."""
    bits = output_bits_of(ensemble)
    found = np.array([[y >> place * bits & (1 << bits) - 1 for place in range(ensemble.outputs)] for y in results])
    if ensemble.levels:
        levels = (found & 1) + (found >> 1)
        return np.asarray(ensemble.levels.values, np.float32)[np.arange(ensemble.outputs), levels]
    signed = found - (found >> bits - 1 << bits)
    return signed.astype(np.float32) * np.asarray(ensemble.scaled.scale, np.float32)


def shaped(ensemble: Ensemble, rows: np.ndarray, count: int) -> np.ndarray:
    """Rows of positions as the output of so many examples."""
    examples = rows.reshape(count, -1, ensemble.outputs)
    if ensemble.patch is None or ensemble.patch.layout != "tokens":
        examples = examples.transpose(0, 2, 1)
    return examples.reshape(count, *ensemble.output_shape)


def agree(ensemble: Ensemble, x: np.ndarray) -> None:
    """All forms of an ensemble make the same of ``x``, from float32 to float32."""
    wanted = evaluate(ensemble, x)
    found = {}
    if ensemble.trees:
        with torch.no_grad():
            found["training"] = TreeLayer(ensemble, x)(torch.from_numpy(x)).numpy()
    found["kernel"] = np.empty_like(wanted)
    kernel_of(ensemble, len(x))(x, found["kernel"])
    found["kernel, one by one"] = np.empty_like(wanted)
    for place in range(len(x)):
        kernel_of(ensemble, 1)(x[place : place + 1], found["kernel, one by one"][place : place + 1])
    for flavour in ("core", "ml"):
        session = onnxruntime.InferenceSession(as_model(ensemble, len(x), flavour).to_bytes())
        (found[flavour],) = session.run(None, {ensemble.input: x})
    words = encode(ensemble, x)
    inputs = pack_rows(words)
    if ensemble.patch is None:
        assert simulate_encoder(ensemble.encoder, x) == inputs
    fixed = values_of(ensemble, simulate_fixed(FixedFunction(ensemble.flat), inputs))
    found["fixed function"] = shaped(ensemble, fixed, len(x))
    sums = simulate_core(ProgrammableCore(load_program(ensemble.flat)), words).sums
    found["programmable core"] = shaped(ensemble, decode(ensemble, sums.astype(np.int32)), len(x))
    assert {form for form, made in found.items() if made.tobytes() != wanted.tobytes()} == set()


PATCH = Patch(kernel=(2, 2), padding=(1, 0, 0, 1), border=True)
SIGNAL = Patch(kernel=(1, 3), stride=(1, 2), padding=(0, 1, 0, 0), border=True)


@pytest.mark.parametrize(
    ("kind", "free", "convolved"),
    [
        ("vote", False, True),
        ("vote", True, False),
        ("scalar", False, True),
        ("vector", False, False),
        ("vector", True, True),
    ],
)
def test_random_trees(kind: str, free: bool, convolved: bool) -> None:
    """Oblivious and free-form, on vectors and on patches with borders."""
    random = np.random.default_rng(17)
    ensemble = random_ensemble(
        random,
        kind=kind,
        free=free,
        levelled=convolved,
        patch=PATCH if convolved else None,
        input_shape=(2, 2, 3) if convolved else (8,),
        trees=3,
        depth=4,
    )
    agree(ensemble, random_inputs(random, ensemble, 2))


@pytest.mark.parametrize(("kind", "levelled"), [("vote", True), ("vote", False), ("vector", True)])
def test_signals(kind: str, levelled: bool) -> None:
    """On patches of channels x length."""
    random = np.random.default_rng(18)
    ensemble = random_ensemble(random, kind=kind, levelled=levelled, patch=SIGNAL, input_shape=(2, 6), trees=3, depth=4)
    agree(ensemble, random_inputs(random, ensemble, 2))


@pytest.mark.parametrize(
    ("patch", "shape"),
    [
        (Patch(kernel=(1, 1), layout="tokens"), (4, 5)),
        (Patch(kernel=(2, 1), padding=(1, 0, 0, 0), border=True, layout="volume", depth=(2, 1, 1, 0)), (2, 3, 3, 2)),
    ],
)
def test_tokens_and_volumes(patch: Patch, shape: tuple[int, ...]) -> None:
    """What is no image is seen as some; circuits compute a position of these."""
    random = np.random.default_rng(19)
    ensemble = random_ensemble(random, kind="vote", patch=patch, input_shape=shape, trees=3, depth=4)
    agree(ensemble, random_inputs(random, ensemble, 2))


def stepped(ensemble: Ensemble, x: np.ndarray) -> Ensemble:
    """After a step of training towards nothing: leaves, thresholds and values are others."""
    layer = TreeLayer(ensemble, x)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.3)
    layer(torch.from_numpy(x)).square().mean().backward()
    optimiser.step()
    assert layer.ensemble() != ensemble
    return layer.ensemble()


@pytest.mark.parametrize("method", ["gradient", "ada"])
@pytest.mark.parametrize("convolved", [False, True])
def test_trained_trees(method: str, convolved: bool) -> None:
    """Trees as they are fitted, by either method, and fine-tuned; on vectors and on patches with borders."""
    random = np.random.default_rng(3)
    if convolved:
        x = random.standard_normal((120, 2, 3, 3)).astype(np.float32)
        corner = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 1)))[:, :, :-1, 1:]
        patch, y = PATCH, np.maximum(x + corner, 0)
    else:
        x = random.standard_normal((120, 8)).astype(np.float32)
        patch, y = None, np.maximum(x[:, :3] - x[:, 3:6], 0)
    settings = Boosting(method=method, trees=3, depth=3, loss="squared" if method == "gradient" else "exponential")
    ensemble = fit_ensemble(x, y, Place("group", "x", "y", patch), settings).ensemble
    assert max(tree.depth for tree in ensemble.trees) == 3
    for one in (ensemble, stepped(ensemble, x)):
        agree(one, np.ascontiguousarray(x[:2]))
