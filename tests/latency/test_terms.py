"""What a network has beyond its layers."""

from __future__ import annotations

import pytest
from simulated import fused

from framefit import GraphBuilder, Model
from framefit.core.latency_table import Correction, Overhead
from framefit.latency.terms import correction_ns, terms_of, transfer_ns


def two_convolutions() -> Model:
    """1 x 2 x 8 x 8 to 4 channels, pooled, then a dense layer."""
    b = GraphBuilder("small")
    x = b.conv(b.input("image", (1, 2, 8, 8)), 4, activation="Relu")
    x = b.conv(x, 4, kernel=1)
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    b.output(b.dense(x, 3))
    return fused(b.build())


def test_terms() -> None:
    """Boundaries, bytes between convolutions and pools, and weights are counted."""
    model = two_convolutions()
    terms = terms_of(model)
    assert terms.boundaries == len(model.layers) - 1 == 4
    assert terms.layout_bytes == 2 * 4 * 64 * 4  # between the convolutions, and to the pool
    assert terms.weight_bytes == 4 * (4 * 18 + 4 + 16 + 4 + 12 + 3)
    assert terms.working_bytes == terms.weight_bytes + 2 * 4 * 64 * 4


def test_a_correction_adds_its_terms() -> None:
    """Each one times what the network has of it; cold weights only beyond the cache."""
    terms = terms_of(two_convolutions())
    assert correction_ns(1000, terms, None) == 0
    correction = Correction(scale=0.9, boundary_ns=10, launch_ns=5, layout_ns_per_byte=-0.01, cold_ns_per_byte=1.0)
    expected = -100 + 40 + 5 - 0.01 * terms.layout_bytes
    assert correction_ns(1000, terms, correction) == pytest.approx(expected + terms.weight_bytes)
    warm = Correction(
        **{name: getattr(correction, name) for name in correction.__struct_fields__} | {"cache_bytes": 1 << 20}
    )
    assert correction_ns(1000, terms, warm) == pytest.approx(expected)
    earlier = Correction(beyond_ratio=0.2, cache_bytes=terms.working_bytes - 1)  # of a table of an earlier version
    assert correction_ns(1000, terms, earlier) == 0


def test_only_the_models_own_tensors_are_transferred() -> None:
    """A segment in the middle pays for its launch alone."""
    overhead = Overhead(input_ns_per_byte=1.0, output_ns_per_byte=2.0, intercept_ns=7.0, condition_number=3.0)
    model = two_convolutions()
    assert transfer_ns(model, None) == 0
    assert transfer_ns(model, overhead) == 2 * 64 * 4 + 2 * 3 * 4 + 7
    assert transfer_ns(model.segment(0, 0), overhead) == 2 * 64 * 4 + 7
    assert transfer_ns(model.segment(1, 1), overhead) == 7
