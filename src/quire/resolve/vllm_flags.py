"""vLLM's engine and server flags that Quire accepts without effect, or refuses.

If Quire does what a flag asks for anyway, it accepts the flag with a note. It refuses others and
names the alternative. `vllm_arguments` reads `OLDER` flags under today's names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.core.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser

_SHORT = {"enable_expert_parallel": ["-ep"], "decode_context_parallel_size": ["-dcp"]}
"""vLLM's short spellings."""
GRAPH_SIZES = ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "cuda_graph_sizes")
"""Flags of one or more numbers, which are fields of --compilation-config."""
PREFIX = "vllm."
"""Prefix of their names in a namespace."""


class Foreign(NamedTuple):
    """One of vLLM's flags.

    Attributes:
        why: what Quire does, or the alternative.
        same: accepted values; None accepts all.
        switch: it takes no value on a command line.
        fields: for an object in JSON, each field's accepted values; None accepts all.
    """

    why: str
    same: tuple[str, ...] | None = ()
    switch: bool = False
    fields: Mapping[str, tuple[Any, ...] | None] | None = None


def _always(why: str, *, switch: bool = True) -> Foreign:
    return Foreign(why, None, switch)


def _each(names: str, foreign: Foreign) -> dict[str, Foreign]:
    """Return several flags with one reason."""
    return dict.fromkeys(names.split(), foreign)


def _drafting(**names: str) -> dict[str, Foreign]:
    """Return flags that are fields of --speculative-config, by field."""
    return {
        name: Foreign(f"use --speculative-config, a JSON object with the field {field!r}")
        for field, flags in names.items()
        for name in flags.split()
    }


_ON, _OFF = ("true",), ("false",)
_ONE = ("1",)
_NO_EXPERTS = "Quire has no expert parallelism"
_STATES = "states are float32, and the engine chooses which ones the prefix cache keeps"
_NO_CODE = "Quire runs no external code in the engine"
_NOT_COUNTED = "GET /metrics has all counters; `quire profile` times operations"
_FOR_GPU_TUNING = "Quire chooses kernels for the machine; `quire tune kernels` tunes them"
_WHOLE = "one process serves all requests; run more servers behind a router"
_GRAPHS = (
    "steps replay a plan of any size, or on a GPU graphs, whose sizes --compilation-config sets; "
    "--enforce-eager turns both off"
)
_IMAGES = "images are read in one way, that of the model's processor"

FOREIGN: dict[str, Foreign] = {
    # accepted: Quire does this anyway
    "trust_remote_code": _always("Quire never runs code from a checkpoint"),
    **_each(
        "disable_log_requests enable_log_requests enable_log_outputs enable_log_deltas",
        _always("texts are never logged; GET /dashboard/requests/ID shows a request's events"),
    ),
    "max_log_len": _always("texts are never logged", switch=False),
    "disable_uvicorn_access_log": _always("requests are not logged; /metrics counts them"),
    "disable_access_log_for_endpoints": _always(
        "requests are not logged; /metrics counts them", switch=False
    ),
    "log_config_file": _always("QUIRE_LOG_LEVEL sets the log level", switch=False),
    "log_error_stack": _always("the log has the traceback of each bug"),
    "fail_on_environ_validation": _always("Quire reads few variables of vLLM"),
    **_each(
        "disable_fastapi_docs enable_offline_docs",
        _always("GET /openapi.json describes the API; there is no page of it"),
    ),
    **_each(
        "h11_max_incomplete_event_size h11_max_header_count",
        _always("a request's headers may have 64 KiB", switch=False),
    ),
    "chat_template_content_format": _always(
        "each message has the form that the chat template reads", switch=False
    ),
    "exclude_tools_when_tool_choice_none": _always("the prompt then has no tools"),
    "enable_reasoning": _always("reasoning is read if its format is known; --reasoning-parser"),
    "response_role": Foreign("the role of answers is assistant", ("assistant",)),
    "disable_log_stats": _always(
        "the engine always counts, at 3 µs per step; QUIRE_LOG_LEVEL=WARNING silences its log"
    ),
    "fully_sharded_loras": _always("adapters are sharded like their layers"),
    "use_v2_block_manager": _always("there is one block manager"),
    "disable_custom_all_reduce": _always("ranks add in shared memory, in a fixed order"),
    "enable_tokenizer_info_endpoint": _always("GET /tokenizer_info is always on"),
    "enable_prompt_tokens_details": _always("usage always has cached_tokens"),
    "enable_request_id_headers": _always("every answer has an X-Request-Id"),
    "enable_server_load_tracking": _always("GET /load is always on"),
    "disable_frontend_multiprocessing": Foreign(
        "the engine core runs in its own process; LLM runs it in yours", _OFF, switch=True
    ),
    "enable_chunked_prefill": _always(
        "prompts run in chunks, with the same answers; --max-num-batched-tokens sets their size"
    ),
    "max_seq_len_to_capture": _always(_GRAPHS, switch=False),
    **_each(
        "optimization_level performance_mode ir_op_priority",
        _always(_GRAPHS, switch=False),
    ),
    **_each(
        "disable_cascade_attn disable_chunked_mm_input disable_hybrid_kv_cache_manager "
        "kv_sharing_fast_prefill allow_deprecated_quantization aggregate_engine_logging "
        "disable_nccl_for_dp_synchronization disable_async_output_proc multi_step_stream_outputs "
        "scheduler_reserve_full_isl specialize_active_lora enable_ep_weight_filter",
        _always("Quire has one way to do this, with the same answers"),
    ),
    **_each(
        "attention_config kernel_config moe_backend linear_backend "
        "mamba_backend gdn_prefill_backend",
        _always(_FOR_GPU_TUNING, switch=False),
    ),
    **_each(
        "show_hidden_metrics_for_version collect_detailed_traces kv_cache_metrics_sample",
        _always(_NOT_COUNTED, switch=False),
    ),
    **_each(
        "kv_cache_metrics cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics "
        "enable_logging_iteration_details ray_workers_use_nsight",
        _always(_NOT_COUNTED),
    ),
    **_each(
        "max_parallel_loading_workers safetensors_load_strategy pt_load_map_location "
        "model_loader_extra_config",
        _always("all threads read weights directly from the files", switch=False),
    ),
    "use_tqdm_on_load": _always("a terminal shows the progress of long loads"),
    **_each(
        "max_long_partial_prefills max_num_partial_prefills long_prefill_token_threshold "
        "scheduler_delay_factor",
        _always("--max-itl-stretch limits the prompts' share of a step", switch=False),
    ),
    "num_lookahead_slots": _always("drafts get blocks as they need them", switch=False),
    **_each(
        "tokenizer_pool_type tokenizer_pool_extra_config renderer_num_workers",
        _always("--tokenizer-pool-size sets the number of processes", switch=False),
    ),
    **_each(
        "interleave_mm_strings mm_processor_cache_type mm_shm_cache_max_object_size_mb "
        "mm_encoder_tp_mode mm_encoder_attn_backend video_pruning_rate",
        _always(_IMAGES, switch=False),
    ),
    **_each(
        "disable_mm_preprocessor_cache skip_mm_profiling enable_multimodal_encoder_data_parallel",
        _always(_IMAGES),
    ),
    "uvicorn_log_level": _always("QUIRE_LOG_LEVEL sets the log level", switch=False),
    "tokenizer_mode": Foreign(
        "Quire reads the tokenizer's own files", ("auto", "fast", "slow", "hf", "mistral")
    ),
    "guided_decoding_backend": Foreign(
        "llguidance handles structures",
        ("auto", "guidance", "llguidance", "lm-format-enforcer", "outlines", "xgrammar"),
    ),
    "guided_decoding_disable_fallback": _always("llguidance handles structures"),
    **_each(
        "guided_decoding_disable_any_whitespace guided_decoding_disable_additional_properties",
        Foreign("send the field of this name in structured_outputs", _OFF, switch=True),
    ),
    "config_format": Foreign("Quire reads config.json", ("auto", "hf", "mistral")),
    "model_impl": Foreign("architectures are Quire's own", ("auto", "vllm", "transformers")),
    # not supported
    "api_server_count": _always(_WHOLE, switch=False),
    **_each(
        "prefill_context_parallel_size decode_context_parallel_size",
        Foreign("use --tensor-parallel-size or --pipeline-parallel-size", _ONE),
    ),
    "enable_expert_parallel": _always(
        "ranks share every expert, which gives the same result and a balanced load"
    ),
    **_each("enable_eplb enable_dbo enable_elastic_ep", Foreign(_NO_EXPERTS, _OFF, switch=True)),
    **_each(
        "eplb_config all2all_backend expert_placement_strategy num_redundant_experts",
        Foreign(_NO_EXPERTS, ("0",)),
    ),
    **_each(
        "eplb_window_size eplb_step_interval dbo_decode_token_threshold "
        "dbo_prefill_token_threshold cp_kv_cache_interleave_size dcp_comm_backend",
        _always("what it would set is off", switch=False),
    ),
    "eplb_log_balancedness": _always("what it would set is off"),
    **_each(
        "mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode",
        Foreign(_STATES, ("auto", "none", "float32", "align", "all")),
    ),
    **_each("worker_cls scheduler_cls", Foreign(_NO_CODE, ("auto",))),
    **_each(
        "worker_extension_cls io_processor_plugin reasoning_parser_plugin tool_parser_plugin "
        "logits_processor_pattern",
        Foreign(_NO_CODE),
    ),
    "tool_server": Foreign("the server itself calls no tools"),
    **_each(
        "additional_config override_neuron_config",
        Foreign("it is for platforms that Quire does not support", ("{}",)),
    ),
    "enable_ssl_refresh": _always("new certificates are used as soon as their files change"),
    **_each("tokens_only grpc", Foreign("the server speaks HTTP, in texts", _OFF, switch=True)),
    **_each(
        "enable_prompt_adapter enable_lora_bias",
        Foreign("adapters are LoRA, without biases", _OFF, switch=True),
    ),
    "lora_extra_vocab_size": _always("adapters add no tokens", switch=False),
    **_each(
        "qlora_adapter_name_or_path prompt_adapters",
        Foreign("use --lora-modules, with LoRA adapters"),
    ),
    "mm_encoder_only": Foreign("the server generates text", _OFF, switch=True),
    "enable_return_routed_experts": Foreign("experts are not reported", _OFF, switch=True),
    "reasoning_config": Foreign("use --reasoning-parser"),
    "offload_backend": Foreign("use --cpu-offload-gb", ("auto",)),
    "disable_sliding_window": Foreign("the model defines its windows", _OFF, switch=True),
    **_each("code_revision ignore_patterns", Foreign("name the files with --revision or a folder")),
    "ec_transfer_config": Foreign("the process that computes a prompt reads its images"),
    "weight_transfer_config": Foreign("each process reads its weights from the checkpoint"),
    "kv_offloading_backend": Foreign("use --kv-offloading-size", ("native",)),
    "media_io_kwargs": Foreign(_IMAGES, ("{}",)),
    "enable_mm_embeds": Foreign("use --enable-prompt-embeds", _OFF, switch=True),
    "default_mm_loras": Foreign("a request names its adapter as its model"),
    **_drafting(
        model="speculative_model spec_model",
        method="speculative_method spec_method",
        num_speculative_tokens="num_speculative_tokens spec_tokens",
        prompt_lookup_max="ngram_prompt_lookup_max",
        prompt_lookup_min="ngram_prompt_lookup_min",
        quantization="speculative_model_quantization",
        max_model_len="speculative_max_model_len",
        draft_tensor_parallel_size="speculative_draft_tensor_parallel_size",
    ),
    **_each(
        "speculative_disable_by_batch_size speculative_disable_mqa_scorer "
        "spec_decoding_acceptance_method disable_logprobs_during_spec_decoding",
        _always("drafts change no answer, and their number follows step times", switch=False),
    ),
    "per_request_spec_decode_metrics": Foreign(
        "usage.completion_tokens_details always has accepted_prediction_tokens and "
        "rejected_prediction_tokens",
        ("none",),
    ),
    "structured_outputs_config": Foreign(
        "llguidance handles structures; --reasoning-parser and a request's structured_outputs "
        "set the rest",
        fields={
            "backend": None,
            "disable_fallback": None,
            "disable_any_whitespace": (False,),
            "disable_additional_properties": (False,),
            "enable_in_reasoning": (False,),
            "reasoning_parser": ("",),
            "reasoning_parser_plugin": ("",),
        },
    ),
    "skip_tokenizer_init": _always(
        "the tokenizer is always loaded; prompt_token_ids and detokenize=False avoid its work"
    ),
    "task": Foreign("use --runner pooling, with --convert embed or classify", ("auto", "generate")),
    "lora_dtype": Foreign("adapters have the model's dtype", ("auto",)),
    "stream_interval": _always("every token is sent at once", switch=False),
    "hf_config_path": Foreign("config.json comes from the model's folder"),
    "quantization_config": Foreign("Quire reads the checkpoint's; otherwise use --quantization"),
    "logits_processors": Foreign(f"{_NO_CODE}; use logit_bias, bad_words or structured_outputs"),
    **_each("rope_scaling rope_theta", Foreign("it becomes a field of --hf-overrides")),
    **_each(" ".join(GRAPH_SIZES), Foreign("it becomes a field of --compilation-config")),
    "override_pooler_config": Foreign("it is --pooler-config"),
    "hf_token": Foreign("it becomes HF_TOKEN"),
    "middleware": Foreign("Quire runs no external code in the server; put a proxy in front of it"),
}


def add_foreign_flags(parser: ArgumentParser) -> None:
    """Add all of these flags to `parser`, hidden in its help."""
    from argparse import SUPPRESS

    for name, foreign in FOREIGN.items():
        spellings = [f"--{name.replace('_', '-')}", f"--{name}", *_SHORT.get(name, ())]
        hidden: dict[str, Any] = {"dest": PREFIX + name, "default": SUPPRESS, "help": SUPPRESS}
        if name == "hf_token":  # without a value: that of `hf auth login`
            parser.add_argument(*spellings, nargs="?", const=True, **hidden)
        elif foreign.switch:
            parser.add_argument(*spellings, action="store_true", **hidden)
            offs = [f"--no-{spellings[0][2:]}", f"--no_{name}"]
            parser.add_argument(*offs, action="store_false", **hidden)
        else:
            parser.add_argument(*spellings, nargs="+" if name in GRAPH_SIZES else None, **hidden)


def foreign_values(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vLLM flags of a parsed command line or its file, by name."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in namespace.items()
        if name.startswith(PREFIX)
    }


def foreign_notes(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield one note per accepted value; skip names that are not vLLM's.

    Raises:
        ConfigError: a value asks for something that Quire does not do.
    """
    for name, value in values.items():
        if name not in FOREIGN or value is None:
            continue
        foreign, flag = FOREIGN[name], "--" + name.replace("_", "-")
        if (given := _unsupported(flag, value, foreign)) is not None:
            raise ConfigError(
                f"{given} is a vLLM flag that Quire does not support: {foreign.why}.",
                fix="Leave it out.",
                param=flag,
            )
        yield f"{flag} has no effect: {foreign.why}."


def _unsupported(flag: str, value: Any, foreign: Foreign) -> str | None:
    """Return what is not supported: the flag with its value or field; None if all is."""
    spelled = value if isinstance(value, str) else json.dumps(value, default=str)
    if foreign.fields is not None:
        try:
            given = json.loads(spelled)
            return next(
                f"{flag} with {field} {json.dumps(found)}"
                for field, found in given.items()
                if found is not None
                and (known := foreign.fields.get(field, ())) is not None
                and found not in known
            )
        except StopIteration:
            return None
        except (AttributeError, ValueError):
            return f"{flag} {spelled}, which is no JSON object,"
    if foreign.same is None or spelled.lower() in foreign.same:
        return None
    return f"{flag} {spelled}" if foreign.same else flag  # the value may be a secret
