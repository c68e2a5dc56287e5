"""Draft heads as data: their shapes, and the names of their tensors; torch-free.

    form     rows of the target       joined                            names
    nextn    the last norm's          eh_proj of embedding and row      layer N of the target's own
    mtp      the same                 fc of embedding and row           mtp.* in the target's own
    eagle    the same                 fc of embedding and row           a checkpoint of its own
    eagle3   of three layers, by fc   q, k, v of embedding and row      a checkpoint of its own

Further drafts read the head's own result in place of the target's rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from quire.core.errors import ConfigError, UnsupportedModelError
from quire.core.layers import DraftHeadConfig, HeadForm
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import Architecture, WeightNames
from quire.models.architectures import llama

MOST_MTP_LAYERS = 8
"""Layers behind the last one that a checkpoint may have; the first of them drafts."""
_TOP: dict[HeadForm, dict[str, str]] = {
    "nextn": {
        "fuse": "eh_proj",
        "fuse.embed_norm": "enorm",
        "fuse.row_norm": "hnorm",
        "norm": "shared_head.norm",
    },
    "mtp": {
        "fuse": "fc",
        "fuse.embed_norm": "pre_fc_norm_embedding",
        "fuse.row_norm": "pre_fc_norm_hidden",
        "norm": "norm",
    },
    "eagle": {"fuse": "fc"},
    "eagle3": {"fuse": "fc", "norm": "norm"},
}
_COPIES = r"(?:embed_tokens|shared_head\.head|layers\.[1-9]\d*)\..*"
"""Copies of the target's tensors in an MTP head, and layers behind its first one."""
_EAGLE_IGNORED = r"(?:model\.)?embed_tokens\.weight|lm_head\.weight|d2t|t2d|.*\.inv_freq"
_EAGLE_CLASSES = {
    "eagle": ("EagleLlamaForCausalLM", "LlamaForCausalLMEagle", "LlamaForCausalLM"),
    "eagle3": (
        "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel",
        "LlamaForCausalLM",
    ),
}  # fmt: skip


def names(draft: DraftHeadConfig, target: WeightNames) -> WeightNames:
    """Return the names of a head's tensors; those within its layers are the architecture's."""
    top = {stem: draft.prefix + name for stem, name in _TOP[draft.form].items()}
    top |= {"embed": f"{draft.prefix}embed_tokens", "lm_head": "lm_head"}
    if draft.form == "eagle3":
        first = draft.layer_prefix.format(0)
        top |= {
            "fuse.embed_norm": f"{first}input_layernorm",
            "fuse.row_norm": f"{first}hidden_norm",
        }
    base = target.base_prefix if draft.form == "nextn" else ""
    ignored = _EAGLE_IGNORED
    if not draft.form.startswith("eagle"):  # the target's tensors are in the same checkpoint
        own = rf"(?:{re.escape(base)})?{re.escape(draft.prefix.removeprefix(base))}"
        ignored = rf"{target.ignored}|(?!{own}).*|{own}{_COPIES}"
    return replace(
        target, top=top, layer_prefix=draft.layer_prefix, base_prefix=base, ignored=ignored
    )


def without_mtp(model: ModelConfig, found: Architecture) -> WeightNames:
    """Return the architecture's names, so that a draft head in the same checkpoint is left out."""
    plain = found.names
    if found.mtp is None:
        return plain
    pattern = r"mtp\..*"
    if found.mtp == "nextn":
        first = model.num_hidden_layers
        numbers = "|".join(map(str, range(first, first + MOST_MTP_LAYERS)))
        before, after = plain.layer_prefix.removeprefix(plain.base_prefix).split("{}")
        pattern = (
            rf"(?:{re.escape(plain.base_prefix)})?{re.escape(before)}(?:{numbers})"
            rf"{re.escape(after)}.*"
        )
    return replace(plain, ignored=f"{plain.ignored}|{pattern}")


def mtp_head(target: ModelConfig, found: Architecture) -> ModelConfig:
    """Return the head that a checkpoint of `target` may have behind its layers.

    Raises:
        ConfigError: the architecture has none.
    """
    if found.mtp is None:
        raise _wrong(f"Quire knows no MTP layer of the architecture {target.architecture!r}.")
    last = target.num_hidden_layers - 1
    if found.mtp == "nextn":
        layers = prefix = found.names.layer_prefix.format(target.num_hidden_layers)
    else:
        layers, prefix = "mtp.layers.{}.", "mtp."
    sparse = target.moe is not None and target.moe.in_layer(last)
    return replace(
        _headless(target),
        num_hidden_layers=1,
        moe=replace(target.moe, layers=None) if target.moe is not None and sparse else None,
        recurrent=None,
        sublayers=None,
        sliding_window=target.common_window,
        sliding_layers=None,
        local_rope=None,
        rotated_layers=None,
        missing_norms=(),
        draft_head=DraftHeadConfig(found.mtp, layers, prefix, target.hidden_size),
    )


def eagle_head(
    method: Literal["eagle", "eagle3"],
    config: Mapping[str, Any],
    target: ModelConfig,
    tensors: Collection[str] | None,
) -> ModelConfig:
    """Return the head in a checkpoint of its own.

    Args:
        tensors: names of its tensors; None if it has no files.

    Raises:
        ConfigError: it does not fit the target.
        CheckpointError, UnsupportedModelError: from reading config.json.
    """
    classes = config.get("architectures") or ["LlamaForCausalLM"]
    if not set(classes) & set(_EAGLE_CLASSES[method]):
        raise UnsupportedModelError(
            f"The draft head is a {', '.join(map(str, classes))}; with the method {method!r} Quire "
            f"has {', '.join(_EAGLE_CLASSES[method])}.",
            param="architectures",
        )
    config = {**config, **hf.table(config, "transformer_layer_config")}
    head = llama.parse({**config, "model_type": "llama"})
    stored = set(tensors) if tensors is not None else {"lm_head.weight", "midlayer.mlp.down_proj"}
    prefix = "model." if "model.fc.weight" in stored else ""
    first = "midlayer." if any("midlayer." in name for name in stored) else "layers.{}."
    draft = DraftHeadConfig(
        method, f"{prefix}{first}", prefix, target.hidden_size,
        fuse_bias=f"{prefix}fc.bias" in stored,
    )  # fmt: skip
    missing = ["layers.0.attn_norm"]
    if method == "eagle3":
        draft = _eagle3(config, draft, target, stored)
    else:
        missing.append("norm")
    _check_fit(head, draft, target)
    return replace(
        _headless(head),
        lm_head=draft.vocab_size > 0,
        max_position_embeddings=max(head.max_position_embeddings, target.max_position_embeddings),
        sliding_window=target.common_window,
        missing_norms=tuple(missing),
        draft_head=draft,
    )


def _eagle3(
    config: Mapping[str, Any], draft: DraftHeadConfig, target: ModelConfig, stored: set[str]
) -> DraftHeadConfig:
    own = "lm_head.weight" in stored
    tokens = hf.optional(config, "draft_vocab_size", None) or target.vocab_size
    if not own and tokens != target.vocab_size:
        raise _wrong(f"the head has {tokens} tokens (draft_vocab_size), but no lm_head of its own.")
    hf.only(config, "norm_before_fc", False, "EAGLE-3 as it was published")
    return replace(
        draft,
        row_size=hf.optional(config, "target_hidden_size", None)
        or hf.integer(config, "hidden_size"),
        taps=_taps(config, target.num_hidden_layers),
        vocab_size=tokens if own else 0,
        own_embedding=f"{draft.prefix}embed_tokens.weight" in stored,
        normed_residual=hf.boolean(config, "norm_before_residual", default=False),
    )


def _taps(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs the head reads.

    vLLM's field has their numbers. SGLang's, in `eagle_config`, has those of the layers before
    them, whose results are these inputs.
    """
    field = "eagle_aux_hidden_state_layer_ids"
    nested = hf.table(config, "eagle_config")
    hf.only(nested, "use_aux_hidden_state", True, "EAGLE-3 reads inner layers")
    wanted, shift = config.get(field), 0
    if not wanted:
        wanted, shift = nested.get(field), 1
    if not wanted:
        wanted, shift = [2, layers // 2, layers - 3], 0
    known = isinstance(wanted, list) and all(type(layer) is int for layer in wanted)
    taps = tuple(layer + shift for layer in wanted) if known else ()
    if not taps or len(set(taps)) < len(taps) or not all(0 <= layer < layers for layer in taps):
        raise _wrong(
            f"{field} is {wanted!r}; it must be a list of different layers of the model, which has "
            f"{layers}."
        )
    return taps


def _check_fit(head: ModelConfig, draft: DraftHeadConfig, target: ModelConfig) -> None:
    """Raise ConfigError if a head was trained for a model of another shape."""
    if draft.row_size != target.hidden_size or (
        head.hidden_size != target.hidden_size and not (draft.own_embedding and draft.vocab_size)
    ):
        raise _wrong(
            f"the draft head is for a hidden size of {draft.row_size}, with layers of "
            f"{head.hidden_size}; the model's is {target.hidden_size}."
        )
    if head.vocab_size != target.vocab_size:
        raise _wrong(f"the draft head has {head.vocab_size} tokens, the model {target.vocab_size}.")
    if draft.vocab_size > target.vocab_size:
        raise _wrong(
            f"draft_vocab_size is {draft.vocab_size}, more than the model's {target.vocab_size}."
        )


def _headless(model: ModelConfig) -> ModelConfig:
    return replace(
        model, lm_head=False, tie_word_embeddings=False, num_labels=0, token_types=0,
        learned_positions_offset=None,
    )  # fmt: skip


def _wrong(why: str) -> ConfigError:
    return ConfigError(f"--speculative-config: {why}", param="speculative_config")
