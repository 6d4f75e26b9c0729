"""Trees in C equal the reference, on this machine and on Cortex-M0 and M4."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import InputError
from framefit.core.trees import Ensemble, Forest, Patch, accumulate, encode, levels_of
from framefit.trees.c_source import c_source, input_step
from trees_cases import random_ensemble

CC = shutil.which("gcc") or shutil.which("cc")
ARM, QEMU = shutil.which("arm-none-eabi-gcc"), shutil.which("qemu-system-arm")
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-const-variable")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler on PATH")
needs_arm = pytest.mark.skipif(ARM is None or QEMU is None, reason="no arm-none-eabi-gcc or qemu-system-arm on PATH")


def wanted(ensemble: Ensemble, x: np.ndarray) -> np.ndarray:
    """Levels, or sums with their biases, of int8 inputs: examples x outputs x positions."""
    sums = accumulate(ensemble, encode(ensemble, x.astype(np.float32) * np.float32(input_step(ensemble))))
    if ensemble.levels is not None:
        rows = levels_of(ensemble, sums)
    else:
        assert ensemble.scaled is not None
        rows = sums + np.asarray(ensemble.scaled.bias, np.int32)
    examples = rows.reshape(len(x), ensemble.positions, ensemble.outputs)
    tokens = ensemble.patch is not None and ensemble.patch.layout == "tokens"
    return (examples if tokens else examples.transpose(0, 2, 1)).reshape(len(x), -1)


def computed(ensemble: Ensemble, x: np.ndarray, folder: Path) -> np.ndarray:
    """What the compiled function gives on this machine."""
    source, library = folder / "trees.c", folder / f"trees{len(list(folder.iterdir()))}.so"
    source.write_text(c_source(Forest(model="net", ensembles=(ensemble,))))
    assert CC is not None
    sanitised = ("-O1", "-fsanitize=undefined", "-fno-sanitize-recover", "-shared", "-fPIC")
    subprocess.run([CC, *WARNINGS, *sanitised, source, "-o", library], check=True)
    function = getattr(ctypes.CDLL(str(library)), ensemble.name)
    kind = np.uint8 if ensemble.levels is not None else np.int32
    y = np.zeros((len(x), ensemble.positions * ensemble.outputs), kind)
    for example, output in zip(np.ascontiguousarray(x, np.int8), y, strict=True):
        function(example.ctypes.data_as(ctypes.c_void_p), output.ctypes.data_as(ctypes.c_void_p))
    return y


def drawn(random: np.random.Generator, ensemble: Ensemble, count: int) -> np.ndarray:
    """Int8 inputs of the whole range."""
    return random.integers(-128, 128, (count, *ensemble.input_shape)).astype(np.int8)


@needs_cc
@settings(max_examples=12)
@given(
    seed=st.integers(0, 999),
    kind=st.sampled_from(["vote", "scalar", "vector"]),
    free=st.booleans(),
    levelled=st.booleans(),
    patch=st.none()
    | st.builds(
        Patch,
        kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
        padding=st.tuples(*[st.integers(0, 2)] * 4),
        border=st.booleans(),
    ),
)
def test_it_gives_what_the_reference_gives(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str, free: bool, levelled: bool, patch: Patch | None
) -> None:
    """Any kind of trees, leaves, outputs and patches."""
    random = np.random.default_rng(seed)
    shape = (3, int(random.integers(4, 9)), int(random.integers(4, 80))) if patch else (int(random.integers(1, 12)),)
    ensemble = random_ensemble(random, kind=kind, free=free, levelled=levelled, patch=patch, input_shape=shape)
    x = drawn(random, ensemble, 40)
    np.testing.assert_array_equal(computed(ensemble, x, tmp_path_factory.mktemp("c")), wanted(ensemble, x))


@needs_cc
@pytest.mark.parametrize("kind", ["vote", "vector"])
def test_signals(tmp_path: Path, kind: str) -> None:
    """Channels x length: an image of one row."""
    random = np.random.default_rng(2)
    patch = Patch(kernel=(1, 5), stride=(1, 2), padding=(0, 2, 0, 1), border=True)
    ensemble = random_ensemble(random, kind=kind, patch=patch, input_shape=(2, 71))
    x = drawn(random, ensemble, 20)
    np.testing.assert_array_equal(computed(ensemble, x, tmp_path), wanted(ensemble, x))


@needs_cc
def test_tokens(tmp_path: Path) -> None:
    """Their channels are the last axis."""
    random = np.random.default_rng(3)
    patch = Patch(kernel=(1, 1), layout="tokens")
    ensemble = random_ensemble(random, patch=patch, input_shape=(37, 6), outputs=5)
    x = drawn(random, ensemble, 20)
    np.testing.assert_array_equal(computed(ensemble, x, tmp_path), wanted(ensemble, x))


def test_a_volume_is_refused() -> None:
    """It has no form in C."""
    patch = Patch(kernel=(2, 2), layout="volume", depth=(2, 1, 0, 0))
    ensemble = random_ensemble(np.random.default_rng(4), patch=patch, input_shape=(1, 3, 4, 4))
    with pytest.raises(InputError, match="a volume have no form in C"):
        c_source(Forest(model="net", ensembles=(ensemble,)))


@needs_cc
@pytest.mark.parametrize("kind", ["vote", "vector"])
def test_ten_thousand_inputs(tmp_path: Path, kind: str) -> None:
    """Votes on patches, 32 at once, and vectors on features."""
    random = np.random.default_rng(1)
    patch = Patch(kernel=(3, 3), padding=(1, 1, 1, 1), border=True) if kind == "vote" else None
    shape = (4, 6, 40) if kind == "vote" else (64,)
    ensemble = random_ensemble(random, kind=kind, patch=patch, input_shape=shape, outputs=4, trees=9)
    x = drawn(random, ensemble, 10_000)
    np.testing.assert_array_equal(computed(ensemble, x, tmp_path), wanted(ensemble, x))


BOARDS = {"cortex-m0": "microbit", "cortex-m4": "mps2-an386"}
LINKER = """
MEMORY { flash : ORIGIN = 0, LENGTH = 256K  ram : ORIGIN = 0x20000000, LENGTH = 16K }
SECTIONS {
  .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) } > flash
  .bss : { *(.bss*) *(COMMON) } > ram
  /DISCARD/ : { *(.ARM.exidx*) *(.ARM.attributes) *(.comment) }
}
"""
MAIN = """
static void host(int operation, const void *argument)
{{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}}
static {kind} y[{outputs}];
static int8_t x[{inputs}];
void begin(void)
{{
    uint32_t at, k, bit, crc = 0xffffffffu, state = 1u;
    for (at = 0; at < {count}; at++) {{
        for (k = 0; k < {inputs}; k++) {{
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            x[k] = (int8_t)(uint8_t)(state >> 24);
        }}
        {name}(x, y);
        for (k = 0; k < sizeof y; k++) {{
            crc ^= ((const uint8_t *)y)[k];
            for (bit = 0; bit < 8; bit++)
                crc = crc & 1u ? crc >> 1 ^ 0xedb88320u : crc >> 1;
        }}
    }}
    host(4, ~crc == {wanted}u ? "equal" : "wrong");
    host(0x18, (const void *)0x20026);
}}
__attribute__((section(".vectors"), used)) static const void *const vectors[] = {{(const void *)0x20004000, begin}};
"""


def shifted(count: int) -> np.ndarray:
    """Int8 numbers of a generator that a processor without division has, too (Marsaglia, "Xorshift RNGs", 2003)."""
    numbers, state = np.empty(count, np.uint8), 1
    for at in range(count):
        state ^= state << 13 & 0xFFFFFFFF
        state ^= state >> 17
        state ^= state << 5 & 0xFFFFFFFF
        numbers[at] = state >> 24
    return numbers.view(np.int8)


@needs_arm
@pytest.mark.parametrize("core", list(BOARDS))
@pytest.mark.parametrize("kind", ["vote", "vector"])
def test_a_cortex_m_gives_the_same(tmp_path: Path, core: str, kind: str) -> None:
    """Compiled by its own compiler, run by an emulator of its instructions, on 10,000 inputs."""
    random = np.random.default_rng(2)
    patch = Patch(kernel=(3, 3), padding=(1, 1, 1, 1), border=True) if kind == "vote" else None
    shape = (2, 3, 35) if kind == "vote" else (24,)
    ensemble = random_ensemble(random, kind=kind, patch=patch, input_shape=shape, outputs=3, trees=5)
    x = shifted(10_000 * math.prod(shape)).reshape(-1, *shape)
    y = wanted(ensemble, x)
    output = "uint8_t" if ensemble.levels is not None else "int32_t"
    sent = zlib.crc32(y.astype("u1" if output == "uint8_t" else "<i4").tobytes())
    given = {"kind": output, "outputs": y.shape[1], "inputs": x[0].size, "wanted": sent}
    source = tmp_path / "trees.c"
    source.write_text(
        c_source(Forest(model="net", ensembles=(ensemble,))) + MAIN.format(count=len(x), name=ensemble.name, **given)
    )
    script, program = tmp_path / "flash.ld", tmp_path / "trees.elf"
    script.write_text(LINKER)
    assert ARM is not None
    assert QEMU is not None
    options = (f"-mcpu={core}", "-mthumb", "-Os", *WARNINGS, "-ffreestanding", "-nostdlib", f"-T{script}")
    subprocess.run([ARM, *options, source, "-lgcc", "-o", program], check=True)
    ran = subprocess.run(
        [QEMU, "-M", BOARDS[core], "-display", "none", "-semihosting", "-kernel", program],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.stdout + ran.stderr == "equal"
