"""Every wrong input ends as one message and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from console import Framefit, framefit_in

from networks import NETWORKS, write_dynamic
from workloads import listing, write_app, write_models, write_target

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
HEAVY = ("numpy", "onnx", "onnx_ir", "sympy", "onnxruntime", "ortools", "rich", "numba", "PIL")
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
    ended = framefit(verb, workload, "-o", tmp_path / "out", "-q")
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
    [["plan", "app.toml", "--windows", "3"], ["run", "app.toml", "--windows", "0"], ["fly"]],
    ids=["unknown option", "no windows", "unknown command"],
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


PYTORCH, KERAS = "torch.onnx.export", 'model.export("MODEL.onnx", format="onnx")'
NOT_ONNX = "not an ONNX model"
APP, TABLE, TARGET = (
    "a workload (app.toml)",
    "a latency table (*.table.json)",
    "the description of a target (target.toml)",
)
AT_ONCE: dict[str, list[str]] = {
    # paths that are not there
    "plan nosuch.toml": ["nosuch.toml: no such file"],
    "run nosuch.toml": ["nosuch.toml: no such file"],
    "simulate nosuch.toml": ["nosuch.toml: no such file"],
    "fit nosuch.toml": ["nosuch.toml: no such file"],
    "run nosuch.json": ["nosuch.json: no such file"],
    "cycles nosuch.onnx --target vpu": ["nosuch.onnx: no such file"],
    "measure nosuch.onnx": ["nosuch.onnx: no such file"],
    "measure small.onnx --grid nosuch.toml": ["nosuch.toml: no such file"],
    "measure small.onnx --audit nosuch.onnx": ["nosuch.onnx: no such file"],
    "calibrate nosuch.onnx": ["nosuch.onnx: no such file"],
    "estimate nosuch.onnx --table board.table.json": ["nosuch.onnx: no such file"],
    "estimate small.onnx --table nosuch.json": ["nosuch.json: no such file"],
    "table nosuch.json": ["nosuch.json: no such file"],
    "table board.table.json --against nosuch.json": ["nosuch.json: no such file"],
    "profile nosuch": ["nosuch: no such file"],
    "profile data.npz --program nosuch.json": ["nosuch.json: no such file"],
    "report nosuch": ["nosuch: no such file"],
    "inject-loss nosuch --rate 0.1 -o out.npz": ["nosuch: no such file"],
    "rtl nosuch": ["nosuch: no such file"],
    "sparsify nosuch.onnx --data data.npz --target vpu": ["nosuch.onnx: no such file"],
    "sparsify small.onnx --data nosuch.npz --target vpu": ["nosuch.npz: no such file"],
    "sparsify --resume nosuch": ["nosuch: no such file"],
    "treeify nosuch.onnx --data data.npz": ["nosuch.onnx: no such file"],
    "fit app.toml --data small=nosuch.npz": ["nosuch.npz: no such file"],
    "targets nosuch.toml": ["nosuch.toml: no such file"],
    "plan app.toml --target nosuch.toml": ["nosuch.toml: no such file"],
    # models of other tools
    "cycles m.tflite --target vpu": ["m.tflite: is a TensorFlow Lite model", NOT_ONNX, "tf2onnx.convert --tflite"],
    "cycles m.pt --target vpu": ["m.pt: is a PyTorch file", NOT_ONNX, PYTORCH],
    "cycles old.pth --target vpu": ["old.pth: is a PyTorch file", NOT_ONNX, PYTORCH],
    "cycles exported.pt2 --target vpu": ["exported.pt2: is a PyTorch file", NOT_ONNX, PYTORCH],
    "cycles m.keras --target vpu": ["m.keras: is a Keras model", NOT_ONNX, KERAS],
    "cycles m.h5 --target vpu": ["m.h5: is a Keras model", NOT_ONNX, KERAS],
    "cycles m.safetensors --target vpu": ["a file of weights (safetensors)", NOT_ONNX, PYTORCH],
    "cycles m.ort --target vpu": ["ONNX Runtime's own format (.ort)", NOT_ONNX, "the ONNX file that it was made of"],
    "cycles m.xml --target vpu": ["OpenVINO's own format (.xml)", NOT_ONNX, "the ONNX file that it was made of"],
    "cycles saved --target vpu": ["saved: is a folder, not an ONNX file", "tf2onnx.convert --saved-model saved"],
    "cycles . --target vpu": [".: is a folder, not an ONNX file", "chain.onnx"],
    "plan tflite.toml": ["m.tflite: is a TensorFlow Lite model", "tf2onnx.convert --tflite"],
    # one file in the place of another
    "plan small.onnx": [f"small.onnx: is an ONNX model, not {APP}", 'models = [{ name = "face", path = "face.onnx" }]'],
    "run small.onnx": [f"small.onnx: is an ONNX model, not {APP}"],
    "simulate small.onnx": [f"small.onnx: is an ONNX model, not {APP}"],
    "fit small.onnx": [f"small.onnx: is an ONNX model, not {APP}"],
    "fit m.tflite": [f"m.tflite: is a TensorFlow Lite model, not {APP}"],
    "plan target.toml": [f"target.toml: is {TARGET}, not {APP}"],
    "plan board.table.json": [f"board.table.json: is {TABLE}, not {APP}"],
    "cycles app.toml --target vpu": [f"app.toml: is {APP}, {NOT_ONNX}"],
    "cycles vpu --target small.onnx": ["no built-in model 'vpu'", "detector, depth"],
    "cycles small.onnx --target app.toml": [f"app.toml: is {APP}, not {TARGET}"],
    "cycles small.onnx --target small.onnx": [f"small.onnx: is an ONNX model, not {TARGET}"],
    "plan app.toml --target small.onnx": [f"small.onnx: is an ONNX model, not {TARGET}"],
    "targets small.onnx": [f"small.onnx: is an ONNX model, not {TARGET}"],
    "measure app.toml": [f"app.toml: is {APP}, {NOT_ONNX}"],
    "estimate board.table.json --table small.onnx": [f"board.table.json: is {TABLE}, {NOT_ONNX}"],
    "estimate data.npz --table board.table.json": [f"data.npz: is an archive of arrays (.npz), {NOT_ONNX}"],
    "treeify app.toml --data data.npz": [f"app.toml: is {APP}, {NOT_ONNX}"],
    "run saved": ["saved: is a folder, not a workload (app.toml)", "give the path of an app.toml"],
    "plan saved": ["saved: is a folder, not a workload (app.toml)", "give the path of an app.toml"],
    "plan .": [".: is a folder, not a workload (app.toml)", "give the workload in it, app.toml"],
    "plan planned": ["it holds a plan", "framefit run planned"],
    "fit networks": ["framefit init networks/*.onnx"],
    # names and values
    "cycles detectr --target vpu": ["no built-in model 'detectr'", "did you mean 'detector'?"],
    "cycles small --target vpu": ["no built-in model 'small'", "detector, depth"],
    "cycles small.onnx --target vpuu": ["'vpuu'", "did you mean 'vpu'?"],
    "plan app.toml --target vppu": ["'vppu'", "did you mean 'vpu'?"],
    "plan app.toml --target nokind:CPU": ["'nokind' is not a kind of device", "openvino"],
    "plan unknown-target.toml": ["'vpuu'", "did you mean 'vpu'?"],
    "targets edge": ["no built-in target 'edge'", "edge-8"],
    "targets vpu app.toml": ["a table belongs to fit"],
    "plan app.toml --jsn": ["No such option: --jsn", "--json"],
    "plan app.toml --windows 3": ["No such option: --windows"],
    "plann app.toml": ["No such command 'plann'", "'plan'"],
    "fly": ["No such command 'fly'"],
    "plan app.toml -q -v": ["--quiet and --verbose contradict each other"],
    "plan app.toml --log-file saved": ["saved: cannot be written"],
    "plan app.toml app.toml": ["extra argument", "app.toml"],
    "cycles small.onnx": ["--target"],
    "estimate small.onnx": ["--table"],
    "sparsify small.onnx": ["--data and --target missing"],
    "run app.toml --windows 0": ["--windows: windows must be at least 1, is 0"],
    "run app.toml --windows 1.5": ["'1.5'", "a whole number"],
    "run app.toml --seconds 0": ["--seconds: seconds must be greater than 0, is 0"],
    "simulate app.toml --seconds -1": ["seconds must be greater than 0, is -1"],
    "run app.toml --seconds soon": ["'soon'", "SECONDS"],
    "run app.toml --max-miss-ratio 2": ["max_miss_ratio must be at least 0 and at most 1, is 2"],
    "run app.toml --seed -1": ["seed must be at least 0, is -1"],
    "demo --seconds -1": ["seconds must be greater than 0, is -1"],
    "profile data.npz --method alihn": ["'alihn' is unknown", "did you mean 'align'?"],
    "profile data.npz --method best": ["'best' is unknown", "align, rule"],
    "profile data.npz --confidence 95": ["confidence must be greater than 0 and less than 1, is 95"],
    "sparsify small.onnx --data data.npz --target vpu --solver dpg": ["'dpg' is unknown", "did you mean 'ddpg'?"],
    "fit app.toml --exclude cut": ["'cut' is unknown", "did you mean 'cuts'?"],
    "rtl small.onnx --lut 5": ["'5' is unknown", "4, 6"],
    "rtl small.onnx --layer 128": ["'128' is not of the form INxOUT, such as 128x64"],
    "cycles small.onnx --target vpu --shape 1,3,16,16": ["not of the form INPUT=1,3,H,W, such as image=1,3,240,320"],
    # what must not be combined, or overwritten
    "plan app.toml -o app.toml": ["app.toml: already exists", "--force"],
    "run app.toml -o saved": ["saved: already exists", "--force"],
    "cycles small.onnx --target vpu -o app.toml": ["app.toml: already exists", "--force"],
    "measure small.onnx -o board.table.json": ["board.table.json: already exists", "--resume", "--force"],
    "targets vpu -o app.toml": ["app.toml: already exists", "--force"],
    "table board.table.json --against board.table.json --merge board.table.json": ["either --against or --merge"],
    "inject-loss data.npz --rate 0.1": ["-o missing"],
    # keys and values of files
    "plan empty.toml": ["empty.toml: $.models is missing", "rate_hz = 30"],
    "plan key.toml": ["$.models[0].priorty", "'priority'"],
    "plan word.toml": ["$.rate_hz must be a number, is 'fast'"],
    "plan position.toml": ["$.schedule.priority_position is 'staart'", "'start'?", "'start', 'middle', 'end'"],
    "plan latin.toml": ["latin.toml: not valid TOML: line 7 is not UTF-8", "save the file as UTF-8"],
    "plan typo.toml": ["typo.toml: not valid TOML"],
    "plan app.toml --target typo.toml": ["typo.toml: not valid TOML"],
    "plan app.toml --target key-target.toml": ["key-target.toml: unknown key $.descr", "'description'"],
}
"""Wrong uses, and what a reader wants to see; each is answered before anything heavy is imported."""
LATER: dict[str, list[str]] = {
    "plan nhwc.toml": ["image", "x.transpose(0, 3, 1, 2)"],
    "cycles dynamic.onnx --target vpu --shape image=1,7,6,6": ["takes batch x 2 x 6 x 6, not 1 x 7 x 6 x 6"],
    "estimate small.onnx --table app.toml": [f"app.toml: is {APP}, not {TABLE}"],
    "estimate small.onnx --table small.onnx": [f"small.onnx: is an ONNX model, not {TABLE}"],
    "table small.onnx": [f"small.onnx: is an ONNX model, not {TABLE}"],
    "measure --grid app.toml": [f"app.toml: is {APP}, not a grid of layers (SPEC.toml)"],
    "profile small.onnx": ["small.onnx: is not a trace of a known format: it is an ONNX model"],
    "profile app.toml": [f"app.toml: is not a trace of a known format: it is {APP}"],
    "profile data.npz": ["array 'time_ns' is missing; it has: x"],
    "report small.onnx": ["small.onnx: is not something that a report can show: it is an ONNX model"],
    "rtl app.toml": [f"app.toml: is {APP}, not trees (*.trees.json)"],
    "run app.toml --resume": ["is not the folder of a run that was cut off"],
    "run app.toml --inject melt:small@2s": ["no fault of kind 'melt'", "raise"],
}
"""Further ones, for which more has to be read."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of many kinds, right and wrong ones."""
    folder = write_models(tmp_path_factory.mktemp("uses"))
    text = write_app(folder).read_text()
    write_target(folder)
    target = (folder / "target.toml").read_text()
    np.savez(folder / "data.npz", x=np.zeros((4, 2)))
    np.savez(folder / "frames.npz", np.zeros((4, 16, 16, 3), np.float32))
    write_dynamic(folder / "dynamic.onnx")
    (folder / "saved").mkdir()
    for name in ("planned/timetable.json", "networks/a.onnx"):
        (folder / name).parent.mkdir()
        (folder / name).touch()
    (folder / "saved" / "saved_model.pb").write_bytes(b"\x08\x01")
    (folder / "board.table.json").write_text('{"fingerprint": {}, "entries": []}')
    for name, content in {
        "m.tflite": b"\x1c\0\0\0TFL3" + bytes(64),
        "m.ort": b"\x18\0\0\0ORTM" + bytes(64),
        "m.h5": b"\x89HDF\r\n\x1a\n" + bytes(64),
        "old.pth": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        "m.safetensors": (16).to_bytes(8, "little") + b'{"a": 1}        ',
        "m.xml": b'<?xml version="1.0"?>\n<net name="m" version="11">\n</net>\n',
        "latin.toml": text.replace("camera", "kamer\u00e4").encode("latin-1"),
    }.items():
        (folder / name).write_bytes(content)
    for name, member in {
        "m.pt": "m/data.pkl",
        "exported.pt2": "m/models/model.json",
        "m.keras": "model.weights.h5",
    }.items():
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(member, b"")
    for name, content in {
        "empty.toml": "",
        "key.toml": text.replace("priority = ", "priorty = "),
        "word.toml": text.replace("rate_hz = 20", 'rate_hz = "fast"'),
        "position.toml": text.replace("[schedule]", '[schedule]\npriority_position = "staart"'),
        "typo.toml": text.replace("[schedule]", "[schedule"),
        "tflite.toml": text.replace("chain.onnx", "m.tflite"),
        "unknown-target.toml": text.replace("rate_hz", 'target = "vpuu"\nrate_hz', 1),
        "nhwc.toml": text.replace('source = "synthetic"', 'source = "frames.npz"'),
        "key-target.toml": target.replace("name =", 'descr = ""\nname =', 1),
    }.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize("use", [*AT_ONCE, *LATER])
def test_a_wrong_use_is_answered(
    use: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and one message that says what a reader wants to know; nothing is written."""
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    ended = framefit_in(monkeypatch, capsys)(*use.split())
    assert (ended.code, ended.out) == (2, ""), ended
    for part in ({**AT_ONCE, **LATER})[use]:
        assert part in ended.err
    assert "framefit: " in ended.err or "--help" in ended.err
    assert "remedy: " in ended.err or "--help" in ended.err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_wrong_uses_load_nothing_heavy(folder: Path) -> None:
    """Numpy, the ONNX packages and the runtimes are not imported for an answer that needs none of them."""
    script = f"""
import contextlib, io, sys
from framefit.cli.app import main
for use in {[*AT_ONCE]}:
    sys.argv = ["framefit", *use.split()]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    loaded = [name for name in {HEAVY} if name in sys.modules]
    if loaded:
        print(use, loaded)
        break
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_without_a_workload_one_is_looked_for_here(framefit: Framefit) -> None:
    """The message says which file is missing, and what writes one."""
    for verb in ("plan", "run", "simulate", "fit"):
        ended = framefit(verb)
        assert (ended.code, ended.out) == (2, "")
        assert "this folder has no app.toml" in ended.err
        assert "framefit init" in ended.err


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_accepted(encoding: str, framefit: Framefit, models: Path) -> None:
    """Editors that write one, and those that write UTF-16, are understood."""
    workload = write_app(models)
    workload.write_bytes(workload.read_text().encode(encoding))
    assert framefit("plan", workload).code == 0
