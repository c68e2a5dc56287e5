"""Resolve the arguments into the engine's configuration. Every choice is made here, once."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.checkpoint import source as checkpoint
from quire.checkpoint.source import ModelSource
from quire.core.config import (
    HEAD_METHODS,
    ITL_STRETCH,
    DeviceType,
    EngineConfig,
    HashAlgo,
    SchedulerConfig,
)
from quire.core.extras import require
from quire.core.kv_sharing import TransferConfig
from quire.core.model_config import ModelConfig
from quire.models.cost import first_guess
from quire.models.memory import parameter_count
from quire.resolve.arguments import EngineArgs
from quire.resolve.capture import capture_sizes
from quire.resolve.context import asked_context, with_fitting_context
from quire.resolve.device import (
    memory_budget,
    offloaded_bytes,
    prompt_ops,
    resolve_device,
)
from quire.resolve.flag_values import value_error
from quire.resolve.images import resolve_images
from quire.resolve.kv_events import kv_events
from quire.resolve.lora import lora_config
from quire.resolve.model import (
    LOAD_FORMATS,
    longrope_note,
    model_of,
    overridden,
    with_generation_flags,
    yarn_warning,
)
from quire.resolve.parallel import with_workers
from quire.resolve.pooling import resolve_pooling
from quire.resolve.profiler import checked, from_environment, parse_profiler_config
from quire.resolve.quantization import resolve_dtype, resolve_kv_dtype, resolve_quantization
from quire.resolve.replicas import replica_share, with_ray
from quire.resolve.speculative import check_draft, draft_fields, parse_speculative_config
from quire.resolve.tiers import host_tiers
from quire.resolve.transfer import with_transfer
from quire.resolve.values import check_values, step_tokens
from quire.system import env
from quire.system.hardware import Hardware
from quire.system.records import dataclass
from quire.text.tokenizers.tokenizer import Tokenizer
from quire.text.tokenizers.tokenizer import load_tokenizer as open_tokenizer

logger = logging.getLogger(__name__)

ONE_THREAD_PARAMETERS = 32_000_000
"""Small operations, not arithmetic, limit the speed of models below this size."""
NO_STRETCH = 10**9
"""A larger `max_itl_stretch` means no limit."""
STEP_TIMEOUT = 60.0
STEP_TIMEOUT_FACTOR = 10.0
"""Factor of the predicted longest step: the machine may be slower than predicted, or busy."""

RANDOM_WEIGHTS = "The weights are random numbers (load format dummy): the output has no meaning."


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration, the model's source, and the reason of each automatic choice."""

    config: EngineConfig
    source: ModelSource
    tokenizer_path: Path | None
    notes: list[str]


def engine_args(model: str, fields: Mapping[str, Any]) -> EngineArgs:
    """Return `EngineArgs` from keyword arguments; `profiler_config` may be a dict or JSON.

    Raises:
        ConfigError: a name is unknown, or asks for something that Quire does not do.
    """
    args = EngineArgs(model=model, **fields)
    if args.profiler_config is None:
        return args
    return dataclasses.replace(args, profiler_config=parse_profiler_config(args.profiler_config))


def resolve(args: EngineArgs, hardware: Hardware) -> Resolved:
    """Find the model, read its configuration (no weights), and make all open choices.

    Raises:
        ConfigError: a flag is out of range or does not fit the model or the machine.
        ModelNotFoundError, CheckpointError: from finding and reading the model.
    """
    notes: list[str] = []
    check_values(args)
    args, hardware = replica_share(args, hardware, notes)
    args, device = resolve_device(args, hardware, notes)
    source = _source(args)
    pooled = resolve_pooling(args, source, model_of(source, notes), notes)
    args, model = pooled.args, pooled.model
    args, transfer = with_transfer(args, model, notes)
    random = RANDOM_WEIGHTS if source.kind == "dummy" else None
    notes += filter(None, [random, yarn_warning(model)])
    dtype = resolve_dtype(args, model, device, notes)
    kv_dtype = resolve_kv_dtype(args, model, dtype)
    quantized = resolve_quantization(args, source, model, notes)
    tokenizer_path = _tokenizer_path(args, source)
    config = EngineConfig(
        model_path=str(source.path) if source.path else source.name,
        model=model,
        load_format=LOAD_FORMATS[source.kind],
        dtype=dtype,
        quantization=quantized.name,
        quantization_config=quantized.config,
        weight_forms=quantized.forms,
        kv_cache_dtype=kv_dtype,
        seed=args.seed,
        block_size=args.block_size,
        num_blocks=args.num_gpu_blocks_override,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        memory_budget_bytes=memory_budget(args, hardware, device, notes),
        enable_prefix_caching=args.enable_prefix_caching,
        scheduler=_scheduler_config(args, model, transfer, notes, pools=pooled.pooling is not None),
        ops=args.ops,
        num_threads=_num_threads(args, hardware, model, notes),
        enforce_eager=args.enforce_eager,
        capture_sizes=capture_sizes(args, device, notes),
        prompts=prompt_ops(args, device, notes),
        async_scheduling=_overlaps(args, device, samples=pooled.pooling is None),
        num_scheduler_steps=args.num_scheduler_steps,
        pack_cache_bytes=args.pack_cache_bytes,
        tiers=host_tiers(args, model, kv_dtype, transfer),
        transfer=transfer,
        prefix_caching_hash_algo=_hash_algo(args),
        prefix_caching_hash_seed=_hash_seed(args),
        calculate_kv_scales=args.calculate_kv_scales,
        profiler=checked(args.profiler_config or from_environment(env.profiler_fields())),
        tokenizer_path=None if tokenizer_path is None else str(tokenizer_path),
        pooling=pooled.pooling,
        enable_prompt_embeds=args.enable_prompt_embeds,
        max_logprobs=args.max_logprobs,
        logprobs_mode=args.logprobs_mode,
        images=resolve_images(args, source, model),
        device=device,
    )
    return Resolved(_completed(args, config, hardware, notes), source, tokenizer_path, notes)


def _hash_seed(args: EngineArgs) -> int:
    """Return a secret seed for hashes that need one, else 0."""
    return int.from_bytes(os.urandom(8)) if _hash_algo(args) == "xxhash" else 0


def _hash_algo(args: EngineArgs) -> HashAlgo:
    if args.prefix_caching_hash_algo == "xxhash":
        require("xxhash", "--prefix-caching-hash-algo xxhash", "prefix_caching_hash_algo")
    return args.prefix_caching_hash_algo


def _overlaps(args: EngineArgs, device: DeviceType, *, samples: bool) -> bool:
    """Return whether the next step begins before the last one's tokens are known."""
    if args.async_scheduling is not None:
        return args.async_scheduling
    plain = args.num_scheduler_steps == 1 and args.speculative_config is None
    return device != "cpu" and args.tensor_parallel_size == 1 and samples and plain


def _source(args: EngineArgs) -> ModelSource:
    source = checkpoint.resolve(
        args.model,
        load_format=args.load_format,
        revision=args.revision,
        download_dir=args.download_dir,
    )
    return with_generation_flags(overridden(source, args.hf_overrides), args)


def _scheduler_config(
    args: EngineArgs,
    model: ModelConfig,
    transfer: TransferConfig | None,
    notes: list[str],
    *,
    pools: bool,
) -> SchedulerConfig:
    return SchedulerConfig(
        max_model_len=asked_context(args, model),
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=step_tokens(args),
        policy=args.scheduling_policy,
        preemption_mode=args.preemption_mode,
        max_itl_stretch=_itl_stretch(args, pools=pools),
        fails_without_blocks=transfer is not None and transfer.policy == "fail",
        whole_prompts=not model.causal,
        max_loras=args.max_loras if args.enable_lora else None,
        speculative=parse_speculative_config(args.speculative_config, step_tokens(args), notes),
    )


def _completed(
    args: EngineArgs, config: EngineConfig, hardware: Hardware, notes: list[str]
) -> EngineConfig:
    """Return the configuration with the fields that depend on other fields."""
    if args.enable_prompt_embeds and config.model.own_input:
        why = "each layer of this model also looks up the token, and embeddings have none."
        raise value_error(args, "enable_prompt_embeds", why)
    lora, events = lora_config(args, pools=config.pooling is not None), args.kv_events_config
    config = dataclasses.replace(config, lora=lora, kv_events=kv_events(events, args.replicas))
    config = with_workers(args, config, hardware, notes)
    config = _with_draft(args, config, hardware, notes)
    offload = offloaded_bytes(args, config, hardware, notes)
    config = dataclasses.replace(config, cpu_offload_bytes=offload)
    config = with_fitting_context(args, config, notes)
    notes += filter(None, [longrope_note(config.model, config.scheduler.max_model_len)])
    config = with_ray(args, config, notes)
    return dataclasses.replace(config, step_timeout=_step_timeout(args, config))


def _with_draft(
    args: EngineArgs, config: EngineConfig, hardware: Hardware, notes: list[str]
) -> EngineConfig:
    """Return the configuration with that of its draft model or head, if it has one."""
    wanted = config.scheduler.speculative
    if wanted is not None and wanted.method in HEAD_METHODS:
        from quire.resolve.heads import resolve_head  # reads weights, so it imports NumPy

        draft = resolve_head(args, config, wanted, notes)
        head, model = draft.model.draft_head, config.model
        if config.stage_layers and head is not None:
            model = dataclasses.replace(
                model, head_embeds=not head.own_embedding, head_taps=head.taps
            )
        return dataclasses.replace(config, model=model, draft=draft)
    if wanted is None or wanted.model is None:
        return config
    draft = resolve(EngineArgs(**draft_fields(args, wanted)), hardware).config
    check_draft(draft, config.model, config.tokenizer_path)
    return dataclasses.replace(config, draft=draft)


_COMPILE_TIMEOUT = 600.0
"""Seconds that a step may take longer if torch compiles in it."""


def _step_timeout(args: EngineArgs, config: EngineConfig) -> float:
    if args.step_timeout is not None:
        return args.step_timeout
    limits = config.scheduler
    tokens, context = limits.max_num_batched_tokens, limits.max_model_len
    longest = first_guess(config).seconds(
        tokens, limits.max_num_seqs, limits.max_num_seqs * context, tokens * context
    )
    # Each stage has a part of the layers, and as small a part of the cores.
    times = config.num_scheduler_steps * config.pipeline_parallel_size
    compiling = _COMPILE_TIMEOUT if config.prompts.compile_backend else 0.0
    return max(STEP_TIMEOUT, STEP_TIMEOUT_FACTOR * times * longest) + compiling


def load_tokenizer(resolved: Resolved) -> Tokenizer:
    """Return the model's tokenizer; for a preset, which has none, one that writes ids as text."""
    return open_tokenizer(resolved.tokenizer_path, vocab_size=resolved.config.model.vocab_size)


def _itl_stretch(args: EngineArgs, *, pools: bool) -> float | None:
    """Return how much prompts may slow decoding; None for no limit. No request of a model that
    pools decodes, but a client's prompts may slow another's."""
    if pools:
        return ITL_STRETCH
    stretch = ITL_STRETCH if args.max_itl_stretch is None else args.max_itl_stretch
    return None if args.max_num_batched_tokens or stretch > NO_STRETCH else stretch


def _num_threads(args: EngineArgs, hardware: Hardware, model: ModelConfig, notes: list[str]) -> int:
    if args.num_threads is not None:
        if args.num_threads > hardware.cores:
            logger.warning(
                "num_threads is %d, but this process may use only %d cores: threads will wait for "
                "each other.", args.num_threads, hardware.cores,
            )  # fmt: skip
        return args.num_threads
    if (parameters := parameter_count(model)) < ONE_THREAD_PARAMETERS:
        notes.append(
            f"num_threads 1: with {parameters / 1e6:.1f} M parameters, synchronizing threads takes "
            "longer than computing."
        )
        return 1
    notes.append(f"num_threads {hardware.cores}: all cores that this process may use.")
    return hardware.cores


def _tokenizer_path(args: EngineArgs, source: ModelSource) -> Path | None:
    if args.tokenizer is None and args.tokenizer_revision in (None, args.revision):
        return source.tokenizer_path
    name = args.tokenizer or args.model
    if (local := checkpoint.local_path(name)).exists():
        if args.tokenizer_revision is not None:
            why = f"{name} is on this machine, where it has no revisions."
            raise value_error(args, "tokenizer_revision", why, "Leave --tokenizer-revision out.")
        return local
    # "dummy" reads no weights.
    found = checkpoint.resolve(
        name, load_format="dummy", revision=args.tokenizer_revision, download_dir=args.download_dir
    ).tokenizer_path
    if found is None:
        raise value_error(args, "tokenizer", "it has no tokenizer; give a folder or a full hub id.")
    return found
