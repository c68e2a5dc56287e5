"""`quire bench kernels`: single operations at the shapes of real models."""
