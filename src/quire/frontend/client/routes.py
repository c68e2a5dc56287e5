"""The router of an engine's own replicas."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.config import EngineConfig
from quire.core.messages import AddRequest, StepOutputs
from quire.models.cost import first_guess
from quire.routing.router import CacheAwareRouter, Prompt, Prompts

TOKEN_BYTES = 4
"""Of one token in a message."""


class Routes:
    """A `CacheAwareRouter` for core messages."""

    def __init__(self, config: EngineConfig, count: int) -> None:
        self._router = CacheAwareRouter(
            count,
            first_guess(config),
            block_size=config.block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
        )
        self._prompts = None
        if config.enable_prefix_caching:
            algo, seed = config.prefix_caching_hash_algo, config.prefix_caching_hash_seed
            self._prompts = Prompts(config.block_size, algo, seed)
        self._chosen: tuple[str, Prompt] | None = None

    def choose(self, message: AddRequest, among: int) -> int:
        """Return a replica for a request; see `Router.choose`."""
        return self._router.choose(self._prompt(message), among)

    def num_uncached(self, message: AddRequest, among: int) -> int:
        """Return the fewest prompt tokens that one of these replicas has to compute."""
        return self._router.num_uncached(self._prompt(message), among)

    def add(self, replica: int, children: Sequence[AddRequest]) -> None:
        """Note that a request's sequences were sent to a replica."""
        prompt = self._prompt(children[0])
        self._chosen = None
        for child in children:
            self._router.add(replica, child.request_id, prompt)

    def remove(self, ids: Sequence[str]) -> None:
        for request_id in ids:
            self._router.remove(request_id)

    def note(self, replica: int, step: StepOutputs) -> None:
        """Take the outputs of a replica's step."""
        self._router.note(replica, step)

    def forget(self, replica: int) -> None:
        """Forget the cache and the requests of a lost replica."""
        self._router.forget(replica)

    def _prompt(self, message: AddRequest) -> Prompt:
        """Return what the router knows of a prompt; hash it once for `choose` and `add`."""
        if self._chosen is not None and self._chosen[0] == message.request_id:
            return self._chosen[1]
        if self._prompts is None:
            prompt = Prompt((), len(message.prompt_token_ids) // TOKEN_BYTES)
        else:
            prompt = self._prompts.of(message)
        self._chosen = message.request_id, prompt
        return prompt
