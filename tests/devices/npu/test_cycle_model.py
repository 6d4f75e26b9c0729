"""The cycle model: cycles worked out by hand, rules of sparsity, what binds, and its speed."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from targets import ARRAY, convolution, described, only, through

from framefit import InputError
from framefit.core.model import GraphBuilder, Model, epilogue_groups
from framefit.core.model.builtin import BUILTIN
from framefit.core.target import Cache, Memory, Sparsity, Target, Unit, resolve_target
from framefit.devices.npu.cycles import CycleModel, counted_zeros, density
from framefit.devices.npu.work import LayerWork, Product, model_work
from networks import NETWORKS

DDR = Memory(name="ddr", read_bandwidth_gbps=0.8, write_bandwidth_gbps=0.4)  # 8 and 4 bytes a cycle of 100 MHz


def cost(target: Target, model: Model, **sparsity: Any):
    """The only layer's."""
    return only(CycleModel(target).layers(model, **sparsity))


def product_work(**sizes: Any) -> LayerWork:
    """A layer that is one product and moves nothing."""
    product = Product(**({"op": "Conv", "m": 100, "n": 64, "channels": 64, "area": 9} | sizes))
    return LayerWork(op="Conv", products=(product,), elements=0, reads=(), writes=(), constants=0, method="products")


def cycles_of(target: Target, work: LayerWork, weights: float = 0.0, activations: float = 0.0) -> int:
    """Of a piece of work."""
    model = CycleModel(target)
    return int(model.evaluate(model.table([work]), weights, activations).cycles[0])


# Arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "macs"),
    [
        (lambda: convolution(8, 16, 10), 16 * 100 * 72),
        (lambda: convolution(8, 16, 10, stride=2), 16 * 25 * 72),
        (lambda: convolution(8, 16, 10, dilation=2), 16 * 100 * 72),
        (lambda: convolution(8, 16, 10, groups=4), 16 * 100 * 18),
        (lambda: convolution(8, 8, 10, groups=8), 8 * 100 * 9),
        (lambda: through("ConvTranspose", (1, 6, 5, 7), np.ones((6, 4, 3, 3), np.float32)), 35 * 6 * 36),
        (lambda: through("Gemm", (2, 10), np.ones((10, 7), np.float32)), 140),
        (lambda: through("MatMul", (3, 5, 10), np.ones((10, 7), np.float32)), 3 * 5 * 70),
    ],
)
def test_multiply_accumulates_over_what_a_cycle_does(model, macs: int) -> None:
    """ceil(MACs / 64), with nothing else described."""
    found = cost(described(), model())
    assert (found.macs, found.cycles, found.bound) == (macs, math.ceil(macs / 64), "compute")
    assert found.utilisation_ratio == pytest.approx(macs / 64 / found.cycles)


def test_data_processing_units_share_the_work() -> None:
    """Four of them: a quarter, rounded up."""
    model = convolution(8, 16, 10)
    assert cost(described(processing_units=4), model).cycles == math.ceil(16 * 100 * 72 / 256)


@pytest.mark.parametrize(("channels", "counted"), [(1, 16), (3, 16), (16, 16), (17, 32), (64, 64)])
def test_input_channels_fill_granules(channels: int, counted: int) -> None:
    """Channels below the granule count as the granule, more as the next multiple."""
    found = cost(described(channel_granule=16), convolution(channels, 8, 10))
    assert found.cycles == 8 * 100 * 9 * counted / 64
    assert found.utilisation_ratio == pytest.approx(channels / counted)


def test_depthwise_wastes_the_granule() -> None:
    """One channel a group: fifteen of sixteen multipliers stand still."""
    found = cost(described(channel_granule=16), convolution(32, 32, 10, groups=32))
    assert found.utilisation_ratio == pytest.approx(1 / 16)


@pytest.mark.parametrize(
    ("channels", "features", "size", "expected"),
    [
        (16, 16, 4, 9 * 1 * (2 * 16 + 16 + 16 - 2)),
        (3, 16, 8, 2 * 1 * (2 * 16 + 16 + 64 - 2)),  # 27 of 32 rows
        (16, 17, 8, 9 * 2 * (2 * 16 + 16 + 64 - 2)),  # 17 of 32 columns
    ],
)
def test_weight_stationary_array(channels: int, features: int, size: int, expected: int) -> None:
    """ceil(K / R) ceil(N / C) (2R + C + M - 2), of a 16 x 16 array."""
    assert cost(described(**ARRAY), convolution(channels, features, size)).cycles == expected


def test_units_share_the_columns_or_the_rows_of_an_array() -> None:
    """Two arrays: 4 column folds are 2 each; one column fold is shared by rows of the result."""
    deep = 9 * 16 // 16
    wide = cost(described(**ARRAY, processing_units=2), convolution(16, 64, 8)).cycles
    assert wide == 2 * deep * (2 * 16 + 16 + 64 - 2)
    narrow = cost(described(**ARRAY, processing_units=2), convolution(16, 16, 8)).cycles
    assert narrow == deep * (2 * 16 + 16 + 32 - 2)


def test_utilisation_of_an_array() -> None:
    """Deep and dense: above 0.9. Few channels, small maps and depthwise layers: far below."""
    target = described(array_rows=32, array_columns=32)
    deep = cost(target, convolution(256, 256, 56)).utilisation_ratio
    few = cost(target, convolution(3, 256, 56)).utilisation_ratio
    small = cost(target, convolution(256, 256, 7)).utilisation_ratio
    depthwise = cost(target, convolution(256, 256, 56, groups=256)).utilisation_ratio
    assert deep >= 0.9
    assert few < 0.9 * deep
    assert small < 0.5 * deep
    assert depthwise < 0.02


def test_recurrent_steps_follow_each_other() -> None:
    """Each of 5 steps is rounded up for itself, and its gates wait for its products."""
    weights = np.ones((1, 32, 6), np.float32), np.ones((1, 32, 8), np.float32)
    model = through("LSTM", (5, 1, 6), *weights, outputs=1, hidden_size=8)
    assert cost(described(), model).cycles == 5 * (32 * 14 / 64 + 32 / 16)


def test_attention_is_a_product_a_head() -> None:
    """4 heads of 9 x 9 scores over 5 features each."""
    b = GraphBuilder("scores")
    b.output(b.op("MatMul", b.input("q", (1, 4, 9, 5)), b.input("k", (1, 4, 5, 9))))
    assert cost(described(), b.build()).cycles == math.ceil(4 * 81 * 5 / 64)
    array = cost(described(**ARRAY), b.build()).cycles
    assert array == 4 * (2 * 16 + 16 + 9 - 2)


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        (lambda: through("Relu", (1, 4, 10, 10)), 400),
        (lambda: through("MaxPool", (1, 4, 10, 10), kernel_shape=[2, 2], strides=[2, 2]), 100 * 4),
        (lambda: through("Transpose", (1, 4, 50), perm=[0, 2, 1]), 200),
        (lambda: through("LRN", (1, 4, 10, 10), size=3), 800),
    ],
)
def test_elements_over_vector_lanes(model, elements: int) -> None:
    """16 lanes, 2 units; an operator that is not known counts what it reads and writes."""
    assert cost(described(), model()).cycles == math.ceil(elements / 16)
    assert cost(described(processing_units=2), model()).cycles == math.ceil(elements / 32)


def test_concatenation_moves_all_its_parts() -> None:
    """Elements of the result, 16 a cycle, or their bytes where those take longer."""
    b = GraphBuilder("concat")
    b.output(b.op("Concat", b.input("x", (1, 8, 10)), b.input("y", (1, 24, 10)), axis=1))
    model = b.build()
    assert cost(described(), model).cycles == 320 / 16
    found = cost(described(memory=(DDR,)), model)
    assert (found.bytes_read, found.bytes_written, found.bound) == (1280, 1280, "ddr write")


def test_the_dearer_engine_counts_in_a_fused_layer() -> None:
    """What follows a product runs beside it on the vector lanes."""
    b = GraphBuilder("fused")
    b.output(b.conv(b.input("x", (1, 2, 10, 10)), 8, kernel=1, activation="Relu"))
    model = b.build()
    fused = model.grouped([[layer.name for layer in model.layers]])
    assert cost(described(), fused).cycles == max(800 * 2 // 64, 800 // 16)


def test_a_view_is_free_and_says_so() -> None:
    """No cycles, bound by nothing, and called a view."""
    found = cost(described(memory=(DDR,), layer_cycles=100), through("Flatten", (1, 4, 6)))
    assert (found.cycles, found.bound, found.method) == (0, "none", "view")


def test_tuned_multiplies_arithmetic_only() -> None:
    """Portable code takes twice the cycles of the multiplications; memory and fixed cycles stay what they are."""
    model = convolution(8, 16, 10)
    units = Unit(name="usual"), Unit(name="portable", tuned={"Conv": 2.0})
    usual, portable = (
        only(CycleModel(described(units=units, memory=(DDR,), layer_cycles=100), unit.name).layers(model))
        for unit in units
    )
    assert (usual.terms["compute"], portable.terms["compute"]) == (1800, 3600)
    assert portable.cycles - usual.cycles == 1800
    assert {name: term for name, term in usual.terms.items() if name != "compute"} == {
        name: term for name, term in portable.terms.items() if name != "compute"
    }
    assert usual.overhead_cycles == portable.overhead_cycles


@pytest.mark.parametrize(("factor", "cycles"), [(0.9, 1620), (0.5, 900), (0.25, 900), (0.01, 900)])
def test_tuned_never_beats_the_peak(factor: float, cycles: int) -> None:
    """8 of 16 channels of the granule are padding: a kernel that does without takes half, and no less."""
    target = described(units=(Unit(name="fast", tuned={"Conv": factor}),), channel_granule=16)
    found = cost(target, convolution(8, 8, 10))
    assert found.cycles == cycles
    assert found.utilisation_ratio == pytest.approx(8 * 100 * 72 / 64 / cycles)
    elements = through("Relu", (1, 4, 10, 10))
    assert cost(described(units=(Unit(name="fast", tuned={"Relu": factor}),)), elements).cycles == 400 / 16


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.01, 4),
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 200),
    st.floats(0, 1),
    st.sampled_from(["dsp", "vpu", "edge-8", "micro-npu"]),
)
def test_no_unit_beats_its_peak(factor, channels, n, m, zeros, name) -> None:
    """Whatever is tuned or skipped, multiply-accumulates over cycles stay within what the unit can do."""
    target = replace(resolve_target(name), units=(Unit(name="one", tuned={"Conv": factor}),))
    model = CycleModel(target)
    found = model.evaluate(model.table([product_work(channels=channels, n=n, m=m)]), zeros)
    assert found.ideal[0] <= found.cycles[0]


def test_the_clock_of_a_unit() -> None:
    """Half of it: the same cycles and twice the time."""
    target = described(units=(Unit(name="fast"), Unit(name="slow", speed_ratio=0.5)))
    model = convolution(8, 16, 10)
    one, other = (only(CycleModel(target, unit).layers(model)) for unit in ("fast", "slow"))
    assert (one.cycles, other.cycles) == (1800, 1800)
    assert (one.latency_ns, other.latency_ns) == (18_000, 36_000)


def test_memory_takes_its_time_whatever_the_units_clock() -> None:
    """Half the clock: bytes cross in the same time, that is in half as many cycles."""
    units = Unit(name="fast"), Unit(name="slow", speed_ratio=0.5)
    target = described(units=units, memory=(replace(DDR, latency_ns=500),))
    model = through("Relu", (1, 4, 100, 100))
    fast, slow = (only(CycleModel(target, unit.name).layers(model)) for unit in units)
    assert slow.latency_ns == pytest.approx(fast.latency_ns, rel=1e-3)
    assert slow.cycles == pytest.approx(fast.cycles / 2, rel=1e-3)


# Sparsity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skips", "left"),
    [("none", 1.0), ("weights", 0.25), ("activations", 0.4), ("saturating", 0.25), ("dual", 0.1)],
)
def test_which_zeros_are_skipped(skips: Any, left: float) -> None:
    """75 % of the weights and 60 % of the inputs are zero."""
    assert density(Sparsity(skips=skips), 0.75, 0.6) == pytest.approx(left)
    dense = cycles_of(described(), product_work())
    assert cycles_of(described(sparsity=Sparsity(skips=skips)), product_work(), 0.75, 0.6) == pytest.approx(
        dense * left
    )


def test_weight_zeros_below_activation_zeros_buy_nothing() -> None:
    """Saturating: of a layer whose inputs are 60 % zeros, the first 60 % of the weights are pruned in vain."""
    target = described(sparsity=Sparsity(skips="saturating"))
    found = [cycles_of(target, product_work(), weights, 0.6) for weights in (0, 0.3, 0.6, 0.8)]
    assert found[0] == found[1] == found[2]
    assert found[3] == pytest.approx(found[0] / 2)


def test_a_cap_bounds_the_gain() -> None:
    """No more than 2.5 times as fast."""
    target = described(sparsity=Sparsity(skips="weights", cap_ratio=2.5))
    dense = cycles_of(target, product_work())
    assert cycles_of(target, product_work(), 0.5) == dense / 2
    assert cycles_of(target, product_work(), 0.95) == dense / 2.5


def test_skipping_pays_below_a_density() -> None:
    """From the threshold on, nothing is gained; below it the time goes down to nothing with the density."""
    target = described(sparsity=Sparsity(skips="weights", threshold_density_ratio=0.75))
    dense = cycles_of(target, product_work())
    assert cycles_of(target, product_work(), 0.2) == cycles_of(target, product_work(), 0.25) == dense
    assert cycles_of(target, product_work(), 0.4) == pytest.approx(0.6 / 0.75 * dense)
    assert cycles_of(target, product_work(), 0.7) == pytest.approx(0.3 / 0.75 * dense)


def test_lanes_wait_for_the_one_with_most_work() -> None:
    """K d + sqrt(2 K d (1 - d) ln n) of K, with 16 lanes that work on sums of K = 576."""
    target = described(sparsity=Sparsity(skips="weights", lanes=16))
    dense = cycles_of(target, product_work())
    expected = (576 * 0.5 + math.sqrt(2 * 576 * 0.25 * math.log(16))) / 576
    assert cycles_of(target, product_work(), 0.5) == math.ceil(dense * expected)


def test_few_input_channels_gain_least() -> None:
    """On Meteor Lake's NPU 16 channels gain nothing, and each doubling gains more, up to the ceiling."""
    target = replace(resolve_target("meteor-lake"), memory=(), cache=None)
    gains = []
    for channels in (16, 32, 64, 128, 256):
        work = product_work(channels=channels, m=4096)
        gains.append(cycles_of(target, work) / cycles_of(target, work, 0.9))
    assert gains[0] == 1.0
    assert gains == sorted(gains)
    assert 2 < gains[-1] <= 2.5


def test_two_of_four() -> None:
    """Hardware for 2:4 halves the work from 50 % zeros on, and does nothing below."""
    sparsity = Sparsity(skips="weights", granularity="n:m", n=2, m=4)
    assert counted_zeros(sparsity, [0.0, 0.49, 0.5, 0.9]).tolist() == [0, 0, 0.5, 0.5]
    target = described(sparsity=sparsity)
    dense = cycles_of(target, product_work())
    assert [cycles_of(target, product_work(), zeros) for zeros in (0.4, 0.5, 0.9)] == [dense, dense / 2, dense / 2]


def test_granularity_none_counts_no_weights() -> None:
    """Zeros of activations still do."""
    target = described(sparsity=Sparsity(skips="dual", granularity="none"))
    dense = cycles_of(target, product_work())
    assert cycles_of(target, product_work(), 0.9) == dense
    assert cycles_of(target, product_work(), 0.9, 0.5) == dense / 2


def test_zeros_of_the_model_are_found_as_they_lie() -> None:
    """Without ratios the model's own zeros count, if the target likes their pattern."""
    weight = np.ones((4, 8, 3, 3), np.float32)
    weight.reshape(-1)[: weight.size // 2] = 0  # two whole outputs, no 2:4
    model = through("Conv", (1, 8, 10, 10), weight, kernel_shape=[3, 3])
    patterns = {"unstructured": {}, "channel": {}, "n:m": {"n": 2, "m": 4}}
    for granularity, more in patterns.items():
        target = described(sparsity=Sparsity(skips="weights", granularity=granularity, **more))
        found = cost(target, model)
        assert found.weight_sparsity_ratio == 0.5
        dense = cost(described(), model).cycles
        assert found.cycles == (dense if granularity == "n:m" else dense / 2)


def test_products_of_two_tensors_have_no_weights_to_prune() -> None:
    """Weight sparsity does nothing to attention's scores; zeros of the first tensor do."""
    b = GraphBuilder("scores")
    b.output(b.op("MatMul", b.input("q", (1, 4, 16, 8)), b.input("k", (1, 4, 8, 16))))
    target = described(sparsity=Sparsity(skips="dual"))
    dense = cost(target, b.build())
    pruned = cost(target, b.build(), weight_sparsity=0.9)
    assert (pruned.cycles, pruned.weight_sparsity_ratio) == (dense.cycles, 0.0)
    assert cost(target, b.build(), activation_sparsity=0.5).cycles == dense.cycles / 2


def test_packed_weights_shrink_with_one_bit_of_index() -> None:
    """Half of 32-bit weights: 17 bits an element; a dense layer is not packed; activations never are."""
    model = convolution(8, 16, 4)
    weights, inputs = 16 * 72, 8 * 16 * 4
    target = described(memory=(DDR,), sparsity=Sparsity(skips="weights"))
    assert cost(target, model).bytes_read == weights * 4 + inputs
    assert cost(target, model, weight_sparsity=0.5, activation_sparsity=0.9).bytes_read == weights * 17 / 8 + inputs
    plain = replace(target, sparsity=Sparsity(skips="weights", weights_packed=False))
    assert cost(plain, model, weight_sparsity=0.5).bytes_read == weights * 4 + inputs
    blind = replace(target, sparsity=Sparsity())
    assert cost(blind, model, weight_sparsity=0.5).bytes_read == weights * 4 + inputs


# Memory --------------------------------------------------------------------------------------


def test_reads_and_writes_are_terms_of_their_own() -> None:
    """4,000 bytes at 8 and at 4 a cycle, each after 50 cycles of latency; writing binds."""
    target = described(memory=(replace(DDR, latency_ns=500),))
    found = cost(target, through("Relu", (1, 10, 10, 10)))
    assert found.terms == {"compute": 63, "ddr read": 50 + 500, "ddr write": 50 + 1000}
    assert (found.bytes_read, found.bytes_written, found.bound) == (4000, 4000, "ddr write")
    assert found.cycles == 1050 + math.ceil(64 / 8 + 64 / 4)  # 16 lanes of first and of last elements


@pytest.mark.parametrize(
    ("memory", "rate"),
    [
        (Memory(read_bandwidth_gbps=0.87), 8),  # floor(8.7)
        (Memory(read_bandwidth_gbps=8.0, read_bus_bits=128), 16),
        (Memory(read_bus_bits=128, ports=2), 32),
        (Memory(read_bandwidth_gbps=0.8, derating_ratio=0.5), 4),
        (Memory(read_bandwidth_gbps=0.05), 0.5),
        (Memory(type="sram", read_bus_bits=64), 4),  # of a fabric of half the clock
    ],
)
def test_bytes_a_cycle(memory: Memory, rate: float) -> None:
    """min(floor(bandwidth / clock), bus x ports) x derating, memories on the chip in the fabric's clock."""
    target = described(memory=(memory,), fabric_clock_mhz=50.0)
    found = cost(target, through("Relu", (1, 10, 10, 10)))
    assert found.terms["memory read"] == math.ceil(4000 / rate)


def test_weights_lie_off_the_chip_and_tensors_on_it() -> None:
    """With both memories each takes its part; tensors that do not fit go off the chip too."""
    sram = Memory(name="sram", type="sram", size_mib=1)
    target = described(memory=(DDR, sram))
    near = cost(target, convolution(8, 16, 16))
    assert near.terms["ddr read"] == 16 * 72 * 4 / 8
    assert near.terms["sram read"] == 8 * 256 * 4 / 8
    assert near.terms["ddr write"] == 0
    far = cost(target, convolution(8, 16, 128))
    assert far.terms["sram read"] == 0
    assert far.terms["ddr write"] > 0


def test_on_chip_traffic() -> None:
    """Tensors and weights over words and ports, in the cache's clock; it binds where words are narrow."""
    cache = Cache(size_kib=512, word_bits=8, ports=2, clock_mhz=50)
    found = cost(described(cache=cache), convolution(8, 16, 4))
    total = 4 * (8 * 16 + 16 * 16 + 16 * 72)
    assert found.terms["on-chip"] == total / 2 * 2
    assert (found.bound, found.cycles) == ("on-chip", total)


def test_stored_bits_and_precision() -> None:
    """A float model on a target of bytes: a quarter of the traffic, and int8 arithmetic."""
    target = described(memory=(DDR,), activation_bits=8, weight_bits=4, macs_per_cycle={"int8": 64, "fp32": 8})
    found = cost(target, convolution(8, 16, 4))
    assert (found.bytes_read, found.bytes_written) == (16 * 72 // 2 + 8 * 16, 16 * 16)
    assert found.precision == "int8"
    assert cost(described(), convolution(8, 16, 4)).precision == "fp32"


def test_the_next_wider_precision_is_taken() -> None:
    """Floats of 16 bits on a target with fp32 only; bytes on one with 16 bits."""
    half = product_work(input_dtype="float16", weight_dtype="float16")
    model = CycleModel(described(macs_per_cycle={"int8": 64, "fp32": 16}))
    assert model.table([half]).precisions == ("fp32",)
    byte = product_work(input_dtype="int8", weight_dtype="int8")
    model = CycleModel(described(macs_per_cycle={"int16": 32, "fp16": 32}))
    assert model.table([byte]).precisions == ("int16",)


def test_a_precision_that_is_not_there_is_refused() -> None:
    """Floats on a target of bytes: the message names the layer, the precision and the way out."""
    with pytest.raises(
        InputError, match=r"layer Conv_1: Conv multiplies in fp32, but target 'board' has int8"
    ) as error:
        cost(described(macs_per_cycle={"int8": 64}), convolution(8, 16, 4))
    assert "activation_bits" in str(error.value.remedy)


def test_a_small_cache_fetches_again() -> None:
    """Weights that do not fit come once a tile; a large cache fetches everything once."""
    model = convolution(64, 64, 32)
    small = cost(described(memory=(DDR,), cache=Cache(size_kib=32)), model)
    large = cost(described(memory=(DDR,), cache=Cache(size_kib=4096)), model)
    assert large.bytes_read == 4 * (64 * 1024 + 64 * 64 * 9)
    assert small.bytes_read > 1.5 * large.bytes_read


def test_recurrent_weights_that_do_not_stay_come_every_step() -> None:
    """20 steps through a cache of half a matrix read it 20 times."""
    weights = np.ones((1, 256, 64), np.float32), np.ones((1, 256, 64), np.float32)
    model = through("LSTM", (20, 1, 64), *weights, hidden_size=64)
    size = 4 * 256 * 128
    read = [cost(described(memory=(DDR,), cache=Cache(size_kib=kib)), model).bytes_read for kib in (64, 1024)]
    assert read == [20 * 64 * 4 + 20 * size, 20 * 64 * 4 + size]


def twins() -> tuple[Model, Model]:
    """Convolution, pool, view and product in float, and the same with every tensor through int8."""
    made = []
    for quantised in (False, True):
        b = GraphBuilder("twin")

        def int8(x: str, b: GraphBuilder = b, quantised: bool = quantised) -> str:
            pair = b.constant(np.float32(0.1)), b.constant(np.asarray(0, np.int8))
            return b.op("DequantizeLinear", b.op("QuantizeLinear", x, *pair), *pair) if quantised else x

        def weight(*shape: int, b: GraphBuilder = b, quantised: bool = quantised) -> str:
            if not quantised:
                return b.constant(np.ones(shape, np.float32))
            pair = b.constant(np.float32(0.1)), b.constant(np.asarray(0, np.int8))
            return b.op("DequantizeLinear", b.constant(np.ones(shape, np.int8)), *pair)

        x = int8(b.input("x", (1, 8, 32, 32)))
        x = int8(b.op("Relu", b.op("Conv", x, weight(16, 8, 3, 3), kernel_shape=[3, 3], strides=[2, 2])))
        x = int8(b.op("MaxPool", x, kernel_shape=[3, 3], strides=[3, 3]))
        x = int8(b.op("Flatten", x))
        b.output(int8(b.op("MatMul", x, weight(400, 64))))
        made.append(b.build())
    return made[0], made[1]


@pytest.mark.parametrize("name", ["vpu", "micro-npu", "edge-8", "dsp"])
def test_a_quantised_model_costs_what_its_float_twin_does(name: str) -> None:
    """On targets that store bytes anyway: layer by layer, but for scales of weights."""
    target = resolve_target(name)
    real, quantised = (CycleModel(target).layers(one.grouped(epilogue_groups(one))) for one in twins())
    assert len(real) == len(quantised) == 4
    for one, other in zip(real, quantised, strict=True):
        assert (one.macs, one.method) == (other.macs, other.method)
        assert other.cycles == pytest.approx(one.cycles, abs=30), other.op
        assert other.terms.get("compute") == one.terms.get("compute")


def test_fused_tensors_do_not_go_to_memory() -> None:
    """Fusing saves the middle's way out and back."""
    b = GraphBuilder("chain")
    b.output(b.conv(b.input("x", (1, 8, 10, 10)), 16, bias=False, activation="Relu"))
    model = b.build()
    costs = CycleModel(described(memory=(DDR,)))
    apart = costs.layers(model)
    together = only(costs.layers(model.grouped([[layer.name for layer in model.layers]])))
    assert sum(layer.bytes_read for layer in apart) - together.bytes_read == 1600 * 4
    assert sum(layer.bytes_written for layer in apart) - together.bytes_written == 1600 * 4


def test_fixed_cycles_bind_tiny_layers() -> None:
    """Overhead comes on top, and binds where it is the longest."""
    found = cost(described(layer_cycles=1000), through("Relu", (1, 16)))
    assert (found.cycles, found.bound, found.overhead_cycles) == (1001, "overhead", 1000)


@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 24),
    st.floats(0.05, 20),
    st.floats(0.05, 20),
    st.integers(1, 4096),
)
@settings(max_examples=25, deadline=None)
def test_the_longest_term_binds(channels, features, size, read, write, macs) -> None:
    """Total = longest term + overhead, and the bound is the name of the longest."""
    memory = Memory(name="ddr", read_bandwidth_gbps=read, write_bandwidth_gbps=write)
    target = described(memory=(memory,), cache=Cache(size_kib=64), macs_per_cycle={"fp32": macs}, layer_cycles=7)
    model = CycleModel(target)
    (work,) = model_work(convolution(channels, features, size))
    found = model.evaluate(model.table([work]), 0.0)
    longest = max(float(term[0]) for term in found.terms.values())
    assert found.cycles[0] == math.ceil(round(longest + float(found.overhead[0]), 6))
    name = found.names[found.bound[0]]
    assert name == "overhead" if found.overhead[0] > longest else float(found.terms[name][0]) == longest


# Monotony ------------------------------------------------------------------------------------

SPARSITIES = [
    Sparsity(skips=skips, cap_ratio=cap, lanes=lanes)
    for skips in ("weights", "activations", "saturating", "dual")
    for cap in (None, 2.5)
    for lanes in (1, 16)
]
VARIANTS = [{}, {"channel_granule": 16}, ARRAY, ARRAY | {"processing_units": 3}]


@given(
    variant=st.sampled_from(VARIANTS),
    sizes=st.fixed_dictionaries({key: st.integers(1, 80) for key in ("m", "n", "channels")}),
    grown=st.sampled_from(["m", "n", "channels", "groups", "steps"]),
    by=st.integers(1, 40),
)
@settings(deadline=None)
def test_more_work_never_takes_fewer_cycles(variant, sizes, grown, by) -> None:
    """Rows, columns, channels, groups or steps added."""
    sizes = {"groups": 1, "steps": 1} | sizes
    larger = sizes | {grown: sizes[grown] + by}
    target = described(memory=(DDR,), cache=Cache(size_kib=2), **variant)
    assert cycles_of(target, product_work(**larger)) >= cycles_of(target, product_work(**sizes))


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.integers(0, 10_000))
@settings(deadline=None)
def test_more_bytes_never_take_fewer_cycles(read, written, more) -> None:
    """Of what is read, or of what is written."""
    target = described(memory=(replace(DDR, latency_ns=100),), cache=Cache(size_kib=2))

    def cycles(read: int, written: int) -> int:
        tensors = ((read, "int8"),), ((written, "int8"),)
        return cycles_of(
            target,
            LayerWork(
                op="Copy", products=(), elements=0, reads=tensors[0], writes=tensors[1], constants=0, method="bytes"
            ),
        )

    assert cycles(read + more, written) >= cycles(read, written)
    assert cycles(read, written + more) >= cycles(read, written)


@given(
    sparsity=st.sampled_from(SPARSITIES),
    granule=st.sampled_from([1, 16]),
    channels=st.integers(1, 300),
    zeros=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
@settings(deadline=None)
def test_more_zeros_never_take_more_cycles(sparsity, granule, channels, zeros) -> None:
    """Of weights or of activations, whatever is skipped."""
    target = described(sparsity=sparsity, channel_granule=granule, memory=(DDR,), cache=Cache(size_kib=2))
    weights, activations = sorted(zeros[:2]), sorted(zeros[2:])
    work = product_work(channels=channels)
    assert cycles_of(target, work, weights[1], activations[1]) <= cycles_of(target, work, weights[0], activations[0])


# Whole models --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["vpu", "vpu-two-queues", "micro-npu", "edge-8", "gpu", "dsp"])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_layer_costs_something_or_says_why(target: str, name: str) -> None:
    """No layer is silently free: only views are, and they say so."""
    model = NETWORKS[name]()
    for layer in CycleModel(resolve_target(target)).layers(model):
        assert (layer.cycles > 0) == (layer.method != "view"), layer.name
        assert (layer.cycles > 0) == (layer.bound != "none")
        assert layer.latency_ns > 0 or layer.method == "view"
        assert 0 <= layer.utilisation_ratio <= 1


@pytest.mark.data
@pytest.mark.parametrize("target", ["vpu", "micro-npu", "edge-8", "gpu", "dsp"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("face-slim-320", {}),
        ("vad-16k", {"shapes": {"input": (1, 512)}, "constants": {"sr": 16000}}),
        ("resnet20-cifar10", {}),
    ],
)
def test_real_models_are_priced(shared_models: Path, target: str, name: str, arguments: dict[str, Any]) -> None:
    """Each layer of the real models, too, and by knowing its operator."""
    model = Model.load(shared_models / f"{name}.onnx", **arguments)
    layers = CycleModel(resolve_target(target)).layers(model)
    assert len(layers) == len(model.layers)
    assert sum(layer.macs for layer in layers) == model.macs
    for layer in layers:
        assert (layer.cycles > 0) == (layer.method != "view"), layer.name
        assert layer.method in ("products", "elements", "view")


@pytest.mark.parametrize("target", ["vpu", "micro-npu", "edge-8", "gpu", "dsp"])
@pytest.mark.parametrize("sizes", [{"m": 0}, {"channels": 0}, {"n": 0}])
def test_products_of_nothing_have_a_cost(target: str, sizes: dict[str, int]) -> None:
    """No multiply-accumulates: none are waited for, with zeros skipped or not, and no number is out of range."""
    rows = {"m": 4, "n": 8, "channels": 8} | sizes
    left, right = (rows["m"], rows["channels"]), (rows["channels"], rows["n"])
    model = through("MatMul", left, np.ones(right, np.float32))
    for sparsity in (None, 0.5):
        found = cost(resolve_target(target), model, weight_sparsity=sparsity)
        assert 0 <= found.cycles < 10_000
        assert (found.macs, found.utilisation_ratio) == (0, 0)
        assert (found.cycles == 0) == (rows["m"] * rows["n"] == 0)


def test_equal_layers_cost_the_same_and_are_priced_once() -> None:
    """Looked up, under each layer's own name."""
    model = NETWORKS["towers"]()
    costs = CycleModel(described(memory=(DDR,)))
    first = costs.layers(model)
    known = len(costs._known)
    assert costs.layers(model) == first
    assert len(costs._known) == known < len(model.layers)
    assert [layer.name for layer in first] == [layer.name for layer in model.layers]


def test_rows_together_cost_what_each_costs_alone() -> None:
    """Layers in any order and number, each with zeros of its own."""
    costs = CycleModel(resolve_target("vpu"))
    works = [work for network in ("plain", "lstm", "attention", "looping") for work in model_work(NETWORKS[network]())]
    table = costs.table(works)
    random = np.random.default_rng(0)
    which = random.integers(0, len(works), 200)
    weights, activations = random.random((2, 200))
    found = costs.evaluate(table, weights, activations, which=which)
    for row in range(200):
        alone = costs.evaluate(costs.table([works[which[row]]]), weights[row], activations[row])
        assert alone.cycles[0] == found.cycles[row]
        assert alone.names[alone.bound[0]] == found.names[found.bound[row]]


@pytest.mark.timed
def test_a_hundred_thousand_layers_in_a_second() -> None:
    """What a search asks for: 10^5 (layer, sparsity) pairs; far below a second on an idle core."""
    costs = CycleModel(resolve_target("vpu"))
    works = [work for work in model_work(BUILTIN["depth"](0)) if work.products]
    table = costs.table(works)
    random = np.random.default_rng(0)
    which, weights = random.integers(0, len(works), 100_000), random.random(100_000)
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        costs.evaluate(table, weights, 0.3, which=which)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 1.0


# Refusals ------------------------------------------------------------------------------------


def test_ratios_are_checked() -> None:
    """Between 0 and 1, one or one a layer."""
    model = convolution(8, 16, 4)
    with pytest.raises(InputError, match="weight_sparsity must be 0 to 1"):
        cost(described(), model, weight_sparsity=1.5)
    with pytest.raises(InputError, match="2 numbers for 1 layers"):
        cost(described(), model, activation_sparsity=[0.1, 0.2])


def test_a_layer_that_the_unit_does_not_run_is_refused() -> None:
    """It is named, with a unit that runs it."""
    target = described(units=(Unit(name="small", operators=("Relu",)), Unit(name="big")))
    with pytest.raises(
        InputError, match=r"layer Conv_1: unit 'small' of target 'board' does not support Conv"
    ) as error:
        cost(target, convolution(8, 16, 4))
    assert error.value.remedy == "choose unit 'big'"


def test_units_and_processors_have_to_be_there() -> None:
    """No such unit; nothing to count cycles of."""
    with pytest.raises(InputError, match="no unit 'other'"):
        CycleModel(described(), "other")
    with pytest.raises(InputError, match="describes no processor"):
        CycleModel(resolve_target("cpu"))


def test_the_least_description_is_enough() -> None:
    """Kind, name and clock: products run on the vector lanes."""
    target = described(macs_per_cycle={})
    found = cost(target, convolution(8, 16, 10))
    assert found.cycles == 16 * 100 * 72 / 16
