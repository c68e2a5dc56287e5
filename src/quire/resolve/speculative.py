"""Reads `--speculative-config` into a `SpeculativeConfig`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

import msgspec

from quire.core.config import EngineConfig, SpeculativeConfig, SpeculativeMethod
from quire.core.model_config import ModelConfig
from quire.core.registry import did_you_mean
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import read_object, wrong_flag

FLAG = "--speculative-config"
_PARAM = "speculative_config"
_error = partial(wrong_flag, _PARAM)
MAX_DRAFTS = 64
"""Most drafts of a sequence in one pass, and the longest n-gram."""

_DEFAULT_DRAFTS = 4
_FIELDS = [
    field.name
    for field in dataclasses.fields(SpeculativeConfig)
    if field.name != "synthetic_acceptance"
]
_EXACT = "a draft is accepted if it is the token that the model samples"
_BY_TIMES = "the number of drafts follows predicted step times"
_WITHOUT_EFFECT = {
    "rejection_sample_method": _EXACT,
    "draft_sample_method": _EXACT,
    "acceptance_method": _EXACT,
    "spec_decoding_acceptance_method": _EXACT,
    "draft_tensor_parallel_size": "each rank has the whole draft model",
    "use_heterogeneous_vocab": "tokens of another vocabulary are matched by their texts anyway",
    "enable_adaptive_verification": _BY_TIMES,
    "code_revision": "Quire never runs code from a checkpoint",
    "use_local_argmax_reduction": "each rank has the whole draft model",
    "disable_padded_drafter_batch": "no batch is padded",
    "enforce_eager": "drafting from text runs no model",
    "disable_by_batch_size": _BY_TIMES,
    "speculative_disable_by_batch_size": _BY_TIMES,
    "disable_logprobs": "log-probabilities are the same with drafts",
}
"""vLLM's other fields that need nothing: name → why."""
_SYNTHETIC = ("acceptance_rate", "acceptance_rates", "acceptance_length")
"""vLLM's spellings of `synthetic_acceptance`, each behind `synthetic_`."""
_METHODS = get_args(SpeculativeMethod)
_OLD_MTP = (
    "deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "ernie_mtp", "mimo_mtp", "exaone_moe_mtp",
    "longcat_flash_mtp", "pangu_ultra_moe_mtp",
)  # fmt: skip
"""vLLM's older names of the method `mtp`."""


def parse_speculative_config(
    given: str | None, max_num_batched_tokens: int, notes: list[str]
) -> SpeculativeConfig | None:
    """Return the configuration in JSON text; None if there is none.

    Args:
        notes: fields without effect are added.

    Raises:
        ConfigError: it is no object, a field is unknown or out of range, or Quire lacks its method.
    """
    if given is None:
        return None
    fields = read_object(_PARAM, given, '{"method": "suffix", "num_speculative_tokens": 4}')
    fields = {name: value for name, value in fields.items() if value is not None}
    if fields.get("rejection_sample_method") == "synthetic":
        del fields["rejection_sample_method"]
        if not any(f"synthetic_{name}" in fields for name in _SYNTHETIC):
            raise _error(
                "rejection_sample_method is 'synthetic' without a rate.",
                'Add "synthetic_acceptance_rate": 0.8, for example.',
            )
    for name in [name for name in fields if name in _WITHOUT_EFFECT]:
        del fields[name]
        notes.append(f"{FLAG}: {name} has no effect: {_WITHOUT_EFFECT[name]}.")
    rates = {name: fields.pop(name) for name in [*fields] if name.startswith("synthetic_")}
    config = _converted(_completed(fields))
    _check(config)
    if rates:
        config = dataclasses.replace(config, synthetic_acceptance=_synthetic(rates, config))
    if config.num_speculative_tokens >= max_num_batched_tokens:
        raise _error(
            f"num_speculative_tokens is {config.num_speculative_tokens}, but a step has at most "
            f"{max_num_batched_tokens} tokens (max_num_batched_tokens)."
        )
    if config.synthetic_acceptance:
        notes.append(f"{FLAG}: synthetic acceptance is for measurements; the answers are wrong.")
    return config


def draft_fields(args: EngineArgs, config: SpeculativeConfig) -> dict[str, Any]:
    """Return the fields of `EngineArgs` for the draft model of an engine with `args`."""
    shared = ("dtype", "ops", "num_threads", "block_size", "max_num_seqs", "seed", "download_dir")
    return {
        **{name: getattr(args, name) for name in (*shared, "load_format", "enforce_eager")},
        "model": config.model,
        "revision": config.revision,
        "quantization": config.quantization,
        "max_model_len": config.max_model_len,
    }


def check_draft(draft: EngineConfig, model: ModelConfig, tokenizer_path: str | None) -> None:
    """Check that a draft model fits the target `model`.

    Raises:
        ConfigError: it does not.
    """
    if draft.pooling is not None:
        raise _error(f"the draft model {draft.model_path} generates no text.")
    if draft.model.recurrent is not None:
        raise _error(f"the draft model {draft.model_path} has recurrent layers.")
    texts = draft.tokenizer_path is not None and tokenizer_path is not None
    if draft.model.vocab_size != model.vocab_size and not texts:
        raise _error(
            f"the draft model has {draft.model.vocab_size} tokens, the model {model.vocab_size}, "
            "and one of them has no tokenizer to match their texts by.",
            "Use a draft model with the same vocabulary.",
        )


def _completed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with vLLM's defaults, which depend on each other."""
    found = dict(fields)
    for name in found:
        if name not in _FIELDS:
            raise _error(f"it has a field {name!r}; {did_you_mean(name, _FIELDS)}")
    model = found.get("model")
    if model in _METHODS:  # vLLM's older spelling
        found.setdefault("method", found.pop("model"))
    elif "method" not in found and isinstance(model, str):
        found["method"] = _method_of(model)
    if found.get("method") in _OLD_MTP:
        found["method"] = "mtp"
    method = found.get("method")
    if method not in _METHODS:
        raise _error(
            f"Quire has no method {method!r}." if method else "it has no method.",
            f"Use one of: {', '.join(_METHODS)}.",
        )
    if method in ("ngram", "suffix") and found.get("model") is not None:
        raise _error(f"the method {method!r} has no model.", "Leave `model` out.")
    if method in ("draft_model", "eagle", "eagle3") and model is None:
        raise _error(f"the method {method!r} needs a `model`.", "Add one, or use 'suffix'.")
    lengths = [name for name in ("prompt_lookup_min", "prompt_lookup_max") if name in found]
    if len(lengths) == 1:
        found["prompt_lookup_min"] = found["prompt_lookup_max"] = found[lengths[0]]
    depth = found.get("suffix_decoding_max_tree_depth", 24)
    suffix = found["method"] == "suffix" and isinstance(depth, int)
    found.setdefault("num_speculative_tokens", depth if suffix else _DEFAULT_DRAFTS)
    return found


def _method_of(model: str) -> SpeculativeMethod:
    """Return the method for a model that is given without one, by vLLM's rules."""
    name = model.lower()
    if "eagle-" in name:
        return "eagle"
    return "eagle3" if "eagle3" in name else "draft_model"


def _converted(fields: Mapping[str, Any]) -> SpeculativeConfig:
    try:
        return msgspec.convert(fields, SpeculativeConfig)
    except msgspec.ValidationError as error:
        raise _error(f"{error}.") from None


def _check(config: SpeculativeConfig) -> None:
    ranges: dict[str, tuple[float, float]] = {
        "num_speculative_tokens": (1, MAX_DRAFTS),
        "prompt_lookup_min": (1, MAX_DRAFTS),
        "prompt_lookup_max": (config.prompt_lookup_min, MAX_DRAFTS),
        "suffix_decoding_max_tree_depth": (1, 1024),
        "suffix_decoding_max_cached_requests": (0, 10**6),
        "suffix_decoding_max_spec_factor": (0, 1e6),
        "suffix_decoding_min_token_prob": (0, 1),
    }
    if config.max_model_len is not None:
        ranges["max_model_len"] = (2, 2**31 - 1)
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise _error(f"{name} is {value}; it must be in [{low:g}, {high:g}].")
    last = 0
    for row in config.num_speculative_tokens_per_batch_size:
        begin, end, drafts = row
        if not last < begin <= end or not 0 <= drafts <= config.num_speculative_tokens:
            raise _error(
                f"num_speculative_tokens_per_batch_size has {list(row)}; it needs ascending "
                "[first batch size, last one, drafts], with at most num_speculative_tokens drafts."
            )
        last = end


def _synthetic(given: Mapping[str, Any], config: SpeculativeConfig) -> tuple[float, ...]:
    """Return the acceptance of each position, given that those before it were accepted.

    Args:
        given: one of vLLM's spellings. A rate is that of each draft. Rates are those of runs: the
            i-th is the probability that the first i drafts are all accepted. A length is the mean
            number of tokens per pass; the runs are then as equal as possible.
    """
    count = config.num_speculative_tokens
    name, *others = given
    if others or name.removeprefix("synthetic_") not in _SYNTHETIC:
        known = ", ".join(f"synthetic_{each}" for each in _SYNTHETIC)
        raise _error(f"it has {' and '.join(given)}; give one of {known}.")
    value = given[name]
    several, number = name.endswith("rates"), isinstance(value, int | float)
    values = value if isinstance(value, list) else [value]
    high = count + 1 if name.endswith("length") else 1
    low = 1 if name.endswith("length") else 0
    fits = all(type(each) in (int, float) and low <= each <= high for each in values)
    if not fits or several is number or (several and len(values) != count):
        wanted = f"a list of {count} numbers" if several else "a number"
        raise _error(f"{name} is {value!r}; it must be {wanted} in [{low}, {high}].")
    if several and values != sorted(values, reverse=True):
        raise _error(f"{name} is {value!r}; no rate may be above the one before it.")
    if name.endswith("rate"):
        return (float(value),) * count
    if not several:
        values = [min(max(value - 1 - position, 0.0), 1.0) for position in range(count)]
    before = [1.0, *values[:-1]]
    return tuple(now / run if run else 0.0 for now, run in zip(values, before, strict=True))
