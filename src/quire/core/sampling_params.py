"""Sampling and stop options of a request. Names and meanings are vLLM's."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar, Literal

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.named_fields import Elsewhere, NamedFields, check_types
from quire.core.pooling_params import check_truncation
from quire.core.structured_outputs import StructuredOutputsParams, ThinkingMarks, WrittenStructure

MAX_N = 128
MAX_LOGPROBS = 20
"""Without --max-logprobs."""
MOST_LOGPROBS = 1024
"""With it."""
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LENGTH = 1024
MIN_REPETITION_PENALTY = 0.01
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGPROB_TOKEN_IDS = 128
MAX_REPEATED_LOGPROB_TOKEN_IDS = MAX_LOGPROBS * MAX_N
"""Limit of `logprob_token_ids` times `n`: each step reports them for each completion."""
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 4096
MAX_BAD_WORD_CHARACTERS = 65_536
"""Total length of a request's bad words."""
MAX_REPEATED_BAD_WORDS = 16_384
"""Limit of `bad_words` times `n`: each completion has its own index of them."""
MAX_ALLOWED_TOKEN_IDS = 1_048_576
"""More than any vocabulary."""
MAX_PATTERN_SIZE = 1024
"""So many tokens of each output are remembered."""
SEED_RANGE = 2**63
UNLIMITED = -1
_RESTRICTIONS = ("allowed_token_ids", "bad_words", "min_tokens")
"""Fields that rule out tokens, besides a structure."""


class RequestOutputKind(IntEnum):
    """What each `RequestOutput` of a running request contains."""

    CUMULATIVE = 0
    """All output so far."""
    DELTA = 1
    """Only the new output."""
    FINAL_ONLY = 2
    """One output, at the end."""


_BEAMS = "LLM.beam_search with BeamSearchParams"


class RepetitionDetectionParams(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An output ends with the reason "repetition" once its last tokens are a pattern, repeated."""

    max_pattern_size: int = 0
    """Most tokens of a pattern; 0 means that nothing is detected."""
    min_pattern_size: int = 0
    """Fewest tokens of a pattern; 0 means 1."""
    min_count: int = 0
    """How often the pattern must come, at least 2."""


class SamplingParams(msgspec.Struct, metaclass=NamedFields, kw_only=True, omit_defaults=True):
    """Sampling options of one request.

    Invalid values raise `InvalidRequestError`, which names the field, the value and the range. So
    do fields of vLLM and Transformers that Quire lacks; the error names a replacement.
    """

    elsewhere: ClassVar = {
        "best_of": Elsewhere("n, and choose by cumulative_logprob", (1,)),
        "do_sample": Elsewhere("temperature=0 for greedy", (True,)),
        "early_stopping": Elsewhere(_BEAMS, (False,)),
        "eos_token_id": Elsewhere("stop_token_ids"),
        "extra_args": Elsewhere("the fields of SamplingParams", ({},)),
        "flat_logprobs": Elsewhere("logprobs, which are lists of mappings", (False,)),
        "guided_decoding": Elsewhere("structured_outputs=StructuredOutputsParams(…)"),
        "length_penalty": Elsewhere(_BEAMS, (1.0,)),
        "logits_processors": Elsewhere(
            "logit_bias, allowed_token_ids, bad_words or structured_outputs", ([],)
        ),
        "max_completion_tokens": Elsewhere("max_tokens"),
        "max_new_tokens": Elsewhere("max_tokens"),
        "num_beams": Elsewhere(_BEAMS, (1,)),
        "num_return_sequences": Elsewhere("n", (1,)),
        "random_seed": Elsewhere("seed"),
        "repeat_penalty": Elsewhere("repetition_penalty", (1.0,)),
        "skip_clone": Elsewhere("nothing: parameters are never changed", (True, False)),
        "skip_reading_prefix_cache": Elsewhere("a cache_salt of its own", (False,)),
        "stop_sequences": Elsewhere("stop", ([],)),
        "stop_strings": Elsewhere("stop", ([],)),
        "top_logprobs": Elsewhere("logprobs"),
        "use_beam_search": Elsewhere(_BEAMS, (False,)),
    }

    n: int = 1
    """Completions of the prompt, each its own sequence."""
    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probability reaches this; in (0, 1]."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 and -1 keep all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest; in [0, 1]."""
    seed: int | None = None
    """The same seed gives the same tokens, independent of other requests; None draws a seed."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of generated tokens; in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time the token was generated; in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output. In [0.01, 10]:
    smaller values could make logits infinite."""
    stop: list[str] | str | None = None
    """Strings that end the output; not part of it unless `include_stop_str_in_output`."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the output, besides the model's end-of-sequence tokens."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    """Do not stop at the model's end-of-sequence tokens."""
    max_tokens: int | None = 16
    """Most tokens to generate; None means up to the context length."""
    min_tokens: int = 0
    """Tokens to generate before an end-of-sequence token or stop may end the output."""
    logprobs: int | None = None
    """Return the log-probability of the chosen token and of the N likeliest ones."""
    logprob_token_ids: list[int] | None = None
    """Also return the log-probabilities of these tokens. If `logprobs` is unset, it becomes 0."""
    prompt_logprobs: int | None = None
    """The same as `logprobs`, for all prompt tokens but the first."""
    logit_bias: dict[int, float] | None = None
    """Token id → number added to its logit, in [-100, 100]."""
    allowed_token_ids: list[int] | None = None
    """Only these tokens may be generated."""
    bad_words: list[str] | None = None
    """Words that may not be generated."""
    bad_words_token_ids: list[list[int]] | None = None
    """`bad_words` as token sequences. Only the input processor sets it."""
    allowed_tokens: bytes | None = None
    """`allowed_token_ids` as one bit per token of the vocabulary, the lowest first. Only the input
    processor sets it."""
    truncate_prompt_tokens: int | None = None
    """Keep N tokens of a longer prompt; -1 keeps as many as leave room for `max_tokens`. None: a
    prompt that is too long is an error."""
    truncation_side: Literal["left", "right"] = "left"
    """The side that loses tokens: `left` keeps the prompt's end."""
    structured_outputs: StructuredOutputsParams | None = None
    """The text's structure: a JSON schema, a regular expression, a choice or a grammar."""
    repetition_detection: RepetitionDetectionParams | None = None
    """Ends an output that repeats itself."""
    thinking_token_budget: int | None = None
    """Most tokens of reasoning; then its end is forced. None and -1 mean no limit."""
    thinking_marks: ThinkingMarks | None = None
    """The texts around the reasoning; `thinking_token_budget` needs them. The server takes them
    from its reasoning parser."""
    written_structure: WrittenStructure | None = None
    """`structured_outputs` as a grammar worker wrote it. Only the input processor sets it."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """No effect: the tokenizers that Quire supports put no spaces there. vLLM does the same."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        if self.logprobs is None and self.logprob_token_ids:
            self.logprobs = 0
        try:
            _check(self)
        except (AttributeError, TypeError):  # a wrong type in a comparison: name the field
            check_types(self)
            _check(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def reads_output(self) -> bool:
        """Return whether the next token depends on the text so far."""
        return self.structured_outputs is not None or self.limits_thinking

    @property
    def limits_thinking(self) -> bool:
        return self.thinking_token_budget not in (None, UNLIMITED)

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def contradiction(self) -> InvalidRequestError:
        """Return the error of a request whose fields rule out all tokens."""
        wanted = self.structured_outputs
        names = [name for name in _RESTRICTIONS if getattr(self, name)]
        if wanted is not None:
            names.insert(0, wanted.field or "structured_outputs")
        if not names:
            return InvalidRequestError("Every token is ruled out.")
        return InvalidRequestError(
            f"{' and '.join(names)} rule out every token that could come next.",
            fix="Loosen one of them.",
            param=names[0],
        )

    def replace(self, **changes: Any) -> SamplingParams:
        """Return a copy with `changes`, validated again."""
        return msgspec.structs.replace(self, **changes)


def _check(p: SamplingParams) -> None:
    """Raise `InvalidRequestError` at the first field out of range."""
    _in_range("n", p.n, 1, MAX_N)
    _in_range("temperature", p.temperature, 0.0, 100.0)
    _in_range("top_p", p.top_p, 0.0, 1.0, low_open=True)
    _in_range("top_k", p.top_k, -1, 2**31 - 1)
    _in_range("min_p", p.min_p, 0.0, 1.0)
    _in_range("presence_penalty", p.presence_penalty, -2.0, 2.0)
    _in_range("frequency_penalty", p.frequency_penalty, -2.0, 2.0)
    _in_range("repetition_penalty", p.repetition_penalty, MIN_REPETITION_PENALTY, 10.0)
    if p.seed is not None:
        _in_range("seed", p.seed, -SEED_RANGE, SEED_RANGE - 1)
    if p.max_tokens is not None:
        _in_range("max_tokens", p.max_tokens, 1, 2**31 - 1)
    _in_range("min_tokens", p.min_tokens, 0, 2**31 - 1)
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise InvalidRequestError(
            f"min_tokens is {p.min_tokens}, more than max_tokens, {p.max_tokens}.",
            param="min_tokens",
        )
    if p.logprobs is not None:
        _in_range("logprobs", p.logprobs, 0, MOST_LOGPROBS)
    if p.prompt_logprobs is not None:
        _in_range("prompt_logprobs", p.prompt_logprobs, 0, MOST_LOGPROBS)
    if p.thinking_token_budget is not None:
        _in_range("thinking_token_budget", p.thinking_token_budget, UNLIMITED, 2**31 - 1)
    if p.limits_thinking and (p.thinking_marks is None or not p.thinking_marks.ends):
        raise InvalidRequestError(
            "thinking_token_budget needs the texts around the model's reasoning.",
            fix='Set thinking_marks, such as ThinkingMarks(("<think>",), ("</think>",)).',
            param="thinking_token_budget",
        )
    check_truncation(p.truncate_prompt_tokens)
    _check_stops(p)
    _check_tokens(p)
    if p.repetition_detection is not None:
        _check_repetition(p.repetition_detection)
    if p.structured_outputs is not None and p.min_tokens:
        raise InvalidRequestError(
            "min_tokens does not work with structured_outputs: a complete text cannot continue.",
            fix="Ask for a longer text in the schema or grammar.",
            param="min_tokens",
        )


def _check_repetition(p: RepetitionDetectionParams) -> None:
    """Raise `InvalidRequestError` at the first field out of range."""
    if not isinstance(p, RepetitionDetectionParams):
        raise InvalidRequestError(
            f"repetition_detection is {p!r}; it must be RepetitionDetectionParams(…).",
            param="repetition_detection",
        )
    check_types(p)
    most = p.max_pattern_size
    limits = {"max_pattern_size": (0, MAX_PATTERN_SIZE), "min_pattern_size": (0, most)}
    if most:
        limits["min_count"] = (2, 2**31 - 1)
    for name, (low, high) in limits.items():
        if not low <= (value := getattr(p, name)) <= high:
            raise InvalidRequestError(
                f"repetition_detection.{name} is {value}; it must be in [{low}, {high}].",
                param="repetition_detection",
            )


def _check_stops(p: SamplingParams) -> None:
    stops = p.stop_strings
    _at_most("stop", len(stops), MAX_STOP_STRINGS, "strings")
    for text in stops:
        if not text:
            raise InvalidRequestError("stop has an empty string.", param="stop")
        if len(text) > MAX_STOP_STRING_LENGTH:
            raise InvalidRequestError(
                f"a stop string has {len(text)} characters; "
                f"at most {MAX_STOP_STRING_LENGTH} are allowed.",
                param="stop",
            )
    if stops and not p.detokenize:
        raise InvalidRequestError(
            "stop strings need the text of the output.", fix="Set detokenize=True.", param="stop"
        )


def _check_tokens(p: SamplingParams) -> None:
    if p.logit_bias:
        _at_most("logit_bias", len(p.logit_bias), MAX_LOGIT_BIAS, "entries")
        for token, bias in p.logit_bias.items():
            _in_range(f"logit_bias[{token}]", bias, -100.0, 100.0)
    _at_most("stop_token_ids", len(p.stop_token_ids or ()), MAX_STOP_TOKEN_IDS, "token ids")
    _check_repeated(
        "logprob_token_ids",
        len(p.logprob_token_ids or ()),
        "token ids",
        MAX_LOGPROB_TOKEN_IDS,
        p.n,
        MAX_REPEATED_LOGPROB_TOKEN_IDS,
    )
    _at_most(
        "allowed_token_ids", len(p.allowed_token_ids or ()), MAX_ALLOWED_TOKEN_IDS, "token ids"
    )
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        raise InvalidRequestError(
            "allowed_token_ids is empty, so that no token could be generated.",
            param="allowed_token_ids",
        )
    if p.bad_words:
        _check_bad_words(p.bad_words, p.n)


def _check_bad_words(words: list[str], n: int) -> None:
    _check_repeated("bad_words", len(words), "strings", MAX_BAD_WORDS, n, MAX_REPEATED_BAD_WORDS)
    _at_most("bad_words", sum(map(len, words)), MAX_BAD_WORD_CHARACTERS, "characters in all")
    if not all(words):
        raise InvalidRequestError("bad_words has an empty string.", param="bad_words")


def _at_most(name: str, count: int, limit: int, of_what: str) -> None:
    if count > limit:
        raise InvalidRequestError(
            f"{name} has {count} {of_what}; at most {limit} are allowed.", param=name
        )


def _check_repeated(name: str, count: int, of_what: str, limit: int, n: int, total: int) -> None:
    """Check a list of which each of `n` completions has a copy."""
    _at_most(name, count, limit, of_what)
    if count * n > total:
        raise InvalidRequestError(
            f"{name} has {count} {of_what} for each of n = {n} completions, {count * n} in all; "
            f"at most {total} are allowed.",
            fix="Send fewer, or several requests.",
            param=name,
        )


def _in_range(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    # NaN fails all comparisons, so test for valid values.
    fits = (value > low if low_open else value >= low) and value <= high
    if not fits:
        left = "(" if low_open else "["
        raise InvalidRequestError(
            f"{name} is {value}; it must be in {left}{low}, {high}].", param=name.partition("[")[0]
        )
