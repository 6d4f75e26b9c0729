"""Plans from latency tables: nothing is run, and what the table does not tell is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import framefit
from framefit import InputError, Timetable
from framefit.core.files import write_record
from framefit.core.latency_table import LatencyEntry, LatencyTable, MeasuredNetwork
from framefit.core.model import configuration
from framefit.devices.ort import OrtDevice
from framefit.latency.terms import layers_digest
from framefit.planning.check import check_timetable
from framefit.workflows.plan import plan, ready
from workloads import chain, no_noise, small, write_app, write_models, write_target

TABLE = "board.table.json"
ON_BOARD: dict[str, Any] = {"rate_hz": 80, "guard_ms": None, "schedule": "", "target": "target.toml", "table": TABLE}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, the board's description, and a table that was measured on it."""
    folder = write_models(tmp_path_factory.mktemp("tables"))
    path = write_target(folder)
    framefit.measure([small(), chain()], target=path, repeats=30, audit="none", output=folder / TABLE)
    return folder


@pytest.fixture
def here(tmp_path: Path) -> tuple[Path, LatencyTable]:
    """A folder with the models, and a table of this machine: 20 us a layer and 1 ns for 16 MACs, to 1 %."""
    device, entries = OrtDevice(), {}
    for model in (small(), chain()):
        executed = device.lowered(model)
        for layer, nodes in zip(executed.layers, executed.nodes, strict=True):
            ns, found = 20_000 + layer.macs // 16, configuration(nodes)
            entries[str((layer.op, found))] = LatencyEntry(
                op=layer.op,
                configuration=found,
                unit=device.target.units[0].name,
                latency_ns=ns,
                interval_ns=(ns - ns // 100, ns + ns // 100),
                samples_ns=tuple(ns + ns * step // 100 for step in range(20)),
            )
    facts = device.fingerprint()
    return write_models(tmp_path), LatencyTable(target="cpu", fingerprint=facts, entries=tuple(entries.values()))


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever compiles or measures fails; the host's wake-ups are those of a quiet machine."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the device was touched")

    no_noise(monkeypatch)
    monkeypatch.setattr("framefit.planning.durations.measure", refuse)
    monkeypatch.setattr(OrtDevice, "compile", refuse)
    monkeypatch.setattr(OrtDevice, "submit", refuse)


def whole_ns(table: LatencyTable) -> int:
    """What the chain takes by a table without overhead."""
    return framefit.estimate(chain(), table).total_ns


def rate_of(table: LatencyTable, windows: float) -> float:
    """Windows a second of which the chain takes so many."""
    return 1e9 * windows / whole_ns(table)


def planned(folder: Path, table: LatencyTable, **given: Any) -> Timetable:
    """The plan by a table in which the chain has to be cut."""
    write_record(folder / TABLE, table, force=True)
    keys = {"rate_hz": rate_of(table, 1.5), "guard_ms": 1.0, "table": TABLE}
    return plan(write_app(folder, **keys | given)).timetable


def test_nothing_is_run(here: tuple[Path, LatencyTable], untouched: None) -> None:
    """By this machine's own table no segment is compiled; medians sum up entries and copies; nothing is compared."""
    folder, table = here
    timetable = planned(folder, table)
    assert timetable.feasible
    assert check_timetable(timetable) == []
    one, cut = timetable.models
    assert one.segments[0].median_ns == framefit.estimate(small(), table).total_ns
    assert len(cut.segments) >= 2
    copies = sum(segment.median_ns for segment in cut.segments if not segment.replica) - whole_ns(table)
    assert copies >= -len(cut.segments), "a cut adds copies between layouts, where the table has their price"
    assert (one.max_relative_difference, cut.max_relative_difference) == (0.0, None)
    assert "nothing was measured" in timetable.reasons[0]
    assert TABLE in timetable.reasons[0]


def test_a_model_that_was_measured_whole_is_planned_with_that(here: tuple[Path, LatencyTable], untouched: None) -> None:
    """Segments share what it took in turn with others, not the sum of its layers."""
    folder, table = here
    device = OrtDevice()
    networks = []
    for model, ns in ((small(), 70_000), (chain(), 2 * whole_ns(table))):
        digest = layers_digest(device.lowered(model))
        interval_ns = (ns - 500, ns + 500)
        networks.append(
            MeasuredNetwork(
                name=model.name, digest=digest, unit=table.units[0], alone_ns=ns - 5000, alone_interval_ns=interval_ns,
                in_turn_ns=ns, in_turn_interval_ns=interval_ns,
            )
        )  # fmt: skip
    whole = msgspec.structs.replace(table, networks=tuple(networks))
    one, cut = planned(folder, whole).models
    assert one.segments[0].median_ns == 70_000
    once = sum(segment.median_ns for segment in cut.segments if not segment.replica)
    assert once == pytest.approx(2 * whole_ns(table), rel=0.05)


def test_quantiles_cover_how_launches_vary(here: tuple[Path, LatencyTable], untouched: None) -> None:
    """Segments are planned with the table's own spread, here 9 % at p99, and with the error of its entries."""
    folder, table = here
    spread = 1.19 / 1.095  # of the samples: 1 .. 1.19, over their median
    for segment in planned(folder, table).model("chain").segments:
        assert segment.duration_ns / segment.median_ns == pytest.approx(spread, abs=0.02)
        assert segment.duration_ns / segment.median_ns > spread - 0.002
    bare = tuple(msgspec.structs.replace(entry, samples_ns=()) for entry in table.entries)
    reasons = planned(folder, msgspec.structs.replace(table, entries=bare)).reasons
    assert [reason for reason in reasons if "too few samples" in reason]


def test_a_table_of_another_machine(here: tuple[Path, LatencyTable], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not used: the facts are named, and segments are measured."""
    folder, table = here
    quiet = no_noise(monkeypatch)
    other = msgspec.structs.replace(table, fingerprint=table.fingerprint | {"cpu": "another"})
    write_record(folder / TABLE, other, force=True)
    timetable = plan(write_app(folder, table=TABLE), cache=False).timetable
    assert quiet.calls > 0
    assert timetable.feasible
    (reason,) = [reason for reason in timetable.reasons if TABLE in reason]
    assert "cpu: 'another' in the table" in reason
    assert "measured instead" in reason


def test_a_store_gives_the_table_of_this_device(
    here: tuple[Path, LatencyTable], untouched: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of several the one with its fingerprint, as from a file; estimates take it, too."""
    folder, table = here
    store, pushed = str(tmp_path_factory.mktemp("shared")), tmp_path_factory.mktemp("pushed")
    for name, cpu in (("theirs", "another"), ("ours", table.fingerprint["cpu"])):
        part = msgspec.structs.replace(table, fingerprint=table.fingerprint | {"cpu": cpu})
        write_record(pushed / f"{name}.table.json", part)
        framefit.push(str(pushed / f"{name}.table.json"), store=store)
    told: list[str] = []
    keys: dict[str, Any] = {"rate_hz": rate_of(table, 1.5), "guard_ms": 1.0}
    stored = plan(write_app(folder, table=store, **keys), notify=told.append).timetable
    assert stored.models == planned(folder, table).models
    assert any("one latency table of this device, the latest ours.table.json of" in text for text in told)
    chain().save(folder / "chain.onnx", force=True)
    estimate = framefit.estimate(folder / "chain.onnx", store, target="cpu")
    assert estimate.total_ns == whole_ns(table)
    assert any("ours.table.json" in note for note in estimate.notes)


def test_a_store_without_a_table_of_this_device(
    here: tuple[Path, LatencyTable], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A plan measures instead, and says what differs from the nearest one; an estimate is refused."""
    folder, table = here
    no_noise(monkeypatch)
    store, pushed = str(tmp_path_factory.mktemp("shared")), tmp_path_factory.mktemp("pushed")
    other = msgspec.structs.replace(table, fingerprint=table.fingerprint | {"cpu": "another"})
    write_record(pushed / TABLE, other)
    framefit.push(str(pushed / TABLE), store=store)
    reasons = plan(write_app(folder, table=store), cache=False).timetable.reasons
    (reason,) = [reason for reason in reasons if store in reason]
    assert "none of its 1 latency tables is of this device; of the nearest one cpu differ" in reason
    assert "measured instead" in reason
    with pytest.raises(InputError, match="none of its 1 latency tables"):
        framefit.estimate(folder / "chain.onnx", store)
    with pytest.raises(InputError, match="there is no store"):
        framefit.estimate(folder / "chain.onnx", f"memory://{folder.name}")


def test_a_table_of_another_core(here: tuple[Path, LatencyTable], monkeypatch: pytest.MonkeyPatch) -> None:
    """One without entries of the planned unit does not apply either."""
    folder, table = here
    quiet = no_noise(monkeypatch)
    entries = tuple(msgspec.structs.replace(entry, unit="cpu77") for entry in table.entries)
    write_record(folder / TABLE, msgspec.structs.replace(table, entries=entries), force=True)
    timetable = plan(write_app(folder, table=TABLE), cache=False).timetable
    assert quiet.calls > 0
    assert [reason for reason in timetable.reasons if "only of cpu77" in reason]


def test_a_layer_that_is_missing(here: tuple[Path, LatencyTable], untouched: None) -> None:
    """It is named with its model and the remedies; with a fallback the plan says how many were told by what."""
    folder, table = here
    less = msgspec.structs.replace(table, entries=table.entries[1:])
    lacking = table.entries[0].op
    write_record(folder / TABLE, less)
    with pytest.raises(InputError) as error:
        plan(write_app(folder, table=TABLE))
    assert f"no entry of {lacking}" in error.value.what
    assert "model 'small', layer " in str(error.value.where)
    assert "table_fallback = true" in str(error.value.remedy)
    app = write_app(folder, table=f'{TABLE}"\ntable_fallback = true\n#"')
    reasons = plan(app).timetable.reasons
    assert [reason for reason in reasons if reason.startswith("small: 1 of ") and "have no entry" in reason]


def test_a_fallback_without_a_table(tmp_path: Path) -> None:
    """Both keys that cannot mean anything are refused: a fallback for no table, a table that is not there."""
    write_models(tmp_path)
    app = write_app(tmp_path)
    app.write_text("table_fallback = true\n" + app.read_text())
    with pytest.raises(InputError, match="table_fallback"):
        plan(app)
    with pytest.raises(InputError, match=r"\$\.table: no such file"):
        plan(write_app(tmp_path, table="absent.table.json"))


def test_from_measuring_to_simulating(measured: Path, tmp_path: Path) -> None:
    """A described board: the plan from its table is that of its own description, and keeps its deadlines."""
    result = plan(write_app(measured, **ON_BOARD))
    told = plan(write_app(measured, **ON_BOARD | {"table": None})).timetable
    for ours, theirs in zip(result.timetable.models, told.models, strict=True):
        total = sum(segment.median_ns for segment in ours.segments)
        assert total == pytest.approx(sum(segment.median_ns for segment in theirs.segments), rel=0.03)
    chained = result.timetable.model("chain")
    assert len(chained.segments) >= 2
    assert chained.segmentation_overhead_ratio > 0
    assert chained.max_relative_difference is None
    ran = framefit.simulate(result, windows=300, output=tmp_path / "run")
    assert [model.missed for model in ran.metrics.models] == [0, 0]
    assert 0 <= (ran.metrics.models[1].max_relative_difference or 0.0) <= 1e-4
    assert None not in [model.max_relative_difference for model in ran.timetable.models]


def test_what_was_compared_is_not_compared_again(measured: Path) -> None:
    """A plan that launched its segments is taken as it is."""
    result = ready(plan(write_app(measured, **ON_BOARD)))
    assert ready(result) is result


def test_a_board_that_changed(measured: Path, tmp_path: Path) -> None:
    """The same name at another clock is another device: its own description counts, and that is said."""
    write_models(tmp_path)
    write_target(tmp_path, processor="clock_mhz = 200\nmacs_per_cycle = { fp32 = 64 }")
    (tmp_path / TABLE).write_bytes((measured / TABLE).read_bytes())
    timetable = plan(write_app(tmp_path, **ON_BOARD)).timetable
    assert [reason for reason in timetable.reasons if "what the description says instead" in reason]
    assert timetable.models == plan(write_app(tmp_path, **ON_BOARD | {"table": None})).timetable.models
