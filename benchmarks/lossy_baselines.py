"""What repairs of lossy traces are compared with: greedy matching, and dropping what is incomplete.

Used by the benchmarks of profiling; they have the form of ``framefit.profiling.rule.reconstruct``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from framefit.core.events import Trace
from framefit.core.program import RuleOffsets
from framefit.profiling.rule import match_in_order, place_lost
from framefit.profiling.sequence import Reconstruction, Sequence

__all__ = ["rebuild_dropping", "rebuild_greedy"]


def rebuild_greedy(trace: Trace, sequence: Sequence, offsets: Mapping[str, RuleOffsets]) -> Reconstruction:
    """Each packet is the nearest one that is expected next; what lies between was lost, and is put in by rule."""
    return place_lost(trace, sequence, offsets, match_in_order(trace, sequence, look_ahead=0))


def rebuild_dropping(trace: Trace, sequence: Sequence) -> Reconstruction:
    """Only operations of which START and END were received; the others are dropped."""
    whole = rebuild_greedy(trace, sequence, {})
    kept = ~whole.log.inferred
    columns = {
        field.name: getattr(whole.log, field.name)[kept]
        for field in fields(whole.log)
        if isinstance(getattr(whole.log, field.name), np.ndarray)
    }
    return replace(whole, log=replace(whole.log, **columns))
