"""Kernels for GPUs in Triton, and the provider of ops that launches them."""
