"""Quantities as text, each with its unit: for terminals and pages."""

from __future__ import annotations

import math


def format_duration(ns: float) -> str:
    """A duration with about three digits, in ms, or in us below 1 ms.

    Args:
        ns: nanoseconds.
    """
    us = abs(ns) / 1e3
    sign = "-" if ns < 0 else ""
    if ns == 0:
        return "0 ms"
    if us < 9.95:
        return f"{sign}{us:.1f} us"
    if us < 999.5:
        return f"{sign}{us:.0f} us"
    ms = us / 1e3
    digits = 2 if ms < 9.995 else 1 if ms < 999.95 else 0
    return f"{sign}{ms:.{digits}f} ms"


def format_ratio(ratio: float) -> str:
    """A ratio as a percentage; small ones keep a digit that is not 0.

    Args:
        ratio: 1 is 100 %.
    """
    percent = 100 * ratio
    if percent == 0:
        return "0 %"
    digits = 1 if abs(percent) >= 0.95 else 2 if abs(percent) >= 0.095 else 3
    return f"{percent:.{digits}f} %" if abs(percent) >= 0.001 else f"{percent:.0e} %"


def format_bytes(count: int) -> str:
    """A number of bytes with a binary unit.

    Args:
        count: bytes.
    """
    if count < 1024:
        return f"{count} B"
    size, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if size < 1023.5:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if size < 99.95 else f"{size:.0f} {unit}"


def format_count(number: int) -> str:
    """A number with about three digits and its decimal unit, such as ``2.36 M``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            value = number / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return str(number)


def format_percent(ratio: float, digits: int = 2) -> str:
    """A ratio as a percentage with so many digits, as accuracies have."""
    return f"{100 * ratio:.{digits}f} %"


def format_hz(rate_hz: float) -> str:
    """A rate."""
    return f"{rate_hz:.2f} Hz" if rate_hz < 99.95 else f"{rate_hz:.1f} Hz"


def format_difference(ratio: float | None) -> str:
    """The greatest difference of joined segments from the whole model; ``None``: they were not compared."""
    return "not compared" if ratio is None else "0" if ratio == 0 else f"{ratio:.1e}"


def format_uncertain(ns: float, interval_ns: tuple[float, float]) -> str:
    """A duration with as many digits as its interval permits, such as ``41.3 us ± 0.4``.

    Args:
        ns: nanoseconds.
        interval_ns: around it; the farther bound counts, unless one is twice as far as the other.
    """
    below, above = ns - interval_ns[0], interval_ns[1] - ns
    if below <= 0 and above <= 0:
        return format_duration(ns)
    unit, scale = ("ms", 1e6) if abs(ns) >= 999_500 else ("us", 1e3)
    digits = (
        max(0, 1 - math.floor(math.log10(max(below, above) / scale) + 1e-9)) if max(below, above) < 2 * scale else 0
    )
    digits = min(digits, 3)

    def scaled(value: float) -> str:
        return f"{value / scale:.{digits}f}"

    if min(below, above) >= 0.5 * max(below, above):
        return f"{scaled(ns)} {unit} ± {scaled(max(below, above))}"
    return f"{scaled(ns)} {unit} +{scaled(max(above, 0))} -{scaled(max(below, 0))}"
