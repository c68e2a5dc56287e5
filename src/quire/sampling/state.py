"""What the sampler keeps of one sequence between its tokens."""

from __future__ import annotations

from quire.core.sampling_params import SamplingParams
from quire.ops.sampling import LogitEdits
from quire.sampling.masks import Masks, TokenRow
from quire.sampling.penalties import Penalties


class SamplingState:
    """One sequence's parameters, its tokens so far, and what its logits must go through.

    Args:
        token_ids: int32 [>= num_tokens], the runner's own array: the sampler reads what the
            runner writes there, and `append` says how far.
        num_prompt_tokens: where the output begins; all before it is prompt. A sequence resumed
            after a preemption comes with its earlier output and goes on as if never stopped.
        eos_token_ids: held back, with the stop tokens, until `min_tokens`.
    """

    __slots__ = (
        "_edits_logits",
        "_eos_token_ids",
        "_masks",
        "_penalties",
        "_token_ids",
        "num_prompt_tokens",
        "num_tokens",
        "params",
    )

    def __init__(
        self,
        params: SamplingParams,
        token_ids: TokenRow,
        num_tokens: int,
        num_prompt_tokens: int,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.params = params
        self.num_tokens = num_tokens
        self.num_prompt_tokens = num_prompt_tokens
        self._token_ids = token_ids
        self._eos_token_ids = eos_token_ids
        self._edits_logits = Penalties.needed(params) or Masks.needed(
            params, self.num_output_tokens
        )
        # Made with the first token to sample, where a failure is this sequence's alone.
        self._masks: Masks | None = None
        self._penalties: Penalties | None = None

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def plain_greedy(self) -> bool:
        """The next token is the argmax of the logits as they are, and that is all."""
        return self.params.greedy and not self._edits_logits and self.params.logprobs is None

    def edits(self, vocab_size: int) -> LogitEdits | None:
        """The masks, biases and penalties that the next token's logits go through, if any.

        Raises:
            InvalidRequestError: a parameter names a token outside the vocabulary.
        """
        if not self._edits_logits:
            return None
        prompt = self._token_ids[: self.num_prompt_tokens]
        output = self._token_ids[self.num_prompt_tokens : self.num_tokens]
        edits = LogitEdits()
        if Masks.needed(self.params, len(output)):
            if self._masks is None:
                stops = {*self._eos_token_ids, *(self.params.stop_token_ids or ())}
                self._masks = Masks(self.params, sorted(stops), vocab_size)
            self._masks.add_to(edits, output)
        if Penalties.needed(self.params):
            if self._penalties is None:
                self._penalties = Penalties(self.params, prompt, output)
            self._penalties.add_to(edits)
        return edits

    def append(self, tokens: list[int]) -> None:
        """Note generated tokens, already written to `token_ids`."""
        self.num_tokens += len(tokens)
        if self._penalties is not None:
            self._penalties.append(tokens)
        if self._edits_logits:  # min_tokens ends some time
            self._edits_logits = Penalties.needed(self.params) or Masks.needed(
                self.params, self.num_output_tokens
            )
