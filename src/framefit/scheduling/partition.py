"""Where to cut a model that is longer than the residual.

A residual ends while some segment would not fit any more; what is left of it is
lost. With durations that vary, the place in the model at which this happens is as
good as random: it falls into segment i with probability d_i / R a window, and then
half of d_i is lost on average. A frame that takes T / R windows thus loses about
sum(d_i^2) / (2 R), and pays for each boundary. Both are sums over segments, so a
dynamic programme over the candidate cuts finds the best set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Pieces", "partition"]


@dataclass(frozen=True)
class Pieces:
    """A model in its finest pieces, as measured one by one.

    Attributes:
        median_ns: int64, one a piece.
        quantile_ns: int64, the planned quantile of each.
        boundary_ns: what cutting between piece i and i + 1 costs, int64, one fewer.
            Each piece's time includes half of the boundaries beside it.
    """

    median_ns: npt.NDArray[np.int64]
    quantile_ns: npt.NDArray[np.int64]
    boundary_ns: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.median_ns) == len(self.quantile_ns) == len(self.boundary_ns) + 1:
            raise ValueError("a model of n pieces has n - 1 boundaries")

    def __len__(self) -> int:
        return len(self.median_ns)

    def scaled(self, factor: npt.NDArray[np.float64]) -> Pieces:
        """The same boundaries, each piece's times multiplied."""
        return Pieces(
            median_ns=(self.median_ns * factor).astype(np.int64),
            quantile_ns=(self.quantile_ns * factor).astype(np.int64),
            boundary_ns=self.boundary_ns,
        )

    def joined(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Median and quantile of every run of pieces i .. j, as two n x n matrices.

        Boundaries inside a run are not paid. Excesses of the quantile over the median
        add as independent ones do: by squares.
        """
        medians = np.concatenate([[0.0], np.cumsum(self.median_ns, dtype=np.float64)])
        excess = np.concatenate([[0.0], np.cumsum((self.quantile_ns - self.median_ns).astype(np.float64) ** 2)])
        inner = np.concatenate([[0.0], np.cumsum(self.boundary_ns, dtype=np.float64)])
        median = medians[None, 1:] - medians[:-1, None] - (inner[None, :] - inner[:, None])
        spread = np.sqrt(np.maximum(excess[None, 1:] - excess[:-1, None], 0))
        return np.maximum(median, 0), np.maximum(median, 0) + spread


def partition(pieces: Pieces, residual_ns: int, limit_ns: int) -> list[tuple[int, int]] | None:
    """The runs of pieces that lose least (see the module's text).

    Args:
        pieces: of one model.
        residual_ns: time that a window leaves.
        limit_ns: greatest quantile of a segment, at most the residual minus the guard.

    Returns:
        First and last piece of each segment, in order; ``None`` where a single piece
        is longer than the limit.
    """
    count = len(pieces)
    median, quantile = pieces.joined()
    idle = np.where(quantile <= limit_ns, median**2 / (2 * max(residual_ns, 1)), np.inf)
    idle[np.tril_indices(count, -1)] = np.inf
    boundary = np.concatenate([[0], pieces.boundary_ns])
    best = np.full(count + 1, np.inf)
    best[0] = 0
    came_from = np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        cost = best[:end] + idle[:end, end - 1] + boundary[:end]
        came_from[end] = int(np.argmin(cost))
        best[end] = cost[came_from[end]]
    if not np.isfinite(best[count]):
        return None
    segments = []
    end = count
    while end:
        segments.append((int(came_from[end]), end - 1))
        end = int(came_from[end])
    return segments[::-1]
