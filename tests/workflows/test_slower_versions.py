"""``framefit check``: models beside an earlier version of themselves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import framefit
from framefit import GraphBuilder, InputError, Model
from framefit.cli.app import main
from framefit.workflows import check as checking
from framefit.workflows.check import judged

ROUNDS = 100


def layers(count: int) -> Model:
    """A chain of equal convolutions."""
    b = GraphBuilder("net", 0)
    x = b.input("x", (1, 16, 24, 24))
    for _ in range(count):
        x = b.conv(x, 16, activation="Relu")
    b.output(x, "y")
    return b.build()


def version(folder: Path, count: int, name: str = "net", target: str = "cpu") -> Path:
    """A workload with a model of so many layers."""
    folder.mkdir()
    layers(count).save(folder / "net.onnx")
    app = folder / "app.toml"
    app.write_text(f'target = "{target}"\nrate_hz = 20\n[[models]]\nname = "{name}"\npath = "net.onnx"\n')
    return app


def rounds(ratio: float, spread: float, count: int = ROUNDS, ns: float = 1e6) -> np.ndarray:
    """Durations of two versions, whose ratio varies by a part."""
    random = np.random.default_rng(0)
    noise = 1 + spread * random.standard_normal((count, 2))
    return ns * noise * np.array([ratio, 1.0])


@pytest.mark.parametrize(
    ("samples", "decision"),
    [
        (rounds(1.0, 0.03), "pass"),
        (rounds(1.1, 0.03), "fail"),
        (rounds(0.5, 0.03), "pass"),
        (rounds(1.05, 0.03), "cannot tell"),
        (np.array([[0.9e6, 1e6], [2e6, 1e6]] * 3), "cannot tell"),
        (rounds(1.5, 0.01, ns=3000), "pass"),
    ],
    ids=["equal", "a tenth more", "half", "at the limit", "noisy and few", "below the floor"],
)
def test_an_interval_decides(samples: np.ndarray, decision: str) -> None:
    """All of it above the limit, all below, or neither; tiny differences do not count."""
    assert judged("net", samples, 1.05).decision == decision


def test_few_equal_versions_are_called_slower() -> None:
    """Of 400 with noise that differs from round to round: one in a hundred at most."""
    wrong = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        samples = 1e5 * (1 + 0.05 * random.standard_exponential((40, 2)))
        wrong += judged("net", samples, 1.0001).decision == "fail"
    assert wrong <= 4


def test_described_targets_are_compared_as_stated(tmp_path: Path) -> None:
    """Nothing is launched, and the ratio has no width."""
    here, there = version(tmp_path / "here", 12, target="vpu"), version(tmp_path / "there", 10, target="vpu")
    (model,) = framefit.check(here, against=str(there)).models
    assert model.decision == "fail"
    assert model.interval == (model.ratio, model.ratio)
    assert 1.05 < model.ratio < 1.3
    assert framefit.check(there, against=str(here)).decision == "pass"


def test_the_same_file_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names of other models are listed."""
    here, there = version(tmp_path / "here", 2), version(tmp_path / "there", 2)
    monkeypatch.setattr(checking, "in_both_orders", None)
    text = '[[models]]\nname = "{}"\npath = "net.onnx"\npriority = "background"\n'
    here.write_text(here.read_text() + text.format("new"))
    there.write_text(there.read_text() + text.format("old"))
    result = framefit.check(here, against=str(there))
    assert [model.same for model in result.models] == [True]
    assert (result.only_here, result.only_there) == (("new",), ("old",))


def test_a_stored_plan_is_an_earlier_version(tmp_path: Path) -> None:
    """By what it was made of."""
    here, there = version(tmp_path / "here", 12, target="vpu"), version(tmp_path / "there", 10, target="vpu")
    framefit.plan(there, output=str(tmp_path / "plan"))
    assert framefit.check(here, against=str(tmp_path / "plan")).decision == "fail"


def test_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    """Other targets, and no model of the same name."""
    here, there = version(tmp_path / "here", 2), version(tmp_path / "there", 2, target="vpu")
    with pytest.raises(InputError, match="for target"):
        framefit.check(here, against=str(there))
    other = version(tmp_path / "other", 2, name="else")
    with pytest.raises(InputError, match="no model has the same name"):
        framefit.check(here, against=str(other))


@pytest.mark.timed
def test_a_fifth_more_layers_are_found_on_this_machine(tmp_path: Path) -> None:
    """And a fifth fewer are no matter."""
    here, there = version(tmp_path / "here", 12), version(tmp_path / "there", 10)
    slower = framefit.check(here, against=str(there), seconds=2.0)
    assert slower.decision == "fail"
    assert framefit.check(there, against=str(here), seconds=2.0).decision == "pass"


def test_the_exit_code_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """0, 1, and 4 where nobody can tell."""
    here, there = version(tmp_path / "here", 3), version(tmp_path / "there", 2)

    def ended(samples: Callable[..., np.ndarray]) -> tuple[int, str]:
        monkeypatch.setattr(checking, "in_both_orders", samples)
        monkeypatch.setattr(sys, "argv", ["framefit", "check", str(here), "--against", str(there), "--json"])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), json.loads(capsys.readouterr().out)["decision"]

    assert ended(lambda *_: rounds(1.0, 0.01)) == (0, "pass")
    assert ended(lambda *_: rounds(1.2, 0.01)) == (1, "fail")
    assert ended(lambda *_: rounds(1.05, 0.03)) == (4, "cannot tell")


def test_the_action_calls_the_command() -> None:
    """With options that it has, and without putting inputs into a shell's text."""
    text = (Path(__file__).resolve().parents[2] / "action" / "action.yml").read_text()
    run = text[text.index("run: |") :]
    assert "${{" not in run
    assert 'framefit check "$APP" --against "$place/$APP" --most "$MOST" --seconds "$SECONDS_EACH"' in run


@pytest.mark.timed
def test_a_bundle_is_an_earlier_version(tmp_path: Path) -> None:
    """Its models need no files of their own; equal ones are not measured, others are."""
    app = version(tmp_path / "old", 2)
    framefit.bundle(app, output=str(tmp_path / "old.bundle"))
    assert framefit.check(app, against=str(tmp_path / "old.bundle")).models[0].same is False  # kernels differ
    layers(20).save(tmp_path / "old" / "net.onnx", force=True)
    result = framefit.check(app, against=str(tmp_path / "old.bundle"), seconds=1)
    assert result.models[0].ratio > 2
    assert result.decision == "fail"
