"""Draws docs/runtime_cpu.svg from the stored result of runtime_cpu.py.

python benchmarks/picture.py
"""

from __future__ import annotations

from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
OWN = ("framefit", "segments")


def bars(title: str, rows: list[tuple[str, float, str]], x: float, width: float) -> list[str]:
    """A panel of horizontal bars: name, value, text."""
    most = max(value for _, value, _ in rows)
    parts = [f'<text x="{x}" y="34" class="title">{title}</text>']
    for index, (name, value, text) in enumerate(rows):
        y = 52 + 30 * index
        length = max(value / most * (width - 190), 1)
        kind = "own" if name in OWN else "other"
        parts.append(f'<text x="{x + 70}" y="{y + 15}" text-anchor="end" class="name">{name}</text>')
        parts.append(f'<rect x="{x + 78}" y="{y}" width="{length:.1f}" height="20" rx="4" class="{kind}"/>')
        parts.append(f'<text x="{x + 84 + length:.1f}" y="{y + 15}" class="value">{text}</text>')
    return parts


def main() -> None:
    """Write the picture."""
    result = msgspec.json.decode((ROOT / "benchmarks" / "results" / "runtime_cpu.json").read_bytes())
    arms = {arm: row for arm, row in result["arms"].items() if arm != "loop"}  # seconds late, off any scale
    late = [(arm, row["finish_ns"][1] / 1e6, f"{row['finish_ns'][1] / 1e6:.1f} ms") for arm, row in arms.items()]
    rate = [
        (arm, row["background_hz"], f"{row['background_hz']:.1f} Hz") for arm, row in arms.items() if arm != "alone"
    ]
    height = 70 + 30 * len(late)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" role="img">',
        (
            "<style>text{font-family:system-ui,sans-serif;fill:#1c2430;font-size:13px}.title{font-weight:700;font-size:15px}"
            ".value{fill:#5b6675}.own{fill:#2563eb}.other{fill:#b8c0cc}.card{fill:#fff;stroke:#e2e6ec}"
            "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.value{fill:#9aa5b4}.card{fill:#151a21;stroke:#2a323d}"
            ".other{fill:#5b6675}.own{fill:#5b8dff}}</style>"
        ),
        f'<rect x="0.5" y="0.5" width="899" height="{height - 1}" rx="12" class="card"/>',
        *bars("face model: p99 from release to finish", late, 20, 440),
        *bars("background model: frames a second", rate, 470, 420),
        "</svg>",
    ]
    (ROOT / "docs" / "runtime_cpu.svg").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
