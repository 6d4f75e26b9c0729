"""The loops that keep the beat, on one unit and over several."""
