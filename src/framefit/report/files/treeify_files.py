"""A table and pictures of the groups that trees were tried for, as files of their folder."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from framefit.core.files import write_whole
from framefit.core.tree_results import Candidate, TreeifyResult
from framefit.report.files.charts import Series, chart

__all__ = ["write_report"]


_HEADER = (
    *("first_layer", "last_layer", "bound_top1_percent", "top1_percent", "latency_us", "layers_latency_us"),
    *("saved_us", "lut6", "pareto"),
)


def write_report(folder: Path, result: TreeifyResult) -> None:
    """Write ``candidates.csv``, ``accuracy_latency.svg`` and ``accuracy_luts.svg``.

    Args:
        folder: of the search.
        result: what it found.
    """
    _write(folder / "candidates.csv", _table(result))
    fitted = [one for one in result.candidates if one.top1 is not None]
    whole = result.original.latency_ns or 0
    for name, words, unit in (
        ("accuracy_latency", "a frame's latency with the group replaced", "us"),
        ("accuracy_luts", "tables of six inputs for the group", ""),
    ):
        timed = unit == "us"
        points = sorted(
            (((whole - _saved_ns(one)) / 1e3 if timed else float(one.lut6 or 0)), 100 * (one.top1 or 0), one.pareto)
            for one in fitted
        )
        series = [
            Series(name="network", x=(whole / 1e3,) if timed else (), y=(100 * result.original.validation_top1,),
                   kind="points"),
            Series(name="candidates", x=tuple(x for x, _, best in points if not best),
                   y=tuple(y for _, y, best in points if not best), kind="points"),
            Series(name="not beaten", x=tuple(x for x, _, best in points if best),
                   y=tuple(y for _, y, best in points if best)),
        ]  # fmt: skip
        axis = f"{words}, {unit}" if unit else words
        title = f"Accuracy against {'latency' if timed else 'look-up tables'}"
        _write(folder / f"{name}.svg", chart(title, axis, "validation top-1, %", series))


def _saved_ns(one: Candidate) -> int:
    return (one.layers_latency_ns or 0) - (one.latency_ns or 0)


def _table(result: TreeifyResult) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    for one in result.candidates:
        fitted: tuple[object, ...] = ("", "", "", "", "", "")
        if one.top1 is not None and one.latency_ns is not None and one.layers_latency_ns is not None:
            times = (one.latency_ns, one.layers_latency_ns, _saved_ns(one))
            fitted = (round(100 * one.top1, 2), *(round(time / 1e3, 1) for time in times), one.lut6, int(one.pareto))
        writer.writerow((one.first_layer, one.last_layer, round(100 * one.bound_top1, 2), *fitted))
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    with write_whole(path, force=True) as file:
        file.write(text.encode())
