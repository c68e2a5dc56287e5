"""Turns a prompt or a pair of texts into a pooling model's message for the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.core.errors import ContextLengthError, InvalidRequestError
from quire.core.images import ImageSpan
from quire.core.messages import AddRequest
from quire.core.model_config import PoolingConfig
from quire.core.options import NO_OPTIONS, RequestInputs, RequestOptions
from quire.core.pooling_params import WHOLE_CONTEXT, PoolingParams
from quire.core.request import pack_tokens
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.images.prompts import ImagePrompt
from quire.frontend.input.input_processor import InputProcessor, ProcessedRequest
from quire.frontend.input.options import check_options
from quire.frontend.input.pooling_task import check_task
from quire.frontend.input.prompts import check_prompt
from quire.frontend.workers.tokenizer_worker import PooledText

_NO_TOKENS = SamplingParams(
    temperature=0.0, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
)
"""Sampling parameters in the message; a pooling model does not use them."""


class TextPair(NamedTuple):
    """Two texts that a cross-encoder reads together."""

    first: str
    second: str


PoolingPrompt = str | list[int] | TextPair | ImagePrompt | Mapping[str, Any]
"""Text, token ids, a pair, an image, or a mapping with one of "prompt" and "prompt_token_ids"."""


class PoolingInput:
    """Tokenizes and validates pooling requests. Safe to call from several threads.

    Raises:
        InvalidRequestError: the model generates text.
    """

    def __init__(self, processor: InputProcessor) -> None:
        self._processor = processor
        self._config: PoolingConfig = check_task(processor.pooling, "score")

    def check(self, prompt: PoolingPrompt, params: PoolingParams) -> PooledText | list[int]:
        """Return the text to tokenize, or the truncated token ids, after checking them.

        Raises:
            InvalidRequestError: names the field, the value and the limit.
        """
        self._check_dimensions(params.dimensions)
        limit = self._processor.max_pooled_tokens
        kept = params.truncate_prompt_tokens
        if kept is not None and kept > limit:
            raise InvalidRequestError(
                f"truncate_prompt_tokens is {kept}; the model takes {limit} tokens.",
                param="truncate_prompt_tokens",
            )
        side = params.truncation_side
        bound = limit if kept == WHOLE_CONTEXT else kept
        if isinstance(prompt, TextPair):
            for text in prompt:
                check_prompt(text, self._processor.config)
            return self._bounded(PooledText(prompt.first, prompt.second, bound, side))
        checked = check_prompt(prompt, self._processor.config)
        if isinstance(checked, str):
            return self._bounded(PooledText(checked, None, bound, side))
        if not isinstance(checked, list):
            raise InvalidRequestError(
                "A pooling model takes texts and token ids, no conversations and no embeddings.",
                param="prompt",
            )
        if bound is not None and params.truncation_side == "left":
            return checked[-bound:]
        return checked[:bound]

    def process(
        self,
        request_id: str,
        prompt: PoolingPrompt,
        params: PoolingParams,
        *,
        arrival_time: float,
        options: RequestOptions = NO_OPTIONS,
    ) -> ProcessedRequest:
        """Tokenize, validate and return the request; raises as `check`."""
        checked = self.check(prompt, params)
        ids, second = checked if isinstance(checked, list) else [], 0
        if isinstance(checked, PooledText):
            ids, second = self._processor.tokenizer.encode_bounded(
                checked.text, checked.second, checked.max_tokens, checked.side
            )
        return self.request(request_id, ids, second, arrival_time=arrival_time, options=options)

    def request(
        self,
        request_id: str,
        token_ids: list[int],
        second_text: int,
        *,
        arrival_time: float,
        options: RequestOptions = NO_OPTIONS,
        images: tuple[ImageSpan, ...] = (),
    ) -> ProcessedRequest:
        """Do what `process` does, for a prompt that is checked and tokenized."""
        check_options(options)
        limit = self._processor.max_pooled_tokens
        if not token_ids:
            raise InvalidRequestError("The prompt has no tokens.", param="prompt")
        if len(token_ids) > limit:
            raise ContextLengthError(len(token_ids), limit, pooled=True)
        if not images:
            self._processor.check_embedded(token_ids)
        second = second_text if self._processor.model.token_types > 1 else 0
        message = AddRequest(
            request_id=request_id,
            prompt_token_ids=pack_tokens(token_ids if images else self._padded(token_ids)),
            sampling_params=_NO_TOKENS,
            arrival_time=arrival_time,
            inputs=RequestInputs(options, second_text=second, images=images),
        )
        return ProcessedRequest(request_id, None, token_ids, _NO_TOKENS, arrival_time, [message])

    def _padded(self, token_ids: list[int]) -> list[int]:
        """Return a text's tokens with the padding that the model was trained with."""
        model, tokenizer = self._processor.model, self._processor.tokenizer
        if not model.padded:
            return token_ids
        pad = tokenizer.token_to_id(tokenizer.special_tokens.get("pad_token", ""))
        if pad is None:
            raise InvalidRequestError(
                "This model pads texts, but its tokenizer names no pad_token.",
                fix="Name it in tokenizer_config.json.",
                param="prompt",
            )
        return token_ids + [pad] * (model.max_position_embeddings - len(token_ids))

    def _bounded(self, prompt: PooledText) -> PooledText:
        """Return `prompt`; raise if it is not truncated and has too many tokens for certain."""
        if prompt.max_tokens is None:
            texts = (prompt.text, prompt.second or "")
            least = sum(map(self._processor.tokenizer.least_tokens, texts))
            limit = self._processor.max_pooled_tokens
            if least > limit:
                raise ContextLengthError(least, limit, counted=False, pooled=True)
        return prompt

    def _check_dimensions(self, dimensions: int | None) -> None:
        if dimensions is None:
            return
        model, allowed = self._processor.model, self._config.matryoshka
        dense = self._config.dense
        size = dense[-1].rows if dense else model.num_labels or model.hidden_size
        why = None
        if self._config.task != "embed":
            why = "this model returns classes, no embedding"
        elif allowed is None and dimensions != size:
            why = f"this model was not trained for shorter embeddings than {size} (Matryoshka)"
        elif allowed and dimensions not in allowed:
            why = f"this model was trained for {', '.join(map(str, allowed))}"
        elif dimensions > size:
            why = f"this model's embeddings have {size} numbers"
        if why is not None:
            raise InvalidRequestError(
                f"dimensions is {dimensions}, but {why}.", fix="Leave it unset.", param="dimensions"
            )
