"""What documents show works as it is shown."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from documents import ROOT, Walkthrough, blocks

import framefit
from framefit import GraphBuilder
from workloads import write_app, write_target

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
HERE = [path for path in TUTORIALS if path.stem != "board"]  # that one is followed by tests/boards/test_sshd.py
DIGITS = "python examples/digits.py --network mlp -o digits"


@pytest.fixture
def walkthrough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walkthrough:
    """A reader in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Walkthrough(tmp_path, {"__name__": "__main__"})


@pytest.mark.parametrize("tutorial", HERE, ids=[path.stem for path in HERE])
def test_a_tutorial_can_be_followed(tutorial: Path, walkthrough: Walkthrough, request: pytest.FixtureRequest) -> None:
    """From its first block to its last, each does what it is shown to do."""
    assert blocks(tutorial)
    text = tutorial.read_text()
    if "framefit[train]" in text:
        pytest.importorskip("torch", reason="the extra 'train' is not installed")
        pytest.importorskip("sklearn", reason="no digits without scikit-learn")
    if DIGITS in text:
        walkthrough.examples = {DIGITS: request.getfixturevalue("digits")}
    walkthrough.follow(tutorial)


def test_the_examples_of_the_guide_run(walkthrough: Walkthrough, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are printed, in virtual time, with the models that they name."""
    write_target(walkthrough.folder)
    for name in ("face", "depth"):
        b = GraphBuilder(name, 1)
        x = b.conv(b.input("image", (1, 3, 16, 16)), 8, activation="Relu")
        b.output(b.op("GlobalAveragePool", x), "boxes")
        b.build().save(walkthrough.folder / f"{name}.onnx")
    given = {"rate_hz": 80, "guard_ms": None, "schedule": "", "target": "target.toml"}
    write_app(walkthrough.folder, **given, priority=["depth"], background=()).rename(walkthrough.folder / "other.toml")
    write_app(walkthrough.folder, **given, priority=["face"], background=["depth"])
    walkthrough.names["camera"] = np.random.default_rng(1).standard_normal((6, 3, 16, 16)).astype(np.float32)
    monkeypatch.setattr(framefit, "Runner", functools.partial(framefit.Runner, virtual=True))
    walkthrough.follow(ROOT / "docs" / "embedding.md")
    assert walkthrough.printed


def test_tutorials_can_be_found() -> None:
    """The README names each of them, and each says where to go on."""
    readme = (ROOT / "README.md").read_text()
    for path in TUTORIALS:
        assert f"docs/tutorials/{path.name}" in readme
        assert "](../" in path.read_text()
