"""Virtual time that another thread lets pass."""

from __future__ import annotations

import threading

from framefit.devices.clock import SteppedClock


def living(clock: SteppedClock, wakes: list[int], seen: list[int]) -> threading.Thread:
    """A thread that sleeps until each of the times, and notes when it woke."""

    def live() -> None:
        for time_ns in wakes:
            clock.sleep_until_ns(time_ns)
            seen.append(clock.now_ns())
        clock.leave()

    thread = threading.Thread(target=live)
    thread.start()
    return thread


def test_time_passes_as_far_as_it_is_let() -> None:
    """Everything until then has happened when the call returns, and nothing after it."""
    clock, seen = SteppedClock(), list[int]()
    thread = living(clock, [5, 10, 10, 30, 40], seen)
    clock.wait_held()
    assert seen == []
    for until, expected in ((4, []), (5, [5]), (29, [5, 10, 10]), (29, [5, 10, 10]), (7, [5, 10, 10])):
        clock.pass_until(until)
        assert seen == expected
    assert clock.now_ns() == 29
    clock.pass_until(100)
    assert seen == [5, 10, 10, 30, 40]
    thread.join()


def test_nobody_waits_for_a_thread_that_has_left() -> None:
    """Letting time pass returns at once where nobody lives on the clock any more."""
    clock, seen = SteppedClock(), list[int]()
    living(clock, [], seen).join()
    clock.wait_held()
    clock.pass_until(50)


def test_a_thread_that_is_let_go_runs_to_its_end() -> None:
    """Time jumps to wherever it sleeps, without anybody letting it."""
    clock, seen = SteppedClock(), list[int]()
    thread = living(clock, [10**9, 10**12], seen)
    clock.wait_held()
    clock.let_go()
    thread.join()
    assert seen == [10**9, 10**12]


def test_parts_of_one_clock_are_held_together() -> None:
    """Of parts that live side by side, one that sleeps long holds up no other that wakes within what is let."""
    clock, seen = SteppedClock(), list[tuple[str, int]]()

    def part(name: str, wakes: list[int]) -> None:
        for time_ns in wakes:
            clock.sleep_until_ns(time_ns)
            seen.append((name, clock.now_ns()))

    def live() -> None:
        clock.together([lambda: part("a", [50]), lambda: part("b", [10, 20, 60])])
        clock.leave()

    thread = threading.Thread(target=live)
    thread.start()
    clock.wait_held()
    clock.pass_until(49)
    assert seen == [("b", 10), ("b", 20)]
    clock.pass_until(100)
    assert seen == [("b", 10), ("b", 20), ("a", 50), ("b", 60)]
    thread.join()
