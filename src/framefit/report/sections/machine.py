"""The machine's findings, and targets (``framefit doctor``, ``framefit targets``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from framefit.core.files import Record
from framefit.core.run_record import HostReport, TargetList, TargetSummary
from framefit.core.target import Cost, Target, Unit
from framefit.report.description import (
    Block,
    Cell,
    Description,
    Facts,
    Kind,
    Prose,
    Section,
    Sentences,
    Tone,
    Verdict,
    columns,
)

_SHOWN_UNITS = 3  # names of more are shortened in the list
_MARKS: dict[str, tuple[str, Tone]] = {  # a symbol and a word say it without colour, in ASCII for any terminal
    "good": ("+", "good"),
    "fair": ("~", "uncertain"),
    "poor": ("!", "bad"),
    "unknown": ("?", "faint"),
}


def _doctor(report: HostReport, **_: object) -> Description:
    """One row a topic: its status, and where something can be gained the reason and the remedy."""
    rows = []
    for finding in report.findings:
        symbol, tone = _MARKS[finding.status]
        wrong = finding.status in ("fair", "poor")
        text = "\n".join(
            filter(None, [finding.value, finding.why * wrong, f"remedy: {finding.remedy}" if finding.remedy else ""])
        )
        rows.append((Cell(f"{symbol} {finding.status}", tone=tone), finding.topic, text))
    counts: Counter[str] = Counter(finding.status for finding in report.findings)
    shown = ", ".join(f"{counts[status]} {status}" for status in _MARKS if counts[status])
    facts = report.fingerprint
    machine = ", ".join(str(facts[key]) for key in ("cpu", "machine", "os", "kernel") if key in facts)
    versions = [(key, facts[key]) for key in ("python", "numpy", "onnxruntime") if key in facts]
    findings = Section("Findings", columns(("status",), words=("topic", "found")), rows, plain=True)
    return Description(Verdict("plain", f"{shown}:", machine), (), [findings, Facts("Versions", versions)])


def _targets(listed: TargetList, **_: object) -> Description:
    """The built-in targets, one a row."""
    rows = []
    for target in listed.targets:
        units = target.units
        shown = ", ".join(units) if len(units) <= _SHOWN_UNITS else f"{units[0]} .. {units[-1]}"
        rows.append((target.name, target.kind, shown, target.description, _checked(target)))
    more = "framefit targets NAME shows one; framefit targets NAME -o mine.toml copies its file to start from."
    listing = Section(
        "Targets",
        columns(("target", "kind", "units"), words=("description", "checked against")),
        rows,
        more,
        plain=True,
    )
    return Description(Verdict("plain", f"{len(rows)} built-in targets", ""), (), [listing, *_backends(listed)])


def _backends(listed: TargetList) -> list[Section]:
    """What the installed backends find here: a device a row, and a row for what cannot be used."""
    rows: list[tuple[Cell | str, ...]] = []
    for backend in listed.backends:
        source = f"{backend.package} {backend.version}".rstrip()
        rows += [(f"{backend.kind}:{device.name}", source, device.description) for device in backend.devices]
        if backend.problem:
            text = f"{backend.problem}\nremedy: {backend.remedy}"
            rows.append((Cell(backend.kind, tone="bad"), source, Cell(text, tone="bad")))
        elif not backend.devices:
            rows.append((backend.kind, source, "no device found"))
    heading = columns(("target",), words=("package", "found"))
    return [Section("Backends on this machine", heading, rows, plain=True)] if rows else []


def _target(target: Target, *, notes: str = "", **_: object) -> Description:
    """Each key of a target with its value, defaults marked; ``notes`` is the comment that its file begins with."""
    verdict = Verdict("plain", target.name, f"{target.kind}\n{target.description}\nchecked against: {_checked(target)}")
    return Description(verdict, (), [*_target_blocks(target), *([Prose("Notes and sources", notes)] if notes else [])])


def _checked(target: Target | TargetSummary) -> str:
    """What its figures were compared with; nothing is modelled of a device that executes."""
    return target.checked or ("not checked" if target.kind == "npu" else "nothing is modelled")


def _target_blocks(target: Target) -> Iterator[Block]:
    modelled = target.processor is not None or target.cost != Cost()
    for field in msgspec.structs.fields(target):
        value = getattr(target, field.name)
        if not modelled and value == field.default:
            continue  # nothing is modelled, so there is nothing to say
        if field.name == "units":
            yield from _units(target.units)
        elif isinstance(value, Record):
            yield _keys(field.name, value)
        elif isinstance(value, tuple):
            yield from (_keys(f"{field.name} {index}", part) for index, part in enumerate(value))
        elif value is None:
            yield Sentences(field.name, ["none"])


def _keys(title: str, record: Record) -> Section:
    """One row a key; what the file left out is marked."""
    rows = []
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        rows.append((field.name, _shown(value), Cell("default", tone="faint") if value == default else ""))
    return Section(title, columns(("key",), words=("value", "")), rows, plain=True)


def _units(units: Sequence[Unit]) -> Iterator[Block]:
    """One row a unit; below, what they run, once for all units that run the same."""
    names = ("name", "core", "preemptive", "memory_mib", "speed_ratio")
    rows = [[_shown(getattr(unit, name)) for name in names] for unit in units]
    yield Section("units", columns(names), rows, plain=True)
    operators: dict[str, list[str]] = {}
    for unit in units:
        operators.setdefault(_operators(unit), []).append(unit.name)
    yield Sentences("operators", [(", ".join(runs), text) for text, runs in operators.items()])


def _operators(unit: Unit) -> str:
    text = "all operators" if unit.operators is None else _shown(unit.operators)
    if unit.unsupported:
        text += f" but {_shown(unit.unsupported)}"
    if unit.tuned:
        text += f"; tuned: {_shown(unit.tuned)}"
    return text


def _shown(value: object) -> str:
    """A value as it reads best: what is open, and empty lists, as a dash."""
    if value is None or value in ((), {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_shown(part)}" for key, part in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


DOCTOR: Kind[HostReport] = Kind(noun="machine", plural="machines", describe=_doctor)
TARGETS: Kind[TargetList] = Kind(noun="list of targets", plural="lists of targets", describe=_targets)
TARGET: Kind[Target] = Kind(noun="target", plural="targets", describe=_target)
