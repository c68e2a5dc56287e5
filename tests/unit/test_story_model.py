"""The shipped story models and the grammar they were trained on."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jinja2 import Environment
from safetensors import safe_open
from tokenizers import Tokenizer

from tools.story_model.chat import make_sample
from tools.story_model.data import CHAT_TEMPLATE, SPECIALS, pack
from tools.story_model.grammar import PLOTS, PRONOUNS, Mix, is_held_out, sounds_female, write_story
from tools.story_model.template import Writer

ASSETS = Path(__file__).parents[2] / "src" / "quire" / "assets"
MODELS = ("story", "story-draft")
MEGABYTE = 1_000_000


def config_of(name: str, file: str = "config.json") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ASSETS / name / file).read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(ASSETS / "story" / "tokenizer.json"))


def test_same_seed_writes_the_same_stories() -> None:
    def written(seed: int) -> list[object]:
        rng = Random(seed)
        return [make_sample(rng) for _ in range(40)]

    assert written(3) == written(3)
    assert written(3) != written(4)


@pytest.mark.parametrize("plot", [*PLOTS, *dict.fromkeys(PRONOUNS)], ids=lambda plot: plot.key)
def test_every_plot_reads_as_text(plot: Any) -> None:
    rng = Random(plot.key)
    for _ in range(25):
        story = write_story(rng, plot=plot)
        answers = [story.writer.write(part) for pair in plot.ask for part in pair]
        for text in (story.text, story.writer.write(plot.summary), *answers):
            assert not set("[]{}<>|") & set(text)
            assert "a(n)" not in text
            assert "  " not in text
        shortest, longest = (12, 80) if plot.tiny else (60, 330)
        assert shortest <= len(story.text.split()) <= longest
        assert story.hero.name in story.text
        assert story.helper.name in story.text


def test_there_are_many_plots() -> None:
    assert len({plot.key for plot in PLOTS}) == len(PLOTS) >= 15


def test_names_can_tell_the_gender() -> None:
    rng = Random(0)
    for _ in range(50):
        story = write_story(rng, mix=Mix(tiny=0.5, gendered=True))
        assert sounds_female(story.hero.name) == story.hero.female
        assert sounds_female(story.helper.name) == story.helper.female


def test_held_out_combinations_are_kept_apart() -> None:
    rng = Random(0)
    for held_out in (True, False):
        for _ in range(20):
            story = write_story(rng, held_out=held_out)
            assert is_held_out(story.plot, story.hero, story.helper, story.thing) == held_out


def test_template_picks_branches_articles_and_capitals() -> None:
    rules = {"greet": ("[hi|hi]",)}
    writer = Writer(Random(0), {"h": "owl"}, rules, detail=0.0)
    assert writer.write("{H}, <greet> , [?never ]a(n) {h} and a(n) unicorn") == (
        "Owl, hi, an owl and a unicorn"
    )
    with pytest.raises(ValueError, match=r"unbalanced|missing"):
        writer.write("[open")


@pytest.mark.parametrize(("name", "limit"), [("story", 12), ("story-draft", 2)])
def test_folders_are_within_their_size(name: str, limit: int) -> None:
    size = sum(file.stat().st_size for file in (ASSETS / name).iterdir())
    assert size <= limit * MEGABYTE


def test_both_models_share_the_vocabulary() -> None:
    texts = [(ASSETS / name / "tokenizer.json").read_bytes() for name in MODELS]
    assert texts[0] == texts[1]
    assert config_of("story")["vocab_size"] == config_of("story-draft")["vocab_size"]


@pytest.mark.parametrize("name", MODELS)
def test_config_agrees_with_tensors(name: str, tokenizer: Tokenizer) -> None:
    config = config_of(name)
    dim, kv = config["hidden_size"], config["num_key_value_heads"] * config["head_dim"]
    assert config["num_attention_heads"] * config["head_dim"] == dim
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    with safe_open(str(ASSETS / name / "model.safetensors"), framework="np") as file:
        keys = set(file.keys())
        shape = {key: file.get_slice(key).get_shape() for key in keys}
    assert "lm_head.weight" not in keys
    assert config["tie_word_embeddings"]
    assert shape["model.embed_tokens.weight"] == [config["vocab_size"], dim]
    assert len(keys) == 2 + 9 * config["num_hidden_layers"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        assert shape[f"{prefix}.self_attn.k_proj.weight"] == [kv, dim]
        assert shape[f"{prefix}.mlp.down_proj.weight"] == [dim, config["intermediate_size"]]
    # Int4 groups of 64 divide every linear layer.
    assert all(side % 64 == 0 for dims in shape.values() for side in dims)


@pytest.mark.parametrize("name", MODELS)
def test_generation_stops_at_the_end_of_a_turn(name: str, tokenizer: Tokenizer) -> None:
    settings = config_of(name, "generation_config.json")
    ends = [tokenizer.token_to_id("<|eos|>"), tokenizer.token_to_id("<|end|>")]
    assert settings["eos_token_id"] == ends
    assert settings["bos_token_id"] == tokenizer.token_to_id("<|bos|>")


@pytest.mark.parametrize("name", MODELS)
def test_chat_template_renders(name: str, tokenizer: Tokenizer) -> None:
    settings = config_of(name, "tokenizer_config.json")
    assert settings["chat_template"] == CHAT_TEMPLATE
    template = Environment(autoescape=False).from_string(CHAT_TEMPLATE)
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Tell me a story. "},
    ]
    text = template.render(messages=messages, bos_token="<|bos|>", add_generation_prompt=True)
    assert text == ("<|bos|><|system|>Be kind.<|end|><|user|>Tell me a story.<|end|><|assistant|>")
    tokens = tokenizer.encode(text, add_special_tokens=False).tokens
    assert [t for t in tokens if t.startswith("<|")] == [
        "<|bos|>", "<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>",
    ]  # fmt: skip
    called = {"function": {"name": "find", "arguments": {"name": "fox"}}}
    told = [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "content": "red"},
    ]
    text = template.render(messages=told, bos_token="", add_generation_prompt=False)
    assert text == "<|assistant|>find {'name': 'fox'}<|end|><|user|>red<|end|>"


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time",
        "  two  spaces\n\n\ttab ",
        "naïve café — 猫と犬 🦊\u0000",
        "x = [1, 2]; # ok",
    ],
)
def test_any_text_round_trips(text: str, tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode(text)
    assert encoded.tokens[0] == "<|bos|>"
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == text


def test_rows_hold_whole_documents(tokenizer: Tokenizer) -> None:
    rows = pack(tokenizer, 1, 4, 640, held_out=False)
    bos, pad = tokenizer.token_to_id("<|bos|>"), tokenizer.token_to_id("<|pad|>")
    assert (rows.ids[:, 0] == bos).all()
    assert not rows.learn[rows.ids == bos].any()
    assert not rows.learn[rows.ids == pad].any()
    assert rows.learn.mean() > 0.5
    assert set(SPECIALS) <= set(tokenizer.get_vocab())
