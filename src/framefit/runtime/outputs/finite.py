"""Whether numbers are numbers: NaN and infinity in what models give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from framefit.devices.device import Array
from framefit.runtime.outputs.sinks import Sink

__all__ = ["CheckedSink", "finite"]


def finite(array: Array) -> bool:
    """Whether an array holds neither NaN nor infinity; those of other kinds than floats never do.

    About as fast as a copy: 1 us for 1,000 numbers, 8 us for 76,800. (A sum, which either would spoil: 3 and 18.)
    """
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


class CheckedSink:
    """Looks at outputs before another sink gets them: where a window leaves time, and at the copies.

    Args:
        sink: gets them.
        told: of the numbers of frames that are not finite.
        drops: those are not handed on.
    """

    def __init__(self, sink: Sink, told: Callable[[int], None], *, drops: bool) -> None:
        self._sink, self._told, self._drops = sink, told, drops

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Look, and hand on."""
        if not all(map(finite, outputs.values())):
            self._told(frame)
            if self._drops:
                return
        self._sink.put(frame, outputs)

    def close(self) -> None:
        """Pass on."""
        self._sink.close()
