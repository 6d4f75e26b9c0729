"""Sparsity of a model that is in int8 already, on this machine: its search is for zeros in int8."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framefit import GraphBuilder
from framefit.core.fit_results import FittedModel
from framefit.core.workload import ModelEntry, Workload
from framefit.fit.steps.sparsify import Sparsify


class Context:
    """What the step asks of a fit; data and accuracies are made up."""

    def __init__(self, version: FittedModel, folder: Path) -> None:
        self.folder, self._version = folder, version
        self.settings = SimpleNamespace(seed=0, max_drop=0.01, finetune_epochs=None, workers=1)
        self.labelled = SimpleNamespace(
            original=lambda _: None,
            search_data=lambda _: None,
            reference=lambda _: 0.9,
            accuracy=lambda *_: SimpleNamespace(top1=0.895),
        )
        self.quantised: list[str] = []

    def version(self, entry: ModelEntry) -> FittedModel:  # noqa: ARG002 - there is one
        """The model as it is."""
        return self._version

    def seconds_left(self) -> float:
        """Enough."""
        return 400.0

    def notify(self, message: str) -> None:
        """Nobody listens."""

    def in_int8(self, entry: ModelEntry, model: object, folder: Path, *, ends: bool) -> Path:  # noqa: ARG002
        """The model once more."""
        self.quantised.append("ends" if ends else "all")
        return folder / "search" / "model.onnx"

    def change(self, situation: object, entry: ModelEntry, version: FittedModel, *rest: Any) -> FittedModel:  # noqa: ARG002
        """The new version alone."""
        return version


@pytest.mark.parametrize(
    ("int8", "described", "in_bytes"),
    [("all", False, True), ("no", False, False), ("ends", False, False), ("all", True, False)],
)
def test_the_search_is_for_what_runs(
    int8: str, described: bool, in_bytes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all of it is in int8 here, kernels for bytes skip larger blocks; elsewhere what is sparse is quantised."""
    b = GraphBuilder("net", 0)
    b.output(b.conv(b.input("x", (1, 3, 8, 8)), 16), "y")
    model = b.build()
    model.save(tmp_path / "net.onnx")
    path = str(tmp_path / "net.onnx")
    given: dict[str, Any] = {}

    def search(*_: object, output: Path, **options: Any) -> SimpleNamespace:
        given.update(options)
        output.mkdir(parents=True)
        for name in ("model.onnx", "float32.onnx") if options["int8"] else ("model.onnx",):
            model.save(output / name)
        return SimpleNamespace(result=SimpleNamespace(interrupted=False))

    monkeypatch.setattr("framefit.workflows.search.sparsify", search)
    monkeypatch.setattr(Sparsify, "_own_cycles", lambda *_: 0.5)
    entry = ModelEntry(name="net", path=path)
    unit = SimpleNamespace(segments=[SimpleNamespace(unit="npu0")])
    situation = SimpleNamespace(
        workload=Workload(models=(entry,), rate_hz=30, target="vpu" if described else "cpu"),
        described=described,
        planned=SimpleNamespace(timetable=SimpleNamespace(model=lambda _: unit)),
    )
    context = Context(FittedModel(name="net", original=path, float_path=path, path=path, int8=int8), tmp_path)  # type: ignore[arg-type]
    version: Any = Sparsify(context)._take(situation, "net", 0.5, tmp_path / "step")  # type: ignore[arg-type]
    found = tmp_path / "step" / "search"
    assert given["int8"] == in_bytes
    assert version.path == str(found / "model.onnx")
    assert version.float_path == str(found / ("float32.onnx" if in_bytes else "model.onnx"))
    assert context.quantised == ([] if in_bytes or int8 == "no" else [int8])
    assert version.drop == pytest.approx(0.005)
