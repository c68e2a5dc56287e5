"""The rest of an engine's start: what the front end needs while the core loads its model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from quire.frontend.client.configure import Configured
from quire.frontend.client.core_client import ProcessClient
from quire.frontend.client.core_process import core_command
from quire.frontend.client.interface import CoreClient
from quire.frontend.workers.tokenizer_pool import TokenizerPool
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import load_tokenizer

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

logger = logging.getLogger(__name__)


class Begun(NamedTuple):
    """An engine whose core loads its model, and how long the tokenizer took."""

    engine: AsyncLLM
    tokenizer_seconds: float


def begin(
    kind: type[AsyncLLM],
    args: EngineArgs,
    configured: Configured,
    connect: Callable[[], CoreClient] | None = None,
) -> Begun:
    """Make the engine of a configured core.

    Args:
        connect: see `Standby`; None for `ProcessClient`.

    Raises:
        QuireError: the tokenizer's files are wrong.
    """
    core, resolved = configured.core, configured.resolved
    began = time.monotonic()
    try:
        tokenizer = load_tokenizer(resolved)  # while the core starts
        seconds = time.monotonic() - began
        for note in resolved.notes:
            logger.info(note)
        pool = None
        if core.separate and (size := args.tokenizer_pool_size):
            vocab_size = resolved.config.model.vocab_size
            pool = TokenizerPool(size, resolved.tokenizer_path, vocab_size)
        connect = connect or partial(ProcessClient, core_command(args))
        engine = kind(
            resolved, tokenizer, args, connect, core, pool, configured.memory, configured.gate
        )
    except BaseException:
        core.shutdown()
        if configured.gate is not None:
            configured.gate.close()
        raise
    return Begun(engine, seconds)


async def start(kind: type[AsyncLLM], args: EngineArgs, configured: Configured) -> AsyncLLM:
    """See `AsyncLLM.start`."""
    engine, seconds = begin(kind, args, configured)
    begun_at = time.monotonic()
    ready = await engine.start_core(configured.resolved_at)
    loaded_at = ready.began + sum(ready.phases.values())
    engine.phases = {
        "resolve": configured.resolved_at - configured.began,
        **engine.phases,
        "front_end": max(0.0, begun_at - loaded_at),
    }
    engine.beside = {"front_end": begun_at - configured.resolved_at, "tokenizer": seconds}
    return engine
