"""`quire tune kernels`: search kernel sizes and thresholds for this machine and a model."""
