"""One tree, four forms: the model, the processor's kernel, the ONNX file and both circuits agree to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from trees_cases import random_ensemble, random_inputs

pytest.importorskip("amaranth", reason="needs the extra hw: pip install 'framefit[hw]'")

import onnxruntime

from framefit.core.trees import Ensemble, Patch, decode, encode, evaluate
from framefit.trees.exporting import as_model
from framefit.trees.hardware.fixed import FixedFunction, output_bits_of, pack_rows
from framefit.trees.hardware.program import load_program
from framefit.trees.hardware.programmable import ProgrammableCore
from framefit.trees.hardware.simulation import simulate_core, simulate_encoder, simulate_fixed
from framefit.trees.kernels import kernel_of


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
    return rows.reshape(count, -1, ensemble.outputs).transpose(0, 2, 1).reshape(count, *ensemble.output_shape)


@pytest.mark.parametrize(
    ("kind", "free", "convolved"),
    [("vote", False, True), ("vote", True, False), ("vector", False, False), ("vector", True, True)],
)
def test_all_forms_agree(tmp_path, kind: str, free: bool, convolved: bool) -> None:
    """Oblivious and free-form, on vectors and on patches with borders, from float32 to float32."""
    random = np.random.default_rng(17)
    ensemble = random_ensemble(
        random,
        kind=kind,
        free=free,
        levelled=convolved,
        patch=Patch(kernel=(2, 2), padding=(1, 0, 0, 1), border=True) if convolved else None,
        input_shape=(2, 2, 3) if convolved else (8,),
        trees=3,
        depth=4,
    )
    x = random_inputs(random, ensemble, 2)
    wanted = evaluate(ensemble, x)

    kernel = np.empty_like(wanted)
    kernel_of(ensemble, len(x))(x, kernel)
    as_model(ensemble, len(x)).save(tmp_path / "trees.onnx")
    (onnx,) = onnxruntime.InferenceSession(tmp_path / "trees.onnx").run(None, {ensemble.input: x})
    words = encode(ensemble, x)
    inputs = pack_rows(words)
    if not convolved:
        assert simulate_encoder(ensemble.encoder, x) == inputs
    fixed = shaped(ensemble, values_of(ensemble, simulate_fixed(FixedFunction(ensemble), inputs)), len(x))
    sums = simulate_core(ProgrammableCore(load_program(ensemble)), words).sums
    core = shaped(ensemble, decode(ensemble, sums.astype(np.int32)), len(x))
    for found in (kernel, onnx, fixed, core):
        assert found.tobytes() == wanted.tobytes()
