"""vLLM's import path for what `LLM.get_metrics` returns."""

from quire.metrics.reader import Counter, Gauge, Histogram, Metric, Vector

__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector"]
