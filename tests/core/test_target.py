"""Targets: the built-in ones, their documentation, and what is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import pytest

from framefit import InputError
from framefit.core.files import Record, read_record, write_record
from framefit.core.target import (
    BUILTIN_TARGETS,
    Cache,
    Cost,
    Host,
    Link,
    Memory,
    Processor,
    Sparsity,
    Target,
    TraceUnit,
    Unit,
    Variation,
    builtin_targets,
    cpu_target,
    load_target,
    resolve_target,
    target_file,
)

ROOT = Path(__file__).parents[2]
NPUS = [name for name in BUILTIN_TARGETS if name != "cpu"]
MINIMAL = 'name = "board"\nkind = "npu"\n[processor]\nclock_mhz = 800\n'


def written(folder: Path, text: str) -> Path:
    """A target's file."""
    path = folder / "board.toml"
    path.write_text(text)
    return path


def test_the_built_in_targets_come_in_a_fixed_order() -> None:
    """One for each kind of device; each is found by its name."""
    targets = builtin_targets()
    assert tuple(target.name for target in targets) == BUILTIN_TARGETS
    assert [target.kind for target in targets] == ["npu"] * (len(targets) - 1) + ["ort"]
    for target in targets:
        assert resolve_target(target.name) == target
        assert target.description


def test_the_first_vpu_has_two_data_processing_units_behind_one_queue() -> None:
    """The first name with "vpu" is one unit of two data processing units, another one is two units of one."""
    one, two = (target for target in builtin_targets() if "vpu" in target.name)
    assert one.processor is not None
    assert two.processor is not None
    assert (len(one.units), one.processor.processing_units) == (1, 2)
    assert (len(two.units), two.processor.processing_units) == (2, 1)
    assert one.processor.macs_per_cycle == two.processor.macs_per_cycle


@pytest.mark.parametrize("name", NPUS)
def test_a_built_in_target_round_trips(name: str, tmp_path: Path) -> None:
    """Written as JSON and read again it is the same, also by its path."""
    target = resolve_target(name)
    write_record(tmp_path / "t.json", target)
    assert read_record(tmp_path / "t.json", Target) == target
    assert resolve_target("t.json", tmp_path) == target


@pytest.mark.parametrize("name", NPUS)
def test_a_built_in_target_says_where_its_figures_come_from(name: str) -> None:
    """Its file names sources, or says what is invented, in lines that fit a terminal."""
    text = target_file(name).read_text()
    head = text.partition("schema_version")[0]
    assert "Sources" in head
    assert "nvented" in head
    assert max(map(len, head.splitlines())) <= 80


@pytest.mark.parametrize("name", NPUS)
def test_a_built_in_target_gives_the_cycle_model_what_it_needs(name: str) -> None:
    """Arithmetic for the precision of its tensors, memories of at least a byte a cycle, and a cache."""
    target = resolve_target(name)
    processor = target.processor
    assert processor is not None
    assert processor.array_rows or processor.macs_per_cycle
    assert processor.activation_bits == processor.weight_bits is not None
    assert target.cache is not None
    assert target.memory
    for memory in target.memory:
        assert memory.read_bandwidth_gbps is not None
        assert memory.read_bandwidth_gbps * 1e3 / processor.clock_mhz >= 1
    assert not any(unit.preemptive for unit in target.units)


def test_the_built_in_traces_differ() -> None:
    """Some buffer overflows easily, some losses are not marked, some time stamps wrap."""
    traces = [resolve_target(name).trace for name in NPUS]
    assert min(trace.buffer_events for trace in traces) <= 64
    assert {trace.loss_markers for trace in traces} == {True, False}
    assert any(trace.time_bits is not None and trace.time_bits < 32 for trace in traces)


def test_the_cpu_has_a_unit_a_core() -> None:
    """Preemptive units, named after the cores: those asked for, else those available."""
    target = cpu_target((1, 3))
    assert [(unit.name, unit.core, unit.preemptive) for unit in target.units] == [("cpu1", 1, True), ("cpu3", 3, True)]
    assert [unit.core for unit in resolve_target("cpu").units] == sorted(os.sched_getaffinity(0))


def test_the_data_are_in_the_package() -> None:
    """The files lie within the package's folder, of which the wheel takes everything."""
    files = {path.stem for path in (ROOT / "src/framefit/core/targets").glob("*.toml")}
    assert files == set(BUILTIN_TARGETS)


def test_a_path_is_relative_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the one given, else to the current one; an absolute path stays."""
    path = written(tmp_path, MINIMAL)
    expected = load_target(path)
    assert resolve_target("board.toml", tmp_path) == expected
    assert resolve_target(path, Path("/nowhere")) == expected
    monkeypatch.chdir(tmp_path)
    assert resolve_target("board.toml") == resolve_target(Path("./board.toml")) == expected


def test_a_minimal_target_has_one_unit_and_defaults(tmp_path: Path) -> None:
    """Name, kind and clock are enough."""
    target = load_target(written(tmp_path, MINIMAL))
    assert target.units == (Unit(name="board", preemptive=False),)
    assert target.processor == Processor(clock_mhz=800)
    assert target.unit("board").supports("Conv")
    with pytest.raises(KeyError):
        target.unit("npu")


def test_operators_of_a_unit() -> None:
    """All but the unsupported ones, or those listed."""
    assert not Unit(name="u", unsupported=("LSTM",)).supports("LSTM")
    assert Unit(name="u", operators=("Conv", "Relu")).supports("Relu")
    assert not Unit(name="u", operators=("Conv",)).supports("Relu")


def test_a_latency_table_is_found_beside_its_target(tmp_path: Path) -> None:
    """Its path becomes absolute, so it means the same from any folder."""
    path = written(tmp_path, 'name = "b"\nkind = "npu"\n[cost]\nsource = "table"\ntable = "b.table.json"\n')
    assert load_target(path).cost.table == str(tmp_path.resolve() / "b.table.json")


def test_selected_combinations_are_resolved() -> None:
    """Names of combinations stand for their kinds; nothing selected means everything."""
    combinations = {"data": ("pad_pool", "reformat")}
    events = ("conv", "pad_pool", "reformat")
    trace = TraceUnit(events=events, combinations=combinations, selected=("data", "reformat"))
    assert trace.selected_kinds == ("pad_pool", "reformat")
    assert TraceUnit(events=events).selected_kinds == events
    assert TraceUnit().selected_kinds is None


def test_transfers_over_the_link() -> None:
    """Processing for the launch and each byte, then latency and bytes over bandwidth for each direction used."""
    host = Host(inference_ns=100, byte_ns=0.5, input_bandwidth_gbps=2.0, latency_ns=10)
    assert host.transfer_ns(1000, 0) == 100 + 500 + 10 + 500
    assert host.transfer_ns(1000, 200) == 100 + 600 + 10 + 500 + 10
    assert Host().transfer_ns(1e6, 1e6) == 0


def board(extra: str = "", *, processor: str = "clock_mhz = 800", top: str = "") -> str:
    """A target with something wrong in it."""
    return f'name = "board"\nkind = "npu"\n{top}\n[processor]\n{processor}\n{extra}\n'


CASES: dict[str, tuple[str, list[str]]] = {
    "negative bandwidth": (
        board("[[memory]]\nread_bandwidth_gbps = -1.0"),
        ["$.memory[0]", "read_bandwidth_gbps", "-1"],
    ),
    "bandwidth of 0": (board("[host]\ninput_bandwidth_gbps = 0.0"), ["$.host", "input_bandwidth_gbps", "0"]),
    "infinite bandwidth": (board("[[memory]]\nread_bandwidth_gbps = inf"), ["$.memory[0]", "read_bandwidth_gbps"]),
    "no number": (board(processor="clock_mhz = nan"), ["$.processor", "clock_mhz", "nan"]),
    "unknown key": (board("[cache]\nsize_kb = 64"), ["$.cache.size_kb", "'size_kib'"]),
    "unknown key of a unit": (
        board('[[units]]\nname = "u"\n[[units]]\nspeed = 2.0'),
        ["$.units[1].speed", "'speed_ratio'"],
    ),
    "unknown table": (board("[memories]\nports = 1"), ["$.memories", "'memory'"]),
    "missing clock": (board(processor="processing_units = 2"), ["$.processor", "clock_mhz", "missing"]),
    "clock of 0": (board(processor="clock_mhz = 0"), ["$.processor", "clock_mhz", "0"]),
    "clock as text": (board(processor='clock_mhz = "800"'), ["$.processor.clock_mhz must be a number, is '800'"]),
    "5 bits": (board(processor="clock_mhz = 1\nweight_bits = 5"), ["$.processor", "weight_bits", "1, 2, 4, 8", "5"]),
    "empty buffer": (board("[trace]\nbuffer_events = 0"), ["$.trace", "buffer_events", "0"]),
    "unknown precision": (
        board(processor="clock_mhz = 1\nmacs_per_cycle = { int7 = 8 }"),
        ["$.processor", "macs_per_cycle", "'int7'", "int8"],
    ),
    "no MACs": (
        board(processor="clock_mhz = 1\nmacs_per_cycle = { int8 = 0 }"),
        ["$.processor", "macs_per_cycle.int8", "0"],
    ),
    "no data processing unit": (board(processor="clock_mhz = 1\nprocessing_units = 0"), ["processing_units", "0"]),
    "half a data processing unit": (
        board(processor="clock_mhz = 1\nprocessing_units = 1.5"),
        ["$.processor.processing_units"],
    ),
    "rows without columns": (
        board(processor="clock_mhz = 1\narray_rows = 8"),
        ["$.processor", "array_rows", "array_columns", "both or neither"],
    ),
    "duplicate units": (board('[[units]]\nname = "u"\n[[units]]\nname = "u"'), ["unit names", "'u'", "2 times"]),
    "duplicate memories": (board("[[memory]]\n[[memory]]"), ["memory names", "'memory'", "2 times"]),
    "unit without a name": (board("[[units]]\ncore = 1"), ["$.units[0]", "name"]),
    "negative core": (board('[[units]]\nname = "u"\ncore = -1'), ["$.units[0]", "core", "-1"]),
    "no operators": (board('[[units]]\nname = "u"\noperators = []'), ["$.units[0]", "'u'", "operator"]),
    "n over m": (board('[sparsity]\ngranularity = "n:m"\nn = 4\nm = 2'), ["$.sparsity", "n is 4", "m is 2"]),
    "n:m without m": (board('[sparsity]\ngranularity = "n:m"\nn = 2'), ["$.sparsity", "m is None"]),
    "n without n:m": (board("[sparsity]\nn = 2\nm = 4"), ["$.sparsity", "n:m", "unstructured"]),
    "unknown skipping": (board('[sparsity]\nskips = "all"'), ["$.sparsity.skips", "all"]),
    "cap below 1": (board("[sparsity]\ncap_ratio = 0.5"), ["$.sparsity", "cap_ratio", "0.5"]),
    "density above 1": (
        board("[sparsity]\nthreshold_density_ratio = 60.0"),
        ["$.sparsity", "threshold_density_ratio", "60"],
    ),
    "no derating left": (board("[[memory]]\nderating_ratio = 0.0"), ["$.memory[0]", "derating_ratio", "0"]),
    "unknown memory": (board('[[memory]]\ntype = "flash"'), ["$.memory[0].type", "flash"]),
    "cost source without its table": (board('[cost]\nsource = "table"'), ["$.cost", 'source = "table"', "table = "]),
    "table without its cost source": (board('[cost]\ntable = "b.table.json"'), ["$.cost", 'source = "table"']),
    "no function": (board('[cost]\nsource = "function"\nfunction = "cost"'), ["$.cost", "module:function", "cost"]),
    "empty function": (board('[cost]\nsource = "function"\nfunction = ""'), ["$.cost", "module:function"]),
    "unknown event": (
        board('[trace]\nevents = ["conv"]\nselected = ["pool"]'),
        ["$.trace", "selected", "'pool'", "conv"],
    ),
    "unknown event in a combination": (
        board('[trace]\nevents = ["conv"]\n[trace.combinations]\ndata = ["pool"]'),
        ["$.trace", "combinations.data", "'pool'"],
    ),
    "a time stamp of 4 bits": (board("[trace]\ntime_bits = 4"), ["$.trace", "time_bits", "4"]),
    "unreadable packets": (board('[trace]\npacket_format = "<what"'), ["$.trace", "packet_format", "<what"]),
    "reversed time": (board("[variation]\ndrift_ratio = 1.5"), ["$.variation", "drift_ratio", "1.5"]),
    "no processor": ('name = "b"\nkind = "npu"\n', ["$.processor", "clock"]),
    "unknown kind": ('name = "b"\nkind = "gpu"\n', ["$.kind", "gpu"]),
    "empty name": ('name = ""\nkind = "npu"\n[processor]\nclock_mhz = 1\n', ["name", "empty"]),
    "malformed TOML": ("name = [\n", ["TOML"]),
    "newer schema": (board(top="schema_version = 2"), ["$.schema_version", "2"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_target_is_one_clear_error(case: str, tmp_path: Path) -> None:
    """It names the file, the key's path, the value and a remedy; exit code 2."""
    text, named = CASES[case]
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_target(path)
    assert error.value.exit_code == 2
    assert error.value.where == str(path)
    assert error.value.remedy
    for part in named:
        assert part in error.value.what


@pytest.mark.parametrize("name", ["board.toml", "boards/board", "/absent/board.toml"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    """What looks like a path is taken for one."""
    with pytest.raises(InputError, match="no such file") as error:
        resolve_target(name, tmp_path)
    assert error.value.where == str(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        *(("vpuu", "'vpu'"), ("micronpu", "'micro-npu'"), ("CPU", None), ("something else", None)),
        pytest.param("x" * 300, None, id="too long for a file"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, near: str | None, tmp_path: Path) -> None:
    """The message lists the names and says that a path is possible too."""
    with pytest.raises(InputError) as error:
        resolve_target(name, tmp_path)
    assert error.value.exit_code == 2
    assert repr(name) in error.value.what
    assert ("did you mean" in error.value.what) == (near is not None)
    assert near is None or near in error.value.what
    assert ", ".join(BUILTIN_TARGETS) in str(error.value.remedy)
    assert "target.toml" in str(error.value.remedy)


# The reference: docs/targets.md against the records.

DOCUMENT = (ROOT / "docs/targets.md").read_text()
SECTIONS: dict[str, type[Record]] = {
    "### `[processor]`": Processor,
    "### `[[memory]]`": Memory,
    "### `[cache]`": Cache,
    "### `[sparsity]`": Sparsity,
    "### `[[units]]`": Unit,
    "### `[[links]]`": Link,
    "### `[host]`": Host,
    "### `[trace]`": TraceUnit,
    "### `[cost]`": Cost,
    "### `[variation]`": Variation,
}


def documented(heading: str) -> dict[str, str]:
    """Keys below a heading, with their defaults."""
    _, found, rest = DOCUMENT.partition(f"\n{heading}\n")
    assert found, heading
    body = re.split(r"\n#+ ", rest)[0]
    rows = re.findall(r"^\| (`.+?`) \|[^|]*\| ([^|]*?) \| (.+) \|$", body, flags=re.MULTILINE)
    return {key: default for keys, default, _ in rows for key in re.findall(r"`(\w+)`", keys)}


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """A default as the document writes it."""
    if field.required:
        return "required"
    if field.default is None:
        return "-"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()  # type: ignore[operator]
    return f"`{json.dumps(value)}`"


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_key_is_documented_with_its_default(heading: str) -> None:
    """The table of each section has exactly the record's keys."""
    expected = {field.name: default_of(field) for field in msgspec.structs.fields(SECTIONS[heading])}
    assert documented(heading) == expected


def test_every_table_is_documented() -> None:
    """So are the keys at the top."""
    assert set(documented("## The file")) == {field.name for field in msgspec.structs.fields(Target)}


def test_every_built_in_target_is_documented() -> None:
    """The table of built-in targets has exactly their names, in order."""
    section = DOCUMENT.partition("## The built-in targets")[2]
    assert tuple(re.findall(r"^\| `([\w-]+)` \|", section, flags=re.MULTILINE)) == BUILTIN_TARGETS


def test_the_examples_of_the_document_can_be_used(tmp_path: Path) -> None:
    """The whole example as it is, each table's within a minimal target."""
    examples = [e for e in re.findall(r"```toml\n(.+?)```", DOCUMENT, flags=re.DOTALL) if "[" in e]
    assert len(examples) == 1 + len(SECTIONS)
    for example in examples:
        text = example if "name = " in example.splitlines()[0] else 'name = "b"\nkind = "npu"\n' + example
        if "[processor]" not in text:
            text += "[processor]\nclock_mhz = 1\n"
        load_target(written(tmp_path, text))
