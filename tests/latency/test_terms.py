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
    """Layers and weights are counted."""
    terms = terms_of(two_convolutions())
    assert terms.nodes == 5
    assert terms.weight_bytes == 4 * (4 * 18 + 4 + 16 + 4 + 12 + 3)


def test_a_correction_adds_its_terms() -> None:
    """Each one times what the network has of it; classes that it does not name stay as they are."""
    terms = terms_of(two_convolutions())
    by_class = {"convolution": 1000.0, "product": 300.0}
    assert correction_ns(by_class, 400.0, terms, None) == 0
    correction = Correction(
        class_factors={"convolution": 0.9},
        evicted_ratio=0.5,
        evicting_bytes=3 * terms.weight_bytes,
        node_ns=10,
        weight_ns_per_byte=2.0,
    )
    others = -100 + 50 + 2 * terms.weight_bytes
    assert correction_ns(by_class, 400.0, terms, correction) == pytest.approx(others + 0.5 * 400 / (1 + 3**4))
    within = correction_ns(by_class, 400.0, terms, correction, 9 * terms.weight_bytes)
    assert within == pytest.approx(others + 0.5 * 400 * 3**4 / (1 + 3**4))


def test_only_the_models_own_tensors_are_transferred() -> None:
    """A segment in the middle pays for its launch alone."""
    overhead = Overhead(input_ns_per_byte=1.0, output_ns_per_byte=2.0, intercept_ns=7.0, condition_number=3.0)
    model = two_convolutions()
    assert transfer_ns(model, None) == 0
    assert transfer_ns(model, overhead) == 2 * 64 * 4 + 2 * 3 * 4 + 7
    assert transfer_ns(model.segment(0, 0), overhead) == 2 * 64 * 4 + 7
    assert transfer_ns(model.segment(1, 1), overhead) == 7
