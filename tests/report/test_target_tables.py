"""Targets as tables."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from framefit.core.run_record import TargetList, TargetSummary
from framefit.core.target import BUILTIN_TARGETS, Processor, Target, TraceUnit, Unit, resolve_target
from framefit.report.terminal import view


def rendered(view: RenderableType, width: int = 80) -> str:
    """What a terminal of this width shows."""
    file = io.StringIO()
    Console(file=file, width=width, no_color=True).print(view)
    return file.getvalue()


def test_names_appear_as_they_are_written() -> None:
    """Brackets in names and notes are no markup."""
    trace = TraceUnit(combinations={"[all]": ("conv",)})
    units = (Unit(name="u[0]", tuned={"Conv": 0.5}), Unit(name="u[1]", operators=("Conv",)))
    target = Target(name="a[b]", kind="npu", processor=Processor(clock_mhz=1.5), units=units, trace=trace)
    text = rendered(view(target, notes="see [1]"))
    for part in ("a[b]", "u[0]", "[all] = conv", "see [1]", "clock_mhz         1.5"):
        assert part in text
    assert "u[0]: all operators; tuned: Conv = 0.5" in text
    assert "u[1]: Conv" in text
    listed = TargetList(targets=(TargetSummary(name="a[b]", kind="npu", units=("u[0]",), description="[c]"),))
    assert all(part in rendered(view(listed)) for part in ("a[b]", "u[0]", "[c]"))


@pytest.mark.parametrize("name", BUILTIN_TARGETS)
def test_every_target_fits_sixty_columns(name: str) -> None:
    """Nothing is cut: all keys that matter are there, with their units in the names."""
    text = rendered(view(resolve_target(name)), 60)
    assert max(map(len, text.splitlines())) <= 60
    expected = {"core", "speed_ratio"} if name == "cpu" else {"clock_mhz", "size_kib", "drain_rate_hz", "sigma_ratio"}
    assert expected <= set(text.split())


def test_what_is_not_modelled_is_not_shown() -> None:
    """A target that ONNX Runtime executes has units only."""
    text = rendered(view(resolve_target("cpu")))
    assert "units" in text
    assert "sparsity" not in text
    assert "trace" not in text


def test_many_units_are_shortened_in_the_list() -> None:
    """First and last of more than three."""
    units = tuple(f"n{index}" for index in range(4))
    summaries = (TargetSummary(name="t", kind="npu", units=units[:count], description="") for count in (3, 4))
    text = rendered(view(TargetList(targets=tuple(summaries))))
    assert "n0, n1, n2 " in text
    assert "n0 .. n3" in text
