"""What the benchmarks share: a result's file, with its command and the machine's facts, and intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.devices.host import fingerprint

RESULTS = Path(__file__).parent / "results"

_DRAWS = 2000


def store(name: str, figures: Mapping[str, object], command: str, *, path: Path | None = None) -> None:
    """Write ``results/NAME.json`` (or ``path``): figures, facts of the machine, and ``python benchmarks/COMMAND``."""
    result = {**figures, "host": fingerprint(), "command": f"python benchmarks/{command}"}
    target = path or RESULTS / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(msgspec.json.format(msgspec.json.encode(result, enc_hook=float), indent=1) + b"\n")


def interval(
    values: npt.ArrayLike, statistic: Callable[..., npt.NDArray[np.float64]] = np.mean, level: float = 0.9
) -> list[float]:
    """Bootstrap interval of the mean, or another statistic that takes ``axis``, of values that stand for rounds."""
    array = np.asarray(values, np.float64)
    drawn = np.random.default_rng(0).choice(array, (_DRAWS, len(array)))
    return [float(np.quantile(statistic(drawn, axis=1), (1 + side * level) / 2)) for side in (-1, 1)]
