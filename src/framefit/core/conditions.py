"""What a device's sensors say: clocks, temperatures, power, and whether heat slows it down."""

from __future__ import annotations

from framefit.core.files import Record

__all__ = ["Conditions"]


class Conditions(Record, kw_only=True):
    """What a device's sensors say at one time; what has no sensor is missing.

    Attributes:
        time_ns: on the clock of the run.
        clocks_mhz: by core or accelerator.
        temperatures_c: by sensor.
        power_w: of the whole device or processor, since the line before; ``None``: unknown.
        power_of: where it was measured.
        throttled: whether heat or a weak supply slows the device down; ``None``: unknown.
    """

    time_ns: int
    clocks_mhz: dict[str, float] = {}
    temperatures_c: dict[str, float] = {}
    power_w: float | None = None
    power_of: str = ""
    throttled: bool | None = None

    @property
    def hottest(self) -> tuple[str, float] | None:
        """The hottest sensor and its temperature; ``None``: there is no sensor."""
        return max(self.temperatures_c.items(), key=lambda one: one[1], default=None)
