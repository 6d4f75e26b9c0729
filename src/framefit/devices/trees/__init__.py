"""Trees on this machine's cores: kernels, and the device that runs them beside ONNX Runtime."""
