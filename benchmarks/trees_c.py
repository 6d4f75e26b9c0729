"""What trees in C take on a Cortex-M0 and M4 beside the same layer as int8 products, instruction by instruction.

The layer is a convolution of 3 x 3 over ``--channels`` channels of a ``--height`` x ``--width`` image, as the first
block of a keyword network; in its place stand nine votes of depth six an output, drawn at random: what they take does
not depend on what they say. Both are compiled alike (-O2), and run by QEMU, which counts instructions
(-icount shift=0: a nanosecond each, read by the processor's own timer).

    python benchmarks/trees_c.py [--channels 16] [--outputs 16] [--height 16] [--width 32]

Needs arm-none-eabi-gcc and qemu-system-arm on PATH. Real processors take more than a cycle for loads and branches.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from stored import store

from framefit.core.trees import Forest, ObliviousTree, Patch
from framefit.trees.c_source import c_source

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS), str(TESTS / "trees")]

from test_c_source import LINKER  # noqa: E402

from trees_cases import random_ensemble  # noqa: E402

CORES = {"cortex-m0": ("microbit", 16_000_000), "cortex-m4": ("mps2-an386", 25_000_000)}
PRODUCTS = """
#include <stdint.h>
static const int8_t weights[{weights}] = {{{values}}};
static const int32_t bias[{outputs}] = {{0}};
void layer(const int8_t *x, int8_t *y)
{{
    int32_t o, r, c, i, j, k;
    for (o = 0; o < {outputs}; o++)
        for (r = 0; r < {height}; r++)
            for (c = 0; c < {width}; c++) {{
                int32_t sum = bias[o];
                for (k = 0; k < {channels}; k++)
                    for (i = 0; i < 3; i++) {{
                        const int8_t *from = x + (k * ({height} + 2) + r + i) * ({width} + 2) + c;
                        const int8_t *w = weights + ((o * {channels} + k) * 3 + i) * 3;
                        for (j = 0; j < 3; j++)
                            sum += from[j] * w[j];
                    }}
                sum = (sum * 77) >> 14;
                *y++ = (int8_t)(sum > 127 ? 127 : sum < 0 ? 0 : sum);
            }}
}}
"""
MAIN = """
#define TIMER ((volatile uint32_t *)0xe000e010)
void *memset(void *to, int value, unsigned count)
{{
    unsigned char *at = to;
    while (count--)
        *at++ = (unsigned char)value;
    return to;
}}
static void host(int operation, const void *argument)
{{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}}
static {kind} y[{outputs}];
static char text[12];
void begin(void)
{{
    uint32_t before, ticks, k;
    TIMER[1] = 0xffffff;
    TIMER[2] = 0;
    TIMER[0] = 5;
    before = TIMER[2];
    {name}(inputs, y);
    ticks = (before - TIMER[2]) & 0xffffff;
    for (k = 11; k--; ticks /= 10)
        text[k] = (char)('0' + ticks % 10);
    host(4, text);
    host(0x18, (const void *)0x20026);
}}
__attribute__((section(".vectors"), used)) static const void *const vectors[] = {{(const void *)0x20004000, begin}};
"""


def counted(source: str, core: str, folder: Path) -> dict[str, int]:
    """Instructions of one call, and bytes of flash and static memory."""
    machine, rate_hz = CORES[core]
    paths = [folder / name for name in ("run.c", "flash.ld", "run.elf")]
    paths[0].write_text(source)
    paths[1].write_text(LINKER)
    options = (f"-mcpu={core}", "-mthumb", "-O2", "-std=c99", "-ffreestanding", "-nostdlib", f"-T{paths[1]}")
    subprocess.run(["arm-none-eabi-gcc", *options, paths[0], "-lgcc", "-o", paths[2]], check=True)
    command = ["qemu-system-arm", "-M", machine, "-display", "none", "-semihosting", "-icount", "shift=0", "-kernel"]
    ran = subprocess.run([*command, paths[2]], capture_output=True, text=True, timeout=300, check=True)
    sizes = subprocess.run(["arm-none-eabi-size", paths[2]], capture_output=True, text=True, check=True)
    text, _, bss = map(int, sizes.stdout.splitlines()[1].split()[:3])
    return {
        "instructions": round(int(ran.stdout + ran.stderr) * 1e9 / rate_hz),
        "flash_bytes": text,
        "ram_bytes": bss,
    }


def main() -> None:
    """Both cores; the ratio of trees to products."""
    parser = argparse.ArgumentParser()
    for name, default in (("channels", 16), ("outputs", 16), ("height", 8), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    shape = (options.channels, options.height, options.width)
    patch = Patch(kernel=(3, 3), padding=(1, 1, 1, 1))
    ensemble = random_ensemble(random, patch=patch, input_shape=shape, outputs=options.outputs, trees=9)
    trees_of = tuple(
        ObliviousTree(
            inputs=tuple(random.integers(0, ensemble.features, 6).tolist()),
            bits=tuple(random.integers(0, 2, 6).tolist()),
            leaves=tuple(random.integers(0, 2, 64).tolist()),
        )
        for _ in ensemble.trees
    )
    ensemble = msgspec.structs.replace(ensemble, trees=trees_of)
    positions = options.height * options.width
    inputs = random.integers(-128, 128, shape).astype(np.int8)
    padded = np.pad(inputs, ((0, 0), (1, 1), (1, 1)))
    weights = random.integers(-127, 128, options.outputs * options.channels * 9).tolist()

    def source(body: str, x: np.ndarray, name: str, kind: str) -> str:
        listed = f"static const int8_t inputs[] = {{{', '.join(map(str, x.ravel().tolist()))}}};\n"
        return body + listed + MAIN.format(kind=kind, outputs=options.outputs * positions, name=name)

    trees = source(c_source(Forest(model="net", ensembles=(ensemble,))), inputs, ensemble.name, "uint8_t")
    values = {"weights": len(weights), "values": ", ".join(map(str, weights)), **vars(options)}
    products = source(PRODUCTS.format(**values), padded, "layer", "int8_t")
    figures: dict[str, object] = {
        "layer": f"3 x 3, {options.channels} to {options.outputs} channels, {options.height} x {options.width}",
        "trees": len(ensemble.trees),
        "depth": 6,
    }
    for core in CORES:
        with TemporaryDirectory() as folder:
            here = {"trees": counted(trees, core, Path(folder)), "products": counted(products, core, Path(folder))}
        ratio = here["trees"]["instructions"] / here["products"]["instructions"]
        figures[core] = {**here, "instructions_ratio": round(ratio, 4)}
        print(core, figures[core], flush=True)
    store("trees_c", figures, "trees_c.py " + " ".join(f"--{name} {value}" for name, value in vars(options).items()))


if __name__ == "__main__":
    main()
