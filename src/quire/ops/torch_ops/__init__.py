"""The ops in plain torch: the oracle of native kernels, and the provider of GPUs."""
