"""Packages with backends of their own, as ``pip`` would install them into a folder."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from framefit.core.target import BACKEND_GROUP

__all__ = ["install", "write_package"]

_INSTANT = """
import os, time
from dataclasses import replace

from devices.instant import BACKEND, InstantDevice
from framefit import DeviceError, InputError
from framefit.devices import FoundDevice
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str, code: str, version: str = "1.2") -> None:
    """Install a package ``framefit-KIND`` whose module holds ``code`` after an instant device's imports.

    Other processes find it, too.
    """
    write_package(monkeypatch, folder, kind, f"plug_{kind}:BACKEND", version)
    (folder / f"plug_{kind}.py").write_text(_INSTANT + textwrap.dedent(code))


def write_package(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str, entry_point: str, version: str = "1.2"
) -> None:
    """Write what tells Python that a package ``framefit-KIND`` is installed, and where its backend is."""
    info = folder / f"framefit_{kind}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: framefit-{kind}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{BACKEND_GROUP}]\n{kind} = {entry_point}\n")
    if str(folder) not in sys.path:
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
