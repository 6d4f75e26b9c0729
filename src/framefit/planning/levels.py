"""Priority levels 0 to 10: given by the user, or summed up from what a model is like.

The weights are ours: a model that others wait for, that is short, that a person feels
late, or whose task is one of watching, comes first. ``docs/priorities.md`` has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framefit.core.workload import ModelEntry, Schedule

HIGHEST_LEVEL, BACKGROUND_LEVEL = 10, 0
_BASE, _DEFAULT_THRESHOLD = 3, 5
_TASKS = {
    "voice-activity": 3,
    "keyword-spotting": 3,
    "text-to-speech": 3,
    "face-detection": 2,
    "object-detection": 2,
    "tracking": 2,
    "gesture": 2,
    "pose": 1,
    "speech-recognition": 1,
    "depth": 0,
    "segmentation": 0,
    "classification": 0,
    "super-resolution": -1,
    "captioning": -2,
}


@dataclass(frozen=True)
class Traits:
    """What the level of a model is determined from.

    Attributes:
        macs: of one frame.
        parameters: number of weights.
        window_ratio: planned duration over the window.
        read_by: models that use its output.
    """

    macs: int
    parameters: int
    window_ratio: float
    read_by: Sequence[str] = ()


def levels(entry: ModelEntry, traits: Traits) -> tuple[int, tuple[str, ...]]:
    """A model's level and the reasons for it.

    Args:
        entry: its part of the workload; a given priority decides.
        traits: used where the priority is "auto".
    """
    if entry.priority == "every-window":
        return HIGHEST_LEVEL, ('priority = "every-window" in the workload',)
    if entry.priority == "background":
        return BACKGROUND_LEVEL, ('priority = "background" in the workload',)
    if isinstance(entry.priority, int):
        level = min(max(entry.priority, BACKGROUND_LEVEL), HIGHEST_LEVEL)
        return level, (f"level {entry.priority} in the workload",)
    terms = [(_BASE, "base"), *_terms(entry, traits)]
    total = min(max(sum(weight for weight, _ in terms), BACKGROUND_LEVEL), HIGHEST_LEVEL)
    return total, tuple(f"{weight:+d} {why}" for weight, why in terms if weight)


def _terms(entry: ModelEntry, traits: Traits) -> list[tuple[int, str]]:
    terms = []
    if traits.read_by:
        terms.append((2, f"its output is used by {', '.join(traits.read_by)}"))
    if entry.latency_sensitive is not None:
        terms.append((4, "sensitive to latency") if entry.latency_sensitive else (-1, "not sensitive to latency"))
    if entry.task is not None:
        terms.append((_TASKS.get(entry.task, 0), f"task {entry.task}"))
    if entry.deadline_ms is not None:
        terms.append((1, f"deadline of {entry.deadline_ms:g} ms"))
    share = traits.window_ratio
    for limit, weight in ((0.1, 2), (0.25, 1), (0.5, 0), (1.0, -1)):
        if share <= limit:
            terms.append((weight, f"takes {share:.0%} of a window"))
            break
    else:
        terms.append((-3, f"takes {share:.1f} windows"))
    if traits.macs < 50e6:
        terms.append((1, f"small: {traits.macs / 1e6:.0f} M MACs"))
    elif traits.macs > 2e9:
        terms.append((-1, f"big: {traits.macs / 1e9:.1f} G MACs"))
    if traits.parameters > 20e6:
        terms.append((-1, f"{traits.parameters / 1e6:.0f} M parameters"))
    return terms


def roles(numbers: Sequence[int], schedule: Schedule) -> list[bool]:
    """Which models are priority models.

    Args:
        numbers: levels, in the order of the workload.
        schedule: ``num_priority`` takes that many of the highest (earlier models first
            among equals); else those from ``priority_threshold`` (5) on.
    """
    if schedule.num_priority is not None:
        ranked = sorted(range(len(numbers)), key=lambda index: -numbers[index])
        chosen = set(ranked[: schedule.num_priority])
        return [index in chosen for index in range(len(numbers))]
    threshold = _DEFAULT_THRESHOLD if schedule.priority_threshold is None else schedule.priority_threshold
    return [level >= threshold for level in numbers]
