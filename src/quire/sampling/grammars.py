"""Structured output: threads compile grammars, and fill masks while the model runs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock, RLock
from typing import TYPE_CHECKING

import numpy as np

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.sampling.masks import TokenRow
from quire.sampling.thinking import ThinkingLimit
from quire.system.native_marks import Mark, make_marks
from quire.system.records import dataclass
from quire.text.structures import grammar_key, structure_key

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from quire.ops.sample_row import MaskWords
    from quire.sampling.state import SamplingState
    from quire.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

COMPILE_THREADS = 2
GRAMMARS_KEPT = 256
"""Most cached compiled grammars; the least recently used ones are evicted."""
BITS = 32
"""Tokens per word of a mask."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar's matcher in its initial state, only to be copied, and the structure's key."""

    matcher: LLMatcher
    key: bytes


class Grammars:
    """Compiles each grammar once, in its own threads.

    Args:
        load_tokenizer: returns the model's tokenizer; called at the first use.
        vocab_size: of the logits.
        marks_path: file for notes of the present grammar (see `system.native_marks`).
        rank: this process's number among those that use the same file.

    Attributes:
        mark: notes the grammar that `MaskFiller` follows.
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
        """Return a future of the compiled grammar. It raises `InvalidRequestError` for a bad one.

        Args:
            written: the structure as a grammar worker wrote it. Without it, it is written here,
                which delays the steps.
        """

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
        """Return a future of the tokenizer; None if it is loaded."""
        return self._threads.submit(self.tokenizer) if self._tokenizer is None else None

    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer; the first call loads it."""
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
        from quire.text.grammar import new_matcher

        tokenizer, specials = self._vocabulary(eos_token_ids)
        key, mark = structure_key(params), self._marks.get()
        mark.enter(key)
        try:
            return Compiled(new_matcher(tokenizer, params, specials, written), key)
        finally:
            mark.leave()
            self._marks.put(mark)

    def _vocabulary(self, eos_token_ids: tuple[int, ...]) -> tuple[LLTokenizer, dict[str, int]]:
        """Return llguidance's tokenizer, and the ids of control tokens by name."""
        from quire.text.tokenizers.vocabulary import matcher_tokenizer, special_tokens

        with self._load_lock:
            if eos_token_ids not in self._vocabularies:
                tokenizer = self.tokenizer()
                self._vocabularies[eos_token_ids] = (
                    matcher_tokenizer(tokenizer, self.vocab_size, eos_token_ids),
                    special_tokens(tokenizer, eos_token_ids),
                )
            return self._vocabularies[eos_token_ids]


class SequenceMatcher:
    """Follows one sequence's output and computes the allowed next tokens.

    Its state depends on the output only. Each call passes the whole output, so failed steps,
    preemptions and several tokens per step need no special code.

    Args:
        grammar: in its initial state.
        vocab_size: of the logits.
        eos_token_ids: the only allowed tokens once the text is complete.
        mark: notes the grammar while it is followed.

    Attributes:
        masks: int32 [rows, words], for the next token and for the tokens after drafts.
        error: why the mask could not be filled.
    """

    def __init__(
        self, grammar: Compiled, vocab_size: int, eos_token_ids: tuple[int, ...], mark: Mark
    ) -> None:
        self.masks: MaskWords = np.zeros((1, -(-vocab_size // BITS)), dtype=np.int32)
        self.error: str | None = None
        self._key = grammar.key
        self._mark = mark
        # Cached: reading it takes as long as filling a small mask.
        self._address = self.masks.ctypes.data
        self._matcher = grammar.matcher.deep_copy()
        self._eos_token_ids = eos_token_ids
        self._num_followed = 0
        # The drafts after the present output whose masks are filled, and what has followed them.
        # None: the mask after the output is not.
        self._drafts: list[int] | None = None
        self._fork: LLMatcher | None = None

    def fill(self, output: TokenRow, drafts: TokenRow) -> None:
        """Fill the masks for the token after `output`, [n], and after each of `drafts` [k].

        Masks after a draft that the structure rules out have no meaning. What was filled for the
        same output and drafts stays: a drafter asks draft by draft, before all are verified.
        """
        self._mark.enter(self._key)
        try:
            self._follow(output)
            self._fill_rows(drafts.tolist())
        except BaseException as error:  # a Rust panic is not an Exception
            logger.exception("a mask could not be filled")
            self.error = repr(error)
        finally:
            self._mark.leave()

    def _follow(self, output: TokenRow) -> None:
        if self._num_followed == len(output):
            return
        matcher = self._matcher
        if self._num_followed > len(output):  # a failed step's tokens were removed
            matcher.reset()
            self._num_followed = 0
        for token in output[self._num_followed :].tolist():
            if not matcher.is_stopped():  # else an end token that did not end the request
                matcher.consume_token(token)
        self._num_followed, self._drafts = len(output), None

    def _fill_rows(self, drafts: list[int]) -> None:
        self._reserve(1 + len(drafts))
        if self._drafts is None:
            self._fill(self._matcher, 0)
            self.error = self._matcher.get_error() or None
            self._drafts, self._fork = [], None
        elif any(old != new for old, new in zip(self._drafts, drafts, strict=False)):
            self._drafts, self._fork = [], None
        for token in drafts[len(self._drafts) :]:
            if self._fork is None:
                self._fork = self._matcher.deep_copy()
            row = len(self._drafts) + 1
            if not self._fork.try_consume_tokens([token]):
                self.masks[row:] = self.masks[row - 1]
                return
            self._fill(self._fork, row)
            self._drafts.append(token)

    def _reserve(self, rows: int) -> None:
        if rows > len(self.masks):
            filled, self.masks = self.masks, np.zeros((rows, self.masks.shape[1]), dtype=np.int32)
            self.masks[: len(filled)] = filled
            self._address = self.masks.ctypes.data

    def _fill(self, matcher: LLMatcher, row: int) -> None:
        mask = self.masks[row]
        if matcher.is_stopped():  # or in error: then the request ends, whatever its mask
            mask.fill(0)
            for token in self._eos_token_ids:
                mask.view(np.uint32)[token // BITS] |= np.uint32(1 << token % BITS)
        else:
            matcher.unsafe_compute_mask_ptr(self._address + row * mask.nbytes, mask.nbytes)


class MaskFiller:
    """Fills the masks of a step's rows in a thread while the model runs."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, "quire-masks")  # starts with its first step
        self._filling: Future[None] | None = None

    def begin(self, states: Iterable[SamplingState]) -> None:
        """Start filling the masks for next tokens and tokens after drafts; `end` waits for them.

        Sequences without a structure only get the follower of their reasoning.
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
            except Exception as error:  # fails this request only
                state.fault = str(error)
                continue
            work.append((state.matcher, state.output, state.drafts(state.num_drafts)))
        if work:
            self._filling = self._thread.submit(_fill, work)

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
        """Return a matcher; compile its grammar again only if it was evicted since admission."""
        if self._grammars is None:
            raise InvalidRequestError("this executor has no structured output.")
        params = state.params
        assert params.structured_outputs is not None
        ready = self._grammars.prepare(
            params.structured_outputs, state.eos_token_ids, params.written_structure
        )
        grammars = self._grammars
        return SequenceMatcher(
            ready.result(), grammars.vocab_size, state.eos_token_ids, grammars.mark
        )


def _fill(work: Sequence[tuple[SequenceMatcher, TokenRow, TokenRow]]) -> None:
    for matcher, output, drafts in work:
        matcher.fill(output, drafts)
