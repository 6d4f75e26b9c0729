"""A page in a browser without a screen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["needs_browser", "opened", "told"]

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


def opened(
    path: Path, address: str = "", seconds: int = 2, size: str = "1280,900", part: str = ""
) -> tuple[dict[str, str], str]:
    """What a page, or the part of that id, says of itself once it is drawn (its ``data-`` attributes), and the page."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-extensions", f"--virtual-time-budget={1000 * seconds}",
        f"--window-size={size}", f"--user-data-dir={path.parent / 'browser'}", "--dump-dom", f"file://{path}{address}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    return told(done.stdout, part), done.stdout


def told(dom: str, part: str = "") -> dict[str, str]:
    """The ``data-`` attributes of a page's root, or of the part of that id."""
    element = re.search(rf'<section[^>]*id="{part}"[^>]*>' if part else "<html[^>]*>", dom)
    assert element is not None
    return dict(re.findall(r'data-([\w-]+)="([^"]*)"', element[0]))
