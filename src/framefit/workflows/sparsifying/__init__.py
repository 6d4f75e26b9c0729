"""The steps of ``framefit sparsify``: prices, search, fine-tuning, rounds, deployment."""
