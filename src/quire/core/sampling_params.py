"""How the next token is chosen, and when a request stops. Names and meanings are vLLM's."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar, Literal

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.named_fields import Elsewhere, NamedFields
from quire.core.pooling_params import WHOLE_CONTEXT
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.core.thinking import ThinkingMarks
from quire.core.typed import check_types

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LENGTH = 1024
MIN_REPETITION_PENALTY = 0.01
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGPROB_TOKEN_IDS = 128
MAX_REPEATED_LOGPROB_TOKEN_IDS = MAX_LOGPROBS * MAX_N
"""`logprob_token_ids` times `n`: each step reports them for each completion."""
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 4096
MAX_BAD_WORD_CHARACTERS = 65_536
"""Total length of a request's bad words."""
MAX_REPEATED_BAD_WORDS = 16_384
"""`bad_words` times `n`: each completion has its own index of them."""
MAX_ALLOWED_TOKEN_IDS = 1_048_576
"""More than any vocabulary has."""
SEED_RANGE = 2**63
UNLIMITED = -1
_RESTRICTIONS = ("allowed_token_ids", "bad_words", "min_tokens")
"""Fields that rule tokens out, beside a structure."""


class RequestOutputKind(IntEnum):
    """What each `RequestOutput` of a running request carries."""

    CUMULATIVE = 0
    """Everything generated so far, every time."""
    DELTA = 1
    """Only what is new."""
    FINAL_ONLY = 2
    """Nothing until the request has finished."""


_BEAMS = "LLM.beam_search with BeamSearchParams"


class SamplingParams(msgspec.Struct, metaclass=NamedFields, kw_only=True, omit_defaults=True):
    """Sampling options of one request.

    Invalid values raise `InvalidRequestError`, which names the field, the value and the range. So
    do fields that vLLM or Transformers have and Quire has not; the error names what to use.
    """

    elsewhere: ClassVar = {
        "best_of": Elsewhere("n, and choose by cumulative_logprob", (1,)),
        "do_sample": Elsewhere("temperature=0 for greedy", (True,)),
        "early_stopping": Elsewhere(_BEAMS, (False,)),
        "eos_token_id": Elsewhere("stop_token_ids"),
        "extra_args": Elsewhere("the fields that are there", ({},)),
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
    """Completions for the prompt, each its own sequence."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; in (0, 1]."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest; in [0, 1]."""
    seed: int | None = None
    """The same seed gives the same tokens, whatever else runs beside; None draws one."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token already generated; in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time the token was generated; in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive, multiplies negative logits of tokens in prompt or output; in [0.01, 10]:
    a smaller one could make them infinite."""
    stop: list[str] | str | None = None
    """Strings that end the output; not part of it unless `include_stop_str_in_output`."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the output, beside the model's end-of-sequence tokens."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    """Do not stop at the model's end-of-sequence tokens."""
    max_tokens: int | None = 16
    """Most tokens to generate; None is up to the context length."""
    min_tokens: int = 0
    """Tokens to generate before an end-of-sequence or stop token is allowed."""
    logprobs: int | None = None
    """Return the log-probability of the chosen token and of this many likeliest ones."""
    logprob_token_ids: list[int] | None = None
    """Return the log-probabilities of these tokens, too. Alone, it sets `logprobs` to 0."""
    prompt_logprobs: int | None = None
    """`logprobs` for every prompt token but the first."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these token ids; each in [-100, 100]."""
    allowed_token_ids: list[int] | None = None
    """Only these tokens may be generated."""
    bad_words: list[str] | None = None
    """Words that may not be generated."""
    bad_words_token_ids: list[list[int]] | None = None
    """`bad_words` as token sequences; filled in by the input processor, never by a user."""
    allowed_tokens: bytes | None = None
    """`allowed_token_ids` as one bit per token of the vocabulary, the lowest first; filled in by
    the input processor, never by a user."""
    truncate_prompt_tokens: int | None = None
    """Keep so many tokens of a longer prompt; -1 as many as fit beside `max_tokens`. None: a prompt
    that is too long is an error."""
    truncation_side: Literal["left", "right"] = "left"
    """Where a longer prompt loses tokens: `left` keeps its end."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the text has to be: JSON of a schema, a regular expression, a choice, a grammar."""
    thinking_token_budget: int | None = None
    """Most tokens of reasoning; then its end is forced. None and -1: no limit."""
    thinking_marks: ThinkingMarks | None = None
    """What stands around the reasoning; `thinking_token_budget` needs it. The server fills it in
    by its reasoning parser."""
    written_structure: WrittenStructure | None = None
    """`structured_outputs` as a grammar worker has written it; filled in by the input processor,
    never by a user."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """The tokenizers that Quire reads put no spaces there, so either value means the same, as it
    does for them in vLLM."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        if self.logprobs is None and self.logprob_token_ids:
            self.logprobs = 0
        try:
            _check(self)
        except (
            AttributeError,
            TypeError,
        ):  # of a comparison; of every request, the engine checks all types
            check_types(self)
            _check(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def reads_output(self) -> bool:
        """Whether the text of the output so far decides on its next token."""
        return self.structured_outputs is not None or self.limits_thinking

    @property
    def limits_thinking(self) -> bool:
        return self.thinking_token_budget not in (None, UNLIMITED)

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def contradiction(self) -> InvalidRequestError:
        """Return the error of a request whose fields together rule out every token."""
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
        """A copy with `changes` applied, validated again."""
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
        _in_range("logprobs", p.logprobs, 0, MAX_LOGPROBS)
    if p.prompt_logprobs is not None:
        _in_range("prompt_logprobs", p.prompt_logprobs, 0, MAX_LOGPROBS)
    if p.thinking_token_budget is not None:
        _in_range("thinking_token_budget", p.thinking_token_budget, UNLIMITED, 2**31 - 1)
    if p.limits_thinking and (p.thinking_marks is None or not p.thinking_marks.ends):
        raise InvalidRequestError(
            "thinking_token_budget needs to know between which marks the model reasons.",
            fix='Set thinking_marks, such as ThinkingMarks(("<think>",), ("</think>",)).',
            param="thinking_token_budget",
        )
    if (kept := p.truncate_prompt_tokens) is not None and kept != WHOLE_CONTEXT and kept < 1:
        raise InvalidRequestError(
            f"truncate_prompt_tokens is {kept}; it must be at least 1, or -1 for as many as fit.",
            param="truncate_prompt_tokens",
        )
    _check_stops(p)
    _check_tokens(p)
    if p.structured_outputs is not None and p.min_tokens:
        raise InvalidRequestError(
            "min_tokens does not work with structured_outputs: a complete text cannot continue.",
            fix="Ask for a longer text in the schema or grammar.",
            param="min_tokens",
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
    """Check a list that each of `n` completions has for itself."""
    _at_most(name, count, limit, of_what)
    if count * n > total:
        raise InvalidRequestError(
            f"{name} has {count} {of_what} for each of n = {n} completions, {count * n} in all; "
            f"at most {total} are allowed.",
            fix="Send fewer, or several requests.",
            param=name,
        )


def _in_range(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    # NaN fails every comparison, so that the test is for what is right, not for what is wrong.
    fits = (value > low if low_open else value >= low) and value <= high
    if not fits:
        left = "(" if low_open else "["
        raise InvalidRequestError(
            f"{name} is {value}; it must be in {left}{low}, {high}].", param=name.partition("[")[0]
        )
