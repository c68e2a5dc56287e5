"""The start of an engine: the configuration first, then what the core does not wait for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from quire.core.log import setup_logging
from quire.frontend.client.core_client import CoreClient, ProcessClient
from quire.frontend.workers.tokenizer_pool import TokenizerPool
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import load_tokenizer, resolve
from quire.system.hardware import detect

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

logger = logging.getLogger(__name__)


class Begun(NamedTuple):
    """An engine whose core is configured, and when each part of its start was done."""

    engine: AsyncLLM
    began: float
    resolved_at: float
    tokenized_at: float


def begin(
    kind: type[AsyncLLM],
    args: EngineArgs,
    core: CoreClient,
    connect: Callable[[], CoreClient] = ProcessClient,
) -> Begun:
    """Configure the core, and do the rest while it loads.

    Args:
        core: the first core's client.
        connect: see `Supervisor`.

    Raises:
        QuireError: the arguments or the model's files are wrong.
    """
    began = time.monotonic()
    try:
        setup_logging()
        resolved = resolve(args, detect())
        core.configure(resolved.config)
        resolved_at = time.monotonic()
        tokenizer = load_tokenizer(resolved)  # while the core starts
        tokenized_at = time.monotonic()
        for note in resolved.notes:
            logger.info(note)
        pool = None
        if core.separate and (size := args.tokenizer_pool_size):
            vocab_size = resolved.config.model.vocab_size
            pool = TokenizerPool(size, resolved.tokenizer_path, vocab_size)
        engine = kind(resolved, tokenizer, args, connect, core, pool)
    except BaseException:
        core.shutdown()
        raise
    return Begun(engine, began, resolved_at, tokenized_at)


async def start(kind: type[AsyncLLM], args: EngineArgs, core: CoreClient) -> AsyncLLM:
    """See `AsyncLLM.start`."""
    engine, began, resolved_at, tokenized_at = begin(kind, args, core)
    ready = await engine.start_core(resolved_at)
    loaded_at = ready.began + sum(ready.phases.values())
    engine.phases = {
        "resolve": resolved_at - began,
        **engine.phases,
        "tokenizer": max(0.0, tokenized_at - loaded_at),
    }
    engine.beside = {"tokenizer": tokenized_at - resolved_at}
    return engine
