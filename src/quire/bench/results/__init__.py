"""Results of benchmarks: rows, tables, plots, trends."""
