"""What latency tables hold in words, for terminal and page."""

from __future__ import annotations

from collections.abc import Sequence

from framefit.core.latency_table import AdditivityAudit, Correction, Value
from framefit.report.formats import format_duration, format_ratio

__all__ = ["correction_kept", "correction_sentence", "format_configuration", "format_value"]


_TERMS = {
    "scale": "a scale",
    "launch_ns": "a constant a launch",
    "boundary_ns": "a constant a boundary",
    "layout_ns_per_byte": "bytes that stay in one layout",
    "cold_ns_per_byte": "weights that the cache does not hold",
}


def correction_kept(audit: AdditivityAudit) -> str:
    """Which terms of the correction an audit has kept."""
    if audit.terms:
        return f"corrected by {', '.join(_TERMS.get(term, term) for term in audit.terms)}"
    return "no correction made networks that were left out better told: the sum stands as it is"


def correction_sentence(correction: Correction) -> str:
    """What is added to the plain sum of layers, and how well that does."""
    parts = [f"{correction.scale:.3f} x the sum"]
    parts += [
        f"{format_duration(ns)} {what}"
        for ns, what in (
            (correction.launch_ns, "a launch"),
            (correction.boundary_ns, "a boundary"),
        )
        if ns
    ]
    parts += [
        f"{ns:.3g} ns {what}"
        for ns, what in (
            (correction.layout_ns_per_byte, "a byte that stays in its layout"),
            (correction.cold_ns_per_byte, f"a byte of weights above {correction.cache_bytes >> 10} KiB"),
        )
        if ns
    ]
    return (
        f"correction: {', '.join(parts)}, from {correction.networks} networks; those that were left out differ by "
        f"{format_ratio(correction.error_ratio)} (standard deviation)"
    )


def format_configuration(configuration: dict[str, Value]) -> str:
    """Shapes first, then what is not empty; all that there is where nothing has a shape."""
    shapes = [", ".join(map(str, _listed(configuration.get(name)))) for name in ("inputs", "outputs")]
    if not any(shapes):
        return "; ".join(f"{name} {format_value(value)}" for name, value in configuration.items())
    rest = [
        f"{name} {format_value(value)}"
        for name, value in configuration.items()
        if name in ("kernel", "stride", "groups") and value not in (None, 1)
    ]
    return "; ".join([" -> ".join(shapes), *rest])


def format_value(value: Value) -> str:
    """A fact of a fingerprint or a configuration."""
    if isinstance(value, list):
        return "x".join(map(str, value))
    return "not stated" if value is None else str(value)


def _listed(value: Value) -> Sequence[object]:
    return value if isinstance(value, list) else ()
