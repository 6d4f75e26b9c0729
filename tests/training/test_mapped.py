"""Data that stay on disk: the same as in memory, read where they are used."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from framefit import GraphBuilder, InputError, Model
from framefit.training import mapped
from framefit.training.data import Dataset, load_data
from framefit.training.evaluate import evaluate
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.mapped import MappedRows
from framefit.training.network import state, to_torch


def write_pixels(path: Path, dtype: str) -> Path:
    """Images of three classes, 3 x 8 x 8, some of them set aside for choices."""
    random = np.random.default_rng(5)
    arrays = {}
    for part, count in (("train", 200), ("val", 40), ("test", 60)):
        labels = random.integers(0, 3, count)
        pixels = random.integers(0, 90, (count, 3, 8, 8)) + 60 * labels[:, None, None, None]
        arrays |= {f"x_{part}": pixels.astype(dtype), f"y_{part}": labels}
    np.savez(path, **arrays)
    return path


def classifier() -> Model:
    """Of such images."""
    b = GraphBuilder("net", 2)
    x = b.conv(b.input("image", (1, 3, 8, 8)), 8, norm=True, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 3), "classes")
    return b.build()


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is small."""
    monkeypatch.setattr(mapped, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(mapped, "_PIECE_BYTES", 3000)


def parts_of(data: Dataset) -> list:
    """Training, validation, calibration and test examples."""
    return [data.train, data.validation, data.calibration, data.test]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_examples_are_those_of_memory(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts, scaling, samples and joined parts, bit by bit; of a file with validation data of its own."""
    path = write_pixels(tmp_path / "data.npz", dtype)
    expected = load_data(path, seed=1)
    monkeypatch.setattr(mapped, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(mapped, "_PIECE_BYTES", 3000)
    data = load_data(path, seed=1)
    assert data.scaling == expected.scaling
    for part, other in zip(parts_of(data), parts_of(expected), strict=True):
        assert isinstance(part.stored, MappedRows)
        assert len(part.stored) == len(part) == len(other)
        assert part.stored.shape == other.stored.shape
        np.testing.assert_array_equal(part.inputs(), other.inputs())
        np.testing.assert_array_equal(part.labels, other.labels)
        assert dtype == "float64" or part.digest == other.digest
    joined = data.train.joined(data.test).sample(50, 3)
    np.testing.assert_array_equal(joined.inputs(), expected.train.joined(expected.test).sample(50, 3).inputs())
    with_memory = expected.train.joined(data.test)
    np.testing.assert_array_equal(with_memory.inputs(), expected.train.joined(expected.test).inputs())


def test_training_is_that_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, and the same accuracy."""
    path, model = write_pixels(tmp_path / "data.npz", "uint8"), classifier()
    results = []
    for most in (1 << 30, 0):
        monkeypatch.setattr(mapped, "IN_MEMORY_BYTES", most)
        data, network = load_data(path), to_torch(model)
        fine_tune(network, data.train, Recipe(epochs=2, batch=16))
        results.append((state(network), evaluate(network, data.test).loss))
    for name, array in results[0][0].items():
        np.testing.assert_array_equal(array, results[1][0][name])
    assert results[0][1] == results[1][1]


@pytest.mark.usefixtures("on_disk")
def test_memory_is_that_of_a_few_pieces(tmp_path: Path) -> None:
    """Of 6 MB of images; for checks, scaling, digest and evaluation."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 255, (32_000, 3, 8, 8), dtype=np.uint8), np.arange(32_000) % 3
    np.savez(tmp_path / "data.npz", x_train=images, y_train=labels, x_test=images[:100], y_test=labels[:100])
    del images
    network = to_torch(classifier())
    tracemalloc.start()
    data = load_data(tmp_path / "data.npz")
    data.train.digest  # noqa: B018 - what it takes
    evaluate(network, data.train.take(slice(0, 20_000)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_500_000  # of which rows' numbers are 2 MB


@pytest.mark.usefixtures("on_disk")
def test_another_process_gets_the_files_names(tmp_path: Path) -> None:
    """Not their contents."""
    train = load_data(write_pixels(tmp_path / "data.npz", "uint8")).train
    sent = pickle.dumps(train.stored)
    assert len(sent) < train.stored.shape[0] * 16 + 2000  # the rows' numbers
    np.testing.assert_array_equal(pickle.loads(sent)[slice(None)], train.inputs() * 0 + train.stored[slice(None)])


@pytest.mark.usefixtures("on_disk")
def test_a_damaged_byte_is_refused(tmp_path: Path) -> None:
    """Before anything is used, as of files that are read at once."""
    path = write_pixels(tmp_path / "data.npz", "uint8")
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a readable \.npz"):
        load_data(path)


@pytest.mark.usefixtures("on_disk")
def test_compressed_data_need_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read where there is enough of it, else refused with the remedy."""
    with np.load(write_pixels(tmp_path / "data.npz", "uint8")) as stored:
        np.savez_compressed(tmp_path / "small.npz", **stored)
    assert isinstance(load_data(tmp_path / "small.npz").train.stored, np.ndarray)
    monkeypatch.setattr(mapped, "free_bytes", lambda: 1000)
    with pytest.raises(InputError, match=r"numpy\.savez"):
        load_data(tmp_path / "small.npz")


@pytest.mark.usefixtures("on_disk")
def test_images_of_a_folder(tmp_path: Path) -> None:
    """They are decoded into a file, and stay there."""
    for number, name in enumerate(("blue", "red")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(20):
            pixels = np.full((4, 6, 3), 100 * number + index, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{index:02}.png")
    train = load_data(tmp_path / "images").train
    assert isinstance(train.stored, MappedRows)
    pixels = train.stored[slice(None)]
    assert pixels.shape[1:] == (3, 4, 6)
    assert (pixels[:, 0, 0, 0] // 100 == train.labels).all()
