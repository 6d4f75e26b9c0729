"""Models as launches on a device, streams and sinks, and the dispatcher between them."""
