"""What is on disk: where a model is, its configuration, its tensors. Free of torch."""
