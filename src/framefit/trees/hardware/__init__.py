"""Trees as circuits that add, select and switch: built, simulated, written out and counted. Alone imports Amaranth."""
