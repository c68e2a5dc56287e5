"""Structured output beside the model: grammars compiled in threads, masks filled while it runs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, RLock
from typing import TYPE_CHECKING

import numpy as np

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.sampling.masks import TokenRow
from quire.sampling.thinking import ThinkingLimit
from quire.system.native_marks import Mark, make_marks

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from quire.ops.sampling import MaskWords
    from quire.sampling.state import SamplingState
    from quire.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

COMPILE_THREADS = 2
GRAMMARS_KEPT = 256
"""Compiled grammars that are kept for those who ask for the same; the least recently used go."""
BITS = 32
"""Tokens in a word of a mask."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar's matcher at its beginning, to be copied, never used itself; whose it is."""

    matcher: LLMatcher
    key: bytes


class Grammars:
    """Compiles each grammar once, in threads of its own.

    Args:
        load_tokenizer: the model's; called with the first request that needs it.
        vocab_size: of the logits.
        marks_path: where to note which grammar native code is at (see `system.native_marks`).
        rank: among processes that note it in the same file.

    Attributes:
        mark: for who follows grammars.
    """

    def __init__(
        self,
        load_tokenizer: Callable[[], Tokenizer],
        vocab_size: int,
        marks_path: str | None = None,
        rank: int = 0,
    ) -> None:
        self.vocab_size = vocab_size
        places = COMPILE_THREADS + 1
        self.mark, *marks = make_marks(marks_path, rank * places, places)
        self._marks: SimpleQueue[Mark] = SimpleQueue()
        for mark in marks:
            self._marks.put(mark)
        self._load_tokenizer = load_tokenizer
        self._threads = ThreadPoolExecutor(COMPILE_THREADS, "quire-grammars")
        self._compiled: OrderedDict[tuple[bytes, tuple[int, ...]], Future[Compiled]] = OrderedDict()
        self._vocabularies: dict[tuple[int, ...], tuple[LLTokenizer, dict[str, int]]] = {}
        self._lock = Lock()
        self._load_lock = RLock()
        self._tokenizer: Tokenizer | None = None

    def prepare(
        self,
        params: StructuredOutputsParams,
        eos_token_ids: tuple[int, ...],
        written: WrittenStructure | None = None,
    ) -> Future[Compiled]:
        """The grammar, once it is compiled.

        Args:
            written: by a grammar worker. Without it, it is written here, and holds up the steps.

        It raises `InvalidRequestError` if the grammar cannot be served.
        """
        from quire.text.grammar import grammar_key

        key = grammar_key(params), eos_token_ids
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                found = self._threads.submit(self._compile, params, eos_token_ids, written)
                self._compiled[key] = found
                if len(self._compiled) > GRAMMARS_KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
        return found

    def prepare_tokenizer(self) -> Future[Tokenizer] | None:
        """The tokenizer, once it is read; None if it is there."""
        return self._threads.submit(self.tokenizer) if self._tokenizer is None else None

    def tokenizer(self) -> Tokenizer:
        """The model's; the first call reads it."""
        with self._load_lock:
            if self._tokenizer is None:
                self._tokenizer = self._load_tokenizer()
            return self._tokenizer

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(
        self,
        params: StructuredOutputsParams,
        eos_token_ids: tuple[int, ...],
        written: WrittenStructure | None,
    ) -> Compiled:
        from quire.text.grammar import new_matcher, structure_key

        tokenizer, specials = self._vocabulary(eos_token_ids)
        key, mark = structure_key(params), self._marks.get()
        mark.enter(key)
        try:
            return Compiled(new_matcher(tokenizer, params, specials, written), key)
        finally:
            mark.leave()
            self._marks.put(mark)

    def _vocabulary(self, eos_token_ids: tuple[int, ...]) -> tuple[LLTokenizer, dict[str, int]]:
        """The tokens, and the control tokens among them by their names."""
        from quire.text.vocabulary import matcher_tokenizer, special_tokens

        with self._load_lock:
            if eos_token_ids not in self._vocabularies:
                tokenizer = self.tokenizer()
                self._vocabularies[eos_token_ids] = (
                    matcher_tokenizer(tokenizer, self.vocab_size, eos_token_ids),
                    special_tokens(tokenizer, eos_token_ids),
                )
            return self._vocabularies[eos_token_ids]


class SequenceMatcher:
    """Follows one sequence's output, and knows which tokens may come next.

    What it knows is a function of the output alone. So a step that failed, a preemption, or
    several tokens a step are nothing to it: it is shown the output as it is now.

    Args:
        grammar: at its beginning.
        vocab_size: of the logits.
        eos_token_ids: what alone is allowed once the text is complete.

    Attributes:
        masks: int32 [rows, words], of the next token and of those behind drafts.
        key: whose grammar it is.
        error: why the mask could not be filled.
    """

    def __init__(self, grammar: Compiled, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.masks: MaskWords = np.zeros((1, -(-vocab_size // BITS)), dtype=np.int32)
        self.key = grammar.key
        self.error: str | None = None
        # Asking for it takes as long as filling a small mask.
        self._address = self.masks.ctypes.data
        self._matcher = grammar.matcher.deep_copy()
        self._eos_token_ids = eos_token_ids
        self._num_followed = 0

    def fill(self, output: TokenRow, drafts: TokenRow) -> None:
        """Fill the masks for the token after `output`, [n], and after each of `drafts` [k].

        Behind a draft that the structure rules out, masks have no meaning.
        """
        if len(self.masks) <= len(drafts):
            self.masks = np.zeros((1 + len(drafts), self.masks.shape[1]), dtype=np.int32)
            self._address = self.masks.ctypes.data
        matcher = self._matcher
        if self._num_followed > len(output):  # a step failed: its tokens are taken back
            matcher.reset()
            self._num_followed = 0
        for token in output[self._num_followed :].tolist():
            if not matcher.is_stopped():  # else it is an end-of-sequence token that ended nothing
                matcher.consume_token(token)
        self._num_followed = len(output)
        self._fill(matcher, 0)
        self.error = matcher.get_error() or None
        if self.error or not len(drafts):
            return
        fork = matcher.deep_copy()
        for row, draft in enumerate(drafts.tolist(), 1):
            if not fork.try_consume_tokens([draft]):
                self.masks[row:] = self.masks[row - 1]
                return
            self._fill(fork, row)

    def _fill(self, matcher: LLMatcher, row: int) -> None:
        mask = self.masks[row]
        if matcher.is_stopped() and not matcher.is_error():
            mask.fill(0)
            for token in self._eos_token_ids:
                mask.view(np.uint32)[token // BITS] |= np.uint32(1 << token % BITS)
        elif not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(self._address + row * mask.nbytes, mask.nbytes)


class MaskFiller:
    """Fills the masks of a step's rows in a thread, beside the model."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, "quire-masks")  # starts with its first step
        self._filling: Future[None] | None = None

    def begin(self, states: Iterable[SamplingState]) -> None:
        """Begin to fill the masks for the next tokens of these, and behind drafts, until `end`.

        Those without a structure get only what follows their reasoning.
        """
        assert self._filling is None, "masks are being filled already"
        work = []
        for state in states:
            try:
                if state.thinking is None and state.params.limits_thinking:
                    state.thinking = self._thinking(state)
                if state.params.structured_outputs is None:
                    continue
                if state.matcher is None:
                    state.matcher = self._matcher(state)
            except Exception as error:  # one request's fault, never its batch-mates'
                state.fault = str(error)
                continue
            work.append((state.matcher, state.output, state.drafts(state.num_drafts)))
        if work:
            assert self._grammars is not None
            self._filling = self._thread.submit(_fill, work, self._grammars.mark)

    def end(self) -> None:
        """Wait until the masks are filled."""
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.result()

    def _thinking(self, state: SamplingState) -> ThinkingLimit:
        if self._grammars is None:
            raise InvalidRequestError("this executor has no tokenizer.")
        budget, marks = state.params.thinking_token_budget, state.params.thinking_marks
        assert budget is not None
        assert marks is not None
        return ThinkingLimit(budget, marks, self._grammars.tokenizer())

    def _matcher(self, state: SamplingState) -> SequenceMatcher:
        """Its grammar was compiled before the request was admitted. Only where so many others
        have come since that it was forgotten, it is compiled again, here."""
        if self._grammars is None:
            raise InvalidRequestError("this executor has no structured output.")
        params = state.params
        assert params.structured_outputs is not None
        ready = self._grammars.prepare(
            params.structured_outputs, state.eos_token_ids, params.written_structure
        )
        return SequenceMatcher(ready.result(), self._grammars.vocab_size, state.eos_token_ids)


def _fill(work: Sequence[tuple[SequenceMatcher, TokenRow, TokenRow]], mark: Mark) -> None:
    for matcher, output, drafts in work:
        mark.enter(matcher.key)
        try:
            matcher.fill(output, drafts)
        except BaseException as error:  # a panic in Rust is no Exception
            logger.exception("a mask could not be filled")
            matcher.error = repr(error)
        finally:
            mark.leave()
