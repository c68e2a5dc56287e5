"""The configuration of a draft head: from its checkpoint and the target's configuration."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoint import source as checkpoint
from quire.checkpoint.source import ModelSource
from quire.checkpoint.weights import Weights
from quire.core.config import MAX_CONVERTED_HEAD_DIM, EngineConfig, SpeculativeConfig, TierConfig
from quire.core.errors import CheckpointError
from quire.core.model_config import ModelConfig
from quire.models.heads import eagle_head, mtp_head
from quire.models.layout import parameters
from quire.models.registry import architecture, weight_names
from quire.models.weights.checkpoint import open_weights
from quire.models.weights.sources import match
from quire.quant.registry import method, quantization_config
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import wrong_flag
from quire.resolve.model import LOAD_FORMATS
from quire.resolve.quantization import resolve_quantization


def resolve_head(
    args: EngineArgs, config: EngineConfig, wanted: SpeculativeConfig, notes: list[str]
) -> EngineConfig:
    """Return the configuration of a head that drafts for `config`.

    Args:
        args: the target's.

    Raises:
        ConfigError: the head does not fit the target, or the checkpoint has none.
        ModelNotFoundError, CheckpointError: from finding and reading it.
    """
    source = checkpoint.resolve(
        wanted.model or args.model,
        load_format=args.load_format,
        revision=wanted.revision if wanted.model else args.revision,
        download_dir=args.download_dir,
    )
    weights = open_weights(source) if source.kind == "hf" else None
    model = _head_model(wanted, source, weights, config.model)
    quantization = wanted.quantization
    if wanted.method == "mtp" and quantization is None:
        quantization = args.quantization
    own = replace(args, quantization=quantization)
    if weights is not None:
        _check_tensors(weights, source, model)
    quantized = resolve_quantization(own, source, model, [])
    converts = config.kv_cache_dtype != config.dtype and model.widest_head > MAX_CONVERTED_HEAD_DIM
    notes.append(f"draft head: {model.num_hidden_layers} layer(s) of {source.name}.")
    return replace(
        config,
        model_path=str(source.path) if source.path else source.name,
        model=model,
        load_format=LOAD_FORMATS[source.kind],
        quantization=quantized.name,
        quantization_config=quantized.config,
        weight_forms=quantized.forms,
        kv_cache_dtype=config.dtype if converts else config.kv_cache_dtype,
        lora=None,
        cpu_offload_bytes=0,
        pack_cache_bytes=0,
        tiers=TierConfig(),
    )


def _head_model(
    wanted: SpeculativeConfig, source: ModelSource, weights: Weights | None, target: ModelConfig
) -> ModelConfig:
    if source.kind == "gguf":
        why = f"{source.name} is a GGUF file; draft heads are read from Hugging Face checkpoints."
        raise wrong_flag("speculative_config", why)
    if wanted.method in ("eagle", "eagle3"):
        tensors = None if weights is None else weights.tensors
        return eagle_head(wanted.method, source.config, target, tensors)
    return mtp_head(target, architecture(target.architecture))


def _check_tensors(weights: Weights, source: ModelSource, model: ModelConfig) -> None:
    """Raise ConfigError if a tensor of the head is missing or has another shape."""
    said = quantization_config(source.config)
    how = method(said) if said is not None else None
    try:
        match(weights, parameters(model), weight_names(model), how)
    except CheckpointError as error:
        why = f"{source.name} has no draft head that fits: {error}"
        fix = "Use the checkpoint of a head that was trained for this model."
        raise wrong_flag("speculative_config", why, fix) from None
