"""``framefit.estimate``: from files to a latency; tables are held against the device first."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import framefit
from framefit.core.files import read_record, write_record
from framefit.core.model import Model
from framefit.core.run_record import LatencyEstimate
from framefit.core.target import Target, Unit, resolve_target
from framefit.errors import InputError
from framefit.latency.estimate import analytical_model
from networks import NETWORKS, write_dynamic
from simulated_tables import table_on


@pytest.fixture
def model() -> Model:
    """A small network."""
    return NETWORKS["residual"]()


def test_names_files_and_objects(tmp_path: Path, model: Model) -> None:
    """A model and a table as files or as objects: one estimate, that of the target's layers."""
    model.save(tmp_path / "residual.onnx")
    table = table_on("vpu", [model])
    write_record(tmp_path / "board.table.json", table)
    found = framefit.estimate(tmp_path / "residual.onnx", tmp_path / "board.table.json")
    assert found == framefit.estimate(model, table)
    assert found.plain_sum_ns == framefit.cycles(model, "vpu").total_ns
    assert (found.model, found.target, found.unit, found.coverage_ratio) == ("residual", "vpu", "vpu0", 1.0)


def test_the_estimate_is_written_once(tmp_path: Path, model: Model) -> None:
    """As JSON that reads back the same; an existing file is left alone unless forced."""
    path, table = tmp_path / "estimate.json", table_on("vpu", [model])
    found = framefit.estimate(model, table, output=path)
    assert read_record(path, LatencyEstimate) == found
    with pytest.raises(InputError, match="already exists"):
        framefit.estimate(model, table, output=path)
    framefit.estimate(model, table, output=path, force=True)


def test_a_table_of_another_device(model: Model) -> None:
    """It is refused with the facts named, unless it is asked for."""
    table = table_on("vpu", [model])
    with pytest.raises(InputError, match="target: 'vpu' in the table, 'edge-8' here") as error:
        framefit.estimate(model, table, target="edge-8")
    assert error.value.exit_code == 2
    assert "--any-fingerprint" in str(error.value.remedy)
    assert framefit.estimate(model, table, target="edge-8", any_fingerprint=True) == framefit.estimate(model, table)


def test_a_described_target_that_changed(model: Model) -> None:
    """The same name with another clock is another device."""
    target = resolve_target("vpu")
    assert target.processor is not None
    slower = msgspec.structs.replace(target, processor=msgspec.structs.replace(target.processor, clock_mhz=1000.0))
    with pytest.raises(InputError, match="measured on another device"):
        framefit.estimate(model, table_on("vpu", [model]), target=slower)


def test_a_target_of_the_users_own(model: Model) -> None:
    """A table names it, but cannot find it: its file is asked for."""
    mine = msgspec.structs.replace(resolve_target("vpu"), name="mine", units=(Unit(name="one"),))
    table = table_on(mine, [model])
    with pytest.raises(InputError, match="'mine', which is not a built-in target"):
        framefit.estimate(model, table)
    assert framefit.estimate(model, table, target=mine).unit == "one"
    assert framefit.estimate(model, table, any_fingerprint=True).coverage_ratio == 1.0


def test_a_fallback_tells_what_is_missing(model: Model) -> None:
    """Without one the layer is refused by name; with one coverage is below 1."""
    table = table_on("vpu", [model])
    less = msgspec.structs.replace(table, entries=table.entries[1:])
    with pytest.raises(InputError, match="has no entry of Conv"):
        framefit.estimate(model, less)
    found = framefit.estimate(model, less, fallback=True)
    assert found.coverage_ratio < 1
    assert {layer.source for layer in found.layers} & {"interpolated", "modelled"}
    assert found.plain_sum_ns == pytest.approx(framefit.cycles(model, "vpu").total_ns, rel=0.2)


def test_this_machine(model: Model) -> None:
    """On the CPU layers are what the runtime fuses, and the fingerprint is this machine's."""
    from framefit.devices.ort import OrtDevice

    device = OrtDevice()
    table = table_on("vpu", [model], device=device)
    found = framefit.estimate(model, msgspec.structs.replace(table, target="cpu"))
    assert [layer.op for layer in found.layers] == [layer.op for layer in model.grouped(device.fusions(model)).layers]
    old = msgspec.structs.replace(table, target="cpu", fingerprint=table.fingerprint | {"cpu": "another"})
    with pytest.raises(InputError, match="cpu: 'another' in the table"):
        framefit.estimate(model, old)


def test_dynamic_shapes(tmp_path: Path) -> None:
    """They are given by name; what had to be assumed is noted."""
    path = write_dynamic(tmp_path / "dynamic.onnx")
    larger = Model.load(path, shapes={"image": (4, 2, 6, 6)})
    table = table_on("vpu", [larger, Model.load(path)])
    assert framefit.estimate(path, table).notes[0] == "input 'image': leading dimension batch assumed to be 1"
    more = framefit.estimate(path, table, shapes={"image": (4, 2, 6, 6)})
    assert more.plain_sum_ns == framefit.cycles(larger, "vpu").total_ns


@pytest.mark.parametrize("target", [None, "cpu", "vpu"])
def test_every_target_has_an_analytical_model(target: str | None) -> None:
    """Where no processor is described, a plain one stands in; larger layers cost more."""
    from framefit.devices.npu.work import model_work

    described: Target | None = None if target is None else resolve_target(target)
    price = analytical_model(described, "vpu0")
    small, large = (np.asarray(price(model_work(framefit_model(side)))) for side in (16, 64))
    assert (large > small).all()


def framefit_model(side: int) -> Model:
    """One convolution."""
    b = framefit.GraphBuilder("one")
    b.output(b.conv(b.input("x", (1, 16, side, side)), 16))
    return b.build()
