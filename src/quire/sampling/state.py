"""The sampler's state of one sequence."""

from __future__ import annotations

from copy import copy

import numpy as np

from quire.core.batch import Column
from quire.core.errors import NOT_FOLLOWED, InvalidRequestError
from quire.core.request import EMBEDDED
from quire.core.sampling_params import SamplingParams
from quire.ops.sample_row import LogitEdits, MaskWords
from quire.sampling.grammars import SequenceMatcher
from quire.sampling.masks import Masks, TokenRow
from quire.sampling.penalties import Penalties
from quire.sampling.rng import draw_key
from quire.sampling.thinking import ThinkingLimit


class SamplingState:
    """One sequence's parameters and tokens, and the edits of its logits.

    Args:
        token_ids: int32 [>= num_tokens], the runner's own array, which the runner extends.
        num_tokens: int64 [1], also the runner's: how many tokens are valid.
        num_prompt_tokens: length of the prompt, where the output begins. A sequence resumed after
            a preemption comes with its earlier output.
        eos_token_ids: ruled out, with the stop tokens, until `min_tokens`.

    Attributes:
        num_drafts: guessed tokens after the output. A row of logits may be sampled as if the
            output included the first few of them.
        matcher: follows an output with a structure. `grammars.MaskFiller` makes it, or sets
            `fault` to the reason why it could not.
        thinking: follows a reasoning of limited length; made there, too.
    """

    __slots__ = (
        "_edits_all",
        "_masks",
        "_num_tokens",
        "_penalizes",
        "_penalties",
        "_stop_token_ids",
        "_token_ids",
        "eos_token_ids",
        "fault",
        "matcher",
        "num_drafts",
        "num_prompt_tokens",
        "params",
        "thinking",
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
        self.eos_token_ids = eos_token_ids
        self._stop_token_ids = frozenset(params.stop_token_ids or ())
        self._penalizes = Penalties.needed(params)
        self._edits_all = self._penalizes or params.reads_output
        # Made with the first sampled token, where a failure ends this sequence only.
        self._masks: Masks | None = None
        self._penalties: Penalties | None = None
        self.num_drafts = 0
        self.matcher: SequenceMatcher | None = None
        self.thinking: ThinkingLimit | None = None
        self.fault: str | None = None

    @property
    def num_output_tokens(self) -> int:
        return int(self._num_tokens[0]) - self.num_prompt_tokens

    @property
    def output(self) -> TokenRow:
        """Return the output tokens so far, [n]."""
        start = self.num_prompt_tokens
        return self._token_ids[start : start + self.num_output_tokens]

    def drafts(self, count: int) -> TokenRow:
        """Return the first `count` tokens after the output."""
        end = int(self._num_tokens[0])
        return self._token_ids[end : end + count]

    @property
    def plain_greedy(self) -> bool:
        """Return whether the next token is the argmax of the unedited logits, without logprobs.

        Once True, it stays True.
        """
        return self.params.greedy and self.plain

    @property
    def plain(self) -> bool:
        """Return whether the next token is chosen from the unedited logits, without logprobs.

        Once True, it stays True.
        """
        return self.params.logprobs is None and self.unedited()

    def unedited(self, ahead: int = 0) -> bool:
        """Return whether the logits of all tokens after `ahead` drafts stay as they are."""
        return not (self._edits_all or Masks.needed(self.params, self.num_output_tokens + ahead))

    def draw_key(self, ahead: int) -> int:
        """Return the key of the token after the output and `ahead` drafts; 0 if it is greedy."""
        if self.params.greedy:
            return 0
        if self.params.seed is None:
            raise ValueError("no seed; the input processor must set one")
        return draw_key(self.params.seed, self.num_output_tokens + ahead)

    def ended_by(self, token: int, ahead: int = 0) -> bool:
        """Return whether `token`, the last one of the output and of `ahead` tokens, ends it."""
        params = self.params
        if self.num_output_tokens + ahead < params.min_tokens:
            return False
        ends = not params.ignore_eos and token in self.eos_token_ids
        return ends or token in self._stop_token_ids

    def edits(self, vocab_size: int, ahead: int = 0) -> LogitEdits | None:
        """Return the masks, biases and penalties of the next token's logits, or None.

        Args:
            ahead: drafts that count as output, for the token after them.

        Raises:
            InvalidRequestError: a parameter names a token outside the vocabulary, or the structure
                is too complex for its matcher.
        """
        if self.unedited(ahead):
            return None
        masked = Masks.needed(self.params, self.num_output_tokens + ahead)
        structured = self.params.structured_outputs is not None
        output, drafts = self.output, self.drafts(ahead)
        if (forced := self._forced(output, drafts)) is not None:
            return LogitEdits(allowed=np.array([forced], dtype=np.int64))
        if not masked and not self._penalizes and not structured:
            return None
        edits = LogitEdits(self._mask(ahead) if structured else None)
        if masked:
            if self._masks is None:
                stops = self._stop_token_ids.union(self.eos_token_ids)
                self._masks = Masks(self.params, [*stops], vocab_size)
            start = self.num_prompt_tokens
            self._masks.add_to(edits, self._token_ids[start : start + len(output) + ahead])
        if self._penalizes:
            if self._penalties is None or self._penalties.num_output_tokens > len(output):
                prompt = self._token_ids[: self.num_prompt_tokens]
                prompt = prompt[prompt != EMBEDDED]
                self._penalties = Penalties(self.params, prompt, output)
            self._penalties.count(output)
            self._penalties.add_to(edits, drafts)
        return edits

    def _forced(self, output: TokenRow, drafts: TokenRow) -> int | None:
        """Return the token that must end the reasoning, if its limit is reached."""
        if not self.params.limits_thinking:
            return None
        if self.thinking is None:
            raise InvalidRequestError(
                f"The reasoning cannot be followed: {self.fault}.", param="thinking_token_budget"
            )
        forced = self.thinking.next_token(output)
        if not len(drafts):
            return forced
        fork = copy(self.thinking)  # its attributes are replaced, never changed
        return fork.next_token(np.concatenate([output, drafts]))

    def _mask(self, ahead: int) -> MaskWords:
        """Return the mask of allowed tokens after `ahead` drafts."""
        matcher = self.matcher
        if matcher is None or matcher.error is not None:
            fault = self.fault if matcher is None else matcher.error
            wanted = self.params.structured_outputs
            assert wanted is not None
            raise InvalidRequestError(
                f"{NOT_FOLLOWED}{fault}.", param=wanted.field or "structured_outputs"
            )
        mask: MaskWords = matcher.masks[ahead]
        return mask
