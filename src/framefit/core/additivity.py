"""How far whole networks take the sum of their layers, and what corrects the sum."""

from __future__ import annotations

import msgspec

from framefit.core.files import Record

__all__ = ["AdditivityAudit", "AuditedNetwork", "Correction"]


class Correction(Record, kw_only=True):
    """What the audit of whole networks adds to the plain sum of layers.

    A network takes ``scale`` x sum of its layers + ``launch_ns`` + ``boundary_ns`` x boundaries
    + ``layout_ns_per_byte`` x bytes that stay in one layout + ``cold_ns_per_byte`` x weights, the
    last in networks of more than ``cache_bytes``. For each class of layers ``class_ratios`` x their sum is added.

    Attributes:
        beyond_ratio: of tables of earlier versions, which multiplied it onto the sum of every larger network,
            though one audited network told it; it is read, and neither kept nor applied.
        error_ratio: standard deviation of the relative error of networks that were left out of the fit.
        networks: how many were audited; 0: none.
    """

    scale: float = 1.0
    boundary_ns: float = 0.0
    launch_ns: float = 0.0
    layout_ns_per_byte: float = 0.0
    cold_ns_per_byte: float = 0.0
    beyond_ratio: float | msgspec.UnsetType = msgspec.UNSET
    class_ratios: dict[str, float] = {}
    cache_bytes: int = 0
    error_ratio: float = 0.0
    networks: int = 0

    def __post_init__(self) -> None:
        if self.beyond_ratio is not msgspec.UNSET:
            msgspec.structs.force_setattr(self, "beyond_ratio", msgspec.UNSET)


class AuditedNetwork(Record, kw_only=True):
    """A whole network, measured and predicted.

    Attributes:
        overhead_ns: of its launch: what is measured holds it, the plain sum does not.
        corrected_ns: with the correction that was fitted.
        left_out_ns: with one that was fitted without this network.
    """

    name: str
    measured_ns: int
    plain_sum_ns: int
    overhead_ns: int
    corrected_ns: int
    left_out_ns: int


class AdditivityAudit(Record, kw_only=True):
    """How far whole networks take the sum of their layers, and what corrects it.

    Attributes:
        terms: of the correction, in the order in which they helped.
        plain_error_ratio: median of |plain sum and overhead / measured - 1|.
        left_out_error_ratio: the same of the corrected estimate, each network left out of its own fit.
    """

    correction: Correction
    terms: tuple[str, ...]
    networks: tuple[AuditedNetwork, ...]
    plain_error_ratio: float
    left_out_error_ratio: float
