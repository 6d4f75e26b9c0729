"""Models of a bundle: stored segments in the place of a graph, so that nothing of ONNX is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from framefit.core.bundle import BundledImage, BundledModel, BundledPart
from framefit.core.functions import load_function
from framefit.core.model import Model, TensorInfo
from framefit.core.workload import ModelEntry, Workload
from framefit.devices.device import Array
from framefit.errors import InputError
from framefit.execution.compiled import CompiledModel
from framefit.execution.execution import Execution, greatest_difference
from framefit.execution.prepare import Preparation, one_frame
from framefit.execution.wiring import WiredModel

__all__ = ["bundled_model", "read_test", "test_difference", "wired_again"]

_TEST_FRAMES = 2  # so that state is passed on once


class _Boundary(NamedTuple):
    """Tensors between two layers."""

    tensors: tuple[TensorInfo, ...]


class StoredModel(Model):
    """A model, or a segment of one, of which only stored segments exist.

    Args:
        folder: of the bundle.
        name: of the model.
        digest: SHA-256 of what it stands for.
        inputs: its tensors.
        outputs: its tensors.
        parts: its segments; of a segment itself, none.
        file: of a segment.
        lowered: whether a runtime has optimised it.
    """

    stored = True

    def __init__(  # a graph is what it does not have
        self,
        folder: Path,
        name: str,
        digest: str,
        inputs: tuple[TensorInfo, ...],
        outputs: tuple[TensorInfo, ...],
        *,
        parts: Sequence[BundledPart] = (),
        file: str = "",
        lowered: bool = False,
    ) -> None:
        self.name, self.lowered, self.unlowered = name, lowered, frozenset()
        self._folder, self._digest, self._inputs, self._outputs = folder, digest, inputs, outputs
        self._parts, self._file = {part.span: part for part in parts}, file
        last = max((span[1] for span in self._parts), default=-1)
        if (0, last) in self._parts:  # an uncut model is compiled as it is
            self._file, self.lowered = self._parts[0, last].file, self._parts[0, last].lowered

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Its inputs."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Its outputs."""
        return self._outputs

    @property
    def layers(self) -> tuple[Any, ...]:
        """None are known."""
        return ()

    @property
    def notes(self) -> dict[str, str]:
        """None: what kernels execute is not bundled."""
        return {}

    @property
    def digest(self) -> str:
        """SHA-256 of what it stands for."""
        return self._digest

    @property
    def cuts(self) -> Mapping[int, _Boundary]:  # type: ignore[override]
        """Tensors behind the last layer of each part."""
        return {part.span[1]: _Boundary(part.across) for part in self._parts.values()}

    def segment(self, first: int, last: int) -> StoredModel:
        """A stored segment.

        Raises:
            InputError: it is not stored.
        """
        part = self._parts.get((first, last))
        if part is None:
            raise InputError(
                f"layers {first} to {last} are not stored", where=self.name, remedy="make the bundle again"
            )
        return StoredModel(
            self._folder,
            self.name,
            part.digest,
            part.inputs,
            part.outputs,
            file=part.file,
            lowered=part.lowered,
        )

    def to_bytes(self, *, weights_as_inputs: bool = False) -> bytes:  # noqa: ARG002 - nothing can be changed
        """The ONNX file of a segment."""
        return (self._folder / self._file).read_bytes()


def bundled_model(compiled: CompiledModel, folder: Path) -> BundledModel:
    """Store the segments of a compiled model, with frames and the outputs that they give.

    Args:
        compiled: on the device that the bundle is for.
        folder: of the bundle, in which files are written.
    """
    wired, planned = compiled.wired, compiled.planned
    executions = (*compiled.cuts, *compiled.replicas)
    spans = sorted({bounds for execution in executions for bounds in execution.bounds})
    place = folder / "models" / compiled.name
    place.mkdir(parents=True)
    parts = []
    whole = (0, len(wired.model.layers) - 1)
    for first, last in spans:
        part = wired.model if (first, last) == whole else wired.model.segment(first, last)
        file = place / f"{first}-{last}.onnx"
        file.write_bytes(part.to_bytes())
        across = wired.model.cuts[last].tensors if last < whole[1] else ()
        parts.append(
            BundledPart(
                span=(first, last),
                file=file.relative_to(folder).as_posix(),
                digest=part.digest,
                inputs=part.inputs,
                outputs=part.outputs,
                across=across,
                layer=part.layers[-1].name,
                lowered=part.lowered,
            )
        )
    test = f"models/{compiled.name}/test.npz"
    write_test(compiled.replicas[0], folder / test)
    return BundledModel(
        name=compiled.name,
        digest=compiled.file.model.digest,
        inputs=wired.model.inputs,
        outputs=wired.model.outputs,
        sources=wired.sources,
        reads=dict(wired.reads),
        images={name: BundledImage(raw=one.raw, example=one.example) for name, one in wired.prepare.items()},
        depth=wired.depth,
        when_full=wired.when_full,
        in_step=tuple(sorted(wired.in_step)),
        waits=wired.waits,
        parts=tuple(parts),
        test=test,
        promised_ns=planned.duration_ns,
    )


def wired_again(model: BundledModel, workload: Workload, folder: Path) -> WiredModel:
    """A model with its inputs connected as they were, over its stored segments.

    Args:
        model: of the bundle.
        workload: of the bundle.
        folder: of the bundle, in which functions are searched, too.

    Raises:
        InputError: a function does not exist.
    """
    entry: ModelEntry = next(one for one in workload.models if one.name == model.name)
    tensors = {tensor.name: tensor for tensor in model.inputs}
    where = f"model {model.name!r}"
    prepare = {}
    for name, image in model.images.items():
        assert entry.preprocess is not None
        frame = one_frame(tensors[name], entry.frames, entry.frames_axis, where)
        prepare[name] = Preparation(entry.preprocess, frame, raw=image.raw, example=image.example, where=where)
    function = entry.postprocess
    return WiredModel(
        entry,
        StoredModel(folder, model.name, model.digest, model.inputs, model.outputs, parts=model.parts),
        model.sources,
        prepare,
        None if function is None else load_function(function, folder, f"{where}, postprocess"),
        depth=model.depth,
        when_full=model.when_full,
        reads=model.reads,
        in_step=frozenset(model.in_step),
        waits=model.waits,
    )


def write_test(execution: Execution, path: Path) -> None:
    """Store random frames, and the outputs that they give in turn, from zero state on."""
    random, arrays = np.random.default_rng(0), dict[str, Array]()
    execution.reset()
    for turn in range(_TEST_FRAMES):
        frames = execution.example(random)
        for number, frame in enumerate(frames):
            arrays |= {f"frame.{turn}.{number}.{name}": array for name, array in frame.items()}
        arrays |= {f"output.{turn}.{name}": array for name, array in execution.run(frames).items()}
    execution.reset()
    np.savez(path, **arrays)  # type: ignore[arg-type]  # names are no arguments of its own: they have dots


def read_test(path: Path) -> dict[str, Array]:
    """Arrays of a stored test by their names."""
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def test_difference(execution: Execution, test: Mapping[str, Array]) -> float:
    """Greatest relative difference of an execution's outputs from the stored ones.

    Args:
        execution: its state is zero before and after.
        test: see :func:`read_test`.
    """
    difference = 0.0
    execution.reset()
    for turn in range(_TEST_FRAMES):
        frames: list[dict[str, Array]] = [{} for _ in range(execution.frames)]
        for name, array in test.items():
            kind, at, *rest = name.split(".", 3)
            if kind == "frame" and int(at) == turn:
                frames[int(rest[0])][rest[1]] = array
        begin = f"output.{turn}."
        stored = {name.removeprefix(begin): array for name, array in test.items() if name.startswith(begin)}
        difference = max(difference, greatest_difference(execution.run(frames), stored))
    execution.reset()
    return difference
