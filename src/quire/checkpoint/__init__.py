"""Files of models: their place, configuration and tensors. Free of torch."""
