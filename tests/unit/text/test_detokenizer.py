"""detokenizer.py: what is streamed is what is decoded, whatever the tokens."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.detokenizer import IncrementalDetokenizer
from quire.text.tokenizers.dummy import DummyTokenizer
from quire.text.tokenizers.tokenizer import Tokenizer
from tests.examples import examples
from tests.unit.text.vocabularies import REAL, SHARED, byte_tokenizer, real_tokenizer

IDS = st.lists(st.integers(0, 2**31), max_size=24)


def tokenizer_of(name: str) -> Tokenizer:
    if name == "bytes":
        return byte_tokenizer("<s>", "</s>")
    if name == "dummy":
        return DummyTokenizer(1000)
    if not SHARED.is_dir():
        pytest.skip("the shared folder is not beside this checkout")
    return real_tokenizer(name)


def stream(
    tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool = True, step: int = 1
) -> list[str]:
    """Every delta and, last, the flush."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip)
    deltas = [
        detokenizer.append(output[start : start + step]) for start in range(0, len(output), step)
    ]
    deltas.append(detokenizer.flush())
    assert detokenizer.text == "".join(deltas)
    return deltas


def without_tail(tokenizer: Tokenizer, ids: list[int], skip: bool) -> tuple[str, str]:
    """The text of `ids` up to a character that they begin and do not end, and what stands for
    the beginning: "", one U+FFFD, or two where its bytes can begin nothing together (a surrogate).
    """
    hidden = tokenizer.all_special_ids if skip else frozenset()
    raw = b"".join(tokenizer.token_bytes(id_) for id_ in ids if id_ not in hidden)
    if tokenizer.strips_leading_space:
        raw = raw.removeprefix(b" ")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(raw)
    return text, decoder.getstate()[0].decode("utf-8", "replace")


@pytest.mark.parametrize("name", [*REAL, "bytes", "dummy"])
@settings(max_examples=examples(120), deadline=None)
@given(prompt=IDS, output=IDS, skip=st.booleans(), step=st.integers(1, 4), bytes_only=st.booleans())
def test_stream_is_the_decoded_text(
    name: str, prompt: list[int], output: list[int], skip: bool, step: int, bytes_only: bool
) -> None:
    """decode(prompt + output) = text of the prompt + what is streamed.

    Where the prompt ends inside of a character and the output does not go on with it, what stands
    for it belongs to the prompt.
    """
    tokenizer = tokenizer_of(name)
    limit = min(tokenizer.vocab_size, 259 if bytes_only else tokenizer.vocab_size)
    prompt = [id_ % limit for id_ in prompt]
    output = [id_ % limit for id_ in output]
    streamed = "".join(stream(tokenizer, prompt, output, skip, step))
    before, tail = without_tail(tokenizer, prompt, skip)
    whole = tokenizer.decode(prompt + output, skip)
    assert whole in {before + streamed, before + tail + streamed}


def test_a_prompt_that_ends_in_half_a_surrogate() -> None:
    """Found by hypothesis: bytes that begin a character only until they are looked at."""
    tokenizer = byte_tokenizer()
    before, tail = without_tail(tokenizer, [0xED, 0xA1], skip=False)
    assert (before, tail) == ("", "\ufffd\ufffd")
    assert stream(tokenizer, [0xED, 0xA1], [65]) == ["A", ""]


def test_no_character_is_split() -> None:
    assert stream(byte_tokenizer(), [65], list("é🦙!".encode())) == [
        *["", "é"],
        *["", "", "", "🦙"],
        *["!", ""],
    ]


def test_the_prompt_is_not_echoed() -> None:
    llama = "🦙".encode()
    tokenizer = byte_tokenizer()
    assert stream(tokenizer, [65, *llama[:2]], [*llama[2:], 66]) == ["", "🦙", "B", ""]
    assert stream(tokenizer, [65, *llama[:2]], [66]) == ["B", ""]
    assert stream(tokenizer, [65, *llama[:3]], []) == [""]
    assert stream(tokenizer, [65, *llama[:2]], [llama[2]]) == ["", "�"]
    assert stream(tokenizer, [65, *llama[:2]], [llama[2], 66]) == ["", "�B", ""]


def test_invalid_bytes_are_replaced_as_python_does() -> None:
    raw = b"a\xf0\x9f\x80b\xc3\x28\xff\xfe\xe2\x82"
    deltas = stream(byte_tokenizer(), [65], list(raw))
    assert "".join(deltas) == raw.decode(errors="replace")
    assert deltas[-1] == "�"


def test_a_leading_space_goes_only_where_text_begins() -> None:
    tokenizer = tokenizer_of("sentencepiece")
    hello = tokenizer.encode("Hello", add_special_tokens=False)
    assert "".join(stream(tokenizer, [1], hello)) == "Hello"
    assert "".join(stream(tokenizer, [1, *hello], hello)) == " Hello"
    assert "".join(stream(tokenizer, [1], hello, skip=False)) == " Hello"


def test_special_tokens_are_hidden_or_shown() -> None:
    tokenizer = byte_tokenizer("<s>", "</s>")
    assert "".join(stream(tokenizer, [], [256, 65, 257])) == "A"
    assert "".join(stream(tokenizer, [], [256, 65, 257], skip=False)) == "<s>A</s>"


def test_unknown_ids_stand_for_nothing() -> None:
    assert "".join(stream(byte_tokenizer(), [], [65, 9999, 66])) == "AB"
