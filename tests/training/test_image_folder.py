"""Image folders: classes from folders, images decoded once, damage told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from framefit import InputError
from framefit.training.data import ImageFolder, load_data

COLOURS = {"blue": (10, 20, 230), "red": (240, 30, 20)}


def fill(root: Path, count: int = 12, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> Path:
    """Folders of one colour each; ``size``: height, width."""
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            image = Image.new("RGB", size[::-1], colour).convert(mode)
            image.save(root / name / f"{index}.png")
    return root


def test_a_folder_is_a_class(tmp_path: Path) -> None:
    """Labels follow the folders' alphabetical order; pixels are N x C x H x W."""
    folder = ImageFolder(fill(tmp_path))
    pixels, labels = folder.train()
    assert folder.classes == ("blue", "red")
    assert pixels.shape == (24, 3, 6, 4)
    assert pixels.dtype == np.uint8
    for label, colour in enumerate(COLOURS.values()):
        assert (pixels[labels == label].transpose(0, 2, 3, 1) == colour).all()


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    """With ``train`` and ``test`` the test part is the test folder's images, read only when asked for."""
    fill(tmp_path / "train", 20)
    fill(tmp_path / "test", 3)
    data = load_data(tmp_path)
    assert len(data.train) + len(data.validation) + len(data.calibration) == 40
    (tmp_path / "test" / "red" / "0.png").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"0\.png"):
        _ = data.test


def test_images_are_decoded_once(tmp_path: Path) -> None:
    """The second time pixels come from the cache, until a file changes."""
    root = fill(tmp_path)
    first = ImageFolder(root).train()[0]
    target = root / "red" / "0.png"
    facts = target.stat()
    content = target.read_bytes()
    target.write_bytes(b"x" * len(content))
    import os

    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    np.testing.assert_array_equal(ImageFolder(root).train()[0], first)  # same size and time: not opened
    os.utime(target)
    with pytest.raises(InputError, match="cannot be read as an image"):
        ImageFolder(root).train()


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    """Other sizes than the first image's are refused with the remedy, and brought to a given size."""
    fill(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "red" / "odd.png")
    with pytest.raises(InputError, match=r"odd\.png.*9 x 9 pixels, others have 6 x 4") as error:
        load_data(tmp_path)
    assert "size" in str(error.value.remedy)
    assert load_data(tmp_path, size=(5, 7)).input_shape == (3, 5, 7)


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    """Grey images stay grey unless three channels are asked for."""
    fill(tmp_path, mode="L")
    assert load_data(tmp_path).input_shape == (1, 6, 4)
    assert load_data(tmp_path, channels=3).input_shape == (3, 6, 4)


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    """No folder, no classes, one class, an empty class and unknown test classes are told apart."""
    with pytest.raises(InputError, match="no such folder"):
        load_data(tmp_path / "absent")
    with pytest.raises(InputError, match="no folders of classes"):
        load_data(tmp_path)
    (tmp_path / "only").mkdir()
    with pytest.raises(InputError, match="only the class 'only'"):
        load_data(tmp_path)
    fill(tmp_path)
    with pytest.raises(InputError, match="no images"):
        load_data(tmp_path)
    (tmp_path / "only").rmdir()
    split = tmp_path / "split"
    fill(split / "train")
    fill(split / "test")
    (split / "test" / "green").mkdir()
    with pytest.raises(InputError, match="'green' has no training images"):
        _ = load_data(split).test


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    """A path to some other file is told what data look like."""
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(InputError, match=r"data\.csv: is neither a folder nor an \.npz"):
        load_data(tmp_path / "data.csv")
