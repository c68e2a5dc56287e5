"""vLLM's import path for `EngineArgs`."""

from quire.resolve.arguments import EngineArgs

AsyncEngineArgs = EngineArgs

__all__ = ["AsyncEngineArgs", "EngineArgs"]
