"""The router of an engine's own replicas."""

from __future__ import annotations

from quire.core.config import EngineConfig
from quire.core.messages import AddRequest
from quire.models.cost import first_guess
from quire.routing.router import CacheAwareRouter, Prompt, Prompts

TOKEN_BYTES = 4
"""Of one token in a message."""


class Routes(CacheAwareRouter):
    """The router among cores with this configuration."""

    def __init__(self, config: EngineConfig, count: int) -> None:
        super().__init__(
            count,
            first_guess(config),
            block_size=config.block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
        )
        self._prompts = None
        if config.enable_prefix_caching:
            algo, seed = config.prefix_caching_hash_algo, config.prefix_caching_hash_seed
            self._prompts = Prompts(config.block_size, algo, seed)
        self._latest = "", Prompt((), 0)

    def prompt_of(self, message: AddRequest) -> Prompt:
        """Return what the router knows of a prompt; hash it once for `choose` and `add`."""
        if self._latest[0] != message.request_id:
            prompt = Prompt((), len(message.prompt_token_ids) // TOKEN_BYTES)
            if self._prompts is not None:
                prompt = self._prompts.of(message)
            self._latest = message.request_id, prompt
        return self._latest[1]
