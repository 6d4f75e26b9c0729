"""Programs of several segments without a list of launches: the first one repeats."""

from __future__ import annotations

import msgspec
import numpy as np

from framefit import profile
from framefit.core.program import Program
from profiling_truth import Setting, simulate


def test_other_segments_do_not_matter() -> None:
    """A program that lists more segments than the one that repeats gives the same profile."""
    truth = simulate(Setting(operations=12, inferences=40, units=1, kinds=4))
    alone = msgspec.structs.replace(truth.program, programs=truth.program.programs[:1], launches=None, repeats=None)
    longer = msgspec.structs.replace(alone.programs[0], name="other", segment=1)
    beside: Program = msgspec.structs.replace(alone, programs=(*alone.programs, longer))
    kept = np.random.default_rng(2).random(len(truth.trace)) > 0.1
    thin = truth.trace
    thin = type(thin)(
        time_ns=thin.time_ns[kept],
        id=thin.id[kept],
        type=thin.type[kept],
        core=thin.core[kept],
        operation=thin.operation[kept],
        kinds=thin.kinds,
        meta=thin.meta,
    )
    profiles = [profile(thin, program).profile for program in (alone, beside)]
    assert profiles[0].events.lost > 0
    assert msgspec.structs.asdict(profiles[0].events) == msgspec.structs.asdict(profiles[1].events)
