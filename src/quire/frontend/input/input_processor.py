"""Turns a prompt and sampling parameters into messages for the engine core."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from quire.core.errors import ContextLengthError, InvalidRequestError
from quire.core.messages import AddRequest, Ready
from quire.core.model_config import ModelConfig
from quire.core.options import NO_INPUTS, RequestInputs, RequestOptions
from quire.core.request import EMBEDDED, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.frontend.images.prompts import check_unpictured
from quire.frontend.input.options import check_options, without_surplus
from quire.frontend.input.params import (
    check_embeds,
    check_ids,
    check_params,
    check_restrictions,
    known_words,
    packed_params,
    truncated,
)
from quire.frontend.input.prompts import Prompt, check_prompt
from quire.frontend.input.seeds import Seeds, derive_seed
from quire.frontend.input.served_model import cache_tokens, check_vocabulary, eos_token_ids
from quire.frontend.workers.tokenizer_worker import ChatPrompt, tokenize
from quire.resolve.engine import Resolved
from quire.system.records import dataclass
from quire.text.bad_words import word_tokens
from quire.text.reasoning import prompt_reasoning
from quire.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


LONGEST_CUT = 16
"""A text that will be truncated may be this many contexts long: all of it is tokenized."""
MOST_COUNTED = 2**17
"""A text whose tokens are only counted may have this many, if that is more."""


@dataclass(frozen=True, slots=True)
class ProcessedRequest:
    """A valid request: what the front end stores, and one message per sequence for the core.

    Attributes:
        prepared: when the preparation of its images began and ended; None without images.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    children: list[AddRequest]
    prepared: tuple[float, float] | None = None

    @property
    def options(self) -> RequestOptions:
        return self.children[0].inputs.options


class InputProcessor:
    """Tokenizes and validates requests. Its only state is the number of drawn seeds (`draw`).

    Safe to call from several threads. `PoolingInput` makes the requests of a pooling model.
    """

    def __init__(self, resolved: Resolved, tokenizer: Tokenizer, ready: Ready) -> None:
        config = resolved.config
        check_vocabulary(config, tokenizer)
        self.tokenizer = tokenizer
        self.model = config.model
        self.pooling = config.pooling
        self.images = config.images
        self.config = config
        self.draw = Seeds(config.seed).draw
        self.max_model_len = config.scheduler.max_model_len
        self.eos_token_ids = eos_token_ids(resolved, tokenizer)
        self.on_ready(ready)

    def on_ready(self, ready: Ready) -> None:
        """Take the KV cache's size from a core that has become ready.

        The seed count continues, so that no two unseeded requests get the same seed.
        """
        self._cache_tokens = cache_tokens(self.config, ready)
        self.max_total_tokens = min(self.max_model_len, self._cache_tokens)
        if self._cache_tokens < self.max_model_len:
            logger.warning(
                "The KV cache holds %d tokens, fewer than max_model_len (%d). Longer requests are "
                "refused. To serve them, raise --kv-cache-memory-bytes.",
                self._cache_tokens,
                self.max_model_len,
            )

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        arrival_time: float,
        inputs: RequestInputs = NO_INPUTS,
        bad_words: list[list[int]] | None = None,
        written: WrittenStructure | None = None,
        drawn: int | None = None,
    ) -> ProcessedRequest:
        """Tokenize, validate and return one message per sequence of `params.n`.

        `params` is not changed. With n = 1, the child's id is the request's; else the ids are
        `<id>_0`, `<id>_1` … Each child's seed derives from the request's seed: the completions
        differ from each other, but not from run to run.

        Raises:
            InvalidRequestError: names the field, the value and the limit.
        """
        checked = self.bounded(prompt, params)
        embeds = None
        if not isinstance(checked, str | list | ChatPrompt):
            token_ids, embeds = [EMBEDDED] * len(checked), checked.tobytes()
        else:
            token_ids = checked if isinstance(checked, list) else tokenize(self.tokenizer, checked)
        text = checked if isinstance(checked, str) else None
        return self.request(
            request_id,
            text,
            token_ids,
            params,
            arrival_time=arrival_time,
            inputs=replace(inputs, prompt_embeds=embeds),
            bad_words=bad_words,
            written=written,
            drawn=drawn,
        )

    def request(
        self,
        request_id: str,
        text: str | None,
        token_ids: list[int],
        params: SamplingParams,
        *,
        arrival_time: float,
        inputs: RequestInputs,
        bad_words: list[list[int]] | None = None,
        written: WrittenStructure | None = None,
        drawn: int | None = None,
    ) -> ProcessedRequest:
        """Do what `process` does, for a prompt that is checked and tokenized.

        Args:
            bad_words: token ids of the bad words, if known (see `text.bad_words`).
            written: the checked structure, if there is one (see `Structures`).
            drawn: what `draw` returned when the request arrived.
        """
        if inputs.prompt_embeds is None:
            self.check_embedded(_written(token_ids, inputs, self.model))
        if params.truncate_prompt_tokens is not None:
            limit = self.max_total_tokens
            kept = truncated(token_ids, params, limit, embeds=inputs.prompt_embeds is not None)
            text, token_ids = text if len(kept) == len(token_ids) else None, kept
        max_tokens = self._max_tokens(len(token_ids), params)
        if inputs.prompt_embeds is not None:
            check_embeds(params)
        check_params(params, self.model.vocab_size, self.config.max_logprobs)
        check_options(inputs.options, self.config.transfer)
        if bad_words is None and params.bad_words:
            bad_words = word_tokens(self.tokenizer, params.bad_words)
        seed = self.draw(params) if drawn is None else drawn
        base = params.replace(
            n=1,
            max_tokens=max_tokens,
            bad_words_token_ids=known_words(bad_words, self.model.vocab_size),
            structured_outputs=self._structure(params, token_ids),
            **self._thinking(params, token_ids),
            written_structure=written,
        )
        check_restrictions(base, self.eos_token_ids, self.model.vocab_size)
        base = packed_params(base, self.model.vocab_size)
        options = without_surplus(inputs.options, len(token_ids) // self.config.block_size)
        inputs = replace(inputs, options=options, eos_token_ids=self.eos_token_ids)
        packed = pack_tokens(token_ids)
        children = [
            AddRequest(
                request_id=request_id if params.n == 1 else f"{request_id}_{index}",
                prompt_token_ids=packed,
                sampling_params=_with_seed(base, seed, index),
                arrival_time=arrival_time,
                inputs=inputs,
            )
            for index in range(params.n)
        ]
        return ProcessedRequest(request_id, text, token_ids, params, arrival_time, children)

    @property
    def max_pooled_tokens(self) -> int:
        """Return the longest prompt of a pooling request; the core counts one more token."""
        return min(
            self.max_model_len, self._cache_tokens - (self._cache_tokens < self.max_model_len)
        )

    def check_task(self) -> None:
        """Raise `InvalidRequestError` if the model does not generate text."""
        if self.pooling is not None:
            raise InvalidRequestError(
                "This model generates no text: it returns "
                + ("embeddings." if self.pooling.task == "embed" else "scores of texts."),
                fix="Ask for /v1/embeddings, /v1/score or /v1/rerank, or serve another model.",
                param="model",
            )

    def bounded(
        self, prompt: Prompt, params: SamplingParams
    ) -> str | list[int] | ChatPrompt | NDArray[np.float32]:
        """Return the checked prompt; raise if the untokenized prompt is certainly too long."""
        ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else prompt
        cut = params.truncate_prompt_tokens is not None
        if isinstance(ids, list) and not cut:
            self._max_tokens(len(ids), params)
        checked = check_prompt(prompt, self.config)
        if isinstance(checked, str | ChatPrompt):
            return self._bounded(checked, LONGEST_CUT if cut else 1)
        return checked

    def check_embedded(self, token_ids: list[int]) -> None:
        """Raise `InvalidRequestError` if a text has a token that the model does not embed."""
        if token_ids and self.tokenizer.vocab_size > self.model.vocab_size:
            check_ids("prompt", token_ids, self.model.vocab_size)

    def countable(self, prompt: str | ChatPrompt) -> str | ChatPrompt:
        """Return a text or conversation, if not too long for its tokens to be counted."""
        return self._bounded(prompt, max(LONGEST_CUT, MOST_COUNTED // self.max_model_len))

    def _bounded(self, prompt: str | ChatPrompt, contexts: int) -> str | ChatPrompt:
        if isinstance(prompt, ChatPrompt):
            return replace(prompt, max_tokens=self.max_model_len, contexts=contexts)
        least, limit = self.tokenizer.least_tokens(prompt), self.max_total_tokens
        if least >= limit * contexts:
            raise ContextLengthError(least, limit, counted=False)
        return prompt

    def tokens_of(self, prompt: Prompt, max_tokens: int) -> list[int]:
        """Return a prompt's token ids; raise if they leave no room for `max_tokens` more."""
        self.check_task()
        checked = self.bounded(prompt, SamplingParams(max_tokens=max_tokens))
        if not isinstance(checked, str | list | ChatPrompt):
            raise InvalidRequestError(
                "Beam search needs tokens, not embeddings.", param="prompt_embeds"
            )
        tokens = checked if isinstance(checked, list) else tokenize(self.tokenizer, checked)
        self.check_embedded(tokens)
        room = self._max_tokens(len(tokens), SamplingParams(max_tokens=None))
        if max_tokens > room:
            raise InvalidRequestError(
                f"max_tokens is {max_tokens}, but the prompt leaves room for {room}.",
                fix="Lower it, or shorten the prompt.",
                param="max_tokens",
            )
        return tokens

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """Return how many tokens may follow the prompt: at most `max_tokens`.

        Raises:
            InvalidRequestError: the prompt is empty, or leaves no room.
        """
        if not num_prompt_tokens:  # a text without characters may have a begin
            raise InvalidRequestError("The prompt is empty.", param="prompt")
        room = self.max_total_tokens - num_prompt_tokens
        if room < 1:
            raise ContextLengthError(
                num_prompt_tokens,
                self.max_total_tokens,
                of_cache=self.max_total_tokens < self.max_model_len,
            )
        wanted = room if params.max_tokens is None else params.max_tokens
        if params.min_tokens > room:
            raise InvalidRequestError(
                f"The prompt has {num_prompt_tokens} tokens and min_tokens is "
                f"{params.min_tokens}, but there is room for {self.max_total_tokens} tokens.",
                fix=f"Set min_tokens to at most {room} or shorten the prompt.",
                param="min_tokens",
            )
        return min(wanted, room)

    def check_structure(self, wanted: StructuredOutputsParams) -> None:
        """Raise `InvalidRequestError` if this model can follow no structure.

        `Structures` checks the structure itself.
        """
        if not self.eos_token_ids:
            raise InvalidRequestError(
                "The model has no end-of-sequence token, so no structured output could end.",
                param=wanted.field or "structured_outputs",
            )

    def _structure(
        self, params: SamplingParams, prompt: list[int]
    ) -> StructuredOutputsParams | None:
        """Return the output's structure, without `reasoning` if the prompt ends the reasoning."""
        wanted = params.structured_outputs
        if wanted is None:
            return None
        self.check_structure(wanted)
        if (marks := wanted.reasoning) is None:
            return wanted
        begun = prompt_reasoning(self.tokenizer, prompt, marks.begins, marks.ends)
        left = None if begun is False else replace(marks, begun=bool(begun))
        return replace(wanted, reasoning=left)

    def _thinking(self, params: SamplingParams, prompt: list[int]) -> dict[str, Any]:
        """Return the fields that limit the reasoning; None in each if the prompt ends it."""
        marks = params.thinking_marks
        if marks is None or not params.limits_thinking:
            return {"thinking_token_budget": None, "thinking_marks": None}
        begun = prompt_reasoning(self.tokenizer, prompt, marks.begins, marks.ends)
        if begun is False:
            return {"thinking_token_budget": None, "thinking_marks": None}
        return {"thinking_marks": replace(marks, begun=bool(begun))}


def _written(token_ids: list[int], inputs: RequestInputs, model: ModelConfig) -> list[int]:
    """Return a prompt's tokens without those that stand for rows of its images.

    Raises:
        InvalidRequestError: there are no images, but such a token.
    """
    if not inputs.images or model.vision is None:
        check_unpictured(token_ids, model.vision)
        return token_ids
    return [token for token in token_ids if token != model.vision.image_token]


def _with_seed(base: SamplingParams, seed: int | None, index: int) -> SamplingParams:
    """Return the parameters of the `index`-th completion, without validating them again."""
    child = copy(base)
    child.seed = seed if seed is None or index == 0 else derive_seed(seed, index)
    if index:  # only the first reports the prompt's; the others can reuse its blocks and grammar
        child.prompt_logprobs = None
        child.written_structure = None
    return child
