"""The extra that this room needs, asked for once."""

from __future__ import annotations

from framefit.errors import MissingExtraError

__all__ = [
    "Array",
    "Cat",
    "Const",
    "In",
    "Module",
    "Mux",
    "Out",
    "Shape",
    "Signal",
    "Simulator",
    "Value",
    "bits_for",
    "data",
    "memory",
    "rtlil",
    "signed",
    "stream",
    "unsigned",
    "wiring",
]


try:
    from amaranth.back import rtlil
    from amaranth.hdl import Array, Cat, Const, Module, Mux, Shape, Signal, Value, signed, unsigned
    from amaranth.lib import data, memory, stream, wiring
    from amaranth.lib.wiring import In, Out
    from amaranth.sim import Simulator
    from amaranth.utils import bits_for
except ImportError as error:
    raise MissingExtraError("amaranth", "hw") from error
