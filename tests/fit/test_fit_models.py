"""Models as users have them: open sizes, images that a workload prepares, names that no file may have."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from PIL import Image

from fit_workloads import write_fit_app
from framefit import InputError, fit
from framefit.core.fit_results import FitSettings, FittedModel
from framefit.core.workload import Preprocess, load_workload
from framefit.fit.accuracy import Labelled, sized
from framefit.fit.folder import FitFolder
from framefit.fit.steps.sparsify import _keep_database
from workloads import write_app, write_models, write_target


def test_sizes_that_a_file_leaves_open_come_from_its_stream(tmp_path: Path) -> None:
    """Steps are proposed for a model whose height and width only the stream tells, as ``plan`` takes it."""
    write_models(tmp_path)
    write_target(tmp_path)
    proto = onnx.load(tmp_path / "chain.onnx")
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"size{axis}"
    del proto.graph.value_info[:]
    onnx.save(proto, tmp_path / "chain.onnx")
    app = write_app(tmp_path, target="target.toml", rate_hz=80, guard_ms=None, stream="shape = [1, 3, 16, 16]")
    result = fit(app).result
    assert {"sparsify", "trees", "rate"} == {one.name for one in result.proposals if one.model in ("chain", None)}
    known = {entry.name: entry.shapes for entry in sized(load_workload(app), app).models}
    assert known == {"small": {}, "chain": {"image": (1, 3, 16, 16)}}


def test_images_are_prepared_as_the_workload_prepares_them(place: Path) -> None:
    """A folder's pictures become what ``preprocess`` makes of a frame; without it they have their own mean."""
    random = np.random.default_rng(0)
    for label in "abc":
        (place / "images" / label).mkdir(parents=True)
        for number in range(8):
            pixels = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "images" / label / f"{number}.png")
    model = _reader_of_images(place)
    workload = load_workload(write_fit_app(place))
    settings = FitSettings(app="app.toml", data={"net": str(place / "images")})

    def inputs(preprocess: Preprocess | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        entries = [msgspec.structs.replace(one, path=str(model), preprocess=preprocess) for one in workload.models[-1:]]
        labelled = Labelled(settings, msgspec.structs.replace(workload, models=tuple(entries)))
        return labelled.data("net").train.inputs()

    prepared = inputs(Preprocess(mean=(127.0, 100.0, 50.0), scale=0.5))
    pixels = prepared / 0.5 + np.asarray([127, 100, 50], np.float32)[:, None, None]
    assert np.allclose(pixels, np.round(pixels), atol=1e-2)
    assert 0 <= pixels.min() < 10 < 240 < pixels.max() <= 255
    assert abs(float(inputs(None).mean())) < 0.05
    with pytest.raises(InputError, match="images are RGB"):
        inputs(Preprocess(channels="BGR"))


def _reader_of_images(place: Path) -> Path:
    from framefit.core.model import GraphBuilder

    b = GraphBuilder("images")
    x = b.conv(b.input("image", (1, 3, 8, 8)), 4, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 3), "classes")
    b.build().save(place / "images.onnx")
    return place / "images.onnx"


@pytest.mark.parametrize("name", ["net", "cam/net", "..", "ein Netz"])
def test_any_name_of_a_model_has_a_file(tmp_path: Path, name: str) -> None:
    """New versions lie in the folder's ``models``, whatever the model is called."""
    (tmp_path / "made.onnx").write_bytes(b"made")
    folder = FitFolder(tmp_path / "out")
    folder.clear()
    made = str(tmp_path / "made.onnx")
    kept = folder.adopt(FittedModel(name=name, original=made, float_path=made, path=made))
    assert Path(kept.path).read_bytes() == b"made"
    assert Path(kept.path).parent == tmp_path / "out" / "models"


def test_searches_of_models_with_like_names_are_kept_apart(tmp_path: Path) -> None:
    """A model's layer database serves its next search, and no other model's."""
    earlier = tmp_path / "steps" / "01-sparsify-net-2-0-32" / "search"
    earlier.mkdir(parents=True)
    for file in ("sparsify.json", "database.npz"):
        (earlier / file).write_text(file)
    for name, kept in (("net", []), ("net-2", ["database.npz", "sparsify.json"])):
        search = tmp_path / "steps" / f"02-{name}" / "search"
        _keep_database(search, tmp_path / "steps", name)
        assert sorted(path.name for path in search.glob("*")) == kept


def test_searches_never_see_the_data_of_the_final_test(place: Path) -> None:
    """Steps decide on data that the network was not trained on; the final test has others."""
    settings = FitSettings(app="app.toml", data={"net": str(place / "data.npz")})
    labelled = Labelled(settings, load_workload(write_fit_app(place)))
    searched, unseen = labelled.search_data("net"), labelled.unseen("net")
    final = {row.tobytes() for row in unseen.final.inputs()}
    parts = (searched.train, searched.validation, searched.calibration, searched.test)
    assert not any(row.tobytes() in final for part in parts for row in part.inputs())
    assert labelled.reference("net") == labelled.accuracy("net", labelled.original("net")).top1
