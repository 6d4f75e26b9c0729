"""The aligner: which packet is which event of which launch, where some are lost."""
