"""Data: read from three sources, refused with one clear error, split into disjoint parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framefit import GraphBuilder, InputError
from framefit.training.acceptance import unseen_data
from framefit.training.data import Dataset, Scaling, check_fits, load_data, open_classifier, open_together
from framefit.training.evaluate import evaluate


def numbered(count: int, classes: int = 3) -> list[tuple[np.ndarray[Any, Any], int]]:
    """Examples that each hold their own number."""
    return [(np.full(4, index, np.float32), index % classes) for index in range(count)]


def members(data: Dataset) -> list[set[int]]:
    """Numbers of the examples in each part."""
    parts = (data.train, data.validation, data.calibration, data.test)
    return [set(part.stored[:, 0].astype(int).tolist()) for part in parts]


@given(count=st.integers(20, 400), seed=st.integers(0, 9))
def test_parts_are_disjoint_and_complete(count: int, seed: int) -> None:
    """Each example is in exactly one part, with its own label; the seed alone decides in which."""
    data = load_data(numbered(count), seed=seed)
    parts = members(data)
    assert sum(map(len, parts)) == count
    assert set.union(*parts) == set(range(count))
    assert members(load_data(numbered(count), seed=seed)) == parts
    for part in (data.train, data.validation, data.calibration, data.test):
        np.testing.assert_array_equal(part.labels, part.stored[:, 0].astype(int) % 3)


def test_another_seed_gives_another_split() -> None:
    """Two seeds do not choose the same validation examples."""
    assert members(load_data(numbered(200), seed=0))[1] != members(load_data(numbered(200), seed=1))[1]


def test_examples_and_batches_are_the_same_data() -> None:
    """An iterable of batches gives what the same examples one by one give."""
    rows = numbered(60)
    batches = [
        (np.stack([x for x, _ in rows[first : first + 7]]), np.asarray([y for _, y in rows[first : first + 7]]))
        for first in range(0, 60, 7)
    ]
    one, other = load_data(rows), load_data(iter(batches))
    np.testing.assert_array_equal(one.train.stored, other.train.stored)
    np.testing.assert_array_equal(one.train.labels, other.train.labels)


def test_an_npz_keeps_its_test_data_apart(tmp_path: Path) -> None:
    """Validation and calibration come from ``x_train``; the test part is ``x_test``, whole."""
    x = np.arange(100, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)
    y = np.arange(100) % 4
    np.savez(tmp_path / "d.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])
    data = load_data(tmp_path / "d.npz")
    assert members(data)[3] == set(range(80, 100))
    assert data.classes == ("0", "1", "2", "3")
    assert data.scaling is None
    assert data.input_shape == (4,)
    assert data.train.inputs().dtype == np.float32


def threshold(x: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """A network's scores of two classes: whether the mean is positive."""
    mean = x.reshape(len(x), -1).mean(axis=1)
    return np.stack([-mean, mean], axis=1)


@pytest.mark.parametrize("keys", [("x",), ("x_train", "x_test"), ("x_train", "x_val", "x_test")])
def test_without_labels_classes_are_what_the_network_says(tmp_path: Path, keys: tuple[str, ...]) -> None:
    """In every part; scores are then agreement with the network, and the split is as with labels."""
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", **{key: random.standard_normal((100, 1, 4, 4)).astype(np.float32) for key in keys})
    data = load_data(tmp_path / "data.npz", scorer=lambda: lambda x: (threshold(x),))
    for part in (data.train, data.validation, data.calibration, data.test):
        assert part.task.measure == "classes"
        assert part.labels.tolist() == threshold(part.inputs()).argmax(axis=1).tolist()
    assert (data.test_given, data.validation_given) == ("x_test" in keys, "x_val" in keys)
    assert len(data.test) == (100 if "x_test" in keys else 10)
    unseen = unseen_data(None, data, seed=0)
    assert (unseen.choice_from, unseen.final_from) == ("frames", "frames")


def test_without_labels_and_classes_all_outputs_count(tmp_path: Path) -> None:
    """What the network gives is right in every part; without a network the message says that labels are missing."""
    x = np.random.default_rng(0).standard_normal((100, 1, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    with pytest.raises(InputError, match="no labels"):
        load_data(tmp_path / "data.npz")

    def boxes(x: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
        return x.reshape(len(x), 8, 2), x.mean(axis=(1, 2, 3))

    data = load_data(tmp_path / "data.npz", scorer=lambda: boxes)
    for part in (data.train, data.validation, data.calibration, data.test):
        assert part.task.measure == "outputs"
        np.testing.assert_array_equal(part.labels, part.task.read(boxes(part.inputs()), len(part), part.labels))
    assert evaluate(boxes, data.test).top1 == 1
    off = evaluate(lambda x: tuple(each + 10 for each in boxes(x)), data.test)
    assert off.top1 < 0.05
    assert off.loss > 20


def test_without_labels_the_data_tell_the_shape_of_a_module_and_of_an_open_file(tmp_path: Path) -> None:
    """What has no shape of its own takes that of the examples, and says what is right."""
    x = np.random.default_rng(0).standard_normal((60, 2, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(108, 1))
    opened, data = open_together(module, tmp_path / "data.npz")
    assert (opened.inputs[0].shape, data.test.task.measure) == ((1, 2, 8, 8), "outputs")
    b = GraphBuilder("open")
    b.output(b.conv(b.input("x", (1, 2, 8, 8)), 3), "y")
    proto = onnx.load_from_string(b.build().to_bytes())
    for tensor in (proto.graph.input[0], proto.graph.output[0]):
        for place, size in zip((0, 2, 3), ("batch", "height", "width"), strict=True):
            tensor.type.tensor_type.shape.dim[place].dim_param = size
    onnx.save(proto, tmp_path / "open.onnx")
    opened, data = open_together(tmp_path / "open.onnx", tmp_path / "data.npz")
    assert (opened.inputs[0].shape, data.test.task.measure) == ((1, 2, 8, 8), "outputs")
    assert data.test.labels.shape == (6, 192)


def test_without_labels_examples_of_another_shape_are_refused(tmp_path: Path) -> None:
    """Before anything is computed with them, as with labels."""
    np.savez(tmp_path / "data.npz", x=np.zeros((60, 1, 6, 6), np.float32))
    b = GraphBuilder("boxes")
    b.output(b.conv(b.input("x", (1, 1, 4, 4)), 3), "boxes")
    with pytest.raises(InputError, match="the examples are 1 x 6 x 6, but the model takes x 1 x 4 x 4"):
        open_together(b.build(), tmp_path / "data.npz")


def test_trees_need_classes(tmp_path: Path) -> None:
    """What only classifiers can be made of refuses other networks, and names the output."""
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).standard_normal((40, 1, 4, 4)).astype(np.float32))
    b = GraphBuilder("boxes")
    b.output(b.conv(b.input("x", (1, 1, 4, 4)), 3), "boxes")
    with pytest.raises(InputError, match=r"output 'boxes' \(1 x 3 x 4 x 4\) is no row of classes"):
        open_classifier(b.build(), tmp_path / "data.npz")


def test_images_are_normalised_by_the_training_part() -> None:
    """Pixels without a given normalisation have mean 0 and deviation 1 in each channel of the training part."""
    random = np.random.default_rng(0)
    images = [(random.integers(0, 200, (3, 6, 6), dtype=np.uint8), index % 2) for index in range(80)]
    data = load_data(images)
    x = data.train.inputs()
    np.testing.assert_allclose(x.mean(axis=(0, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(x.std(axis=(0, 2, 3)), 1, atol=1e-4)
    assert data.test.scaling == data.train.scaling


def test_a_given_normalisation_is_applied() -> None:
    """A pixel becomes (value / 255 - mean) / deviation."""
    scaled = Scaling((0.5, 0.25), (0.5, 0.25)).applied(np.full((1, 2, 1, 1), 255, np.uint8))
    np.testing.assert_allclose(scaled.ravel(), [1, 3], rtol=1e-6)
    assert scaled.dtype == np.float32


def test_batches_are_all_examples_in_order() -> None:
    """Batches, the last one shorter, hold the examples in their order."""
    part = load_data(numbered(100)).train
    batches = list(part.batches(32))
    assert {len(labels) for _, labels in batches[:-1]} == {32}
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), part.inputs())


def test_a_sample_is_drawn_without_replacement() -> None:
    """A sample has as many different examples as asked for, the same for the same seed."""
    part = load_data(numbered(100)).train
    sample = part.sample(20, 3)
    assert len(set(sample.stored[:, 0].tolist())) == len(sample) == 20
    np.testing.assert_array_equal(sample.stored, part.sample(20, 3).stored)
    assert len(part.sample(10_000, 0)) == len(part)


GOOD: dict[str, Any] = {
    "x_train": np.zeros((40, 4), np.float32),
    "y_train": np.arange(40) % 2,
    "x_test": np.zeros((10, 4), np.float32),
    "y_test": np.arange(10) % 2,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": None}, "no array x_train"),
        ({"x_train": np.zeros((40, 4, 4), np.float32)}, "40 x 4 x 4"),
        ({"x_train": np.zeros((40, 4), np.int64)}, "inputs are int64"),
        ({"x_train": np.zeros((40, 4), np.uint8)}, "not images"),
        ({"x_train": np.full((40, 4), np.nan, np.float32)}, "160 inputs are infinite or NaN"),
        ({"y_train": np.arange(39) % 2}, "40 inputs, but labels of shape 39"),
        ({"y_train": np.zeros(40, np.float32)}, "labels are float32"),
        ({"y_train": -np.ones(40, np.int64)}, "a label is -1"),
        ({"x_test": np.zeros((10, 5), np.float32)}, "x_test is 10 x 5"),
        ({"x_train": np.zeros((3, 4), np.float32), "y_train": np.arange(3)}, "only 3 training examples"),
        ({"x_train": np.zeros((0, 4), np.float32), "y_train": np.zeros(0, np.int64)}, "0 x 4"),
    ],
)
def test_bad_arrays_are_one_clear_error(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """What no network can be trained on is refused with the file, what is wrong, and a remedy."""
    arrays = {key: array for key, array in (GOOD | change).items() if array is not None}
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InputError, match=r"bad\.npz") as error:
        load_data(tmp_path / "bad.npz")
    assert message in str(error.value)
    assert error.value.remedy


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_truncated_npz_is_refused(tmp_path: Path, part: float) -> None:
    """A file that was cut off is an input error that names it."""
    np.savez(tmp_path / "whole.npz", **GOOD)
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: int(len(content) * part)])
    with pytest.raises(InputError, match=r"cut\.npz"):
        load_data(tmp_path / "cut.npz")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "no examples"),
        ([3], "item 0 is not a pair"),
        ([(np.zeros(4, np.float32), 0), (np.zeros(5, np.float32), 1)], "one shape"),
    ],
)
def test_a_bad_iterable_is_one_clear_error(items: list[Any], message: str) -> None:
    """An iterable that yields no examples of one shape is refused."""
    with pytest.raises(InputError, match=message):
        load_data(items)


def test_normalised_data_take_no_normalisation() -> None:
    """A mean for float data is refused: they are normalised already; a mean without std, too."""
    with pytest.raises(InputError, match="already normalised"):
        load_data(numbered(40), mean=[0.5], std=[0.5])
    with pytest.raises(InputError, match="mean without std"):
        load_data(numbered(40), mean=[0.5])


def test_a_model_that_does_not_fit_the_data_is_refused() -> None:
    """Other shapes, or fewer outputs than classes, are told with both sizes."""
    data = load_data(numbered(60))
    b = GraphBuilder("wide")
    b.output(b.dense(b.input("x", (1, 5)), 3), "y")
    with pytest.raises(InputError, match="the examples are 4, but the model takes x 5"):
        check_fits(data, b.build())
    b = GraphBuilder("few")
    b.output(b.dense(b.input("x", (1, 4)), 2), "y")
    with pytest.raises(InputError, match="3 classes"):
        check_fits(data, b.build())
    b = GraphBuilder("right")
    b.output(b.dense(b.input("x", (1, 4)), 3), "y")
    check_fits(data, b.build())
