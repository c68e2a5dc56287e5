"""Prompts and options become messages, or errors that name the field and the limit."""

from dataclasses import replace
from typing import Any

import pytest

from quire.core.errors import CheckpointError, ContextLengthError, InvalidRequestError
from quire.core.images import ImageSpan
from quire.core.options import RequestInputs, RequestOptions
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import ReasoningMarks, StructuredOutputsParams
from quire.frontend.input.input_processor import InputProcessor
from quire.frontend.input.seeds import derive_seed
from quire.frontend.input.served_model import eos_token_ids, sampling_defaults
from tests.packed_tokens import unpack_tokens
from tests.unit.engine.echo import EOS
from tests.unit.engine.fakes import ByteTokenizer, check_structure, input_processor, ready, resolved
from tests.unit.frontend.images.test_prepare import VISION


def process(prompt: Any, params: SamplingParams | None = None, **kwargs: Any) -> Any:
    processor = kwargs.pop("processor", None) or input_processor()
    params = params or SamplingParams()
    return processor.process("r", prompt, params, arrival_time=1.5, **kwargs)


@pytest.mark.parametrize("prompt", ["ab", {"prompt": "ab"}])
def test_text(prompt: Any) -> None:
    request = process(prompt, inputs=RequestInputs(RequestOptions(3, "s")))
    [child] = request.children
    assert (request.prompt, request.prompt_token_ids) == ("ab", [97, 98])
    assert (child.request_id, unpack_tokens(child.prompt_token_ids)) == ("r", [97, 98])
    assert (child.arrival_time, child.inputs.options) == (1.5, RequestOptions(3, "s"))
    assert child.inputs.eos_token_ids == (EOS,)


@pytest.mark.parametrize("prompt", [[97, 98], {"prompt_token_ids": [97, 98]}])
def test_token_ids(prompt: Any) -> None:
    request = process(prompt)
    assert (request.prompt, request.prompt_token_ids) == (None, [97, 98])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "empty"),
        ([], "empty"),
        ({"prompt": ""}, "empty"),
        ({"prompt_token_ids": []}, "empty"),
        ({}, "given as one of"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "given as one of"),
        ({"promt": "a"}, "did you mean prompt"),
        ({"prompt": [1]}, "prompt must not be list"),
        ({"prompt_token_ids": "a"}, "prompt_token_ids must not be str"),
        (7, "not int"),
        (["a"], "whole numbers"),
        ([True], "whole numbers"),
        ([1.0], "whole numbers"),
        ([1, 258], r"token id 258.*ends at 257"),
        ([-1], "token id -1"),
        ([2**70], "vocabulary ends"),
        ("a\ud800", "lone surrogate at character 1"),
    ],
)
def test_bad_prompts(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        process(prompt)


def test_a_prompt_longer_than_the_context_is_refused_with_both_counts() -> None:
    assert process("a" * 255, SamplingParams(max_tokens=None)).children
    with pytest.raises(InvalidRequestError, match=r"is 256 tokens, .* at least 256,") as caught:
        process("a" * 256, SamplingParams(max_tokens=None))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(("wanted", "held"), [(55, 55), (56, 56), (57, 56), (10**6, 56)])
def test_max_tokens_are_held_to_the_room_that_there_is(wanted: int, held: int) -> None:
    [child] = process("a" * 200, SamplingParams(max_tokens=wanted)).children
    assert child.sampling_params.max_tokens == held


def test_a_text_without_characters_may_have_a_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text, special=True: [1] * special)
    assert process("").prompt_token_ids == [1]


def test_min_tokens_beyond_the_context() -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens is 57"):
        process("a" * 200, SamplingParams(max_tokens=None, min_tokens=57))


def test_unset_max_tokens_is_the_rest_of_the_context() -> None:
    [child] = process("a" * 200, SamplingParams(max_tokens=None)).children
    assert child.sampling_params.max_tokens == 56


def test_a_request_larger_than_the_whole_cache_is_refused() -> None:
    small = input_processor(num_blocks=4)
    [child] = process("abcd", SamplingParams(max_tokens=None), processor=small).children
    assert child.sampling_params.max_tokens == 28
    [child] = process("abcd", SamplingParams(max_tokens=29), processor=small).children
    assert child.sampling_params.max_tokens == 28
    with pytest.raises(ContextLengthError, match="context length is 32 tokens"):
        process("a" * 32, SamplingParams(max_tokens=1), processor=small)


@pytest.mark.parametrize(
    "field",
    [{"stop_token_ids": [258]}, {"allowed_token_ids": [-1]}, {"logit_bias": {300: 1.0}}],
)
def test_token_ids_of_options_are_checked(field: dict[str, Any]) -> None:
    [name] = field
    with pytest.raises(InvalidRequestError, match=name) as caught:
        process("a", SamplingParams(**field))
    assert caught.value.param == name


def test_bad_words_are_tokenized_with_and_without_a_space() -> None:
    [child] = process("a", SamplingParams(bad_words=["no"])).children
    assert child.sampling_params.bad_words_token_ids == [[*b"no"], [*b" no"]]
    with pytest.raises(InvalidRequestError, match="Use bad_words"):
        process("a", SamplingParams(bad_words_token_ids=[[1]]))


def test_the_first_completion_brings_the_written_structure() -> None:
    """The core keeps what it compiles of it, for the others."""
    wanted = StructuredOutputsParams(regex="a+")
    params = SamplingParams(n=2, structured_outputs=wanted)
    first, second = process("a", params, written=check_structure(wanted)).children
    written = first.sampling_params.written_structure
    assert "a+" in written.grammars
    assert second.sampling_params.written_structure is None
    with pytest.raises(InvalidRequestError, match="Use structured_outputs"):
        process("a", SamplingParams(written_structure=written))


def test_long_lists_of_allowed_tokens_go_to_the_core_as_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.frontend.input.params.MAX_UNPACKED", 1)
    params = SamplingParams(n=2, allowed_token_ids=[1, 9])
    for child in process("a", params).children:
        sent = child.sampling_params
        assert sent.allowed_token_ids is None
        assert sent.allowed_tokens[:2] == bytes([1 << 1, 1 << 1])
    with pytest.raises(InvalidRequestError, match="Use allowed_token_ids"):
        process("a", SamplingParams(allowed_tokens=b""))
    with pytest.raises(InvalidRequestError, match="300 token ids; the model's vocabulary has 258"):
        process("a", SamplingParams(allowed_token_ids=[1] * 300))


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor = input_processor()
    monkeypatch.setattr(processor.tokenizer, "encode", None)
    limit = processor.max_model_len
    with pytest.raises(InvalidRequestError, match=f"is {limit} tokens, .* at least {limit},"):
        process("a" * limit, processor=processor)
    monkeypatch.setattr("quire.frontend.input.input_processor.check_ids", None)
    with pytest.raises(InvalidRequestError, match=f"has {10**6},"):
        process([1] * 10**6, processor=processor)


def test_parameters_are_checked_once_for_all_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0

    def counted(params: SamplingParams) -> None:
        nonlocal checks
        checks += 1

    params = SamplingParams(n=128)
    monkeypatch.setattr("quire.core.sampling_params._check", counted)
    process("a", params)
    assert checks <= 2


def test_n_completions_have_seeds_of_their_own_that_repeat() -> None:
    params = SamplingParams(n=3, seed=7, prompt_logprobs=1)
    before = params.replace()
    first, again = process("a", params), process("a", params)
    assert [c.request_id for c in first.children] == ["r_0", "r_1", "r_2"]
    assert first.children == again.children
    seeds = [c.sampling_params.seed for c in first.children]
    assert seeds == [7, derive_seed(7, 1), derive_seed(7, 2)]
    assert len(set(seeds)) == 3
    assert [c.sampling_params.n for c in first.children] == [1, 1, 1]
    assert [c.sampling_params.prompt_logprobs for c in first.children] == [1, None, None]
    assert params == before


def test_seeds_are_drawn_from_the_engine_s() -> None:
    one, two = input_processor(), input_processor()
    drawn = [process("a", processor=one).children[0].sampling_params.seed for _ in range(3)]
    assert drawn == [process("a", processor=two).children[0].sampling_params.seed for _ in drawn]
    assert len(set(drawn)) == 3
    [greedy] = process("a", SamplingParams(temperature=0)).children
    assert greedy.sampling_params.seed is None


def test_end_of_sequence_tokens_come_from_all_three_places() -> None:
    processor = input_processor(eos_token_id=[3, 5])
    [child] = process("a", processor=processor).children
    assert child.inputs.eos_token_ids == (3, 5, EOS)


def test_an_end_that_no_file_states_counts_only_alone() -> None:
    """An absent eos_token_id of Llama's config means 2, which is "#" in Llama 3's vocabulary."""
    model = resolved(eos_token_id=[3, 5])
    config = replace(model.config, model=replace(model.config.model, eos_token_ids=(2,)))
    tokenizer = ByteTokenizer()
    for stated in ({}, {"eos_token_id": 2}, {"text_config": {"eos_token_id": 2}}):
        source = replace(model.source, config=stated)
        found = eos_token_ids(replace(model, config=config, source=source), tokenizer)
        assert found == ((2, 3, 5, EOS) if stated else (3, 5, EOS))
    source = replace(model.source, config={}, generation_config={})
    tokenizer.eos_token_id = None
    assert eos_token_ids(replace(model, config=config, source=source), tokenizer) == (2,)


def test_sampling_defaults_come_from_the_generation_config() -> None:
    model = resolved(temperature=0.6, top_k=20, max_new_tokens=9, do_sample=True, top_p=None)
    assert sampling_defaults(model) == {"temperature": 0.6, "top_k": 20}
    assert sampling_defaults(resolved(top_p=0)) == {}


def test_settings_of_the_generation_config_without_effect_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = resolved(suppress_tokens=[7], num_beams=1, min_length=0, no_repeat_ngram_size=3)
    assert sampling_defaults(model) == {}
    assert "no_repeat_ngram_size=3, suppress_tokens=[7], which" in caplog.text


def test_end_tokens_that_the_model_lacks_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    [child] = process("a", processor=input_processor(eos_token_id=[5, -1, 258])).children
    assert child.inputs.eos_token_ids == (5, EOS)
    assert "generation_config.json is 258, which ends no text: the vocabulary ends at 257" in (
        caplog.text
    )
    with pytest.raises(CheckpointError, match=r"generation_config.json is '5'; it must be"):
        input_processor(eos_token_id="5")


class Padding(ByteTokenizer):
    """Has a token that the model does not embed, for the character "é"."""

    all_special_ids = frozenset((256, EOS, 258))

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = 259

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [258 if letter == "é" else ord(letter) for letter in text]


def test_a_tokenizer_of_another_model_is_refused() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.vocab_size = 999
    with pytest.raises(CheckpointError, match="999 tokens, but the model embeds only 258"):
        InputProcessor(resolved(), tokenizer, ready())


def test_special_tokens_that_the_model_lacks_are_refused_in_prompts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processor = InputProcessor(resolved(), Padding(), ready())
    assert "embeds 258 tokens and the tokenizer has 259" in caplog.text
    for prompt in ("aé", [97, 258]):
        with pytest.raises(InvalidRequestError, match="token id 258"):
            process(prompt, processor=processor)
    with pytest.raises(InvalidRequestError, match="token id 258"):
        processor.tokens_of("aé", 1)
    processor.model = replace(processor.model, vision=replace(VISION, image_token=259))
    image = ImageSpan(start=1, rows=1, digest=b"", grid=None, size=(1, 1), pixels=b"")

    def request(tokens: list[int], *images: ImageSpan) -> None:
        inputs = RequestInputs(images=images)
        processor.request("r", None, tokens, SamplingParams(), arrival_time=0.0, inputs=inputs)

    request([97, 259], image)
    for tokens, images in (([259], ()), ([258, 259], (image,))):
        with pytest.raises(InvalidRequestError, match=rf"token (id )?{tokens[0]}"):
            request(tokens, *images)
    [child] = process("a", SamplingParams(bad_words=["é", "b"]), processor=processor).children
    assert [98] in child.sampling_params.bad_words_token_ids
    assert all(258 not in ids for ids in child.sampling_params.bad_words_token_ids)


@pytest.mark.parametrize(
    ("prompt", "left"),
    [
        ("hi", ReasoningMarks(("<think>",), ("</think>",))),
        ("hi<think>\n", ReasoningMarks(("<think>",), ("</think>",), begun=True)),
        ("hi<think>\n\n</think>\n\n", None),
    ],
)
def test_a_prompt_begins_the_reasoning_or_has_closed_it(
    prompt: str, left: ReasoningMarks | None
) -> None:
    marks = ReasoningMarks(("<think>",), ("</think>",))
    wanted = StructuredOutputsParams(regex="[ab]+", reasoning=marks)
    [child] = process(prompt, SamplingParams(structured_outputs=wanted)).children
    assert child.sampling_params.structured_outputs.reasoning == left


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"allowed_token_ids": [97, 97], "bad_words": ["a"]}, "allowed_token_ids and bad_words"),
        ({"allowed_token_ids": [EOS], "min_tokens": 1}, "allowed_token_ids and min_tokens"),
        (
            {"allowed_token_ids": [98, EOS], "min_tokens": 1, "stop_token_ids": [98]},
            "allowed_token_ids and min_tokens",
        ),
        (
            {"allowed_token_ids": [97, EOS], "min_tokens": 1, "bad_words": ["a"]},
            "allowed_token_ids and bad_words and min_tokens",
        ),
    ],
)
def test_fields_that_leave_no_token_to_begin_with(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{names} rule out every token") as caught:
        process("a", SamplingParams(**fields))
    assert caught.value.param == names.partition(" ")[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [97, 98], "bad_words": ["a"]},
        {"allowed_token_ids": [97], "bad_words": ["aa"]},
        {"allowed_token_ids": [EOS]},
        {"allowed_token_ids": [97, EOS], "min_tokens": 1},
        {"bad_words": ["a", "b"], "min_tokens": 1},
    ],
)
def test_fields_that_leave_a_token(fields: dict[str, Any]) -> None:
    assert process("a", SamplingParams(**fields)).children


@pytest.mark.parametrize(
    ("length", "options", "kept"),
    [
        (200, {"max_tokens": 256}, 200),  # it fits: nothing is cut, the answer is shorter
        (255, {"max_tokens": 1}, 255),
        (256, {"max_tokens": 1}, 255),
        (999, {"max_tokens": 5}, 251),
        (999, {"max_tokens": 256}, 192),
        (999, {"max_tokens": None}, 192),
        (250, {"max_tokens": 256, "min_tokens": 10}, 192),
        (999, {"max_tokens": 256, "min_tokens": 100}, 156),
    ],
)
def test_minus_one_cuts_what_does_not_fit(length: int, options: dict[str, Any], kept: int) -> None:
    processor = input_processor()
    assert processor.max_total_tokens == 256
    params = SamplingParams(truncate_prompt_tokens=-1, **options)
    request = process([97] * (length - 1) + [98], params, processor=processor)
    assert len(request.prompt_token_ids) == kept
    assert request.prompt_token_ids[-1] == 98
