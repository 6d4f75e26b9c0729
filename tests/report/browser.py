"""A page in a browser without a screen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["needs_browser", "opened"]

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


def opened(path: Path, address: str = "", seconds: int = 2, size: str = "1280,900") -> tuple[dict[str, str], str]:
    """What a page says of itself (the ``data-`` attributes of its root) once it is drawn, and all of it."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-extensions", f"--virtual-time-budget={1000 * seconds}",
        f"--window-size={size}", f"--user-data-dir={path.parent / 'browser'}", "--dump-dom", f"file://{path}{address}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    root = re.search(r"<html[^>]*>", done.stdout)
    assert root is not None
    return dict(re.findall(r'data-([\w-]+)="([^"]*)"', root[0])), done.stdout
