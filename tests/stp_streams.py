"""System traces made by hand: a small encoder, as the specification's tables tell it."""

from __future__ import annotations

from dataclasses import dataclass, field

ASYNC = "f" * 21 + "0"
_DATA = {4: "c", 8: "4", 16: "5", 32: "6", 64: "7"}
_DATA_MARKED_TIMED = {4: "d", 8: "8", 16: "9", 32: "a", 64: "b"}
_DATA_TIMED = {4: "fc", 8: "f4", 16: "f5", 32: "f6", 64: "f7"}
_DATA_MARKED = {4: "fd", 8: "f8", 16: "f9", 32: "fa", 64: "fb"}
_LENGTHS = {14: "d", 16: "e"} | {size: f"{size:x}" for size in range(13)}


def packed(nibbles: str) -> bytes:
    """Nibbles as bytes, the low one of each first."""
    if len(nibbles) % 2:
        nibbles += "0"
    return bytes(int(nibbles[at + 1] + nibbles[at], 16) for at in range(0, len(nibbles), 2))


@dataclass
class Stream:
    """An STPv2 stream that grows, packet by packet.

    Args:
        times: "natural", "gray" or "delta".
        little: numbers from their lowest nibble on (STPv2.2).
    """

    times: str = "natural"
    little: bool = False
    nibbles: str = ""
    _sent: int = 0
    _master: int = field(default=-1)
    _channel: int = field(default=-1)

    def begin(self) -> Stream:
        """ASYNC and VERSION."""
        kind = {"delta": 2, "natural": 3, "gray": 4}[self.times]
        self.nibbles += ASYNC + "f00" + (f"{kind + 8:x}81" if self.little else f"{kind:x}")
        self._master = self._channel = 0
        return self

    def number(self, value: int, nibbles: int) -> str:
        """A number of so many nibbles."""
        text = f"{value:0{nibbles}x}" if nibbles else ""
        return text[::-1] if self.little else text

    def frequency(self, hz: int) -> Stream:
        """FREQ."""
        self.nibbles += "f08" + self.number(hz, 8)
        return self

    def lost(self, whole: bool = False) -> Stream:
        """MERR, or GERR."""
        self.nibbles += ("f2" if whole else "2") + self.number(1, 2)
        self._channel = 0
        if whole:
            self._master = 0
        return self

    def address(self, master: int, channel: int) -> Stream:
        """M8 or M16, C8 or C16, where they change."""
        if master != self._master:
            near = master >> 8 == self._master >> 8
            self.nibbles += "1" + self.number(master & 255, 2) if near else "f1" + self.number(master, 4)
            self._master, self._channel = master, 0
        if channel != self._channel:
            near = channel >> 8 == self._channel >> 8
            self.nibbles += "3" + self.number(channel & 255, 2) if near else "f3" + self.number(channel, 4)
            self._channel = channel
        return self

    def data(self, value: int, bits: int, ticks: int | None = None, marked: bool = False) -> Stream:
        """D4 to D64, with time stamp and marker or without."""
        timed = ticks is not None
        table = (_DATA_MARKED_TIMED if marked else _DATA_TIMED) if timed else (_DATA_MARKED if marked else _DATA)
        self.nibbles += table[bits] + self.number(value, bits // 4)
        if ticks is not None:
            self.nibbles += self.stamp(ticks)
        return self

    def flag(self, ticks: int | None = None) -> Stream:
        """FLAG, or FLAG_TS."""
        self.nibbles += "fe" if ticks is None else "e" + self.stamp(ticks)
        return self

    def stamp(self, ticks: int) -> str:
        """A time stamp: the difference, or the low nibbles that have changed."""
        if self.times == "delta":
            value, self._sent = ticks - self._sent, ticks
            size = len(f"{value:x}") if value else 0
        else:
            code = ticks ^ (ticks >> 1) if self.times == "gray" else ticks
            changed, self._sent = code ^ self._sent, code
            size = len(f"{changed:x}") if changed else 0
            value = code
        size = size if size in _LENGTHS else size + 1
        return _LENGTHS[size] + self.number(value % 16**size, size)

    def raw(self) -> bytes:
        """The stream."""
        return packed(self.nibbles)
