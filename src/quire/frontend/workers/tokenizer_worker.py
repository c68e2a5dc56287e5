"""A process that renders and tokenizes. It never loads torch.

Frames come on stdin and leave on stdout (see `pipe`): first a `Setup`, then one `Tokenized` per
prompt. Prompts come as JSON, because a client's JSON may hold integers that msgpack cannot. The
process ends with its input.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from quire.core.errors import ContextLengthError, InvalidRequestError, QuireError
from quire.core.log import setup_logging
from quire.frontend.workers.pipe import answer_all, read_frame
from quire.text.bad_words import word_tokens
from quire.text.chat import chat_to_token_ids
from quire.text.tokenizers.tokenizer import Side, Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """A conversation, for the model's chat template to render; see `text.chat.render_chat`."""

    messages: list[dict[str, object]]
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: dict[str, object] | None = None
    tools: list[dict[str, object]] | None = None
    documents: list[dict[str, object]] | None = None
    add_special_tokens: bool = False
    """In addition to those that the template writes."""
    max_tokens: int | None = None
    contexts: int = 1
    """Refuse a text that certainly has `contexts` times `max_tokens` tokens or more, without
    tokenizing it."""


class BadWords(msgspec.Struct, frozen=True, tag="words"):
    """Words to tokenize; see `text.bad_words.word_tokens`."""

    words: list[str]


class PooledText(msgspec.Struct, frozen=True, tag="pooled"):
    """One text or two for a pooling model; see `Tokenizer.encode_bounded`."""

    text: str
    second: str | None = None
    max_tokens: int | None = None
    side: Side = "right"


Question = str | ChatPrompt | PooledText | BadWords


class Setup(msgspec.Struct):
    """Which tokenizer; see `text.tokenizers.tokenizer.load_tokenizer`."""

    path: str | None
    vocab_size: int


class Tokenized(msgspec.Struct):
    """A prompt's tokens, or the tokenization error."""

    token_ids: list[int] = []
    sequences: list[list[int]] = []
    """The answer to `BadWords`."""
    second_text: int = 0
    """Index of the first token of a pair's second text."""
    seconds: float = 0.0
    """CPU time of the tokenization."""
    error_code: str | None = None
    """`QuireError.code`, or the class name of an unexpected exception."""
    error: str = ""
    error_param: str | None = None
    too_long: tuple[int, int] | None = None
    """For a `ContextLengthError`: the prompt's least number of tokens, and the limit."""


def tokenize(tokenizer: Tokenizer, prompt: str | ChatPrompt) -> list[int]:
    """Return token ids. Raises `QuireError` if a conversation cannot be rendered."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    return chat_to_token_ids(tokenizer, **msgspec.structs.asdict(prompt))


def answer(tokenizer: Tokenizer, prompt: Question) -> Tokenized:
    start = time.thread_time()
    try:
        if isinstance(prompt, BadWords):
            sequences = word_tokens(tokenizer, prompt.words)
            return Tokenized(sequences=sequences, seconds=time.thread_time() - start)
        if isinstance(prompt, PooledText):
            ids, second = tokenizer.encode_bounded(
                prompt.text, prompt.second, prompt.max_tokens, prompt.side
            )
        else:
            ids, second = tokenize(tokenizer, prompt), 0
        return Tokenized(ids, second_text=second, seconds=time.thread_time() - start)
    except ContextLengthError as error:
        numbers = error.num_tokens, error.limit
        return Tokenized(error_code=error.code, error=str(error), too_long=numbers)
    except QuireError as error:
        return Tokenized(error_code=error.code, error=str(error), error_param=error.param)
    except RecursionError:
        return Tokenized(
            error_code=InvalidRequestError.code, error="The prompt is nested too deeply."
        )
    except Exception as error:
        logger.exception("a prompt could not be tokenized")
        return Tokenized(error_code=type(error).__name__, error=str(error))


def main(source: BinaryIO, sink: BinaryIO, load: Callable[..., Tokenizer] = load_tokenizer) -> int:
    """Answer until the input ends."""
    import quire.text.template  # noqa: F401  # before the first conversation

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    setup_logging()
    setup = msgspec.msgpack.decode(read_frame(source), type=Setup)
    tokenizer = load(setup.path and Path(setup.path), vocab_size=setup.vocab_size)
    decoder = msgspec.json.Decoder(Question)
    return answer_all(source, sink, lambda data: answer(tokenizer, decoder.decode(data)))


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))
