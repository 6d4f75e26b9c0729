"""What fitting must reach on data whose answer is known, and what its parts promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_trees import fit_literal

from framefit import InputError
from framefit.core.trees import Ensemble, Patch, accumulate, encode, evaluate
from framefit.devices.trees.kernels import kernel_of
from framefit.trees.boosting import Boosting, Candidates, boost_vectors, depth_of, grow, leaf_numbers
from framefit.trees.fitting import Place, as_int8, fit_ensemble, refit
from framefit.trees.quantising import fit_encoder, fit_levels, quantised, restored

PLACE = Place("group", "x", "y")
LOSSES = ("squared", "log", "hinge", "exponential")


def _explained(ensemble: Ensemble, x: np.ndarray, y: np.ndarray) -> float:
    """Part of the outputs' variance, on examples that were not fitted."""
    left = ((evaluate(ensemble, x) - y) ** 2).sum()
    return float(1 - left / ((y - y.mean(axis=0)) ** 2).sum())


def _ceiling(y: np.ndarray) -> float:
    """Part of the outputs' variance that three levels can explain: the squared cosine of both tensors."""
    original = y - y.mean(axis=0)
    values = restored(quantised(y), original)
    return float((original * values).sum() / np.linalg.norm(original) / np.linalg.norm(values)) ** 2


def _data(seed: int = 0, count: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    """Sums of steps of a few inputs, near where the thresholds of least error of a normal variable are."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 12)).astype(np.float32)
    steps = (x[:, :6] > 0.61).astype(np.float32) + (x[:, :6] > -0.61)
    return x, (steps @ np.random.default_rng(1).normal(size=(6, 4))).astype(np.float32)


@pytest.mark.parametrize(
    ("method", "loss"),
    [*(("gradient", loss) for loss in ("squared", "log", "hinge")), *(("ada", loss) for loss in LOSSES)],
)
def test_sums_of_steps_are_learnt(method: str, loss: str) -> None:
    """Both forms explain most of what three levels can, with every loss."""
    x, y = _data()
    settings_ = Boosting(method=method, trees=24 if method == "gradient" else 9, loss=loss)
    fitted = fit_ensemble(x[:1000], y[:1000], PLACE, settings_)
    assert _explained(fitted.ensemble, x[1000:], y[1000:]) > 0.7 * _ceiling(y)
    assert fitted.training[-1] < fitted.training[0]


def test_without_output_levels() -> None:
    """Whole numbers times a scale explain nearly everything."""
    x, y = _data()
    fitted = fit_ensemble(x[:1000], y[:1000], PLACE, Boosting(trees=32), output_levels=0)
    assert _explained(fitted.ensemble, x[1000:], y[1000:]) > 0.85


def test_patches() -> None:
    """A comparison of neighbours in a picture is found, its border included."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 2, 6, 6)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = ((padded[:, 0:1, 1:-1, 2:] > 0.61).astype(np.float32) + (padded[:, 1:2, :-2, 1:-1] > 0.61)).astype(np.float32)
    place = Place("group", "x", "y", Patch(kernel=(3, 3), padding=(1, 1, 1, 1), border=True))
    fitted = fit_ensemble(x[:50], y[:50], place, Boosting(trees=16))
    assert _explained(fitted.ensemble, x[50:], y[50:]) > 0.8


@pytest.mark.parametrize("method", ["gradient", "ada", "xgboost"])
def test_literal_trees(method: str) -> None:
    """The libraries' trees become free trees that explain as much as their libraries' predictions would."""
    pytest.importorskip("xgboost" if method == "xgboost" else "sklearn", reason="not installed")
    x, y = _data(count=500)
    ensemble = fit_literal(x[:400], y[:400], PLACE, method, trees=30, depth=3)
    assert ensemble.free_trees
    assert _explained(ensemble, x[400:], y[400:]) > 0.6 * _ceiling(y)


def test_xgboost_trees_are_its_own() -> None:
    """Sums of leaves are XGBoost's prediction, but for its base score and the rounding of leaves."""
    xgboost = pytest.importorskip("xgboost", reason="not installed")
    x, y = _data(count=300)
    ensemble = fit_literal(x, y[:, :1], PLACE, "xgboost", trees=20, depth=4, levels=0)
    words = encode(ensemble, x)
    booster = xgboost.train({"max_depth": 4, "nthread": 1}, xgboost.DMatrix(words, y[:, 0]), 20)
    predicted = booster.predict(xgboost.DMatrix(words))
    sums = accumulate(ensemble, words)[:, 0]
    assert np.corrcoef(sums, predicted)[0, 1] > 0.999


def test_trained_trees_run_on_the_kernel() -> None:
    """What was fitted gives the same by the reference and by the kernel."""
    x, y = _data(count=300)
    for method in ("gradient", "ada"):
        ensemble = fit_ensemble(x, y, PLACE, Boosting(method=method, trees=5)).ensemble
        found = np.empty_like(y)
        kernel_of(ensemble, len(x))(x, found)
        np.testing.assert_array_equal(found, evaluate(ensemble, x))


def test_same_seed_same_trees() -> None:
    """A fit is repeated exactly."""
    x, y = _data(count=300)
    assert fit_ensemble(x, y, PLACE, Boosting(trees=4)) == fit_ensemble(x, y, PLACE, Boosting(trees=4))


def test_growing_stops_where_validation_ends_to_improve() -> None:
    """On noise hardly a tree is kept."""
    random = np.random.default_rng(0)
    bits = [random.integers(0, 2, (count, 20)).astype(np.uint8) for count in (200, 100)]
    noise = [random.normal(size=(count, 2)).astype(np.float32) for count in (200, 100)]
    boosted = boost_vectors((bits[0], bits[1]), (noise[0], noise[1]), Boosting(trees=60, patience=5), random)
    assert len(boosted.training) < 60
    assert len(boosted.tests) <= int(np.argmin(boosted.validation)) + 1


def test_the_best_test_is_found() -> None:
    """One level: the candidate that explains most, as an exhaustive search says."""
    random = np.random.default_rng(5)
    bits = random.integers(0, 2, (200, 30)).astype(np.uint8)
    step = (bits[:, [7]] * 2.0 + bits[:, [11]] + random.normal(size=(200, 3))).astype(np.float32)

    def left(candidate: int) -> float:
        sides = (step[bits[:, candidate] == side] for side in (0, 1))
        return sum(float(((side - side.mean(axis=0)) ** 2).sum()) for side in sides)

    assert grow(bits, step, np.ones(200, np.float32), 1, 1).tolist() == [min(range(30), key=left)]


def test_a_tree_needs_rows_on_both_sides() -> None:
    """A test that one row passes is not asked where two have to."""
    bits = np.zeros((50, 2), np.uint8)
    bits[0, 0], bits[:25, 1] = 1, 1
    step = bits[:, :1].astype(np.float32) * 100
    ones = np.ones(50, np.float32)
    assert grow(bits, step, ones, 1, 1).tolist() == [0]
    assert grow(bits, step, ones, 1, 2).tolist() == [1]


def test_candidates_are_distinct() -> None:
    """Constant bits and equal ones are left out, and other rows are read in the same way."""
    words = np.asarray([[0, 0, 2], [2, 1, 2], [2, 1, 2], [0, 2, 2]], np.uint8)
    found = Candidates.of(words)
    assert list(zip(found.feature.tolist(), found.bit.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1)]
    np.testing.assert_array_equal(found.like(words), found.bits)


@settings(max_examples=15)
@given(seed=st.integers(0, 999))
def test_refit_is_the_ridge_regression(seed: int) -> None:
    """Conjugate gradients reach what solving the normal equations gives."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2, (120, 9)).astype(np.uint8)
    tests = [np.asarray([0, 3, 5]), np.asarray([1, 2]), np.asarray([8, 6, 4])]
    leaf = np.stack([leaf_numbers(bits, one) for one in tests], axis=1)
    target = random.normal(size=(120, 3)).astype(np.float32)
    found = np.concatenate(refit(leaf, [8, 4, 8], target, 2.0, 1.0))
    ones = np.zeros((120, 20))
    for column, offset in enumerate((0, 8, 12)):
        ones[np.arange(120), leaf[:, column] + offset] = 1
    expected = np.linalg.solve(ones.T @ ones + 2 * np.eye(20), ones.T @ target)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_refit_tells_leaves_that_no_row_reached() -> None:
    """Where tests only add up, leaves without a row are near the sum of what their tests do alone."""
    random = np.random.default_rng(3)
    bits = random.integers(0, 2, (400, 4)).astype(np.uint8)
    leaf = leaf_numbers(bits, np.arange(4))[:, None]
    worth = np.asarray([1.0, -2.0, 0.5, 3.0])
    seen = ~np.isin(leaf[:, 0], [5, 11])
    target = (bits @ worth)[:, None].astype(np.float32)
    (found,) = refit(leaf[seen], [16], target[seen], 0.5)
    (alone,) = refit(leaf[seen], [16], target[seen], 0.5, 1.0)
    for number in (5, 11):
        wanted = sum(worth[test] for test in range(4) if number >> test & 1)
        assert found[number, 0] == pytest.approx(wanted, abs=0.3)
        assert abs(alone[number, 0] - wanted) > abs(found[number, 0] - wanted)


def test_int8_leaves_share_a_unit() -> None:
    """The largest leaf of an output is 127; an output of zeros stays one."""
    tables = as_int8([np.asarray([[0.5, 0], [1, 0]]), np.asarray([[-2.0, 0]])])
    assert [table.tolist() for table in tables] == [[[32, 0], [64, 0]], [[-127, 0]]]


@settings(max_examples=25)
@given(seed=st.integers(0, 999), levels=st.sampled_from([2, 3]))
def test_thresholds_are_the_best(seed: int, levels: int) -> None:
    """No other pair of thresholds leaves a smaller error, and rows keep their levels as whole sums."""
    random = np.random.default_rng(seed)
    sums = random.integers(-4, 5, (60, 1)).astype(np.int32)
    y = (sums + random.normal(size=(60, 1))).astype(np.float32)
    found = fit_levels(sums, y, levels)

    def error(low: int, high: int) -> float:
        parts = (y[sums < low], y[(sums >= low) & (sums < high)], y[sums >= high])
        return sum(float(((part - part.mean()) ** 2).sum()) for part in parts if len(part))

    pairs = [(low, high) for low in range(-4, 6) for high in range(low, 6) if levels == 3 or low == high]
    assert error(found.low[0], found.high[0]) == pytest.approx(min(error(*pair) for pair in pairs), rel=1e-4)
    assert levels == 3 or found.low == found.high


def test_literal_thresholds() -> None:
    """+-0.66 of the spread around the mean: a quarter of a normal variable lies beyond each."""
    x = np.random.default_rng(0).normal(3, 2, (20000, 1)).astype(np.float32)
    encoder = fit_encoder(x, 3, 0.66)
    assert (encoder.low[0], encoder.high[0]) == pytest.approx((3 - 1.32, 3 + 1.32), abs=0.05)
    assert np.mean(quantised(x, 3, 0.66) == 1) == pytest.approx(0.255, abs=0.01)
    assert set(np.unique(quantised(x, 2))) == {-1, 1}


def test_constant_columns() -> None:
    """A column that never changes has a level and no error."""
    x = np.ones((40, 2), np.float32)
    y = np.full((40, 1), 5, np.float32)
    ensemble = fit_ensemble(x, y, PLACE, Boosting(trees=2)).ensemble
    np.testing.assert_array_equal(evaluate(ensemble, x), y)


def test_depth() -> None:
    """min(6, base + layers), or literally the layers."""
    assert [depth_of(layers) for layers in (1, 2, 3)] == [5, 6, 6]
    assert [depth_of(layers, "layers") for layers in (1, 2, 9)] == [1, 2, 6]


def test_what_cannot_be_fitted() -> None:
    """Too few examples, and a loss that is another method's, are refused."""
    x, y = _data(count=20)
    with pytest.raises(InputError, match="7 inputs"):
        fit_ensemble(x[:7], y[:7], PLACE, Boosting())
    with pytest.raises(ValueError, match="exponential loss needs method 'ada'"):
        Boosting(loss="exponential")


def test_votes_may_be_counted() -> None:
    """Without levels their count is worth what it tells of the outputs: more than three values do."""
    x, y = _data(count=1200)
    boosting = Boosting(method="ada", trees=9, loss="exponential")
    errors = []
    for levels in (3, 0):
        ensemble = fit_ensemble(x[:1000], y[:1000], PLACE, boosting, output_levels=levels).ensemble
        assert (ensemble.kind, ensemble.scaled is None) == ("vote", levels == 3)
        errors.append(float(((evaluate(ensemble, x[1000:]) - y[1000:]) ** 2).mean()))
    assert errors[1] < errors[0]
