"""Eight bits, where the target's units gain from them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from framefit.core.fit_results import FittedModel
from framefit.core.model import Model, epilogue_groups
from framefit.core.workload import ModelEntry
from framefit.devices.device import ModelledDevice, is_modelled, random_inputs
from framefit.devices.measure import medians_ns
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.ort import quantised, weight_nodes
from framefit.errors import FramefitError
from framefit.fit.accuracy import opened
from framefit.fit.situation import Situation, fixed_ns
from framefit.fit.step import Change, Offer, Step, StepContext, step

if TYPE_CHECKING:
    from framefit.training.evaluate import Accuracy

_WORTH = 0.95  # of its latency: less of a gain is not worth accuracy
_KINDS: tuple[Literal["all", "ends"], ...] = ("all", "ends")  # of nodes: all, or all but the ends
_DRAFTED = 4  # examples that a draft is calibrated on: only its latency counts


@step("int8", cost="accuracy", rank=0)
class Int8(Step):
    """Static int8 by ONNX Runtime's own tool; its first and last layer stay as they are where that is more accurate."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self._ratios: dict[str, float | None] = {}

    def propose(self, situation: Situation) -> list[Offer]:
        """Models that eight bits make faster: on a described target as its cycles say, here by a draft of them."""
        offers = []
        for entry in self.context.candidates(situation):
            version = self.context.version(entry)
            if version.int8 != "no" or version.trees or len(self.context.inexact.get(entry.name, ())) == len(_KINDS):
                continue
            if entry.path not in self._ratios:
                self._ratios[entry.path] = self._ratio(situation, entry)
            ratio = self._ratios[entry.path]
            if ratio is None or ratio > _WORTH:
                continue
            cost_ratio = self.context.cost_that_fits(situation, entry.name)
            offer = self.offer(
                f"quantise {entry.name!r} to int8",
                functools.partial(self._take, situation, entry),
                key=entry.name,
                model=entry.name,
                predicted_load_ratio=self.context.load_if(situation, entry.name, ratio),
                enough=cost_ratio is not None and ratio <= cost_ratio,
            )
            offers.append(offer)
        return offers

    def _take(self, situation: Situation, entry: ModelEntry, folder: Path) -> Change:
        """All of it in int8, or all but its ends where that costs too much."""
        context, version = self.context, self.context.version(entry)
        model = opened(entry, version.float_path)
        whole = context.labelled.accuracy(entry.name, model).top1
        versions: list[tuple[FittedModel, Accuracy]] = []
        for kind in _KINDS:
            if kind in context.inexact.get(entry.name, ()):
                continue
            context.notify(f"quantising {entry.name}" + (", its ends in floating point" if kind == "ends" else ""))
            path = context.in_int8(entry, model, folder, ends=kind == "ends")
            accuracy = context.labelled.accuracy(entry.name, opened(entry, path))
            drop = version.float_drop + whole - accuracy.top1
            versions.append((msgspec.structs.replace(version, path=str(path), int8=kind, drop=drop), accuracy))
            if drop <= context.settings.max_drop:
                break
        best, accuracy = min(versions, key=lambda version: version[0].drop)
        detail = "but its first and last layer with weights" if best.int8 == "ends" else ""
        return context.change(situation, entry, best, whole, accuracy, detail)

    def _ratio(self, situation: Situation, entry: ModelEntry) -> float | None:
        """Latency in int8 over the present one; ``None``: it is not known, or nothing is gained."""
        try:
            model = opened(entry)
            if len(model.inputs) != 1 or model.inputs[0].dtype != "float32" or not weight_nodes(model):
                return None
            device = situation.planned.device
            if is_modelled(device):
                return _described_ratio(device, situation, model)
            self.context.notify(f"a draft of {entry.name} in int8")
            return _measured_ratio(model)
        except FramefitError:
            return None  # the tool or the device cannot use it: no step


def _described_ratio(device: ModelledDevice, situation: Situation, model: Model) -> float | None:
    """As the target's cycles say, were everything stored in eight bits; ``None``: it is already."""
    target = device.target
    processor = target.processor
    if processor is None or target.cost.source != "cycles":
        return None
    if (processor.activation_bits or 32) <= 8 and (processor.weight_bits or 32) <= 8:
        return None
    narrow = msgspec.structs.replace(processor, activation_bits=8, weight_bits=8)
    unit = situation.planned.timetable.model(model.name).segments[0].unit
    grouped = model.grouped(epilogue_groups(model))
    now, then = (
        sum(layer.latency_ns for layer in CycleModel(each, unit).layers(grouped))
        for each in (target, msgspec.structs.replace(target, processor=narrow))
    )
    fixed = fixed_ns(device, model)
    return (fixed + then) / (fixed + now)


def _measured_ratio(model: Model) -> float:
    """As a draft takes here, in turn with the model: latencies do not depend on how it is calibrated."""
    (tensor,) = model.inputs
    random = np.random.default_rng(0)
    examples = np.concatenate([random_inputs(model.inputs, random)[tensor.name] for _ in range(_DRAFTED)])
    fast, slow = medians_ns([quantised(model, examples), model])
    return fast / max(slow, 1)
