"""Simulates circuits in Amaranth, and writes rows and a Verilog test bench that check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from framefit.core.trees import Ensemble, accumulate
from framefit.trees.hardware.fixed import FixedFunction, pack_rows, results_of
from framefit.trees.hardware.programmable import ProgrammableCore, TreeProgram
from framefit.trees.hardware.streaming import Streaming, Windows, samples_of


def drawn_rows(ensemble: Ensemble, count: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Words that the encoder can produce, ``count`` rows x features: the least, the largest, then random ones."""
    low, high = ensemble.encoder.low, ensemble.encoder.high
    channels = [[0, 2] if a == b else [0, 1, 2] for a, b in zip(low, high, strict=True)]
    if ensemble.patch is None:
        possible = channels
    else:
        channels += [[0, 2]] * ensemble.patch.border
        possible = [words for words in channels for _ in range(ensemble.patch.area)]
    rows = np.stack([random.choice(words, count) for words in possible], axis=1).astype(np.uint8)
    rows[0] = 0
    rows[1:2] = 2
    return rows


_FIXED = """\
// Checks top.v against the rows of inputs.hex and outputs.hex; prints PASS or FAIL.
`timescale 1ns / 1ps
module testbench;
  localparam ROWS = {rows}, LATENCY = {latency};
  reg [{x_bits} - 1:0] inputs [0:ROWS - 1];
  reg [{y_bits} - 1:0] outputs [0:ROWS - 1];
  reg clk = 0;
  integer cycle, wrong = 0;
  reg [{x_bits} - 1:0] x;
  wire [{y_bits} - 1:0] y;

  top dut (.x(x), .y(y){clock});

  initial begin
    $readmemh("inputs.hex", inputs);
    $readmemh("outputs.hex", outputs);
    for (cycle = 0; cycle < ROWS + LATENCY; cycle = cycle + 1) begin
      x = inputs[cycle < ROWS ? cycle : ROWS - 1];
      #1;
      if (cycle >= LATENCY && y !== outputs[cycle - LATENCY]) begin
        wrong = wrong + 1;
        $display("row %0d: %h, not %h", cycle - LATENCY, y, outputs[cycle - LATENCY]);
      end
      #4 clk = 1;
      #5 clk = 0;
    end
    if (wrong == 0) $display("PASS: %0d rows", ROWS);
    else $display("FAIL: %0d of %0d rows", wrong, ROWS);
    $finish;
  end
endmodule
"""
_CORE = """\
// Checks top.v against the rows of inputs.hex and outputs.hex; prints PASS or FAIL.
`timescale 1ns / 1ps
module testbench;
  localparam BEATS = {beats}, ROWS = {rows}, PATIENCE = {patience};
  reg [{x_bits} - 1:0] inputs [0:BEATS - 1];
  reg [{y_bits} - 1:0] outputs [0:ROWS - 1];
  reg clk = 0;
  integer beat = 0, row = 0, wrong = 0, cycle = 0;
  wire ready, valid;
  wire [{y_bits} - 1:0] sums;

  top dut (
    .clk(clk), .rst(1'b0),
    .words__payload(inputs[beat < BEATS ? beat : BEATS - 1]), .words__valid(beat < BEATS), .words__ready(ready),
    .sums__payload(sums), .sums__valid(valid), .sums__ready(1'b1),
    .load__payload({load_bits}'b0), .load__valid(1'b0), .load__ready()
  );

  initial begin
    $readmemh("inputs.hex", inputs);
    $readmemh("outputs.hex", outputs);
  end
  always #5 clk = ~clk;
  always @(posedge clk) begin
    cycle <= cycle + 1;
    if (beat < BEATS && ready) beat <= beat + 1;
    if (valid) begin
      if (sums !== outputs[row]) begin
        wrong = wrong + 1;
        $display("row %0d: %h, not %h", row, sums, outputs[row]);
      end
      row = row + 1;
    end
    if (row == ROWS || cycle == PATIENCE) begin
      if (wrong == 0 && row == ROWS) $display("PASS: %0d rows in %0d cycles", ROWS, cycle);
      else $display("FAIL: %0d rows came, %0d of them differ, of %0d", row, wrong, ROWS);
      $finish;
    end
  end
endmodule
"""


_STREAM = """\
// Checks top.v against the samples of inputs.hex and the bytes of outputs.hex; prints PASS or FAIL.
`timescale 1ns / 1ps
module testbench;
  localparam SAMPLES = {samples}, BYTES = {bytes}, PATIENCE = {patience};
  reg [{x_bits} - 1:0] inputs [0:SAMPLES - 1];
  reg [{y_bits} - 1:0] outputs [0:BYTES - 1];
  reg clk = 0;
  integer sample = 0, taken = 0, wrong = 0, cycle = 0;
  wire ready, valid;
  wire [{y_bits} - 1:0] outcome;

  top dut (
    .clk(clk), .rst(1'b0),
    .samples__payload(inputs[sample < SAMPLES ? sample : SAMPLES - 1]),
    .samples__valid(sample < SAMPLES), .samples__ready(ready),
    .outputs__payload(outcome), .outputs__valid(valid), .outputs__ready(1'b1)
  );

  initial begin
    $readmemh("inputs.hex", inputs);
    $readmemh("outputs.hex", outputs);
  end
  always #5 clk = ~clk;
  always @(posedge clk) begin
    cycle <= cycle + 1;
    if (sample < SAMPLES && ready) sample <= sample + 1;
    if (valid) begin
      if (outcome !== outputs[taken]) begin
        wrong = wrong + 1;
        $display("byte %0d: %h, not %h", taken, outcome, outputs[taken]);
      end
      taken = taken + 1;
    end
    if (taken == BYTES || cycle == PATIENCE) begin
      if (wrong == 0 && taken == BYTES) $display("PASS: %0d bytes in %0d cycles", BYTES, cycle);
      else $display("FAIL: %0d bytes came, %0d of them differ, of %0d", taken, wrong, BYTES);
      $finish;
    end
  end
endmodule
"""


def write_stream_bench(folder: Path, circuit: Streaming, drawn: Sequence[Windows]) -> None:
    """Write the same files for the streaming form: a line for each sample, and for each byte.

    Args:
        folder: it holds ``top.v``.
        circuit: the same circuit.
        drawn: windows, as int8.
    """
    samples = [int(payload) for windows in drawn for payload in samples_of(windows)]
    wanted = [payload for windows in drawn for payload in circuit.bytes_of(windows)]
    x_bits, y_bits = (len(port.payload.as_value()) for port in (circuit.samples, circuit.outputs))
    _write_hex(folder / "inputs.hex", samples, x_bits)
    _write_hex(folder / "outputs.hex", wanted, y_bits)
    text = _STREAM.format(
        samples=len(samples),
        bytes=len(wanted),
        patience=2 * (len(samples) + 2 * len(wanted)) + 100,
        x_bits=x_bits,
        y_bits=y_bits,
    )
    (folder / "testbench.v").write_text(text)


def write_fixed_bench(folder: Path, circuit: FixedFunction, words: npt.NDArray[np.uint8]) -> None:
    """Write ``testbench.v``, ``inputs.hex`` and ``outputs.hex``, one line for each row.

    Args:
        folder: it holds ``top.v``.
        circuit: the same circuit.
        words: rows x features.
    """
    y_bits = len(circuit.y)
    _write_hex(folder / "inputs.hex", pack_rows(words), len(circuit.x))
    _write_hex(folder / "outputs.hex", results_of(circuit.ensemble, words), y_bits)
    clock = ", .clk(clk), .rst(1'b0)" if circuit.latency else ""
    text = _FIXED.format(rows=len(words), latency=circuit.latency, x_bits=len(circuit.x), y_bits=y_bits, clock=clock)
    (folder / "testbench.v").write_text(text)


def write_core_bench(
    folder: Path, core: ProgrammableCore, ensemble: Ensemble, words: npt.NDArray[np.uint8], cycles: int
) -> None:
    """Write the same files for the programmable core; ``inputs.hex`` has a line for each beat.

    Args:
        folder: it holds ``top.v``.
        core: the same core, loaded with the ensemble's program.
        ensemble: the reference.
        words: rows x features.
        cycles: that the rows take.
    """
    beats = core.beats_of(words)
    payloads = [core.payload_of(row) for row in accumulate(ensemble, words).tolist()]
    x_bits, y_bits = len(core.words.payload), len(core.sums.payload)
    _write_hex(folder / "inputs.hex", beats, x_bits)
    _write_hex(folder / "outputs.hex", payloads, y_bits)
    text = _CORE.format(
        beats=len(beats),
        rows=len(words),
        patience=2 * cycles + 100,  # cycles after which the bench gives up
        x_bits=x_bits,
        y_bits=y_bits,
        load_bits=core.load.payload.shape().size,
    )
    (folder / "testbench.v").write_text(text)


def _write_hex(path: Path, values: list[int], bits: int) -> None:
    digits = -(-bits // 4)
    path.write_text("".join(f"{value:0{digits}x}\n" for value in values))


_PERIOD_S = 1e-6  # of the simulated clock; its length has no effect


@dataclass(frozen=True)
class CoreRun:
    """Result of a simulation of the programmable core.

    Attributes:
        sums: rows x outputs.
        cycles: from the first beat to the last row, both included.
    """

    sums: npt.NDArray[np.int64]
    cycles: int


def simulate_fixed(circuit: FixedFunction, inputs: Sequence[int]) -> list[int]:
    """Values of port ``y`` for values of ``x``, one row in each cycle."""
    return _stream(circuit, circuit.x, circuit.y, inputs, circuit.latency)


def _stream(circuit: Any, x: Signal, y: Signal, inputs: Sequence[int], latency: int) -> list[int]:
    """Outputs of a circuit for one input in each cycle; without a clock if it has no register."""
    outputs: list[int] = []

    async def drive(context: Any) -> None:
        for cycle in range(len(inputs) + max(latency - 1, 0)):
            context.set(x, inputs[min(cycle, len(inputs) - 1)])
            if latency:
                await context.tick()
            if cycle + 1 >= latency:
                outputs.append(context.get(y))

    simulator = Simulator(circuit)
    if latency:
        simulator.add_clock(_PERIOD_S)
    simulator.add_testbench(drive)
    simulator.run()
    return outputs


def simulate_core(
    core: ProgrammableCore,
    words: npt.NDArray[np.uint8],
    *,
    program: TreeProgram | None = None,
    taken_every: int = 1,
) -> CoreRun:
    """Feed rows as fast as the core accepts them.

    Args:
        core: with no row in it.
        words: rows x features.
        program: loaded through the port before the first row; default: the one that the core was built with.
        taken_every: the sums are taken once every this many cycles.
    """
    loads = [] if program is None else list(core.load_beats(program))
    harness = Module()
    harness.submodules.core = core
    cycle = Signal(48)
    harness.d.sync += cycle.eq(cycle + 1)
    sums: list[list[int]] = []
    begin = end = 0

    async def feed(context: Any) -> None:
        nonlocal begin
        for load in loads:
            context.set(core.load.payload, load)
            context.set(core.load.valid, 1)
            await context.tick()
        context.set(core.load.valid, 0)
        begin = context.get(cycle)
        context.set(core.words.valid, 1)
        for beat in core.beats_of(words):
            context.set(core.words.payload, beat)
            await context.tick().until(core.words.ready)
        context.set(core.words.valid, 0)

    async def take(context: Any) -> None:
        nonlocal end
        while len(sums) < len(words):
            context.set(core.sums.ready, 0)
            if taken_every > 1:
                await context.tick().repeat(taken_every - 1)
            context.set(core.sums.ready, 1)
            sampled = await context.tick().sample(core.sums.payload, core.sums.valid, cycle)
            _, _, payload, valid, now = sampled
            if valid:
                sums.append(core.sums_of(payload))
                end = now + 1

    simulator = Simulator(harness)
    simulator.add_clock(_PERIOD_S)
    simulator.add_testbench(feed)
    simulator.add_testbench(take)
    simulator.run()
    return CoreRun(np.array(sums, np.int64).reshape(len(words), -1), end - begin)
