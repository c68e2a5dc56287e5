"""Masks beside the model: filled for the right token, whatever became of the step before."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.core.errors import InvalidRequestError
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import (
    ReasoningMarks,
    StructuredOutputsParams,
    ThinkingMarks,
    WrittenStructure,
)
from quire.ops.interface import Ops
from quire.sampling import grammars as grammars_module
from quire.sampling.grammars import COMPILE_THREADS, Grammars, MaskFiller
from quire.sampling.sampler import Sampler, SamplingBatch
from quire.sampling.state import SamplingState
from quire.system.native_marks import make_file, read_notes
from quire.text.grammar import new_matcher
from quire.text.grammar_writer import GrammarWriter
from quire.text.tokenizers.dummy import DummyTokenizer

EOS = 300
VOCAB = 301
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
}


@pytest.fixture
def grammars() -> Grammars:
    return Grammars(lambda: DummyTokenizer(VOCAB), VOCAB)


def state(output: str = "", **params: Any) -> SamplingState:
    """Room for 100 more tokens behind a prompt of one."""
    known = [65, *output.encode()]
    tokens = np.zeros(len(known) + 100, dtype=np.int32)
    tokens[: len(known)] = known
    params.setdefault("structured_outputs", StructuredOutputsParams(json=SCHEMA))
    return SamplingState(
        SamplingParams(seed=0, max_tokens=100, **params), tokens, np.array([len(known)]), 1, (EOS,)
    )


def append(state: SamplingState, token: int) -> None:
    state._token_ids[int(state._num_tokens[0])] = token
    state._num_tokens += 1


def allowed(filler: MaskFiller, state: SamplingState, ahead: int = 0) -> set[int]:
    filler.begin([state])
    filler.end()
    edits = state.edits(VOCAB, ahead)
    logits = np.zeros(VOCAB, dtype=np.float32)
    edits.apply(logits)
    return set(np.flatnonzero(logits == 0).tolist())


def text_of(tokens: set[int]) -> set[str]:
    return {chr(token) for token in tokens if token < 256}


def test_a_mask_follows_the_output(grammars: Grammars) -> None:
    filler = MaskFiller(grammars)
    assert text_of(allowed(filler, state())) == {"{"}
    assert text_of(allowed(filler, state('{"a": 1'))) >= {"0", ",", " "}
    assert text_of(allowed(filler, state('{"a":1,"b":"'))) == {"x", "y"}
    assert allowed(filler, state('{"a":1,"b":"x"}')) == {EOS}


def test_tokens_that_are_taken_back(grammars: Grammars) -> None:
    """A step that failed has its tokens sampled again."""
    filler, ahead = MaskFiller(grammars), state('{"a":')
    expected = allowed(filler, ahead)
    for token in b"12":
        append(ahead, token)
        allowed(filler, ahead)
    ahead._num_tokens -= 2
    assert allowed(filler, ahead) == expected


def test_masks_follow_drafts_as_they_follow_output(grammars: Grammars) -> None:
    """Behind each draft there is the mask of the output with it, whatever was drafted before."""
    filler, text = MaskFiller(grammars), '{"a":12,"b":"x"}'
    guessed = state('{"a":')
    start = int(guessed._num_tokens[0])
    for drafts in (text[5:], "1x", text[5:12], "", text[5:]):
        guessed._token_ids[start : start + len(drafts)] = list(drafts.encode())
        guessed.num_drafts = len(drafts)
        valid = text[5:].startswith(drafts)
        for ahead in range(len(drafts) + 1 if valid else 2):
            expected = allowed(MaskFiller(grammars), state('{"a":' + drafts[:ahead]))
            assert allowed(filler, guessed, ahead) == expected
    done = state(text)
    start = int(done._num_tokens[0])
    done._token_ids[start : start + 2] = [EOS, 65]
    done.num_drafts = 2
    assert [allowed(filler, done, ahead) for ahead in range(3)] == [{EOS}] * 3


def test_masks_behind_a_wrong_draft_allow_something(grammars: Grammars) -> None:
    filler, guessed = MaskFiller(grammars), state('{"a":')
    start = int(guessed._num_tokens[0])
    guessed._token_ids[start : start + 2] = list(b"xy")
    guessed.num_drafts = 2
    allowed(filler, guessed)
    masks = guessed.matcher.masks
    assert len(masks) == 3
    assert (masks[1:] == masks[0]).all()


def test_an_end_that_is_ignored_goes_on_ending(grammars: Grammars) -> None:
    filler, done = MaskFiller(grammars), state('{"a":1,"b":"x"}', ignore_eos=True)
    for _ in range(3):
        assert allowed(filler, done) == {EOS}
        append(done, EOS)


def test_an_output_outside_the_structure_is_that_rows_error(grammars: Grammars) -> None:
    filler = MaskFiller(grammars)
    lost, sound = state("["), state("{")
    filler.begin([lost, sound])
    filler.end()
    with pytest.raises(InvalidRequestError, match="cannot be followed"):
        lost.edits(VOCAB)
    assert sound.edits(VOCAB) is not None


class Panic(BaseException):
    """As Rust's: no Exception."""


def test_a_panic_of_native_code_is_that_rows_error(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = MaskFiller(grammars)
    lost, sound = state("{"), state("{")
    allowed(filler, lost)

    def panic(*args: Any) -> None:
        raise Panic("index out of bounds")

    append(lost, ord('"'))
    monkeypatch.setattr(lost.matcher, "_follow", panic)
    filler.begin([lost, sound])
    filler.end()
    with pytest.raises(InvalidRequestError, match="index out of bounds"):
        lost.edits(VOCAB)
    assert sound.edits(VOCAB) is not None


def test_masks_asked_for_draft_by_draft_are_those_asked_for_at_once(grammars: Grammars) -> None:
    """A drafter's are used again to verify its drafts, and others are filled again."""
    drafts, other = np.frombuffer(b'"a":1', np.uint8), np.frombuffer(b'"a": 2', np.uint8)
    fresh = state("{"), state("{")
    filler = MaskFiller(grammars)
    for row in fresh:
        allowed(filler, row)
    one, whole = fresh[0].matcher, fresh[1].matcher
    assert one is not None
    assert whole is not None
    for ahead in range(1, len(drafts) + 1):
        one.fill(fresh[0].output, drafts[:ahead].astype(np.int32))
    for asked in (drafts, drafts[:2], other, np.frombuffer(b"x1", np.uint8), drafts):
        for matcher, row in ((one, fresh[0]), (whole, fresh[1])):
            matcher.fill(row.output, asked.astype(np.int32))
        again = state("{")
        allowed(filler, again)
        again.matcher.fill(again.output, asked.astype(np.int32))
        rows = 1 + len(asked)
        assert (one.masks[:rows] == again.matcher.masks[:rows]).all()
        assert (whole.masks[:rows] == again.matcher.masks[:rows]).all()


def test_a_grammar_that_cannot_be_served_is_that_requests_error(grammars: Grammars) -> None:
    wrong = StructuredOutputsParams(regex="(")
    with pytest.raises(InvalidRequestError, match="regex"):
        grammars.prepare(wrong, (EOS,)).result()
    filler, row, sound = MaskFiller(grammars), state(structured_outputs=wrong), state()
    filler.begin([row, sound])
    filler.end()
    with pytest.raises(InvalidRequestError, match="regex"):
        row.edits(VOCAB)
    assert sound.edits(VOCAB) is not None


def test_equal_grammars_are_compiled_once(grammars: Grammars) -> None:
    def prepare(schema: dict[str, Any]) -> Future[Any]:
        return grammars.prepare(StructuredOutputsParams(json=schema), (EOS,))

    assert prepare(SCHEMA) is prepare(dict(SCHEMA))
    assert prepare(SCHEMA) is not prepare({"type": "object"})


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.5}, {"top_k": 3}])
def test_any_logits_give_what_the_schema_asks_for(
    ops: Ops, grammars: Grammars, params: dict[str, Any]
) -> None:
    import torch

    rng, sampler = np.random.default_rng(0), Sampler(ops)
    filler = MaskFiller(grammars)
    wanted = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    for seed in range(3):
        row = state(structured_outputs=wanted, **params)
        row.params = row.params.replace(seed=seed)
        while True:
            filler.begin([row])
            logits = torch.from_numpy(rng.normal(0, 4, (1, VOCAB)).astype(np.float32))
            filler.end()
            result = sampler.sample(logits, SamplingBatch([row]))
            assert not result.errors
            token = int(result.token_ids[0])
            if token == EOS or row.num_output_tokens == 90:
                break
            append(row, token)
        text = DummyTokenizer(VOCAB).decode(row.output.tolist())
        if token == EOS:
            found = json.loads(text)
            assert set(found) >= {"a", "b"}
            assert found["b"] in ("x", "y")
        else:
            assert text.startswith('{"a":')


def test_a_structure_behind_the_reasoning_is_masked_from_there_on(grammars: Grammars) -> None:
    marks = ReasoningMarks(("<think>",), ("</think>",))
    begun = ReasoningMarks(marks.begins, marks.ends, begun=True)
    filler = MaskFiller(grammars)

    def after(output: str, reasoning: ReasoningMarks) -> set[str]:
        wanted = StructuredOutputsParams(json=SCHEMA, reasoning=reasoning)
        return text_of(allowed(filler, state(output, structured_outputs=wanted)))

    assert after("", marks) == {"{", "<"}
    assert after("<think>", marks) >= {"a", "{", "<", "\n"}
    assert after("", begun) >= {"a", "{", "<", "\n"}
    assert after("So</think>", begun) == {"{", "\n", "\r", "\t", " "}
    assert after('So</think>\n{"a":1,"b":"', begun) == {"x", "y"}


def test_reasoning_is_read_once(grammars: Grammars) -> None:
    """A follower made anew would read the whole output in each step."""
    marks = ThinkingMarks(("<think>",), ("</think>",))
    row, filler = state("", thinking_token_budget=5, thinking_marks=marks), MaskFiller(grammars)
    followers = []
    for _ in range(2):
        filler.begin([row])
        filler.end()
        followers.append(row.thinking)
    assert followers[0] is followers[1] is not None


def test_forced_text_costs_no_more_the_longer_it_is(grammars: Grammars) -> None:
    """Not computed ahead, it is one state after the other."""
    filler = MaskFiller(grammars)
    forced = state("a" * 90, structured_outputs=StructuredOutputsParams(regex="a{100000}{100000}"))
    assert text_of(allowed(filler, forced)) == {"a"}


def test_the_grammar_used_longest_ago_is_forgotten_first(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars_module, "GRAMMARS_KEPT", 2)

    def prepare(word: str) -> Future[Any]:
        return grammars.prepare(StructuredOutputsParams(choice=[word]), (EOS,))

    first, second = prepare("a"), prepare("b")
    assert prepare("a") is first
    prepare("c")  # in the place of b
    assert prepare("a") is first
    assert prepare("b") is not second


def test_each_row_has_a_mask_of_its_own(grammars: Grammars) -> None:
    filler, word = MaskFiller(grammars), StructuredOutputsParams(choice=["xy"])
    states = [state(structured_outputs=word), state("x", structured_outputs=word), state()]
    filler.begin([state(structured_outputs=None), *states])
    filler.end()
    filler.end()  # nothing is left to wait for
    masks = []
    for row in states:
        edits = row.edits(VOCAB)
        logits = np.zeros(VOCAB, dtype=np.float32)
        edits.apply(logits)
        masks.append(text_of(set(np.flatnonzero(logits == 0).tolist())))
    assert masks == [{"x"}, {"y"}, {"{"}]


def test_the_tokenizer_is_prepared_once(grammars: Grammars) -> None:
    loading = grammars.prepare_tokenizer()
    assert loading.result() is grammars.tokenizer()
    assert grammars.prepare_tokenizer() is None


def test_nothing_is_compiled_after_a_shutdown(grammars: Grammars) -> None:
    grammars.shutdown()
    late = state()
    MaskFiller(grammars).begin([late])
    assert "after shutdown" in late.fault


def test_without_grammars_it_is_that_requests_error() -> None:
    filler, row = MaskFiller(None), state()
    filler.begin([row])
    filler.end()
    with pytest.raises(InvalidRequestError, match="no structured output"):
        row.edits(VOCAB)


@pytest.mark.parametrize("vocab_size", [319, 320, 321])
def test_the_end_is_the_last_token_of_any_vocabulary(vocab_size: int) -> None:
    """A complete text may end only, and the last bit of the mask counts."""
    end = vocab_size - 1
    kept = Grammars(lambda: DummyTokenizer(vocab_size), vocab_size)
    row = SamplingState(
        SamplingParams(structured_outputs=StructuredOutputsParams(choice=["x"]), max_tokens=9),
        np.array([65, ord("x"), end, 0], dtype=np.int32),
        np.array([2]),
        1,
        (end,),
    )
    filler = MaskFiller(kept)
    for _ in range(2):
        filler.begin([row])
        filler.end()
        edits = row.edits(vocab_size)
        logits = np.zeros(vocab_size, dtype=np.float32)
        edits.apply(logits)
        assert np.flatnonzero(logits == 0).tolist() == [end]
        row._num_tokens += 1


def test_ranks_note_what_they_are_at_in_places_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    make_file(path)
    first = Grammars(lambda: DummyTokenizer(VOCAB), VOCAB, str(path))
    second = Grammars(lambda: DummyTokenizer(VOCAB), VOCAB, str(path), rank=1)
    first.mark.enter(b"1" * 16)
    second.mark.enter(b"2" * 16)
    assert {note.key for note in read_notes(path)} == {b"1" * 16, b"2" * 16}


def test_what_native_code_is_at_is_noted_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "marks"
    make_file(path)
    marked = Grammars(lambda: DummyTokenizer(VOCAB), VOCAB, str(path))
    assert marked._marks.qsize() == COMPILE_THREADS  # nobody waits for another's
    filler, row = MaskFiller(marked), state("{")
    allowed(filler, row)
    noted = []
    monkeypatch.setattr(row.matcher, "_follow", lambda *tokens: noted.extend(read_notes(path)))
    filler.begin([row])
    filler.end()
    assert [note.key for note in noted] == [row.matcher._key]
    assert read_notes(path) == set()


def test_what_is_being_compiled_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "marks"
    make_file(path)
    noted = []

    def compile_noted(*args: Any) -> Any:
        noted.extend(read_notes(path))
        return new_matcher(*args)

    monkeypatch.setattr("quire.text.grammar.new_matcher", compile_noted)
    marked = Grammars(lambda: DummyTokenizer(VOCAB), VOCAB, str(path))
    compiled = marked.prepare(StructuredOutputsParams(json=SCHEMA), (EOS,)).result()
    assert [note.key for note in noted] == [compiled.key]
    assert read_notes(path) == set()


def test_what_a_worker_has_written_is_only_compiled(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = GrammarWriter(StructuredOutputsParams(json=SCHEMA)).write({})
    expected = allowed(MaskFiller(grammars), state('{"a":'))
    monkeypatch.delattr("quire.text.grammar.GrammarWriter")
    monkeypatch.delattr("quire.text.grammar.demanding_strings")
    other = Grammars(lambda: DummyTokenizer(VOCAB), VOCAB)
    row = state('{"a":', written_structure=written)
    assert allowed(MaskFiller(other), row) == expected


@pytest.mark.parametrize("plain", [True, False])
def test_a_grammar_that_is_too_much_is_compiled_without_exponents(
    grammars: Grammars, plain: bool
) -> None:
    wanted = StructuredOutputsParams(json=SCHEMA)
    good = GrammarWriter(wanted).write({}).grammars
    bad = '{"name": "structure", "lark_grammar": "start: nothing"}'
    compiled = grammars.prepare(wanted, (EOS,), WrittenStructure(bad, good if plain else None))
    assert (compiled.exception() is None) == plain
