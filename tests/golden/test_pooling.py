"""Embeddings and scores through the whole engine: Transformers' numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertTokenizerFast, pipeline

from quire import LLM, PoolingParams
from quire.core.errors import CheckpointError, InvalidRequestError
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.golden.harness import is_planned
from tests.golden.tiny_encoders import (
    TEXTS,
    VOCAB,
    add_sentence_transformers,
    make_causal,
    make_encoder,
    pooled,
    wordpiece,
)

TOLERANCE = 1e-4


def embeddings(llm: LLM, prompts: Any, **options: Any) -> np.ndarray:
    return np.array(
        [out.outputs.embedding for out in llm.embed(prompts, use_tqdm=False, **options)]
    )


KINDS = ["bert", "distilbert", "modernbert", "roberta", "xlm-roberta", "llama", "qwen3"]


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["CLS", "MEAN", "LAST"])
def test_embeddings(kind: str, how: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, kind)
    with LLM(str(tmp_path), runner="pooling", pooler_config={"pooling_type": how}) as llm:
        assert is_planned(llm.facts)
        got = embeddings(llm, TEXTS)
    tokenizer = wordpiece()
    for text, vector in zip(TEXTS, got, strict=True):
        expected = pooled(model, tokenizer.encode(text), how, normalize=True)
        np.testing.assert_allclose(vector, expected.numpy(), atol=TOLERANCE)


@pytest.mark.matrix
@pytest.mark.parametrize("ops", ["cpu", "reference"])
@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert", "roberta", "qwen3"])
def test_classifiers(kind: str, labels: int, ops: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, kind, labels=labels)
    tokenizer = wordpiece()
    with LLM(str(tmp_path), ops=ops) as llm:
        if ops == "cpu":
            assert is_planned(llm.facts)
        got = [out.outputs.probs for out in llm.classify(TEXTS, use_tqdm=False)]
        raw = llm.encode(TEXTS[0], PoolingParams(use_activation=False), use_tqdm=False)
    for i, text in enumerate(TEXTS):
        with torch.inference_mode():
            logits = model(torch.tensor([tokenizer.encode(text)])).logits[0]
        expected = logits.sigmoid() if labels == 1 else logits.softmax(0)
        np.testing.assert_allclose(got[i], expected.numpy(), atol=TOLERANCE)
        if i == 0:
            np.testing.assert_allclose(raw[0].outputs.data, logits.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (1, None), (1, "regression"), (1, "multi_label_classification"),
        (3, None), (3, "regression"), (3, "multi_label_classification"),
        (3, "single_label_classification"),
    ],
)  # fmt: skip
def test_problem_types_are_those_of_transformers_pipeline(
    labels: int, problem: str | None, tmp_path: Path
) -> None:
    make_encoder(tmp_path, "bert", labels=labels, problem_type=problem)
    classify = pipeline("text-classification", str(tmp_path), top_k=None)
    with LLM(str(tmp_path)) as llm:
        got = [out.outputs.probs for out in llm.classify(TEXTS, use_tqdm=False)]
        scores = llm.score(TEXTS[0], TEXTS[1], use_tqdm=False) if labels == 1 else []
        [raw] = llm.encode([TEXTS[0]], PoolingParams(use_activation=False), use_tqdm=False)
    for text, found in zip(TEXTS, got, strict=True):
        by_label = {each["label"]: each["score"] for each in classify([text])[0]}
        expected = [by_label[f"LABEL_{i}"] for i in range(labels)]
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    if problem == "regression":
        np.testing.assert_allclose(raw.outputs.data, got[0], atol=1e-6)
    for out in scores:
        assert (0 < out.outputs.score < 1) == (problem != "regression")


@pytest.mark.parametrize("kind", ["bert", "distilbert", "xlm-roberta"])
def test_cross_encoders_tell_the_texts_of_a_pair_apart(kind: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, kind, labels=1, type_vocab_size=2 if kind == "bert" else 1)
    tokenizer = wordpiece()
    with LLM(str(tmp_path)) as llm:
        got = [out.outputs.score for out in llm.score(TEXTS[0], TEXTS, use_tqdm=False)]
    for text, score in zip(TEXTS, got, strict=True):
        pair = tokenizer(TEXTS[0], text, return_tensors="pt", return_token_type_ids=True)
        if kind != "bert":
            del pair["token_type_ids"]
        with torch.inference_mode():
            expected = model(**pair).logits[0].sigmoid()
        np.testing.assert_allclose(score, expected.item(), atol=TOLERANCE)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernberts_options(pooling: str, tmp_path: Path) -> None:
    """Biases everywhere, the pooling of its classifier, and a text of several windows."""
    biases = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
    options = {"classifier_pooling": pooling, **dict.fromkeys(biases, True)}
    model = make_encoder(tmp_path, "modernbert", labels=2, **options)
    ids = np.random.default_rng(1).integers(5, 100, 60).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].softmax(0)
    with LLM(str(tmp_path)) as llm:
        [answer] = llm.classify([ids], use_tqdm=False)
    np.testing.assert_allclose(answer.outputs.probs, expected.numpy(), atol=TOLERANCE)


def test_scores_of_embeddings_are_cosines(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    with LLM(str(tmp_path)) as llm:
        vectors = embeddings(llm, TEXTS)
        scores = [out.outputs.score for out in llm.score(TEXTS[1], TEXTS, use_tqdm=False)]
    np.testing.assert_allclose(scores, vectors @ vectors[1], atol=1e-6)
    assert scores[1] == pytest.approx(1.0)


def test_bits_do_not_depend_on_batch_chunks_or_cache(tmp_path: Path) -> None:
    make_encoder(tmp_path, "llama")
    ids = np.random.default_rng(0).integers(5, 100, (5, 90)).tolist()
    for how in ("LAST", "MEAN", "CLS"):
        flags: dict[str, Any] = {"runner": "pooling", "pooler_config": {"pooling_type": how}}
        with LLM(str(tmp_path), **flags) as llm:
            whole = embeddings(llm, ids)
            alone = np.concatenate([embeddings(llm, [each]) for each in ids])
        with LLM(str(tmp_path), max_num_seqs=4, max_num_batched_tokens=7, **flags) as llm:
            chunked = embeddings(llm, ids)
        assert (whole == alone).all(), how
        assert (whole == chunked).all(), how


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_an_encoders_bits_do_not_depend_on_the_batch(kind: str, tmp_path: Path) -> None:
    make_encoder(tmp_path, kind)
    lengths = np.random.default_rng(0).integers(1, 64, 40).tolist()
    ids = [np.random.default_rng(n).integers(5, 100, n).tolist() for n in lengths]
    with LLM(str(tmp_path)) as llm:
        together = embeddings(llm, ids)
        alone = np.concatenate([embeddings(llm, [each]) for each in ids])
        llm.call("check_integrity")
    with LLM(str(tmp_path), max_num_batched_tokens=64, max_num_seqs=3, enforce_eager=True) as llm:
        few = embeddings(llm, ids)
    assert (together == alone).all()
    assert (together == few).all()


def test_sentence_transformers_settings(tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "bert")
    add_sentence_transformers(
        tmp_path, "pooling_mode_mean_tokens", normalize=False,
        prompts={"query": "one two ", "document": ""}, default_prompt_name="document",
    )  # fmt: skip
    tokenizer = wordpiece()
    with LLM(str(tmp_path)) as llm:
        plain, asked = embeddings(llm, "a cat"), embeddings(llm, "a cat", prompt_name="query")
    for text, vector in (("a cat", plain[0]), ("one two a cat", asked[0])):
        expected = pooled(model, tokenizer.encode(text), "MEAN", normalize=False)
        np.testing.assert_allclose(vector, expected.numpy(), atol=TOLERANCE)


def test_dense_layers_behind_a_decoder_that_looks_both_ways(tmp_path: Path) -> None:
    """The form of EmbeddingGemma, and a layer with a bias and a tanh."""
    kinds = ["sliding_attention", "full_attention"]
    model = make_encoder(
        tmp_path, "gemma3_text", use_bidirectional_attention=True, sliding_window=9,
        layer_types=kinds, query_pre_attn_scalar=16,
    )  # fmt: skip
    shapes = [(48, 96, False), (96, 40, True)]
    dense = [torch.nn.Linear(a, b, bias=bias) for a, b, bias in shapes]
    add_sentence_transformers(tmp_path, "pooling_mode_mean_tokens", normalize=True, dense=dense)
    ids = np.random.default_rng(0).integers(5, 100, (3, 40)).tolist()
    with LLM(str(tmp_path)) as llm:
        got = embeddings(llm, ids)
        short = embeddings(llm, ids, pooling_params=PoolingParams(dimensions=40))
        alone = embeddings(llm, ids[1:2])
    for prompt, vector in zip(ids, got, strict=True):
        with torch.inference_mode():
            mean = pooled(model, prompt, "MEAN", normalize=False)
            expected = dense[1](dense[0](mean)).tanh()
        np.testing.assert_allclose(vector, expected / expected.norm(), atol=TOLERANCE)
    assert (got[1] == alone[0]).all()
    assert (got == short).all()
    (tmp_path / "3_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"3_Dense/model\.safetensors is missing"):
        LLM(str(tmp_path))


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        ({"is_original_qwen3_reranker": True}, 1),
        ({"method": "no_post_processing"}, 2),
    ],
)
def test_rerankers_that_answer_with_a_token(
    method: dict[str, Any], rows: int, tmp_path: Path
) -> None:
    """vLLM's fields for Qwen3-Reranker and its kin; embeddings and output projection are tied."""
    model = make_causal(tmp_path)
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["cat", "dog"],
    }
    with LLM(str(tmp_path), hf_overrides=overrides | method) as llm:
        assert is_planned(llm.facts)
        got = [out.outputs.probs for out in llm.classify(TEXTS, use_tqdm=False)]
    tokenizer = wordpiece()
    cat, dog = (VOCAB.index(word) for word in ("cat", "dog"))
    for text, found in zip(TEXTS, got, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([tokenizer.encode(text)])).logits[0, -1, [cat, dog]]
        expected = logits.softmax(0)[2 - rows :]
        np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE)
    with pytest.raises(CheckpointError, match="'bird' is none"):
        LLM(str(tmp_path), hf_overrides=overrides | {"classifier_from_token": ["bird"]})


def test_half_precision_is_near(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert", initializer_range=0.1)
    with LLM(str(tmp_path)) as llm:
        exact = embeddings(llm, TEXTS)
    for flags in ({"dtype": "bfloat16"}, {"quantization": "int8"}):
        with LLM(str(tmp_path), **flags) as llm:
            assert (embeddings(llm, TEXTS) * exact).sum(1).min() > 0.995


@pytest.mark.parametrize("kept", [5, 8, 9, 13, 30])
def test_texts_are_cut_as_transformers_cuts_them(kept: int, tmp_path: Path) -> None:
    tokenizer = wordpiece()
    tokenizer.save_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    for first in TEXTS:
        ids, second = ours.encode_bounded(first, max_tokens=kept)
        assert ids == tokenizer(first, truncation=True, max_length=kept).input_ids
        assert second == 0
        for other in TEXTS:
            ids, second = ours.encode_bounded(first, other, kept)
            expected = tokenizer(
                first, other, truncation=True, max_length=kept, return_token_type_ids=True
            )
            assert ids == expected.input_ids
            assert second == expected.token_type_ids.index(1)


def test_classes_are_told_of_a_checkpoint_that_classifies(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert", labels=3)
    with LLM(str(tmp_path)) as llm, pytest.raises(InvalidRequestError, match="3 classes"):
        llm.score("a", "b")
    with LLM(str(tmp_path), convert="embed") as llm:
        assert embeddings(llm, "a cat").shape == (1, 48)
        with pytest.raises(InvalidRequestError, match="generates no text"):
            llm.generate("a cat", use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="maximum context length is 64 tokens"):
            llm.embed("cat " * 90)


@pytest.mark.parametrize("lower", [True, False])
def test_a_vocabulary_without_tokenizer_json(lower: bool, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    ours = load_tokenizer(tmp_path)
    theirs = BertTokenizerFast.from_pretrained(tmp_path)
    for text in (*TEXTS, "The CAT sát, on [MASK] xyz?", "a 猫 dog's"):
        assert ours.encode(text) == theirs(text).input_ids, text
        pair = theirs(text, "a dog", return_token_type_ids=True)
        assert ours.encode_bounded(text, "a dog") == (pair.input_ids, pair.token_type_ids.index(1))
