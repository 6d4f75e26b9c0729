"""``framefit targets``: the list, one target, a copy to start from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import Framefit

import framefit as package
from framefit.core.target import BUILTIN_TARGETS, Target, load_target, resolve_target, target_file
from workloads import listing


def test_the_list_names_every_target(framefit: Framefit) -> None:
    """Name, kind, units and description, one target a row."""
    ended = framefit("targets")
    assert (ended.code, ended.err) == (0, "")
    for name in BUILTIN_TARGETS:
        assert f"\n{name} " in ended.out
    assert "edge0 .. edge7" in ended.out


def test_targets_state_what_they_were_checked_against(framefit: Framefit) -> None:
    """In the list and beside one target; a description that nothing was held against says so."""
    stated = {target["name"]: target["checked"] for target in json.loads(framefit("targets", "--json").out)["targets"]}
    assert "logarithmic error 0.90" in stated["meteor-lake"]
    assert stated["dsp"] == ""
    assert "not checked" in framefit("targets", "dsp").out
    assert "SCALE-Sim" in framefit("targets", "edge-8").out


def test_the_list_as_json(framefit: Framefit) -> None:
    """The keys that other programs rely on; the first VPU has one unit."""
    ended = framefit("targets", "--json")
    assert (ended.code, ended.err) == (0, "")
    listed = json.loads(ended.out)
    assert listed["schema_version"] == 1
    assert [target["name"] for target in listed["targets"]] == list(BUILTIN_TARGETS)
    assert all(set(target) == {"name", "kind", "units", "description", "checked"} for target in listed["targets"])
    assert next(target for target in listed["targets"] if "vpu" in target["name"])["units"] == ["vpu0"]


@pytest.mark.parametrize("name", BUILTIN_TARGETS)
def test_one_target_is_shown_with_its_sources(framefit: Framefit, name: str) -> None:
    """Everything that its file says, and the comment that the file begins with."""
    ended = framefit("targets", name)
    assert (ended.code, ended.err) == (0, "")
    target = resolve_target(name)
    assert target.description in ended.out
    for unit in target.units:
        assert unit.name in ended.out
    head = [line[2:] for line in target_file(name).read_text().splitlines() if line.startswith("# ")]
    for line in head:
        assert line in ended.out


def test_defaults_are_marked(framefit: Framefit) -> None:
    """A key that the file gives stands beside its value alone, another one beside its default."""
    out = framefit("targets", "vpu").out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if len(line.split()) in (2, 3)}
    assert rows["clock_mhz"] == ["700"]
    assert rows["buffer_events"] == ["4096"]
    assert rows["loss_markers"] == ["yes", "default"]
    assert rows["threshold_density_ratio"] == ["0.8"]


def test_one_target_as_json(framefit: Framefit, tmp_path: Path) -> None:
    """The resolved record, which reads back as the same target."""
    ended = framefit("targets", "vpu", "--json")
    assert (ended.code, ended.err) == (0, "")
    (tmp_path / "vpu.json").write_text(ended.out)
    assert load_target(tmp_path / "vpu.json") == resolve_target("vpu")


@pytest.mark.parametrize("name", BUILTIN_TARGETS)
def test_a_copy_to_start_from(framefit: Framefit, name: str) -> None:
    """The file as it is, comments included; an own one is shown like a built-in one."""
    assert framefit("targets", name, "-o", "mine.toml").code == 0
    assert Path("mine.toml").read_bytes() == target_file(name).read_bytes()
    assert framefit("targets", "mine.toml").out.split("units")[0] == framefit("targets", name).out.split("units")[0]


def test_a_copy_overwrites_only_when_asked(framefit: Framefit) -> None:
    """What is there stays as it is without --force."""
    Path("mine.toml").write_text("mine")
    ended = framefit("targets", "dsp", "-o", "mine.toml")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("framefit: mine.toml: already exists")
    assert "--force" in ended.err
    assert Path("mine.toml").read_text() == "mine"
    assert framefit("targets", "dsp", "-o", "mine.toml", "--force").code == 0
    assert load_target("mine.toml").name == "dsp"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["vpuu"], ["'vpuu'", "'vpu'", "micro-npu", "target.toml"]),
        (["absent.toml"], ["absent.toml", "no such file"]),
        (["vpuu", "-o", "mine.toml"], ["'vpuu'"]),
        (["broken.toml", "-o", "mine.toml"], ["broken.toml", "$.cache.size_kb", "'size_kib'"]),
    ],
    ids=["unknown name", "missing file", "copy of an unknown one", "copy of a wrong one"],
)
def test_a_wrong_target_is_one_message(
    framefit: Framefit, arguments: list[str], named: list[str], tmp_path: Path
) -> None:
    """Exit code 2; what, where and the remedy; no traceback, no file left."""
    Path("broken.toml").write_text('name = "b"\nkind = "npu"\n[processor]\nclock_mhz = 1\n[cache]\nsize_kb = 1\n')
    before = listing(tmp_path)
    ended = framefit("targets", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("framefit: ")
    assert "\nremedy: " in ended.err
    assert "Traceback" not in ended.err
    for part in named:
        assert part in ended.err
    assert listing(tmp_path) == before


def test_a_copy_needs_a_name(framefit: Framefit) -> None:
    """A usage error otherwise."""
    ended = framefit("targets", "-o", "mine.toml")
    assert (ended.code, ended.out) == (2, "")
    assert "NAME" in ended.err
    assert not Path("mine.toml").exists()


def test_from_python() -> None:
    """The same list, and a target by name or path."""
    assert [target.name for target in package.targets().targets] == list(BUILTIN_TARGETS)
    assert isinstance(package.resolve_target("vpu"), Target)
