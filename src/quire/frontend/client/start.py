"""How an `AsyncLLM` starts: what its core waits for, and what is done beside it."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from quire.core.log import setup_logging
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client.core_client import ProcessClient
from quire.frontend.workers.tokenizer_pool import TokenizerPool
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import load_tokenizer, resolve
from quire.system.hardware import detect

logger = logging.getLogger(__name__)


async def start(args: EngineArgs, core: ProcessClient | None = None) -> AsyncLLM:
    """See `AsyncLLM.start`."""
    engine, began, resolved_at, tokenized_at = _begin(args, core)
    ready = await engine.start_core(resolved_at)
    loaded_at = ready.began + sum(ready.phases.values())
    engine.phases = {
        "resolve": resolved_at - began,
        **engine.phases,
        "tokenizer": max(0.0, tokenized_at - loaded_at),
    }
    engine.beside = {"tokenizer": tokenized_at - resolved_at}
    return engine


def start_later(args: EngineArgs) -> AsyncLLM:
    """See `AsyncLLM.from_engine_args`."""
    begun = _begin(args, None)
    begun.engine.start_with_first_use(begun.resolved_at)
    return begun.engine


class _Begun(NamedTuple):
    """An engine whose core was configured, and when what of it was done."""

    engine: AsyncLLM
    began: float
    resolved_at: float
    tokenized_at: float


def _begin(args: EngineArgs, core: ProcessClient | None) -> _Begun:
    """Start the core's process, and do what it is not needed for."""
    began = time.monotonic()
    core = core or ProcessClient.begun()
    try:
        setup_logging()
        resolved = resolve(args, detect())
        core.configure(resolved.config)
        resolved_at = time.monotonic()
        tokenizer = load_tokenizer(resolved)  # while the core starts
        tokenized_at = time.monotonic()
        for note in resolved.notes:
            logger.info(note)
        engine = AsyncLLM(resolved, tokenizer, args, first=core)
    except BaseException:
        core.shutdown()
        raise
    if size := args.tokenizer_pool_size:
        vocab_size = resolved.config.model.vocab_size
        engine.use_pool(TokenizerPool(size, resolved.tokenizer_path, vocab_size))
    return _Begun(engine, began, resolved_at, tokenized_at)
