"""Faults in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit import InputError
from framefit.core.faults import Fault, check_fault, read_fault

S, MS = 1_000_000_000, 1_000_000


def read(text: str) -> Fault:
    """With windows of 10 ms."""
    return read_fault(text, lambda window: window * 10 * MS)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("raise:depth@2s", Fault(kind="raise", name="depth", begin_ns=2 * S, times=1)),
        ("raise:depth*3@2s", Fault(kind="raise", name="depth", begin_ns=2 * S, times=3)),
        ("raise:depth@2s*3", Fault(kind="raise", name="depth", begin_ns=2 * S, times=3)),
        ("raise:depth@2s..", Fault(kind="raise", name="depth", begin_ns=2 * S)),
        ("raise:depth", Fault(kind="raise", name="depth")),
        ("hang:npu1@100w", Fault(kind="hang", name="npu1", begin_ns=S, times=1)),
        ("hang:npu1*50ms@1.5s", Fault(kind="hang", name="npu1", begin_ns=3 * S // 2, times=1, amount=50 * MS)),
        ("stick:npu1@7ms", Fault(kind="stick", name="npu1", begin_ns=7 * MS, times=1)),
        ("slow:face*1.4@5s", Fault(kind="slow", name="face", begin_ns=5 * S, amount=1.4)),
        ("slow:face*2@1s..2s", Fault(kind="slow", name="face", begin_ns=S, end_ns=2 * S, amount=2)),
        ("nan:depth.1@10w..20w", Fault(kind="nan", name="depth.1", begin_ns=100 * MS, end_ns=200 * MS)),
        ("inf:depth@5us", Fault(kind="inf", name="depth", begin_ns=5000, times=1)),
        ("stall:camera@3s..4s", Fault(kind="stall", name="camera", begin_ns=3 * S, end_ns=4 * S)),
        ("stall:camera@3s", Fault(kind="stall", name="camera", begin_ns=3 * S)),
        ("burst:camera@3s*5", Fault(kind="burst", name="camera", begin_ns=3 * S, times=1, amount=5)),
        ("burst:camera*5@3s..4s", Fault(kind="burst", name="camera", begin_ns=3 * S, end_ns=4 * S, amount=5)),
        ("end:camera@9s", Fault(kind="end", name="camera", begin_ns=9 * S)),
        ("shape:camera@30ns", Fault(kind="shape", name="camera", begin_ns=30, times=1)),
    ],
)
def test_words(text: str, fault: Fault) -> None:
    """Kind, name, amount and times are what they say; a moment alone is once, or from then on where that endures."""
    assert read(text) == fault


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raize:depth", "did you mean 'raise'"),
        ("depth", "no fault of kind 'depth'"),
        ("raise:", "cannot be read"),
        ("raise:a@", "cannot be read"),
        ("raise:a*2*3", "cannot be read"),
        ("raise:a@2", "needs a unit"),
        ("raise:a@soon", "'soon' is neither a number nor a time"),
        ("raise:a*0", "no amount"),
        ("raise:a*50ms", "cannot be a time"),
        ("hang:a*3w", "cannot be a time"),
        ("slow:a", "needs an amount"),
        ("slow:a*0", "needs an amount"),
        ("burst:a*2.5", "no amount"),
        ("stall:a*2", "no amount"),
        ("nan:a@2s..1s", "it ends at"),
    ],
)
def test_words_that_mean_nothing(text: str, says: str) -> None:
    """They are refused, with the text and the form."""
    with pytest.raises(InputError, match=says) as error:
        read(text)
    assert text in str(error.value)
    assert "remedy" in str(error.value)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but the one error comes of it."""
    try:
        fault = read("raise:" + text)
    except InputError:
        return
    assert text.startswith(fault.name)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**12))
def test_its_time(begin: int, after: int, length: int) -> None:
    """It begins with its begin, and is over at its end."""
    fault = Fault(kind="raise", name="a", begin_ns=begin, end_ns=begin + length)
    assert fault.due(begin)
    assert not fault.due(begin + length)
    assert fault.due(after) == (begin <= after < begin + length)
    assert Fault(kind="raise", name="a", begin_ns=begin).due(begin + after)


def test_names_that_there_are() -> None:
    """Launch faults are about models, segments and units, stream faults about streams; else the nearest is told."""
    check_fault(read("raise:depth"), {"depth", "npu"}, {"camera"})
    check_fault(read("stall:camera"), {"depth", "npu"}, {"camera"})
    with pytest.raises(InputError, match="did you mean 'depth'"):
        check_fault(read("raise:dept"), {"depth", "npu"}, {"camera"})
    with pytest.raises(InputError, match="no stream is called 'depth'; there are camera"):
        check_fault(read("stall:depth"), {"depth", "npu"}, {"camera"})
