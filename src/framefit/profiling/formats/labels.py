"""Matches what a file says of its events, in words, with the operations, kinds and units of a program.

Formats that are made for viewers have names and categories where a device's packets have numbers. What a name means
only the program says, so a reader hands on the words, and :meth:`NamedTrace.match` numbers them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.profile import HOW_WORDS, How
from framefit.core.program import Operation, Program, SegmentProgram

_KIND_KEYS = ("kind", "op_name", "op_type", "op", "type")  # arguments that may be a kind, before the category
_INFERRED = frozenset(HOW_WORDS[how] for how in How if how != How.MEASURED)
_SHOWN = 3  # tracks that a message names


class Label(NamedTuple):
    """What a file says of an event.

    Attributes:
        name: of the event.
        words: others that may be its kind, the best first.
        operation: number within its program, -1 where it is not given.
        program, model: names, empty where they are not given.
        segment: of the model, -1 where it is not given.
    """

    name: str
    words: tuple[str, ...] = ()
    operation: int = -1
    program: str = ""
    model: str = ""
    segment: int = -1

    @classmethod
    def of(cls, name: str, category: str | None, arguments: Mapping[str, object]) -> Label:
        """Take from an event's arguments what says which operation it is."""
        words = [arguments.get(key) for key in _KIND_KEYS] + [category]

        def number(key: str) -> int:
            value = arguments.get(key)
            return value if isinstance(value, int) and 0 <= value < 1 << 31 else -1

        model = arguments.get("model")
        return cls(
            name=name,
            words=tuple(dict.fromkeys(word for word in words if isinstance(word, str))),
            operation=number("operation"),
            model=model if isinstance(model, str) else "",
            segment=number("segment"),
        )


def is_inferred(how: object) -> bool:
    """Whether a word of a written profile says that an edge was inferred: then no packet of it was received."""
    return isinstance(how, str) and how in _INFERRED


class _Place(NamedTuple):
    part: SegmentProgram
    position: int
    operation: Operation


@dataclass(frozen=True)
class NamedTrace:
    """Packets of which a file says in words what they are.

    Attributes:
        trace: kinds are the names, cores are tracks.
        label: int64, of each packet its place in ``labels``.
        labels: words.
        tracks: names by number, empty where there is none.
    """

    trace: Trace
    label: npt.NDArray[np.int64]
    labels: tuple[Label, ...]
    tracks: tuple[str, ...]

    def match(self, program: Program) -> tuple[Trace, tuple[str, ...]]:
        """Number the packets as ``program`` does; return the trace, and warnings.

        A name stands for an operation where one of that name can be meant, and else for a kind, as category and
        arguments do. A track is the unit whose operations or kinds it shows, or that it is named after. Tracks that
        show nothing of the program are left out, unless none shows anything.
        """
        names = _Names(program)
        places = [names.find(label) for label in self.labels]
        kinds = [names.kind(label, each) for label, each in zip(self.labels, places, strict=True)]
        known = np.array([kind in names.kinds for kind in kinds], np.bool_)[self.label]
        kept, core, notes = self._units(program, known, [names.unit(*both) for both in zip(kinds, places, strict=True)])
        number = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
        position = np.array([_common([place.position for place in each]) for each in places], np.int64)
        trace = replace(
            self.trace,
            time_ns=self.trace.time_ns[kept],
            id=np.array([number[kind] for kind in kinds], np.int32)[self.label[kept]],
            type=self.trace.type[kept],
            core=core[self.trace.core[kept]],
            operation=position[self.label[kept]],
            kinds=tuple(number),
        )
        return trace, notes

    def _units(
        self, program: Program, known: npt.NDArray[np.bool_], units: list[str]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int16], tuple[str, ...]]:
        """Return which packets to keep, the core number of each track, and warnings."""
        core_of = {unit.name: unit.core for unit in program.units}
        votes: dict[int, Counter[str]] = {}
        pairs, counts = np.unique(np.stack([self.trace.core, self.label]), axis=1, return_counts=True)
        for track, label, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            if units[label] in core_of:
                votes.setdefault(track, Counter())[units[label]] += count
        cores: dict[int, int] = {}
        for track, name in enumerate(self.tracks):
            if name in core_of:
                cores[track] = core_of[name]
            elif track in votes:
                cores[track] = core_of[votes[track].most_common(1)[0][0]]
        free = (core for core in range(len(self.tracks) + len(core_of)) if core not in cores.values())
        numbers = [cores[track] if track in cores else next(free) for track in range(len(self.tracks))]
        if not cores:
            numbers = list(range(len(self.tracks)))
        shown = np.bincount(self.trace.core[known], minlength=len(self.tracks)) > 0
        core = np.array(numbers, np.int16)
        if shown.all() or not shown.any():
            return np.ones(len(known), np.bool_), core, ()
        others = [repr(self.tracks[track] or track) for track in np.flatnonzero(~shown).tolist()]
        some = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
        note = f"{len(others)} tracks show nothing of the program and were left out: {some}"
        return shown[self.trace.core], core, (note,)


class _Names:
    """Operations and kinds of a program by their names."""

    def __init__(self, program: Program) -> None:
        self._named: dict[str, list[_Place]] = {}
        self._kind_units: dict[str, set[str]] = {}
        layers: dict[tuple[str, str], list[_Place]] = {}
        for part in program.programs:
            listed = [operation for group in part.groups for operation in group.operations]
            for position, operation in enumerate(listed):
                place = _Place(part, position, operation)
                self._named.setdefault(operation.name, []).append(place)
                layers.setdefault((part.name, operation.layer), []).append(place)
                self._kind_units.setdefault(operation.kind, set()).add(operation.unit)
        self.kinds = frozenset(self._kind_units)
        operations = frozenset(self._named)
        for (_, layer), places in layers.items():
            if len(places) == 1 and layer not in operations:  # one operation is the whole layer
                self._named.setdefault(layer, []).append(places[0])

    def find(self, label: Label) -> list[_Place]:
        """Return the operations that a label can mean."""
        matches = [
            place
            for place in self._named.get(label.name, [])
            if label.program in ("", place.part.name)
            and label.model in ("", place.part.model)
            and label.segment in (-1, place.part.segment)
        ]
        if label.operation >= 0:
            return [place for place in matches if place.position == label.operation]
        if label.name in self.kinds and not self.kinds.intersection(label.words):
            same = [place for place in matches if place.operation.kind == label.name]
            return [] if len(same) < len(matches) or self._shared(label.name) else matches
        return matches

    def _shared(self, kind: str) -> bool:
        """Whether operations of other names are of this kind."""
        return any(
            place.operation.kind == kind and name != kind for name, places in self._named.items() for place in places
        )

    def kind(self, label: Label, places: list[_Place]) -> str:
        """Return the kind of a label that may mean operations of these ``places``; its name where there is none."""
        kinds = {place.operation.kind for place in places}
        if len(kinds) == 1:
            return kinds.pop()
        return next((word for word in (*label.words, label.name) if word in self.kinds), label.name)

    def unit(self, kind: str, places: list[_Place]) -> str:
        """Return the unit of operations or of a kind; empty where there are several."""
        units = {place.operation.unit for place in places} or self._kind_units.get(kind, set())
        return next(iter(units)) if len(units) == 1 else ""


def _common(positions: list[int]) -> int:
    """Return the number that all share, else -1."""
    return positions[0] if len(set(positions)) == 1 else -1
