"""What became of a model over time: figures of stored runs, tables and searches, and where they got worse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from framefit.core.files import from_text
from framefit.core.fit_results import FitResult
from framefit.core.latency_table import LatencyTable
from framefit.core.run_record import Metrics
from framefit.core.sparsity import SparsityResult
from framefit.core.stored import PastFigure, StoredFigure, StoredFile, StoredKind
from framefit.stats import wilson

__all__ = ["device_of", "figures_in", "history"]

_HIGHER_IS_BETTER = {"accuracy"}


def figures_in(kind: StoredKind, data: bytes, where: str) -> tuple[StoredFigure, ...]:
    """What a file says of models; nothing where it is of a kind that says nothing.

    Args:
        kind: what it is.
        data: its bytes.
        where: its name, for errors.

    Raises:
        InputError: the file is malformed.
    """
    reader = _READERS.get(kind)
    return () if reader is None else tuple(reader(data, where))


def history(files: Iterable[StoredFile], model: str) -> tuple[PastFigure, ...]:
    """Figures of a model, each with the one before on the same device, and whether it is worse.

    One is worse where its 90 % interval and that of the figure before lie apart, and on the wrong side: of unchanged
    models one figure in a hundred does, if both have normal errors of the same size. Figures without intervals are
    never called worse.

    Args:
        files: in the order of time.
        model: its name in the files.
    """
    before: dict[tuple[str, str], StoredFigure] = {}
    result = []
    for file in files:
        device = device_of(file)
        for figure in file.figures:
            if figure.model != model:
                continue
            earlier = before.get((figure.name, device))
            before[figure.name, device] = figure
            result.append(
                PastFigure(
                    object=file.object,
                    file=file.name,
                    time=file.time,
                    commit=file.commit,
                    device=device,
                    figure=figure,
                    before=earlier,
                    worse=earlier is not None and _is_worse(earlier, figure),
                )
            )
    return tuple(result)


def device_of(file: StoredFile) -> str:
    """The device that a file belongs to: its board's name, or target and processor; empty: of none."""
    return file.board or ", ".join(str(file.fingerprint[key]) for key in ("target", "cpu") if key in file.fingerprint)


def _is_worse(before: StoredFigure, after: StoredFigure) -> bool:
    if before.interval is None or after.interval is None:
        return False
    if after.name in _HIGHER_IS_BETTER:
        return after.interval[1] < before.interval[0]
    return after.interval[0] > before.interval[1]


def _of_run(data: bytes, where: str) -> Iterator[StoredFigure]:
    for model in from_text(data, Metrics, where).models:
        if model.releases:
            interval = wilson(model.missed, model.releases)
            yield StoredFigure(model=model.name, name="missed", value=model.miss_ratio, interval=interval)
        if model.release_to_finish_ns.count:
            yield StoredFigure(model=model.name, name="response", value=model.release_to_finish_ns.p99)


def _of_table(data: bytes, where: str) -> Iterator[StoredFigure]:
    for network in from_text(data, LatencyTable, where).networks:
        low, high = network.in_turn_interval_ns
        yield StoredFigure(model=network.name, name="latency", value=network.in_turn_ns, interval=(low, high))


def _of_fit(data: bytes, where: str) -> Iterator[StoredFigure]:
    for model in from_text(data, FitResult, where).models:
        if model.test is not None:
            yield StoredFigure(
                model=model.name, name="accuracy", value=model.test.top1[1], interval=model.test.interval
            )


def _of_sparsity(data: bytes, where: str) -> Iterator[StoredFigure]:
    result = from_text(data, SparsityResult, where)
    if result.chosen is not None:
        row = result.configurations[result.chosen]
        yield StoredFigure(model=Path(result.model).stem, name="accuracy", value=row.top1, interval=row.top1_interval)


_READERS: dict[StoredKind, Callable[[bytes, str], Iterator[StoredFigure]]] = {
    "run": _of_run,
    "table": _of_table,
    "fit": _of_fit,
    "sparsity": _of_sparsity,
}
