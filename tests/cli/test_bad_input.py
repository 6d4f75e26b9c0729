"""Every wrong input ends as one message and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from console import Framefit

from networks import NETWORKS
from workloads import listing, write_app

Broken = Callable[[Path], Path]


def app(**changes: str) -> Broken:
    """A workload with other lines in it."""
    return lambda folder: write_app(folder, **changes)  # type: ignore[arg-type]


def replaced(old: str, new: str, **changes: str) -> Broken:
    """A workload in whose text something is replaced."""

    def make(folder: Path) -> Path:
        path = app(**changes)(folder)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return path

    return make


def with_file(name: str, content: bytes, then: Broken) -> Broken:
    """A workload beside which a file has this content."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return then(folder)

    return make


def truncated(folder: Path) -> Path:
    """The first model's file ends in the middle."""
    whole = (folder / "small.onnx").read_bytes()
    return with_file("small.onnx", whole[: len(whole) // 2], app())(folder)


def npz_of(shape: tuple[int, ...], dtype: type = np.float32) -> Broken:
    """The camera is an array of this shape."""

    def make(folder: Path) -> Path:
        np.savez(folder / "camera.npz", np.zeros(shape, dtype))
        return app(stream='source = "camera.npz"')(folder)

    return make


def recurrent(state: str) -> Broken:
    """A recurrent model with this ``state``."""

    def make(folder: Path) -> Path:
        NETWORKS["lstm"]().save(folder / "small.onnx", force=True)
        return app(model=f"state = {state}")(folder)

    return make


TOP = "schema_version = 1\n"
CASES: dict[str, tuple[Broken, list[str]]] = {
    "truncated model": (truncated, ["small.onnx"]),
    "text instead of a model": (with_file("small.onnx", b"hello, this is no model\n", app()), ["small.onnx"]),
    "empty model": (with_file("small.onnx", b"", app()), ["small.onnx"]),
    "missing model": (replaced("chain.onnx", "absent.onnx"), ["$.models[1].path", "absent.onnx"]),
    "missing workload": (lambda folder: folder / "absent.toml", ["absent.toml", "no such file"]),
    "broken TOML": (replaced("[schedule]", "[schedule"), ["app.toml", "TOML"]),
    "unknown key": (replaced("priority = ", "priorty = "), ["$.models[0].priorty", "'priority'"]),
    "unknown key at the top": (replaced(TOP, TOP + "rat_hz = 3\n"), ["$.rat_hz", "'rate_hz'"]),
    "unknown table key": (replaced("guard_ms", "gard_ms"), ["$.schedule.gard_ms", "'guard_ms'"]),
    "newer schema": (replaced("schema_version = 1", "schema_version = 2"), ["$.schema_version", "2"]),
    "no rate": (replaced("rate_hz = 20", "rate_hz = 0"), ["rate_hz", "0"]),
    "negative rate": (replaced("rate_hz = 20", "rate_hz = -5"), ["rate_hz", "-5"]),
    "a word as rate": (replaced("rate_hz = 20", 'rate_hz = "fast"'), ["rate_hz"]),
    "no windows' rate": (replaced("rate_hz = 20\n", ""), ["rate is missing"]),
    "frames of another shape": (npz_of((5, 3, 16, 17)), ["16", "17", "image"]),
    "frames of another type": (npz_of((5, 3, 16, 16), np.complex64), ["camera", "float32"]),
    "no frames": (npz_of((0, 3, 16, 16)), ["camera", "no frames"]),
    "missing stream file": (app(stream='source = "absent.npz"'), ["camera", "absent.npz"]),
    "stream of another kind": (app(stream='source = "clip.mp4"'), ["camera", "clip.mp4"]),
    "damaged stream file": (with_file("x.npz", b"PK\x03\x04 no", app(stream='source = "x.npz"')), ["camera", "x.npz"]),
    "input from nowhere": (app(model='inputs = { image = "cam" }'), ["'small'", "'cam'", "camera"]),
    "unknown input": (app(model='inputs = { picture = "camera" }'), ["'small'", "'picture'", "image"]),
    "state that names no output": (recurrent('{ hidden = "nowhere", cell = "next_cell" }'), ["nowhere", "next_hidden"]),
    "state that names no input": (recurrent('{ memory = "next_hidden" }'), ["'memory'", "hidden"]),
    "state of another shape": (recurrent('{ hidden = "speech", cell = "next_cell" }'), ["speech", "hidden"]),
    "threshold and number": (
        app(schedule="num_priority = 1\npriority_threshold = 5"),
        ["$.schedule", "priority_threshold", "num_priority"],
    ),
    "negative number of priority models": (app(schedule="num_priority = -1"), ["$.schedule", "num_priority", "-1"]),
    "unknown position": (app(schedule='priority_position = "late"'), ["$.schedule.priority_position", "late"]),
    "unknown segmentation": (app(schedule='segmentation = "most"'), ["$.schedule.segmentation", "most"]),
    "unknown preemption": (app(schedule='preemption = "always"'), ["$.schedule.preemption", "always"]),
    "quantile of 1": (app(schedule="quantile = 1.0"), ["$.schedule", "quantile", "1"]),
    "negative guard": (replaced("guard_ms = 1.0", "guard_ms = -1.0"), ["$.schedule", "guard_ms", "-1"]),
    "priority of another kind": (replaced('"every-window"', '"high"'), ["$.models[0].priority", "high"]),
    "every of 0": (app(model="every = 0"), ["$.models[0]", "every", "0"]),
    "no frames at once": (app(model="frames = 0"), ["$.models[0]", "frames", "0"]),
    "frames that do not fit": (app(model="frames = 2"), ["'small'", "image", "frames_axis"]),
    "aggregate of nothing": (app(model="aggregate = 0"), ["$.models[0]", "aggregate", "0"]),
    "deadline of 0": (app(model="deadline_ms = 0"), ["$.models[0]", "deadline_ms", "0"]),
    "queue of nothing": (app(stream="queue = 0"), ["$.streams[0]", "queue", "0"]),
    "postprocess that is no function": (app(model='postprocess = "rm -rf"'), ["$.models[0]", "postprocess", "rm -rf"]),
    "postprocess from nowhere": (app(model='postprocess = "absent_module:f"'), ["'small'", "absent_module"]),
    "units": (app(model='units = ["npu0"]'), ["$.models[0].units", "npu0"]),
    "core that is not there": (replaced(TOP, TOP + "cores = [0, 999]\n"), ["999"]),
    "table that is absent": (replaced(TOP, TOP + 'table = "board.table.json"\n'), ["$.table", "board.table.json"]),
    "rates that hardly ever meet": (app(stream="rate_hz = 19.993"), ["19.993", "coincide again"]),
    "sink used twice": (
        app(more='[[outputs]]\nmodel = "small"\nsink = "o.npz"\n[[outputs]]\nmodel = "chain"\nsink = "o.npz"\n'),
        ["o.npz", "twice"],
    ),
    "queue that spills": (app(stream='when_full = "spill"'), ["$.streams[0].when_full", "spill"]),
    "unknown target": (replaced(TOP, TOP + 'target = "vpuu"\n'), ["'vpuu'", "'vpu'"]),
    "unknown provider": (
        replaced(TOP, TOP + 'providers = ["CPUExecutionProvide"]\n'),
        ["CPUExecutionProvide", "'CPUExecutionProvider'"],
    ),
    "unavailable core": (replaced(TOP, TOP + "cores = [4096]\n"), ["4096"]),
    "model name used twice": (replaced('name = "chain"', 'name = "small"'), ["small", "twice"]),
    "sink of another kind": (app(more='[[outputs]]\nmodel = "small"\nsink = "out.csv"\n'), ["out.csv", "npz"]),
    "unknown output": (
        app(more='[[outputs]]\nmodel = "small"\nsink = "out.npz"\ntensors = ["boxes"]\n'),
        ["boxes", "pooled"],
    ),
    "sink from nowhere": (
        app(more='[[outputs]]\nmodel = "small"\nsink = "absent_module:f"\n'),
        ["absent_module:f", "no module"],
    ),
    "sink below a file": (
        app(more='[[outputs]]\nmodel = "small"\nsink = "chain.onnx/out.jsonl"\n'),
        ["out.jsonl", "cannot be written"],
    ),
    "stream from nowhere": (app(stream='source = "absent_module:f"'), ["camera", "absent_module"]),
}


@pytest.mark.parametrize(("verb", "case"), [(verb, case) for verb in ("plan", "run") for case in CASES])
def test_a_wrong_input_is_one_message(verb: str, case: str, framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """Exit code 2; one message that names what, where and the remedy; no traceback, no file left."""
    make, named = CASES[case]
    workload = make(models)
    before = listing(tmp_path)
    ended = framefit(verb, workload, "-o", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("framefit: ")
    assert ended.err.count("framefit: ") == 1
    assert "\nremedy: " in ended.err
    assert "Traceback" not in ended.err
    for part in named:
        assert part in ended.err
    assert listing(tmp_path) == before


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_an_existing_output_is_refused(verb: str, framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """Without --force the file or folder that is there stays as it is, and the message says what to do."""
    target = tmp_path / "out"
    if verb == "run":
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    else:
        target.write_text("mine")
    workload = write_app(models)
    before = listing(tmp_path)
    ended = framefit(verb, workload, "-o", target)
    assert ended.code == 2
    assert ended.err.startswith(f"framefit: {target}: already exists")
    assert "--force" in ended.err
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["plan", "app.toml", "--windows", "3"], ["run", "app.toml", "--windows", "0"], ["fly"]],
    ids=["no workload", "unknown option", "no windows", "unknown command"],
)
def test_a_wrong_call_is_a_usage_error(arguments: list[str], framefit: Framefit) -> None:
    """Exit code 2, nothing on stdout, and a hint at --help."""
    ended = framefit(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "--help" in ended.err
    assert "Traceback" not in ended.err


def test_with_json_the_reason_is_json_too(framefit: Framefit, tmp_path: Path) -> None:
    """Whoever reads stdout as JSON learns why there is no result; stderr and the exit code stay as they are."""
    missing = tmp_path / "missing.onnx"
    plain, ended = (
        framefit("cycles", missing, "--target", "vpu"),
        framefit("cycles", missing, "--target", "vpu", "--json"),
    )
    assert (ended.code, ended.err) == (plain.code, plain.err) == (2, plain.err)
    reason = json.loads(ended.out)
    assert reason["error"] == "InputError"
    assert reason["what"] in ended.err
    assert str(missing) in (reason["where"] or "") + reason["what"]
