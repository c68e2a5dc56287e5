"""Whether and how a model pools: from its files, or from --runner and related flags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from quire.checkpoint.sentence_transformers import SentenceTransformer, read_sentence_transformer
from quire.checkpoint.source import ModelSource
from quire.core.config import STEP_TOKENS
from quire.core.errors import CheckpointError, ConfigError, UnsupportedModelError
from quire.core.model_config import (
    DenseConfig,
    ModelConfig,
    PoolingConfig,
    PoolingTask,
    PoolingType,
)
from quire.core.registry import did_you_mean
from quire.models import hf
from quire.models.registry import is_encoder
from quire.models.registry import task as task_of
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import read_object, value_error, wrong_flag
from quire.system.records import dataclass

Activation = Literal["none", "sigmoid", "softmax"]

_ACTIVATIONS: dict[str, Activation] = {
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Identity": "none",
}
"""torch's modules in a cross-encoder's config.json."""

_wrong = partial(wrong_flag, "pooler_config")
_CLASSIFIER_POOLING: dict[str, PoolingType] = {"cls": "CLS", "mean": "MEAN"}

_SOFTMAX_OF_TWO = "from_2_way_softmax"
_PROBLEMS: dict[str, Activation] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
"""`problem_type` of config.json, with the meaning of Transformers' pipeline and vLLM."""


@dataclass(frozen=True, slots=True)
class PooledModel:
    """The arguments and shape of a pooling model; `pooling` is None for a generating one."""

    args: EngineArgs
    model: ModelConfig
    pooling: PoolingConfig | None = None


def resolve_pooling(
    args: EngineArgs, source: ModelSource, model: ModelConfig, notes: list[str]
) -> PooledModel:
    """Decide whether the model generates or pools, and drop the head that it does not need.

    Raises:
        ConfigError: the flags contradict the model, or each other.
        UnsupportedModelError: Quire does not support the model's pooling.
    """
    files = _files(source)
    made_for = task_of(source.config)
    if not _pools(args, model, made_for, files):
        _refuse_pooling_flags(args)
        if not (model.causal and _is_causal(source.config)):
            name, value = "is_causal", "not true"
            if not model.causal:
                name, value = "use_bidirectional_attention", "true"
            raise UnsupportedModelError(
                f"config.json: {name} is {value}; a bidirectional model generates no text.",
                fix=f"Add --runner pooling, or remove {name}.",
                param=name,
            )
        return PooledModel(args, model)
    _refuse_generation_flags(args)
    if model.causal:
        hf.only(source.config, "use_bidirectional_attention", False, "decoders that look back")
    task = _task(args, made_for)
    tokens, labels = _labels(source, model) if task == "classify" else ((), model.num_labels)
    causal = model.causal and _is_causal(source.config)
    if model.causal and not causal:
        _check_both_ways(model)
    model = replace(
        model, lm_head=False, tie_word_embeddings=False, num_labels=labels, label_tokens=tokens,
        causal=causal,
    )  # fmt: skip
    pooling = _config(args, source, model, task, files, notes)
    how = "normalized" if pooling.normalize else "not normalized"
    what = f"embeddings, {how}" if task == "embed" else f"{labels} scores, {pooling.activation}"
    notes.append(f"pooling {pooling.pooling_type}: {what}.")
    return PooledModel(_arguments(args, model, pooling, files, notes), model, pooling)


def _check_both_ways(model: ModelConfig) -> None:
    """Raise `UnsupportedModelError` if a decoder's layers cannot look both ways."""
    if model.sliding_window is not None:
        raise UnsupportedModelError(
            "Bidirectional attention within a sliding window is not supported."
        )
    if model.recurrent is not None:
        raise UnsupportedModelError(
            "config.json: is_causal is not true, but the model has recurrent layers, which only "
            "look back.",
            fix="Remove is_causal.",
            param="is_causal",
        )


def _is_causal(config: Mapping[str, Any]) -> bool:
    """Return whether a decoder attends only backwards; null counts as false, as in Transformers."""
    return bool(config.get("is_causal", True))


def _files(source: ModelSource) -> SentenceTransformer | None:
    path = source.path
    return read_sentence_transformer(path) if isinstance(path, Path) and path.is_dir() else None


def _pools(
    args: EngineArgs, model: ModelConfig, made_for: str, files: SentenceTransformer | None
) -> bool:
    if args.runner == "generate" and is_encoder(model):
        why = f"{args.model} is an encoder, which generates no text."
        raise value_error(args, "runner", why, "Leave --runner unset.")
    if args.runner != "auto":
        return args.runner == "pooling"
    encodes = is_encoder(model) or files is not None
    return encodes or made_for != "generate" or args.convert in ("embed", "classify")


def _task(args: EngineArgs, made_for: str) -> PoolingTask:
    if args.convert in ("embed", "classify"):
        return "embed" if args.convert == "embed" else "classify"
    if args.convert == "none" and made_for == "generate":
        why = "the model generates text and does not pool."
        raise value_error(args, "convert", why, "Use --convert embed.")
    return "classify" if made_for == "classify" else "embed"


def _labels(source: ModelSource, model: ModelConfig) -> tuple[tuple[int, ...], int]:
    """Return the tokens whose logits are a classifier's, none if it has a head; and its labels.

    The fields are vLLM's: `classifier_from_token`, and `method` or `is_original_qwen3_reranker`.
    """
    config = source.config
    named = config.get("classifier_from_token")
    if not named or source.tokenizer_path is None:
        return (), _num_labels(config)
    if not isinstance(named, list) or not all(isinstance(text, str) for text in named):
        raise hf.wrong("classifier_from_token", named, "a list of tokens")
    if is_encoder(model):
        raise hf.unsupported("classifier_from_token", named, "an encoder has no logits")
    method = config.get("method")
    if hf.flag(config, "is_original_qwen3_reranker", default=False):
        method = _SOFTMAX_OF_TWO
    if method not in (None, "no_post_processing", _SOFTMAX_OF_TWO):
        raise hf.unsupported("method", method, f"known: no_post_processing, {_SOFTMAX_OF_TWO}")
    if method == _SOFTMAX_OF_TWO and len(named) != 2:
        raise hf.wrong("classifier_from_token", named, "two tokens: of no and of yes")
    from quire.text.tokenizers.tokenizer import load_tokenizer  # for these models alone

    tokenizer = load_tokenizer(source.tokenizer_path)
    ids = [tokenizer.token_to_id(text) for text in named]
    if unknown := [text for text, id_ in zip(named, ids, strict=True) if id_ is None]:
        raise hf.wrong("classifier_from_token", named, f"tokens; {unknown[0]!r} is none")
    found = tuple(id_ for id_ in ids if id_ is not None)
    return found, 1 if method == _SOFTMAX_OF_TWO else len(found)


def _num_labels(config: Mapping[str, Any]) -> int:
    labels = config.get("id2label")
    if isinstance(labels, dict) and labels:
        return len(labels)
    return hf.integer(config, "num_labels", default=2)


def _config(
    args: EngineArgs,
    source: ModelSource,
    model: ModelConfig,
    task: PoolingTask,
    files: SentenceTransformer | None,
    notes: list[str],
) -> PoolingConfig:
    said, config = _pooler_config(args), source.config
    embedder = files if task == "embed" else None  # a classifier has no Pooling module
    usual: PoolingType = "LAST" if model.causal or model.padded else "CLS"
    if not is_encoder(model) and not model.causal:
        usual = "MEAN" if task == "embed" else "LAST"
    if task == "classify":
        usual = _CLASSIFIER_POOLING.get(_classifier_pooling(config), usual)
    activation: Activation = "none"
    if task == "classify":
        activation = _activation(config, model.num_labels, notes)
        if said.get("use_activation") is False:
            activation = "none"
    return PoolingConfig(
        task=task,
        pooling_type=said.get("pooling_type") or (embedder.pooling_type if embedder else usual),
        normalize=said.get("normalize", embedder.normalize if embedder else True),
        dense=_dense(embedder, model, source) if embedder and args.load_format != "dummy" else (),
        activation=activation,
        matryoshka=_matryoshka(config),
        prompts=files.prompts if files else {},
        default_prompt=files.default_prompt if files else None,
    )


def _dense(
    files: SentenceTransformer, model: ModelConfig, source: ModelSource
) -> tuple[DenseConfig, ...]:
    """Return the layers behind pooling, after checking that they fit the model and each other."""
    columns = model.hidden_size
    for layer in files.dense:
        if not (source.path and (source.path / layer.file).is_file()):
            raise CheckpointError(
                f"{layer.file} is missing.",
                fix="Download the model again, or convert pickled weights.",
            )
        if layer.columns != columns:
            raise CheckpointError(
                f"{layer.file}: in_features is {layer.columns}, but the vectors have {columns} "
                "numbers."
            )
        columns = layer.rows
    return files.dense


def _classifier_pooling(config: Mapping[str, Any]) -> str:
    """Return ModernBERT's field; empty if absent."""
    said = config.get("classifier_pooling") or ""
    if said and said not in _CLASSIFIER_POOLING:
        raise hf.unsupported("classifier_pooling", said, f"known: {', '.join(_CLASSIFIER_POOLING)}")
    return str(said)


def _pooler_config(args: EngineArgs) -> dict[str, Any]:
    """Return --pooler-config, checked field by field."""
    said = read_object("pooler_config", args.pooler_config, '{"pooling_type": "MEAN"}')
    for name, value in said.items():
        if name == "pooling_type":
            said[name] = str(value).upper()
            if said[name] not in get_args(PoolingType):
                raise _wrong(did_you_mean(said[name], get_args(PoolingType)))
        elif name not in ("normalize", "use_activation"):
            known = ("pooling_type", "normalize", "use_activation")
            raise _wrong(f"it has no field {name!r}; {did_you_mean(name, known)}")
        elif not isinstance(value, bool):
            raise _wrong(f"{name} is {value!r}; it must be true or false.")
    return said


def _activation(config: Mapping[str, Any], num_labels: int, notes: list[str]) -> Activation:
    """Return the activation of a classifier's outputs.

    A cross-encoder's own activation counts first, as in sentence-transformers, then
    `problem_type`. Without either, one label gets the sigmoid, several the softmax.
    """
    problem = _of_problem(config, num_labels)
    own = _of_cross_encoder(config)
    if own is not None and problem not in (None, own):
        notes.append(
            f"config.json names the activation {own!r}, but problem_type "
            f"{config['problem_type']!r} would mean {problem!r}; {own!r} is used."
        )
    return own or problem or ("sigmoid" if num_labels == 1 else "softmax")


def _of_problem(config: Mapping[str, Any], num_labels: int) -> Activation | None:
    problem = config.get("problem_type")
    if problem is None:
        return None
    if not isinstance(problem, str) or problem not in _PROBLEMS:
        raise hf.unsupported("problem_type", problem, f"known: {', '.join(_PROBLEMS)}")
    if problem == "single_label_classification" and num_labels == 1:
        raise CheckpointError(
            f"config.json: problem_type is {problem!r}, but there is one label, whose softmax is "
            "always 1.",
            fix="""Use --hf-overrides '{"problem_type": "regression"}', or null for a sigmoid.""",
            param="problem_type",
        )
    return _PROBLEMS[problem]


def _of_cross_encoder(config: Mapping[str, Any]) -> Activation | None:
    """Return the activation that sentence-transformers wrote into config.json."""
    newer = config.get("sentence_transformers")
    said = newer.get("activation_fn") if isinstance(newer, dict) else None
    said = said or config.get("sbert_ce_default_activation_function")
    if said is None:
        return None
    name = str(said).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise hf.unsupported("activation_fn", said, f"known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _matryoshka(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    sizes = config.get("matryoshka_dimensions")
    if sizes:
        if not isinstance(sizes, list) or not all(type(n) is int and n > 0 for n in sizes):
            raise hf.unsupported("matryoshka_dimensions", sizes, "it must be a list of sizes")
        return tuple(sizes)
    return () if config.get("is_matryoshka") is True else None


def _arguments(
    args: EngineArgs,
    model: ModelConfig,
    pooling: PoolingConfig,
    files: SentenceTransformer | None,
    notes: list[str],
) -> EngineArgs:
    """Return the arguments with the values that pooling implies."""
    changes: dict[str, Any] = {"max_itl_stretch": math.inf}  # no request decodes
    longest = model.max_position_embeddings
    if files and files.max_seq_length and args.max_model_len is None:
        longest = min(longest, files.max_seq_length)
        changes["max_model_len"] = longest
    longest = args.max_model_len or longest
    if pooling.pooling_type != "LAST" or not model.causal:
        if args.swap_space or args.kv_offloading_size:
            raise ConfigError(
                "swap_space and kv_offloading_size have no use: a model with "
                f"{pooling.pooling_type} pooling always computes whole prompts.",
                fix="Leave them unset.",
                param="swap_space" if args.swap_space else "kv_offloading_size",
            )
        changes["enable_prefix_caching"] = False
    if model.padded and args.max_model_len not in (None, model.max_position_embeddings):
        why = f"this model pads texts to {model.max_position_embeddings} tokens."
        raise value_error(args, "max_model_len", why, "Leave it unset.")
    if not model.causal:
        tokens = args.max_num_batched_tokens
        if tokens is not None and tokens < longest:
            why = f"it must hold max_model_len, {longest}: a prompt is computed in one step."
            raise value_error(args, "max_num_batched_tokens", why)
        changes["max_num_batched_tokens"] = tokens or max(STEP_TOKENS, longest, args.max_num_seqs)
        notes.append("Every prompt runs in one step, and its KV blocks are not cached.")
    return replace(args, **changes)


def _refuse_generation_flags(args: EngineArgs) -> None:
    for name, given, why in (
        ("enable_prompt_embeds", args.enable_prompt_embeds, "takes texts and ids."),
        ("async_scheduling", args.async_scheduling, "does not decode."),
        ("num_scheduler_steps", args.num_scheduler_steps > 1, "does not decode."),
        ("speculative_config", args.speculative_config is not None, "does not decode."),
    ):
        if given:
            raise value_error(args, name, f"a pooling model {why}", "Leave it unset.")


def _refuse_pooling_flags(args: EngineArgs) -> None:
    for name, unset in (("convert", ("auto", "none")), ("pooler_config", (None,))):
        if getattr(args, name) not in unset:
            raise value_error(args, name, "the model generates text.", "Add --runner pooling.")
