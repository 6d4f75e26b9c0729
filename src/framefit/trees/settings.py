"""Options of ``framefit rtl``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from framefit.core.settings import Settings, option

__all__ = ["RtlSettings"]


class RtlSettings(Settings, kw_only=True):
    """Options of ``framefit rtl``."""

    trees: Annotated[
        Any,
        option(
            "Trees (NAME.trees.json), a network that has them, or the folder of framefit treeify.",
            argument=True,
            metavar="TREES",
            python="a forest",
            names="path",
        ),
    ]
    core: Annotated[
        Literal["fixed", "programmable", "stream"],
        option(
            "Kind of circuit: fixed, one for each tree, computes a row in every cycle; programmable visits the nodes "
            "of all trees in its memories, a node in every cycle; stream is a fixed one behind a sensor that gives "
            "its int8 samples one by one."
        ),
    ] = "fixed"
    group: Annotated[
        str | None, option("Group of layers whose trees to build (default: all, each in a folder of its own).")
    ] = None
    luts: Annotated[tuple[Literal[4, 6], ...], option("Inputs of the look-up tables to count in.", "--lut")] = (6, 4)
    pipelined: Annotated[
        bool, option("Put registers between the steps, and behind the memories of the programmable core.")
    ] = False
    rows: Annotated[int, option("Rows to simulate, and to put into the test bench.", ge=2)] = 64
    layers: Annotated[
        tuple[tuple[int, int], ...],
        option(
            "Inputs and outputs of a layer that the group replaces, to count beside it (default: one layer from the "
            "group's input to its output).",
            "--layer",
            metavar="INxOUT",
            example="128x64",
        ),
    ] = ()
    count: Annotated[
        bool, option("Synthesise the circuits and count what they take, which may need minutes.", "--count/--no-count")
    ] = True
    sample_step: Annotated[
        float | None,
        option(
            "What one step of the sensor's int8 samples is worth to the network, of a stream (default: a power of two "
            "that the thresholds allow).",
            metavar="STEP",
            gt=0,
        ),
    ] = None
    place: Annotated[
        Literal["up5k", "hx8k"] | None,
        option("Place and route the trees' circuit on this iCE40 device, and write a bitstream."),
    ] = None
    pins: Annotated[
        str | None,
        option("Pins of the placed circuit (default: nextpnr chooses them).", metavar="FILE.pcf", names="path"),
    ] = None
    max_seconds: Annotated[
        float,
        option("Seconds for the synthesis of each circuit; what takes longer is left out.", metavar="SECONDS", gt=0),
    ] = 300.0
    output: Annotated[
        str | None,
        option("Folder of the circuits (default: NAME-rtl).", "-o", "--output", metavar="DIR", names="new path"),
    ] = None
    force: Annotated[bool, option("Overwrite an existing folder of circuits.")] = False
    seed: Annotated[
        int, option("Random seed for the rows, and for the weights of the layers counted beside the trees.", ge=0)
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pins is not None and self.place is None:
            raise ValueError("pins are those of a placed circuit: give place, too")
        if self.core == "stream" and self.pipelined:
            raise ValueError("a stream is not pipelined: a position takes many cycles to come")
        if self.core != "stream" and self.sample_step is not None:
            raise ValueError("only a stream reads samples: choose core stream, or leave out sample_step")
        if not self.luts:
            raise ValueError("luts is empty: give 4, 6 or both")
        if any(min(layer) < 1 for layer in self.layers):
            raise ValueError(f"layers {list(self.layers)}: give inputs and outputs of each, such as 128x64")
