"""Rows to check a circuit with, and a Verilog test bench that does so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from framefit.core.trees import Ensemble, accumulate
from framefit.trees.hardware.fixed import FixedFunction, pack_rows, results_of
from framefit.trees.hardware.programmable import ProgrammableCore

__all__ = ["drawn_rows", "write_core_bench", "write_fixed_bench"]


def drawn_rows(ensemble: Ensemble, count: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Words that the encoder can give, ``count`` rows x features: the least, the largest, then any."""
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


def write_fixed_bench(folder: Path, circuit: FixedFunction, words: npt.NDArray[np.uint8]) -> None:
    """Write ``testbench.v``, ``inputs.hex`` and ``outputs.hex``, a row a line.

    Args:
        folder: where ``top.v`` lies.
        circuit: as in it.
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
    """The same for the programmable core; ``inputs.hex`` has a beat a line.

    Args:
        folder: where ``top.v`` lies.
        core: as in it, loaded with the ensemble's program.
        ensemble: what it has to be equal to.
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
        patience=2 * cycles + 100,  # ends where nothing comes any more
        x_bits=x_bits,
        y_bits=y_bits,
        load_bits=core.load.payload.shape().size,
    )
    (folder / "testbench.v").write_text(text)


def _write_hex(path: Path, values: list[int], bits: int) -> None:
    digits = -(-bits // 4)
    path.write_text("".join(f"{value:0{digits}x}\n" for value in values))
