"""What costs nothing comes first, and is found in combination."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from framefit import load_workload
from framefit.core.fit_results import FitSettings
from framefit.core.workload import Workload
from framefit.fit.accuracy import Labelled
from framefit.fit.folder import located
from framefit.fit.free import free_steps
from framefit.fit.situation import Situation
from framefit.fit.step import FreeStep, Offer, StepContext, with_entries
from framefit.fit.steps import known_steps
from workloads import no_noise, write_models, write_target


def quiet(_: str) -> None:
    """Nobody is told."""


def write_crowded(folder: Path, rate_hz: float, background: Sequence[str], every: int = 1) -> Path:
    """Background models beside one in every window: "small..." take a part of a window, "chain" 2.6 windows."""
    write_models(folder)
    text = f"cores = [0]\nrate_hz = {rate_hz}\n"
    for name, role in (("small0", "every-window"), *((name, "background") for name in background)):
        text += f'[[models]]\nname = "{name}"\npath = "{name.rstrip("0123456789")}.onnx"\npriority = "{role}"\n'
        text += f"every = {every}\n" if name.startswith("chain") else ""
    (folder / "app.toml").write_text(text)
    return folder / "app.toml"


def situation_of(app: Path) -> Situation:
    """Of the workload as it is."""
    return Situation.of(app, located(load_workload(app), app.parent), 1.0, quiet)


def free_offers(situation: Situation, app: Path, workers: int = 1, only: Sequence[str] = ()) -> list[Offer]:
    """Steps without cost, the last of which has the workload of all."""
    settings = FitSettings(app=str(app), workers=workers)
    labelled = Labelled(settings, situation.workload)
    context = StepContext(app, settings, labelled, lambda: 1000.0, quiet, folder=app.parent)
    kinds = [kind(context) for name, kind in known_steps().items() if not only or name in only]
    return free_steps(situation, [kind for kind in kinds if isinstance(kind, FreeStep)], context)


def served(situation: Situation, workload: Workload) -> dict[str, float]:
    """What models get, as a part of what they ask for."""
    standing = situation.what_if(workload=workload, notify=quiet)
    return {model.name: model.share_ratio for model in standing.models}


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core of this machine that background models are interrupted on, without noise: "chain" takes 3.7 ms."""
    no_noise(monkeypatch)
    for module in ("planning.planner", "workflows.plan", "fit.steps.cuts"):
        monkeypatch.setattr(import_module(f"framefit.{module}"), "realtime_priority_permitted", lambda: True)


@pytest.mark.usefixtures("interrupted")
def test_a_small_model_beside_a_long_one_keeps_its_frames(tmp_path: Path) -> None:
    """Where background models are interrupted they run whole and in turn: the small one is thinned, though it need not.

    It is served first, or the long one is cut; what that one loses by it is small, and told.
    """
    app = write_crowded(tmp_path, 700, ("chain", "small"))
    situation = situation_of(app)
    before = served(situation, situation.workload)
    assert before["small"] < 0.6
    offers = free_offers(situation, app)
    change = offers[-1].take(tmp_path)
    after = served(situation, change.workload)
    assert after["small"] > 0.98
    assert 0.98 * before["chain"] > after["chain"] > 0.9 * before["chain"]
    assert "before: that is for 'small'" in change.detail
    assert {offer.step.cost for offer in offers} == {"none"}


def everything(workload: Workload) -> Iterator[Workload]:
    """All levels of background models, with all ways to cut."""
    names = [entry.name for entry in workload.models if entry.priority == "background"]
    for size in range(len(names), -1, -1):
        for higher in itertools.combinations(names, size):
            raised = with_entries(
                workload, list(higher), lambda entry: msgspec.structs.replace(entry, priority="every-window")
            )
            for preemption, mode in itertools.product(("auto", "never"), ("fill", "fewest", "equal")):
                schedule = msgspec.structs.replace(workload.schedule, segmentation=mode, preemption=preemption)
                yield msgspec.structs.replace(raised, schedule=schedule)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("background", [("chain", "small", "small2")])
def test_what_brute_force_finds_is_found(background: Sequence[str], tmp_path: Path) -> None:
    """Where any levels and cuts let every model have all of its frames, so does the search."""
    app = write_crowded(tmp_path, 700, background, every=4)
    situation = situation_of(app)
    assert not situation.standing.fits
    assert any(situation.what_if(workload=way, notify=quiet).fits for way in everything(situation.workload))
    offers = free_offers(situation, app)
    assert offers
    assert offers[-1].step.enough


def test_any_number_of_processes_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plans the workload anew, and then its changes."""
    monkeypatch.undo()  # other processes look for replicas
    app = write_crowded(tmp_path, 70, ("chain", "small"))
    write_target(tmp_path)
    app.write_text(app.read_text().replace("cores = [0]", 'target = "target.toml"'))
    situation = situation_of(app)
    assert not situation.standing.fits
    one, two = (free_offers(situation, app, workers, ("cuts",)) for workers in (1, 2))
    assert [offer.step for offer in one] == [offer.step for offer in two]
    assert one[-1].take(tmp_path) == two[-1].take(tmp_path)
