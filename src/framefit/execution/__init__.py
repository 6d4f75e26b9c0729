"""A model on a device: wired to its streams, compiled, with its buffers, state, pre- and postprocessing."""
