"""The engine's arguments: what a user writes, under vLLM's names.

The text under each field becomes the help of its command-line flag. `resolve.engine` makes the
frozen `EngineConfig` of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quire.core.config import (
    DeviceType,
    DTypeName,
    LoadFormat,
    OpsProvider,
    Policy,
    PreemptionMode,
    ProfilerConfig,
)
from quire.resolve.vllm_arguments import takes_vllm_names

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


@takes_vllm_names
@dataclass(frozen=True, slots=True)
class EngineArgs:
    """The engine's flags, under vLLM's names.

    The constructor also takes the other names that vLLM has: see docs/from-vllm.md.

    Raises:
        ConfigError: a name is unknown, or asks for what Quire does not do.
    """

    model: str = "embedded"
    """Hugging Face directory, .gguf file, hub id, or a built-in name: `embedded`,
    `embedded-draft`; with --load-format dummy also a preset such as `qwen3-0.6b`."""
    tokenizer: str | None = None
    """Tokenizer directory, file or hub id; the model's own if unset."""
    hf_overrides: str | None = None
    """Fields of config.json to read in place of the model's own, as JSON; null takes one away:
    '{"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}'."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    download_dir: str | None = None
    """Folder for hub downloads; Hugging Face's cache if unset."""
    load_format: LoadFormat = "auto"
    """`dummy` fills the weights with random numbers, to measure speed without files."""
    dtype: DTypeName = "auto"
    """Type of weights and activations; `auto` is the checkpoint's; `half` and `float` are vLLM's
    other names of float16 and float32."""
    quantization: str | None = None
    """Round linear weights to fewer bits while loading. Unset: as the checkpoint has them.
    `int8_w8a16` (int8 weights) and `fp8`, `fp8_e5m2`, `fp8_block` multiply bfloat16 activations.
    All others round activations to 8 bits per row, which costs about 1 % of each product: `int8`;
    `int4` (= `int4_g128`), `int4_g64`, `int4_g32`, a scale and an offset per group, the output
    projection in 6 bits; `gptq`, `awq`, `mxfp4`, `nvfp4`, `nf4`, `fp4`; GGUF's `q4_0` … `q8_0`,
    `q2_k` … `q6_k`, `iq4_nl`, `iq4_xs`. Choose `int8_w8a16` if that loss matters: it decodes as
    fast as `int8`, and reads prompts as fast as bfloat16. A quantized checkpoint accepts its own
    method's name only."""
    kv_cache_dtype: Literal["auto", "bf16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"] = (
        "auto"
    )
    """Type of keys and values: `auto` is the dtype's. Types of 8 bits hold twice the tokens of
    16-bit types. `int8`, with one scale per token and head, is the most exact: keys and values are
    off by about 0.7 %. `fp8` (`fp8_e4m3`, 3 %) and `fp8_e5m2` (5 %) take the checkpoint's scales
    of a layer, or 1."""
    calculate_kv_scales: bool = False
    """Give an fp8 KV cache a scale a token and head, computed from it, as int8 has, in place of
    the checkpoint's."""
    runner: Literal["auto", "generate", "pooling"] = "auto"
    """What the model is for: to `generate` text, or `pooling`, which gives embeddings and scores;
    `auto` is what its files say."""
    convert: Literal["auto", "none", "embed", "classify"] = "auto"
    """With a pooling runner, what a model that was made for something else becomes: `embed` gives
    its hidden states, `classify` wants a classification head among its weights."""
    pooler_config: str | None = None
    """How a pooling model pools, as JSON: `pooling_type` (LAST, CLS, MEAN), `normalize`,
    `use_activation`; what is unset is as the model's files say."""
    seed: int = 0
    """Seeds dummy weights and requests that bring no seed of their own."""
    max_model_len: int | None = None
    """Longest sequence, prompt and output together. Unset, `auto` or -1: the model's own limit, or
    less, where the memory does not hold the KV cache of a sequence of that length."""
    block_size: int = 16
    """Tokens in a KV-cache block: 8, 16 or 32."""
    gpu_memory_utilization: float | None = None
    """Share of the device's memory (of the machine's RAM, on a CPU) that weights and KV cache may
    use. Unset: 0.9 of a GPU's memory, 0.5 of the RAM, which others use as well."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV cache in bytes; overrides --gpu-memory-utilization."""
    num_gpu_blocks_override: int | None = None
    """Number of KV-cache blocks; overrides both."""
    enable_prefix_caching: bool = True
    """Reuse the KV blocks of prompts that begin alike."""
    prefix_caching_hash_algo: Literal["auto", "sha256", "xxhash"] = "auto"
    """Hash of KV blocks: `sha256`, which no prompt can be made to deceive; `xxhash`, four times as
    fast, with a secret seed drawn at each start; `auto` is `xxhash` where its package is there."""
    cpu_offload_gb: float = 0.0
    """GiB of weights, the last layers' first, that stay in a mapped file on disk, or with a GPU in
    host memory: a larger model, or a larger KV cache, in the same memory. They are read ahead of
    their use at each step, from the disk where memory does not hold them beside all else; then the
    disk decides the speed, or with a GPU the bus."""
    swap_space: float = 0.0
    """GiB of host memory for the KV blocks of preempted requests, which then go on where they were;
    without it they are computed again. On a CPU a larger KV cache does more for the same memory."""
    preemption_mode: PreemptionMode = "auto"
    """What happens to the KV blocks of a preempted request: `swap` (to --swap-space, while there is
    room), `recompute`, or what is predicted to take less time."""
    kv_offloading_size: float = 0.0
    """GiB of host memory for blocks that the prefix cache had to give up; they are found like the
    others, and copied back. Memory is taken as it is filled."""
    kv_offloading_dir: str | None = None
    """Folder for blocks that --kv-offloading-size had to give up; each engine makes one of its own
    in it, and removes it when it ends."""
    kv_offloading_disk_size: float = 16.0
    """GiB that the files in --kv-offloading-dir may take."""
    max_num_seqs: int = 64
    """Most sequences in one step."""
    max_num_batched_tokens: int | None = None
    """Most tokens in one step; longer prompts are computed in chunks. Unset: 2048, and while
    others decode as many as --max-itl-stretch allows."""
    max_itl_stretch: float | None = None
    """With --max-num-batched-tokens unset: how many times as long a step may take, as predicted
    from the steps before, because prompts are computed beside requests that decode. Lower keeps
    their tokens coming evenly, higher answers new requests sooner; `inf` is no bound. Where more
    prompts wait than requests decode, so many times longer. Unset: 1.5 when serving, and no bound
    offline, where nobody watches."""
    scheduling_policy: Policy = "fcfs"
    """Order of the queue: `fcfs`, first come first served; `priority`, by the request's priority,
    of which a higher one also takes the place of a running request of a lower one; `lpm`, whoever
    has the longest prefix in the cache, though nobody is overtaken by more than 31 others."""
    async_scheduling: bool = False
    """Schedule a step, and tell of the one before, while another is computed. Worth it where the
    device is not the CPU that does this work; a request may wait a step longer to begin."""
    num_scheduler_steps: int = 1
    """Tokens to generate for everyone before the scheduler is asked again, while nobody waits."""
    step_timeout: float | None = None
    """Seconds that a step may take, before the engine core is taken to be stuck: its stacks are
    logged, and another core takes its place; 0 is never. Unset: ten times what the longest step is
    predicted to take, at least 60."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model computes: `cuda` is the first GPU, by the reference kernels in plain torch;
    `auto` takes it where there is one that torch can use."""
    ops: OpsProvider = "auto"
    """Kernels: `cpu` (native), `reference` (plain torch), or the best for this machine."""
    enforce_eager: bool = False
    """Call ops one by one instead of replaying them from a plan; the results are the same."""
    num_threads: int | None = None
    """Threads that compute; if unset, every core this process may use (one for a tiny model)."""
    tensor_parallel_size: int = 1
    """Processes that share each layer among them, its heads and its inner width, a part of the
    cores each. For machines whose cores have their own memory (NUMA); on others one process is
    faster."""
    pack_cache_bytes: int = 20 * 2**30
    """Most bytes of packed weights to keep on disk, in the folder `packed` of QUIRE_CACHE_DIR, so
    that the next start is faster; 0 keeps none."""
    enable_prompt_embeds: bool = False
    """Take prompts as embeddings, `prompt_embeds`, beside texts and token ids."""
    enable_lora: bool = False
    """Serve low-rank adapters (LoRA) beside the model, many in one batch."""
    max_loras: int = 1
    """Most adapters in one step."""
    max_lora_rank: int = 16
    """Highest rank that an adapter may have."""
    max_cpu_loras: int | None = None
    """Most adapters in memory; the others are read again when somebody asks for them. Unset: as
    many as --max-loras."""
    tokenizer_pool_size: int = 1
    """Processes that tokenize long prompts and render chats, beside the server's own; 0: threads of
    the server do, and Python lets only one of them run at a time. The offline engine has none."""
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector that takes traces by HTTP, such as
    http://localhost:4318/v1/traces: each request becomes a trace, part of the client's where it
    sends `traceparent`. Needs the extra `otel`."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """`auto`: unset sampling values come from the model's generation_config.json; `vllm`: not."""
    profiler_config: ProfilerConfig | None = None
    """What start_profile records, as JSON, or a field a flag:
    --profiler-config.torch_profiler_dir=DIR. Unset, the VLLM_TORCH_PROFILER_DIR of the environment
    turns torch's profiler on."""

    enable_sleep_mode: bool = False
    """Offer POST /sleep and /wake_up and GET /is_sleeping over HTTP: a server that sleeps frees its
    weights and KV cache. In Python, `sleep` and `wake_up` work in any case."""

    @staticmethod
    def add_cli_args(parser: ArgumentParser) -> ArgumentParser:
        """Add one flag for each field to `parser`; return it."""
        from quire.resolve.flags import add_engine_flags

        add_engine_flags(parser)
        return parser

    @staticmethod
    def from_cli_args(args: Namespace) -> EngineArgs:
        """Return what the flags of `add_cli_args` spell; other names are passed over."""
        from quire.resolve.flags import engine_args_from

        return engine_args_from(args)

    def memory_share(self, device: DeviceType) -> float:
        """`gpu_memory_utilization`, or what it is on this device where it is unset."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return 0.9 if device == "cuda" else 0.5
