"""Benchmarks of a server: data sets, loads, clients, latencies."""
