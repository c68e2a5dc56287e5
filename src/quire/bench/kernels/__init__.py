"""`quire bench kernels`: single ops at the shapes of real models."""
