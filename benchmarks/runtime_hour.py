"""One hour of the demo's workload on one CPU core: misses, jitter, memory.

    python benchmarks/runtime_hour.py [--minutes 60] [--depth-hz RATE --name runtime_hour_memory]

The built-in detector 30 times a second and the built-in depth network, as ``framefit run`` plans them by
default. Every ten seconds the process's resident memory is read in idle time; jitter and misses are
given for the whole hour and for each five minutes. A picture lies beside the figures. ``--depth-hz`` lets depth run
that often only, which leaves the core to others while memory is watched.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from stored import store

import framefit
from framefit.core.model.builtin import BUILTIN

RATE_HZ = 30
SAMPLE_S = 10.0
SLICE_S = 300.0


def resident_bytes() -> int:
    """Of this process, from Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def picture(slices: list[dict[str, float]], memory: list[tuple[float, int]], path: Path) -> None:
    """Finish time by five minutes above, memory below, as an SVG."""
    width, height, left = 720, 150, 60
    end = max(memory[-1][0], 1.0)

    def line(points: list[tuple[float, float]], top: float, colour: str, base: int) -> str:
        places = " ".join(
            f"{left + (width - left) * x / end:.1f},{base + height - height * y / top:.1f}" for x, y in points
        )
        return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    colours = {"p50": "#4878a8", "p99": "#c06030", "p99.9": "#a03050"}
    top = 1.1 * max(row["finish_p99.9_ns"] for row in slices) / 1e6
    most = 1.2 * max(size for _, size in memory) / 2**20
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 20} {2 * height + 90}"'
            ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        ),
        f'<text x="{left}" y="16">detector, release to finish [ms], each 5 minutes: '
        + " ".join(f'<tspan fill="{colour}">{name}</tspan>' for name, colour in colours.items())
        + "</text>",
    ]
    for name, colour in colours.items():
        points = [(row["begin_s"] + SLICE_S / 2, row[f"finish_{name}_ns"] / 1e6) for row in slices]
        parts.append(line([(min(x, end), y) for x, y in points], top, colour, 24))
    low = height + 70
    parts.append(f'<text x="{left}" y="{low - 8}">resident memory [MiB]</text>')
    parts.append(line([(at, size / 2**20) for at, size in memory], most, "#407040", low))
    for base, value in ((24, top), (low, most)):
        parts.append(f'<text x="4" y="{base + 10}">{value:.0f}</text><text x="4" y="{base + height}">0</text>')
        parts.append(
            f'<path d="M{left},{base} V{base + height} H{width}" fill="none" stroke="#888" stroke-width="0.8"/>'
        )
    parts.append(f'<text x="{width - 60}" y="{low + height + 16}">{end / 60:.0f} min</text></svg>')
    path.write_text("\n".join(parts))


def main() -> None:
    """Run, print, write the result and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--depth-hz", type=float, help="as often as possible if not given")
    parser.add_argument("--name", default="runtime_hour", help="of the stored result and the picture")
    options = parser.parse_args()
    memory: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in ("detector", "depth"):
            BUILTIN[model](0).save(folder / f"{model}.onnx")
        app = folder / "app.toml"
        app.write_text(
            f"rate_hz = {RATE_HZ}\n"
            '[[models]]\nname = "detector"\npath = "detector.onnx"\npriority = "every-window"\n'
            '[[models]]\nname = "depth"\npath = "depth.onnx"\npriority = "background"\n'
            + (f"every = {round(RATE_HZ / options.depth_hz)}\n" if options.depth_hz else "")
        )
        plan = framefit.plan(app, cache=False)
        begin = time.monotonic()

        def look(_windows: int, _count: int) -> None:
            at = time.monotonic() - begin
            if not memory or at >= memory[-1][0] + SAMPLE_S:
                memory.append((at, resident_bytes()))

        result = framefit.run(plan, seconds=60 * options.minutes, output=folder / "run", on_idle=look)
    metrics = result.metrics
    detector, depth = metrics.models
    done = [f for f in result.frames if f.model == "detector" and f.finished_ns is not None]
    released = np.asarray([frame.released_ns for frame in done])
    finish = np.asarray([frame.finished_ns - frame.released_ns for frame in done if frame.finished_ns is not None])
    slices = []
    for at in np.arange(0, 60 * options.minutes, SLICE_S):
        here = finish[(released >= at * 1e9) & (released < (at + SLICE_S) * 1e9)]
        if len(here):
            row = {f"finish_p{q}_ns": float(np.quantile(here, q / 100)) for q in (50, 99, 99.9)}
            slices.append(row | {"begin_s": float(at), "late": int((here > 1e9 / RATE_HZ).sum())})
    settled = [size for at, size in memory if at >= 60] or [size for _, size in memory]
    table = {
        "minutes": options.minutes,
        "windows": metrics.windows,
        "missed": detector.missed,
        "miss_ratio_upper": detector.miss_ratio_upper,
        "release_to_start_ns": detector.release_to_start_ns,
        "release_to_finish_ns": detector.release_to_finish_ns,
        "floor_release_to_start_ns": metrics.floor_release_to_start_ns,
        "depth_hz": depth.throughput_hz,
        "depth_of_fluid": depth.throughput_hz / (depth.fluid_bound_hz or 1),
        "causes": {cause: sum(m.cause == cause for m in metrics.misses) for cause in {m.cause for m in metrics.misses}},
        "memory_bytes": {"after_1_min": settled[0], "end": settled[-1], "most": max(settled)},
        "slices": slices,
    }
    given = f" --depth-hz {options.depth_hz:g} --name {options.name}" if options.depth_hz else ""
    store(options.name, table, f"runtime_hour.py --minutes {options.minutes:g}{given}")
    picture(slices, memory, Path(__file__).parents[1] / "docs" / f"{options.name}.svg")
    print({key: value for key, value in table.items() if key != "slices"})


if __name__ == "__main__":
    main()
