"""What the sampler keeps of one sequence between its tokens."""

from __future__ import annotations

from quire.core.batch import Column
from quire.core.sampling_params import SamplingParams
from quire.ops.sampling import LogitEdits
from quire.sampling.masks import Masks, TokenRow
from quire.sampling.penalties import Penalties


class SamplingState:
    """One sequence's parameters, its tokens so far, and what its logits must go through.

    Args:
        token_ids: int32 [>= num_tokens], the runner's own array: the sampler reads what the
            runner writes there.
        num_tokens: int64 [1], the runner's own as well: how far it has written.
        num_prompt_tokens: where the output begins; all before it is prompt. A sequence resumed
            after a preemption comes with its earlier output and goes on as if never stopped.
        eos_token_ids: held back, with the stop tokens, until `min_tokens`.
    """

    __slots__ = (
        "_eos_token_ids",
        "_masks",
        "_num_tokens",
        "_penalizes",
        "_penalties",
        "_token_ids",
        "num_prompt_tokens",
        "params",
    )

    def __init__(
        self,
        params: SamplingParams,
        token_ids: TokenRow,
        num_tokens: Column,
        num_prompt_tokens: int,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.params = params
        self.num_prompt_tokens = num_prompt_tokens
        self._num_tokens = num_tokens
        self._token_ids = token_ids
        self._eos_token_ids = eos_token_ids
        self._penalizes = Penalties.needed(params)
        # Made with the first token to sample, where a failure is this sequence's alone.
        self._masks: Masks | None = None
        self._penalties: Penalties | None = None

    @property
    def num_output_tokens(self) -> int:
        return int(self._num_tokens[0]) - self.num_prompt_tokens

    @property
    def plain_greedy(self) -> bool:
        """The next token is the argmax of the logits as they are, and that is all.

        Once it is so, it stays so.
        """
        return (
            self.params.greedy
            and self.params.logprobs is None
            and not self._penalizes
            and not Masks.needed(self.params, self.num_output_tokens)
        )

    def ended_by(self, token: int) -> bool:
        """Whether the output, of which `token` is the last, ends with it."""
        params = self.params
        if self.num_output_tokens < params.min_tokens:
            return False
        ends = not params.ignore_eos and token in self._eos_token_ids
        return ends or token in (params.stop_token_ids or ())

    def edits(self, vocab_size: int) -> LogitEdits | None:
        """The masks, biases and penalties that the next token's logits go through, if any.

        Raises:
            InvalidRequestError: a parameter names a token outside the vocabulary.
        """
        num_output_tokens = self.num_output_tokens
        masked = Masks.needed(self.params, num_output_tokens)
        if not masked and not self._penalizes:
            return None
        start = self.num_prompt_tokens
        output = self._token_ids[start : start + num_output_tokens]
        edits = LogitEdits()
        if masked:
            if self._masks is None:
                stops = {*self._eos_token_ids, *(self.params.stop_token_ids or ())}
                self._masks = Masks(self.params, sorted(stops), vocab_size)
            self._masks.add_to(edits, output)
        if self._penalizes:
            if self._penalties is None or self._penalties.num_output_tokens > len(output):
                self._penalties = Penalties(self.params, self._token_ids[:start], output)
            self._penalties.count(output)
            self._penalties.add_to(edits)
        return edits
