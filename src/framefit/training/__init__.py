"""What sparsity and trees both need: data, ONNX to PyTorch and back, evaluation, fine-tuning."""
