"""Priority levels and roles."""

from __future__ import annotations

import msgspec
import pytest

from framefit.core.workload import ModelEntry, Schedule
from framefit.planning.levels import BACKGROUND_LEVEL, HIGHEST_LEVEL, Traits, levels, roles

ENTRY = ModelEntry(name="m", path="m.onnx")
PLAIN = Traits(macs=500_000_000, parameters=5_000_000, window_ratio=0.4)  # nothing about it adds or takes


@pytest.mark.parametrize(
    ("entry", "traits", "level", "why"),
    [
        ({}, {}, 3, "+3 base"),
        ({}, {"read_by": ("pose", "gaze")}, 5, "+2 its output is used by pose, gaze"),
        ({"latency_sensitive": True}, {}, 7, "+4 sensitive to latency"),
        ({"latency_sensitive": False}, {}, 2, "-1 not sensitive to latency"),
        ({"task": "voice-activity"}, {}, 6, "+3 task voice-activity"),
        ({"task": "face-detection"}, {}, 5, "+2 task face-detection"),
        ({"task": "pose"}, {}, 4, "+1 task pose"),
        ({"task": "captioning"}, {}, 1, "-2 task captioning"),
        ({"deadline_ms": 20}, {}, 4, "+1 deadline of 20 ms"),
        ({}, {"window_ratio": 0.1}, 5, "+2 takes 10% of a window"),
        ({}, {"window_ratio": 0.25}, 4, "+1 takes 25% of a window"),
        ({}, {"window_ratio": 0.9}, 2, "-1 takes 90% of a window"),
        ({}, {"window_ratio": 2.5}, 0, "-3 takes 2.5 windows"),
        ({}, {"macs": 49_000_000}, 4, "+1 small: 49 M MACs"),
        ({}, {"macs": 3_000_000_000}, 2, "-1 big: 3.0 G MACs"),
        ({}, {"parameters": 25_000_000}, 2, "-1 25 M parameters"),
    ],
)
def test_each_trait_has_its_weight_and_says_so(
    entry: dict[str, object], traits: dict[str, object], level: int, why: str
) -> None:
    """One trait more than nothing moves the level from 3 by its weight, and is a reason."""
    plain = {"macs": PLAIN.macs, "parameters": PLAIN.parameters, "window_ratio": PLAIN.window_ratio}
    found, reasons = levels(msgspec.structs.replace(ENTRY, **entry), Traits(**{**plain, **traits}))  # type: ignore[arg-type]
    assert found == level
    assert why in reasons
    assert sum(int(reason.split()[0]) for reason in reasons) == level


def test_what_has_no_weight_is_no_reason() -> None:
    """An unknown task, or one of weight 0, is not listed."""
    assert levels(msgspec.structs.replace(ENTRY, task="depth"), PLAIN) == (3, ("+3 base",))
    assert levels(msgspec.structs.replace(ENTRY, task="knitting"), PLAIN) == (3, ("+3 base",))


def test_levels_end_at_0_and_10() -> None:
    """All that adds is more than 10, all that takes less than 0."""
    high = msgspec.structs.replace(ENTRY, latency_sensitive=True, task="text-to-speech", deadline_ms=5)
    assert levels(high, Traits(macs=1, parameters=1, window_ratio=0.01, read_by=["x"]))[0] == HIGHEST_LEVEL
    low = msgspec.structs.replace(ENTRY, latency_sensitive=False, task="captioning")
    assert levels(low, Traits(macs=10**10, parameters=10**9, window_ratio=9))[0] == BACKGROUND_LEVEL


@pytest.mark.parametrize(
    ("priority", "level"), [("every-window", 10), ("background", 0), (7, 7), (0, 0), (12, 10), (-3, 0)]
)
def test_a_given_priority_decides(priority: int | str, level: int) -> None:
    """Traits do not matter then, and the reason names what was given."""
    entry = msgspec.structs.replace(ENTRY, priority=priority, latency_sensitive=True)
    found, reasons = levels(entry, PLAIN)
    assert found == level
    assert len(reasons) == 1
    assert str(priority) in reasons[0]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), [False, True, True, False]),
        (Schedule(priority_threshold=6), [False, False, True, False]),
        (Schedule(priority_threshold=0), [True] * 4),
        (Schedule(priority_threshold=11), [False] * 4),
        (Schedule(num_priority=0), [False] * 4),
        (Schedule(num_priority=1), [False, False, True, False]),
        (Schedule(num_priority=3), [True, True, True, False]),
        (Schedule(num_priority=9), [True] * 4),
    ],
)
def test_threshold_or_number_make_the_roles(schedule: Schedule, expected: list[bool]) -> None:
    """Levels 3, 5, 8, 3: from 5 on by default; of equals the earlier one."""
    assert roles([3, 5, 8, 3], schedule) == expected
