"""vLLM's import path for `quire.core.pooling_params`."""

from quire.core.pooling_params import PoolingParams

__all__ = ["PoolingParams"]
