"""Planning on one unit: price, cut, place; price what came of it and cut anew, until it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from framefit.core.timetable import PlannedModel, Timetable
from framefit.scheduling.pieces import candidate_pieces, planned_quantile_ns
from framefit.scheduling.planned import planned_model
from framefit.scheduling.planner import Candidate, Mode, cut, fixes
from framefit.scheduling.timetable import Beat, build_timetable, segment_room
from framefit.workflows.planning.cutting import CutsOnTrial, relearn
from framefit.workflows.planning.pricing import MeasuredPricing, Pricing
from framefit.workflows.planning.task import PlannedTask, handed_bytes

__all__ = ["OneUnit"]

_MOST_PIECES = 64
_MOST_ATTEMPTS = 4  # at cutting anew where measured segments exceed the residual


class OneUnit:
    """Plans a workload that runs on one unit.

    Args:
        pricing: of launches there.
        unit: its name.
        mode: of segmentation.
        rate_hz: of the beat.
        notify: receives what is being done.
    """

    def __init__(
        self,
        pricing: Pricing,
        unit: str,
        mode: Mode,
        rate_hz: float,
        notify: Callable[[str], None],
    ) -> None:
        self.pricing, self.unit, self.mode, self.rate_hz = pricing, unit, mode, rate_hz
        self.notify = notify
        self.notes: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """Of durations."""
        return self.pricing.warnings

    @property
    def compiles(self) -> bool:
        """Whether models are compiled to price them; else nothing is run."""
        return self.pricing.compiles

    def whole(self, tasks: Sequence[PlannedTask]) -> list[int]:
        """Planned quantile of each uncut model, at a first look."""
        return [planned_quantile_ns(one.whole_ns, one.excess) for one in self.pricing.whole(tasks)]

    def place(self, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """Price, cut and place; price what came of it and cut anew, until it holds."""
        trials = CutsOnTrial(self.pricing, self.mode) if isinstance(self.pricing, MeasuredPricing) else None
        for attempt in range(_MOST_ATTEMPTS):
            models = self._priced_models(tasks)
            settled = beat.guarded(models)
            timetable = build_timetable(settled, models)
            first = [model for model in models if model.role == "priority"]
            room = segment_room(settled, first)
            for task, model in zip(tasks, models, strict=True):
                task.uncut = task.uncut if task.bounds else model
            if segment_room(beat, first) <= 0:  # shorter segments, and so a smaller guard, would not help
                break
            candidates, undecided = [], []
            longest = {model.name: max(segment.duration_ns for segment in model.segments) for model in models}
            again = trials is not None and any(task.bounds and longest[task.name] > room for task in tasks)
            for task, model in zip(tasks, models, strict=True):
                whole = not task.bounds
                too_long = not beat.preemptive and (longest[task.name] > room or (again and not whole))
                # With a guard that follows from the segments, shorter ones may pay everywhere.
                freely = not attempt and beat.excess_ratio > 0
                decide = too_long or (whole and (task.wired.entry.always_split or freely))
                decide = decide and not task.priority
                if not decide:
                    candidates.append(Candidate(model))
                    continue
                if task.pieces is None:
                    self._probe(task, model)
                elif not whole:
                    relearn(task, model)
                candidates.append(Candidate(task.uncut or model, task.pieces, task.wired.entry.always_split))
                undecided.append(task)
            if not undecided:
                break
            if trials is not None:
                trials.correct(undecided, models)
                runs = trials.runs(candidates, undecided, beat)
            else:
                runs = cut(candidates, beat, self.mode).runs
            changed = False
            for task in undecided:
                chosen = runs.get(task.name)
                bounds = tuple((task.runs[first][0], task.runs[last][1]) for first, last in chosen or ())
                if len(bounds) > 1 and bounds != task.bounds:
                    task.bounds, changed = bounds, True
            if not changed:
                break
        if trials is not None:
            self.notes += trials.notes(timetable.models)
        return timetable

    def explained(self, timetable: Timetable, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """What binds, by layer where a layer does, and changes that would help."""
        priority = [model for model in timetable.models if model.role == "priority"]
        binding = timetable.binding_constraint
        for task in tasks:
            if task.pieces is None:
                continue
            longest = int(task.pieces.quantile_ns.argmax())
            room = segment_room(beat.covering(int(task.pieces.quantile_ns[longest])), priority)
            if segment_room(beat, priority) <= 0 or int(task.pieces.quantile_ns[longest]) <= room:
                continue
            first, last = task.runs[longest]
            known = task.layer_names or [layer.name for layer in task.model.layers]
            names = dict.fromkeys((known[first], known[last]))
            binding = (
                f"{'layer' if first == last else 'layers'} {' .. '.join(names)} of {task.name!r} "
                f"{'takes' if first == last else 'take'} "
                f"{task.pieces.quantile_ns[longest] / 1e6:.2f} ms in one piece; the residual less guard is "
                f"{room / 1e6:.2f} ms"
            )
            break
        candidates = [
            Candidate(task.uncut or model, task.pieces, task.wired.entry.always_split)
            for task, model in zip(tasks, timetable.models, strict=True)
        ]
        self.notify("looking for changes that would help")
        found = fixes(candidates, beat, self.rate_hz, self.mode)
        return msgspec.structs.replace(timetable, binding_constraint=binding, fixes=found)

    def _probe(self, task: PlannedTask, model: PlannedModel) -> None:
        """Price the pieces and boundaries of a model that has to be cut, or may be."""
        self.notify(f"pricing cuts of {task.name}")
        self.pricing.group(task)
        task.runs = candidate_pieces(task.model, _MOST_PIECES)
        excess = model.duration_ns / max(model.segments[0].median_ns, 1)
        pieces = self.pricing.pieces(task, model.duration_ns, excess)
        task.pieces = pieces.scaled(task.ratio) if self.pricing.told else pieces  # measured: in parts of the whole

    def _priced_models(self, tasks: Sequence[PlannedTask]) -> list[PlannedModel]:
        """All models as they are to run."""
        models = []
        for task, priced in zip(tasks, self.pricing.segments(tasks), strict=True):
            count = len(task.segments)
            reasons = list(task.reasons)
            if not task.priority:
                reasons.append(
                    f"{task.ratio * planned_quantile_ns(priced.whole_ns, priced.excess) / 1e6:.2f} ms whole: "
                    + ("runs whole" if count == 1 else f"cut into {count} segments ({self.mode})")
                )
            models.append(
                planned_model(
                    task.name,
                    task.model,
                    task.segments,
                    self.unit,
                    priority=task.priority,
                    level=task.level,
                    reasons=reasons,
                    samples_ns=[task.stretched(samples) for samples in priced.segments_ns],
                    whole_ns=task.stretched(priced.whole_ns),
                    excess=priced.excess,
                    layer_names=task.layer_names,
                    after=task.wired.after,
                    handed_bytes=handed_bytes(task, tasks),
                )
            )
        return models
