"""`quire tune kernels`: sizes and thresholds of kernels, for this machine and a model's shapes."""
