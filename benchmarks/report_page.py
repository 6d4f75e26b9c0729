"""The page of a run of a million events opens within 3 s; that of a run as long as the demo's is at most 2 MB.

    python benchmarks/report_page.py [--rounds 7]

The models of ``make demo`` are simulated on the described VPU, for 240 windows (as many as the demo has) and until
the trace holds 1,048,576 events, as many as runs keep. Both pages are opened in headless Chromium, in turn, a fresh
browser each time; the page's own clock says how long it took from the beginning of the navigation until the
timeline is drawn, and the browser how much processor time of the page's process that was, so that a neighbour on the
machine does not count. Sizes, and what making the pages took, stand beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from stored import interval, store

from framefit.core.events import Trace
from framefit.workflows.demo import write_demo
from framefit.workflows.report import write_report
from framefit.workflows.run import simulate

ARMS = {"as the demo": 240, "a million events": 6_000}
WAIT_S = 60
READY = "document.querySelector('.timeline')?.dataset.readyMs ?? ''"


class Page:
    """A page in a fresh browser without a screen, asked over the browser's debugging pipe."""

    def __init__(self, browser: str, page: Path, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
        options += " --disable-component-update --disable-extensions --window-size=1280,900 --remote-debugging-pipe"
        command = f"exec {browser} {options} --user-data-dir={profile} 3<&{to_browser} 4>&{from_browser}"
        pipes = (to_browser, from_browser)
        self._process = subprocess.Popen(["bash", "-c", command], pass_fds=pipes, stderr=subprocess.DEVNULL)
        for end in pipes:
            os.close(end)
        self._replies = os.fdopen(self._in, "rb")
        self._count = 0
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._ask("Performance.enable", {}, self._session)
        self._ask("Page.navigate", {"url": f"file://{page}"}, self._session)

    def ready_ms(self) -> tuple[float, float]:
        """From the beginning of the navigation until the timeline is drawn: elapsed, and the process's own time."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            found = self._ask("Runtime.evaluate", {"expression": READY}, self._session)["result"].get("value")
            if found:
                metrics = self._ask("Performance.getMetrics", {}, self._session)["metrics"]
                return float(found), 1e3 * next(one["value"] for one in metrics if one["name"] == "ProcessTime")
            time.sleep(0.1)
        raise SystemExit(f"not drawn within {WAIT_S} s")

    def close(self) -> None:
        """End the browser."""
        self._ask("Browser.close", {})
        self._process.wait(timeout=30)
        os.close(self._out)
        self._replies.close()

    def _ask(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            text = bytearray()
            while (byte := self._replies.read(1)) != b"\0":
                text += byte
            reply = json.loads(text)
            if reply.get("id") == self._count:
                return reply["result"]


def opened_ms(browser: str, page: Path, profile: Path) -> tuple[float, float]:
    """What opening a page takes in a fresh browser: elapsed, and own time."""
    shown = Page(browser, page, profile)
    try:
        return shown.ready_ms()
    finally:
        shown.close()


def main() -> None:
    """Make the pages, open them in turn, print the table, store it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    browser = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("there is no Chromium here")
    with tempfile.TemporaryDirectory() as here:
        folder = Path(here)
        app = write_demo(folder / "demo")
        rows: dict[str, dict[str, object]] = {}
        pages: dict[str, Path] = {}
        for number, (arm, windows) in enumerate(ARMS.items()):
            result = simulate(app, target="vpu", windows=windows, output=folder / f"run{number}")
            began = time.process_time()
            pages[arm] = write_report(result.folder)
            rows[arm] = {
                "windows": windows,
                "events": len(Trace.read(result.folder / "trace.npz")),
                "page_bytes": pages[arm].stat().st_size,
                "made_in_s": time.process_time() - began,
            }
        taken: dict[str, list[tuple[float, float]]] = {arm: [] for arm in pages}
        for turn in range(rounds):
            for arm in list(pages)[:: 1 if turn % 2 else -1]:
                taken[arm].append(opened_ms(browser, pages[arm], folder / "browser"))
    version = subprocess.run([browser, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{'page':18} {'events':>10} {'size':>9} {'made in':>9} {'opens, own time':>26} {'elapsed':>22}")
    for arm, row in rows.items():
        cells = []
        for name, values in zip(("opens_elapsed_ms", "opens_own_ms"), zip(*taken[arm], strict=True), strict=True):
            middle, (low, high) = float(np.median(values)), interval(values, np.median)
            row |= {name: values, f"{name}_median": middle, f"{name}_interval": (low, high)}
            cells.insert(0, f"{middle:.0f} ms ({low:.0f} to {high:.0f})")
        size, made = f"{row['page_bytes'] / 1e6:.2f} MB", f"{row['made_in_s']:.1f} s"
        print(f"{arm:18} {row['events']:>10,} {size:>9} {made:>9} {cells[0]:>26} {cells[1]:>22}")
    store("report_page", {"browser": version, "rounds": rounds, "arms": rows}, f"report_page.py --rounds {rounds}")


if __name__ == "__main__":
    main()
