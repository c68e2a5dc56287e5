"""Turns prompts into requests without blocking the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageSpan
from quire.core.model_config import ModelConfig
from quire.core.options import NO_OPTIONS, RequestInputs, RequestOptions
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.frontend.images.expand import expand
from quire.frontend.images.pooled import check_pooled, span_of
from quire.frontend.images.prepare import Prepared
from quire.frontend.images.prompts import ImagePrompt, check_without, with_images
from quire.frontend.images.reader import ImageReader
from quire.frontend.input.input_processor import InputProcessor, ProcessedRequest
from quire.frontend.input.params import check_sampling_types
from quire.frontend.input.pooling_input import PoolingInput, PoolingPrompt, TextPair
from quire.frontend.input.prompts import Countable, Prompt
from quire.frontend.workers.grammar_pool import GrammarPool
from quire.frontend.workers.pool import CLIENT
from quire.frontend.workers.structures import Structures
from quire.frontend.workers.threads import DaemonThreads
from quire.frontend.workers.tokenizer_pool import TokenizerPool
from quire.frontend.workers.tokenizer_worker import BadWords, ChatPrompt, PooledText, tokenize
from quire.metrics.times import FrontTimes
from quire.system.tally import Tally
from quire.text.bad_words import word_tokens
from quire.text.tokenizers.tokenizer import Tokenizer
from quire.text.tokenizers.vocabulary import special_tokens

INLINE_CHARACTERS = 4096
"""Longer prompts go to the pool, as conversations do."""
INLINE_SECONDS = 0.01
"""So do texts that should take the tokenizer longer, by the pace of the texts before."""
SHORT = 256
"""Shorter texts count as this many characters, because each text has a fixed cost."""
MEMORY = 8
"""Texts in the running average of the pace."""
INLINE_WORDS = 16
"""More bad words go to the pool."""
TOKENIZER_THREADS = 2


class Intake:
    """Tokenizes short prompts one after the other, and long ones in the pool or in threads.

    Attributes:
        processor: set once the core is ready; before that no request is accepted.
        arriving: by client, sequences on their way to the core, and texts that are only tokenized.
        structures: checks the requests' structures.
    """

    def __init__(
        self,
        front: FrontTimes,
        tokenizer: Tokenizer,
        model: ModelConfig,
        images: ImageReader,
        pool: TokenizerPool | None = None,
    ) -> None:
        self.processor: InputProcessor | None = None
        self.arriving = Tally[str]()
        specials = special_tokens(tokenizer, model.eos_token_ids)
        self.structures = Structures(GrammarPool(specials))
        self._front = front
        self._tokenizer = tokenizer
        self._threads = DaemonThreads(TOKENIZER_THREADS, "tokenizer")
        self._pool = pool
        self._images = images
        self._last_words: tuple[list[str], list[list[int]]] = [], []
        self._turn = asyncio.Lock()
        self._pace = 0.0  # seconds per character

    async def start(self) -> None:
        """Start the pool, if there is one."""
        if self._pool is not None:
            await self._pool.start()

    @property
    def num_arriving(self) -> int:
        return self.arriving.total()

    @property
    def num_abandoned(self) -> int:
        """Return how many prompts and structures are processed for cancelled callers."""
        pool = 0 if self._pool is None else self._pool.num_abandoned
        images = self._images.num_abandoned
        return pool + images + self._threads.num_abandoned + self.structures.num_abandoned

    def shutdown(self) -> None:
        """Stop all work; waiting callers fail. Harmless when repeated."""
        self._threads.shutdown()
        self._images.shutdown()
        self.structures.shutdown()
        if self._pool is not None:
            self._pool.shutdown()

    async def process(
        self,
        request_id: str,
        prompt: Prompt | PoolingPrompt,
        params: SamplingParams | PoolingParams,
        options: RequestOptions = NO_OPTIONS,
    ) -> ProcessedRequest:
        """Run `InputProcessor.process`, or `PoolingInput.process`, in the right place."""
        given: Any = prompt  # the processor checks its type
        if isinstance(params, PoolingParams):
            with self._arriving():
                return await self._pooling(request_id, given, params, options)
        check_sampling_types(params)
        with self._arriving(params.n):
            return await self._process(request_id, given, params, options)

    async def tokenize(
        self, tokenizer: Tokenizer, prompt: Countable, add_special_tokens: bool
    ) -> list[int]:
        """Return a prompt's token ids. A conversation's template writes its special tokens."""
        assert self.processor is not None, "the engine was not started"
        processor = self.processor
        with self._arriving():
            if isinstance(prompt, ImagePrompt):
                assert not isinstance(prompt.prompt, list), "clients count texts and conversations"
                check = partial(processor.countable, prompt.prompt)
                prepared, _ = await self._images.prepare(prompt.images)
                return (await self._expanded(processor, prepared, check))[1]
            prompt = processor.countable(prompt)
            if self._pool is not None and (isinstance(prompt, ChatPrompt) or add_special_tokens):
                return (await self._pool.tokenize(prompt)).token_ids
            work = partial(tokenize, tokenizer, prompt)
            if isinstance(prompt, str):
                work = partial(tokenizer.encode, prompt, add_special_tokens)
            return await self._threads.run(work)

    @contextmanager
    def _arriving(self, count: int = 1) -> Iterator[None]:
        client = CLIENT.get()
        self.arriving.change(client, count)
        try:
            yield
        finally:
            self.arriving.change(client, -count)

    async def _process(
        self, request_id: str, prompt: Prompt, params: SamplingParams, options: RequestOptions
    ) -> ProcessedRequest:
        assert self.processor is not None, "the engine was not started"
        processor, arrival = self.processor, _arrival(options)
        processor.check_task()
        drawn = processor.draw(params)
        written = None
        if (wanted := params.structured_outputs) is not None:
            processor.check_structure(wanted)
            written = await self.structures.check(wanted)
        inputs = RequestInputs(options)
        given: dict[str, Any] = {"arrival_time": arrival, "inputs": inputs, "written": written}
        given["drawn"] = drawn
        given["bad_words"] = await self._bad_words(params.bad_words)
        pictured = with_images(prompt)
        if isinstance(pictured, ImagePrompt):
            return await self._with_images(processor, request_id, pictured, params, given)
        check_without(processor.model.vision)
        if self._pool is not None and self._is_long(prompt):
            checked = processor.bounded(prompt, params)
            assert isinstance(checked, str | ChatPrompt)
            tokenized = await self._pool.tokenize(checked)
            self._front.add_tokenize(tokenized.seconds)
            self._learn(prompt, tokenized.seconds)
            text = checked if isinstance(checked, str) else None
            return processor.request(request_id, text, tokenized.token_ids, params, **given)
        work = partial(processor.process, request_id, prompt, params, **given)
        return await self._in_turn(work, prompt)

    async def _with_images(
        self,
        processor: InputProcessor,
        request_id: str,
        prompt: ImagePrompt,
        params: SamplingParams,
        given: dict[str, Any],
    ) -> ProcessedRequest:
        """Make a request with the spans of its images."""
        if params.truncate_prompt_tokens is not None:
            raise InvalidRequestError(
                "A prompt with images cannot be truncated.", param="truncate_prompt_tokens"
            )
        check = partial(processor.bounded, prompt.prompt, params)
        prepared, times = await self._images.prepare(prompt.images)
        text, tokens, spans = await self._expanded(processor, prepared, check)
        given["inputs"] = replace(given["inputs"], images=spans)
        request = processor.request(request_id, text, tokens, params, **given)
        return dataclasses.replace(request, prepared=times)

    async def _expanded(
        self, processor: InputProcessor, images: list[Prepared], check: Callable[[], Any]
    ) -> tuple[str | None, list[int], tuple[ImageSpan, ...]]:
        """Return the prompt's text, its tokens, and the spans of its images.

        Args:
            check: returns the prompt around the images, if its length is in bounds.
        """
        vision, tokenizer = processor.model.vision, self._tokenizer
        assert vision is not None, "only models with a tower accept images"
        checked: str | list[int] | ChatPrompt = check()
        if isinstance(checked, list):
            tokens = checked
        elif self._pool is not None:
            tokens = (await self._pool.tokenize(checked)).token_ids
        else:
            tokens = await self._threads.run(partial(tokenize, tokenizer, checked))
        tokens, spans = expand(tokens, images, vision, tokenizer)
        return checked if isinstance(checked, str) else None, tokens, spans

    async def _bad_words(self, words: list[str] | None) -> list[list[int]] | None:
        """Return the tokens of many words; None for few, which `process` tokenizes itself."""
        if words is None or len(words) <= INLINE_WORDS:
            return None
        known, found = self._last_words  # several prompts of one request share their words
        if words != known:
            if self._pool is not None:
                found = (await self._pool.tokenize(BadWords(words))).sequences
            else:
                found = await self._threads.run(partial(word_tokens, self._tokenizer, words))
            self._last_words = words, found
        return found

    async def _pooling(
        self, request_id: str, prompt: PoolingPrompt, params: PoolingParams, options: RequestOptions
    ) -> ProcessedRequest:
        assert self.processor is not None, "the engine was not started"
        pooling = PoolingInput(self.processor)
        place: dict[str, Any] = {"arrival_time": _arrival(options), "options": options}
        pictured = with_images(prompt)
        if isinstance(pictured, ImagePrompt):
            vision = check_pooled(pictured, self.processor.model.vision)
            [image], times = await self._images.prepare(pictured.images)
            request = pooling.request(
                request_id, [vision.image_token], 0, images=(span_of(image),), **place
            )
            return dataclasses.replace(request, prepared=times)
        if self._pool is not None and self._is_long(prompt):
            checked = pooling.check(prompt, params)
            assert isinstance(checked, PooledText)
            tokenized = await self._pool.tokenize(checked)
            self._front.add_tokenize(tokenized.seconds)
            self._learn(prompt, tokenized.seconds)
            return pooling.request(request_id, tokenized.token_ids, tokenized.second_text, **place)
        work = partial(pooling.process, request_id, prompt, params, **place)
        return await self._in_turn(work, prompt)

    async def _in_turn(
        self, work: Callable[[], ProcessedRequest], prompt: Prompt | PoolingPrompt
    ) -> ProcessedRequest:
        def process() -> ProcessedRequest:
            begin = time.thread_time()
            with self._front.tokenizing():
                request = work()
            self._learn(prompt, time.thread_time() - begin)
            return request

        if self._is_long(prompt) or _has_embeds(prompt):
            return await self._threads.run(process)
        # One per loop iteration, in order: if many arrive together, the first stream their
        # tokens before the last are tokenized.
        async with self._turn:
            request = process()
            await asyncio.sleep(0)
        return request

    def _is_long(self, prompt: Prompt | PoolingPrompt) -> bool:
        """Return whether tokenizing the prompt may block the event loop for too long."""
        characters = _characters(prompt)
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        slow = max(characters, SHORT) * self._pace > INLINE_SECONDS and characters > 0
        return slow or characters > INLINE_CHARACTERS or isinstance(text, ChatPrompt)

    def _learn(self, prompt: Prompt | PoolingPrompt, seconds: float) -> None:
        """Update the tokenizer's pace with the CPU seconds of a text."""
        if characters := _characters(prompt):
            self._pace += (seconds / max(characters, SHORT) - self._pace) / MEMORY


def _characters(prompt: Prompt | PoolingPrompt) -> int:
    """Return the characters of a text; 0 for tokens and conversations."""
    if isinstance(prompt, TextPair):
        return sum(map(len, prompt))
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return len(text) if isinstance(text, str) else 0


def _has_embeds(prompt: Prompt | PoolingPrompt) -> bool:
    return isinstance(prompt, dict) and "prompt_embeds" in prompt


def _arrival(options: RequestOptions) -> float:
    return time.monotonic() if options.arrival_time is None else options.arrival_time
