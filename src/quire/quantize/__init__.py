"""Writing quantized checkpoints: what is rounded, with what care, and into which format."""
