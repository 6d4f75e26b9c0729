"""Training for sparsity and trees: data, ONNX to PyTorch and back, evaluation, fine-tuning."""
