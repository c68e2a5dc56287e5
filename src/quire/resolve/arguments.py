"""The engine's arguments, under vLLM's names.

The text under each field is the help of its command-line flag. `resolve.engine` turns them into a
frozen `EngineConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from quire.core.config import (
    DeviceType,
    DTypeName,
    HashAlgo,
    LoadFormat,
    LogprobsMode,
    OpsProvider,
    Policy,
    PreemptionMode,
    ProfilerConfig,
)
from quire.resolve.vllm_arguments import takes_vllm_names
from quire.system.records import dataclass

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping


@takes_vllm_names
@dataclass(frozen=True, slots=True)
class EngineArgs:
    """The engine's flags, under vLLM's names.

    The constructor also accepts vLLM's other names: see docs/from-vllm.md.

    Raises:
        ConfigError: a name is unknown, or asks for something that Quire does not do.
    """

    model: str = "embedded"
    """Model to serve: Hugging Face folder, .gguf file, hub id or built-in name. Built-in
    names: `embedded`, `embedded-draft`; with --load-format dummy also presets such as
    `qwen3-0.6b`."""
    tokenizer: str | None = None
    """Tokenizer folder, file or hub id. Unset: the model's own."""
    tokenizer_revision: str | None = None
    """Branch, tag or commit of a tokenizer that is a hub id. Unset: the newest; of the model's own
    tokenizer, --revision."""
    hf_overrides: str | None = None
    """Fields that replace those of config.json, as JSON. null removes a field. Example:
    '{"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}'."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    download_dir: str | None = None
    """Folder for hub downloads. Unset: Hugging Face's cache."""
    load_format: LoadFormat = "auto"
    """`dummy` fills the weights with random numbers, to measure speed without files."""
    dtype: DTypeName = "auto"
    """Type of weights and activations. `auto` is the checkpoint's; `half` and `float` are float16
    and float32."""
    quantization: str | None = None
    """Round linear weights to fewer bits while loading. Unset: as in the checkpoint.
    `int8_w8a16` (int8 weights) and `fp8`, `fp8_e5m2`, `fp8_block` multiply bfloat16 activations.
    All others round activations to 8 bits per row, which costs about 1 % of each product: `int8`;
    `int4` (= `int4_g128`), `int4_g64`, `int4_g32`, one scale and one offset per group, output
    projection in 6 bits; `gptq`, `awq`, `mxfp4`, `nvfp4`, `nf4`, `fp4`; GGUF's `q4_0` … `q8_0`,
    `q2_k` … `q6_k`, `iq4_nl`, `iq4_xs`. Choose `int8_w8a16` if that loss matters: it decodes as
    fast as `int8`, and reads prompts as fast as bfloat16. A quantized checkpoint accepts only its
    own method's name."""
    kv_cache_dtype: Literal[
        "auto", "bf16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8", "int4"
    ] = "auto"
    """Type of keys and values in the KV cache. `auto` is the dtype's. 8-bit types hold nearly twice
    the tokens of 16-bit types. `int8`, with one scale per token and head, is the most exact: an
    error of about 0.7 %. `fp8` (`fp8_e4m3`, 3 %) and `fp8_e5m2` (5 %) use the checkpoint's scales
    of a layer, or 1. `int4` holds 3.5 times the tokens, for long contexts: an error of about 5 %
    in keys and 9 % in values."""
    calculate_kv_scales: bool = False
    """Compute fp8 KV-cache scales per token and head, as int8 does. By default the
    checkpoint's scales are used."""
    runner: Literal["auto", "generate", "pooling"] = "auto"
    """Task of the model: `generate` text, or `pooling` for embeddings and scores. `auto` follows
    the model's files."""
    convert: Literal["auto", "none", "embed", "classify"] = "auto"
    """Use a generating model for pooling. `embed` returns its hidden states; `classify` needs a
    classification head among its weights."""
    pooler_config: str | None = None
    """Pooling settings as JSON: `pooling_type` (LAST, CLS, MEAN), `normalize`,
    `use_activation`. Unset fields follow the model's files."""
    seed: int = 0
    """Seed of dummy weights and of requests without a seed."""
    max_model_len: int | None = None
    """Maximum length of a sequence, prompt and output together. Unset, `auto` or -1: the
    model's own limit, or less if the memory cannot hold one such sequence."""
    block_size: int = 16
    """Tokens per KV-cache block: 8, 16 or 32."""
    gpu_memory_utilization: float | None = None
    """Share of the device's memory for weights and KV cache. On a CPU this is the RAM.
    Unset: 0.9 of a GPU's memory, 0.5 of the RAM, because other programs use the RAM too."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV cache in bytes; overrides --gpu-memory-utilization."""
    num_gpu_blocks_override: int | None = None
    """Number of KV-cache blocks; overrides both."""
    enable_prefix_caching: bool = True
    """Reuse KV blocks of prompts with the same prefix."""
    prefix_caching_hash_algo: HashAlgo = "sha256"
    """Hash of KV blocks. `sha256` has no known collisions and takes 0.2 µs per block. `xxhash`
    takes a third of that; its seed is secret and drawn at each start. It needs `quire[xxhash]`."""
    cpu_offload_gb: float = 0.0
    """GiB of weights to leave in a mapped file on disk (with a GPU: host memory). Takes the
    last layers first. Use it for a model or a KV cache that does not fit otherwise. Each step reads
    these weights ahead of their use. If they do not fit into free memory either, the disk (with a
    GPU: the bus) limits the speed."""
    swap_space: float = 0.0
    """GiB of host memory for the KV blocks of preempted requests. They then continue where they
    were; without it they compute again. On a CPU a larger KV cache is a better use of memory."""
    preemption_mode: PreemptionMode = "auto"
    """Treatment of a preempted request's KV blocks: `swap`, `recompute` or `auto`. `swap`
    uses --swap-space while it has room; `auto` takes what is predicted to be faster."""
    kv_offloading_size: float = 0.0
    """GiB of host memory for blocks that the prefix cache evicts. They are found and copied
    back. Memory is allocated as it fills."""
    kv_offloading_dir: str | None = None
    """Folder for the KV blocks of all prompts and answers. Another start finds them there, and
    so do other engines with the same model and settings. Use a local disk or /dev/shm."""
    kv_offloading_disk_size: float = 16.0
    """Maximum GiB of files in --kv-offloading-dir. All engines that use the folder share it; the
    least recently used files go first."""
    kv_transfer_config: str | None = None
    """JSON: hands KV blocks from an engine that computes prompts to one that answers them.
    For example {"kv_connector": "ExampleConnector", "kv_role": "kv_producer"}; see
    docs/disaggregation.md."""
    kv_events_config: str | None = None
    """JSON: publishes on ZMQ which blocks enter and leave the prefix cache, for an external router.
    For example {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}; see docs/scaling.md.
    Needs `quire[zmq]`."""
    max_num_seqs: int = 64
    """Maximum number of sequences in one step."""
    max_num_batched_tokens: int | None = None
    """Token budget of a step; longer prompts run in chunks. Unset: 2048, or less
    while other requests decode (see --max-itl-stretch)."""
    max_itl_stretch: float | None = None
    """How much longer prompts may make a step while other requests decode. It is a factor of
    the predicted time, and applies if --max-num-batched-tokens is unset. Lower it for steady
    tokens, raise it for faster first tokens; `inf` removes the limit. If more prompts wait than
    requests decode, the limit grows in proportion. Unset: 1.5 when serving, no limit offline."""
    scheduling_policy: Policy = "fcfs"
    """Order of the queue: `fcfs`, `priority` or `lpm`. `fcfs`: first come, first served.
    `priority`: by the request's priority; a higher one may preempt running requests of a lower one.
    `lpm`: longest cached prefix first; at most 31 later requests overtake a request."""
    async_scheduling: bool | None = None
    """Begin the next step while the current one runs; a request may then start one step later.
    Default: on one GPU, unless a step has drafts or several passes."""
    speculative_config: str | None = None
    """Speculative decoding, as JSON: drafts tokens and verifies several in one step. No answer
    changes. Example: '{"method": "suffix", "num_speculative_tokens": 8}'. `ngram` and `suffix`
    draft from earlier text, `draft_model` with a smaller model; see docs/speculative.md."""
    num_scheduler_steps: int = 1
    """Decode steps per scheduler call while no request waits."""
    step_timeout: float | None = None
    """Seconds after which a running step counts as stuck. The engine core's stacks are then logged,
    and another core starts; 0 disables this. Unset: ten times the longest predicted step, >= 60."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device of the model. `cuda` is one GPU, or one for each rank and replica (`quire[gpu]`);
    `auto` uses them if torch can and there are enough. `mps` is an Apple chip's GPU (untried)."""
    ops: OpsProvider = "auto"
    """Kernels: `cpu` (native), `triton` (GPUs), `reference` (plain torch, with `quire[torch]`), or
    `auto`, the best for the device."""
    enforce_eager: bool = False
    """Call ops one by one instead of replaying plans or graphs. The results are the same."""
    compilation_config: str | None = None
    """JSON: which decode steps a GPU replays from graphs. Example: '{"cudagraph_capture_sizes":
    [1, 2, 4, 8]}'. Fields: cudagraph_mode (NONE turns graphs off), cudagraph_capture_sizes,
    max_cudagraph_capture_size (256), mode (1 compiles prompts of --ops reference)."""
    attention_backend: str | None = None
    """Package for the attention of prompts on a GPU: FLASH_ATTN or FLASHINFER. Bits then depend on
    the batch. Unset: Quire's kernel."""
    num_threads: int | None = None
    """Compute threads. Unset: one per core that this process may use (one for a tiny model)."""
    tensor_parallel_size: int = 1
    """Processes that share each layer, each with its own part of the cores. Use it on
    machines with several memory nodes (NUMA); otherwise one process is faster."""
    pipeline_parallel_size: int = 1
    """Processes that each have a run of the layers (pipeline stages). On one machine
    --tensor-parallel-size is faster, and one process mostly faster still."""
    data_parallel_size: int = 1
    """Copies of the model (replicas) behind one port. Each has its own process, and a part of the
    cores and of the memory. A router sends each request where its prefix is cached or the queue is
    short. Use it if one process cannot use all cores: one replica per memory node (NUMA)."""
    data_parallel_backend: Literal["mp", "ray"] = "mp"
    """`ray` lets Ray choose a machine for each replica, and gives it --num-threads CPUs. Default:
    processes of this machine. See docs/cluster.md."""
    data_parallel_hybrid_lb: bool = False
    """Serve only --data-parallel-size-local of the replicas: another load balancer is in front of
    this server and the others'. See docs/scaling.md."""
    data_parallel_external_lb: bool = False
    """Serve only replica --data-parallel-rank, behind another load balancer."""
    data_parallel_size_local: int | None = None
    """Replicas of this machine. Unset: all. The others are on machines that run `quire serve
    --headless`, or of other servers with --data-parallel-hybrid-lb."""
    data_parallel_start_rank: int = 0
    """Number of this server's first replica. With --data-parallel-size-local it turns
    --data-parallel-hybrid-lb on, as in vLLM."""
    data_parallel_rank: int | None = None
    """Number of this server's only replica. Turns --data-parallel-external-lb on."""
    data_parallel_address: str = "127.0.0.1"
    """Address at which the machine of replica 0 waits for those of others."""
    data_parallel_rpc_port: int = 29550
    """Its port there."""
    prefill_replicas: int = 0
    """Replicas that compute prompts for the others, so that answers do not wait for them. Set
    --decode-replicas, too. Their sum replaces --data-parallel-size. See docs/disaggregation.md."""
    decode_replicas: int = 0
    """Replicas that answer the prompts of --prefill-replicas."""
    nnodes: int = 1
    """Machines that share the pipeline stages. Each runs `quire serve` with the same flags and its
    own --node-rank."""
    master_addr: str = "127.0.0.1"
    """Address at which node 0 listens for the other machines. QUIRE_CLUSTER_TLS encrypts their
    traffic; see docs/cluster.md."""
    master_port: int = 29501
    """Its port there. Machine N, unless it is the last, listens on this port + N."""
    distributed_executor_backend: Literal["mp", "uni", "none", "ray"] | None = None
    """`ray` lets Ray choose and start the machines of a pipeline: one per stage, or --nnodes.
    Default: processes of this machine, and machines that you start."""
    pack_cache_bytes: int = 20 * 2**30
    """Maximum bytes of packed weights on disk, which make the next start faster. They are in
    the folder `packed` of QUIRE_CACHE_DIR; 0 stores none."""
    max_logprobs: int = 20
    """Most log-probabilities per token that a request may ask for, at most 1024. Each takes about
    6 µs of the server's time."""
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """What `logprobs` report. Raw: of the model's logits. Processed: after penalties, masks,
    temperature and filters, as tokens are drawn. Those of prompts are always raw_logprobs."""
    enable_prompt_embeds: bool = False
    """Accept prompts of embeddings (`prompt_embeds`)."""
    limit_mm_per_prompt: str | None = None
    """Most images of one prompt, as JSON. Unset: '{"image": 128}'. 0 refuses images."""
    mm_processor_kwargs: str | None = None
    """Settings of the image processor, as JSON. Example: '{"max_pixels": 1003520}'."""
    mm_processor_cache_gb: float = 0.5
    """Memory for images that were read, in GiB. An image in it is not read again."""
    language_model_only: bool = False
    """Load a model that reads images without its tower. Images are then refused."""
    allowed_media_domains: str | None = None
    """Hosts from which images may be fetched, separated by commas. Unset: none. Private
    addresses are always refused."""
    allowed_local_media_path: str | None = None
    """Folder from which file:// addresses of images may be read. Unset: none."""
    enable_lora: bool = False
    """Serve LoRA adapters, many in one batch."""
    max_loras: int = 1
    """Maximum number of adapters in one step."""
    max_lora_rank: int = 16
    """Highest rank of an adapter."""
    max_cpu_loras: int | None = None
    """Maximum number of adapters in memory; others are read again on demand. Unset: as many as
    --max-loras."""
    tokenizer_pool_size: int = 1
    """Processes that tokenize long prompts and render chats. 0 uses threads of the server, of
    which Python runs only one at a time. Raise it if `quire explain` reports `tokenization`."""
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector (HTTP), such as http://localhost:4318/v1/traces.
    Each request becomes a trace, and joins the client's if it sends `traceparent`. Needs the extra
    `otel`."""
    generation_config: str = "auto"
    """Source of unset sampling values: `auto` is the model's generation_config.json, `vllm` none,
    and a folder its generation_config.json."""
    override_generation_config: str | None = None
    """Unset sampling values, as JSON; they replace those of the generation config. Example:
    '{"temperature": 0.6}'."""
    profiler_config: ProfilerConfig | None = None
    """What start_profile records, as JSON. Fields work as flags too:
    --profiler-config.torch_profiler_dir=DIR. Default: steps and native operations, in
    QUIRE_CACHE_DIR/traces; the environment's VLLM_TORCH_PROFILER_DIR turns torch's profiler on."""

    enable_sleep_mode: bool = False
    """Offer POST /sleep, POST /wake_up and GET /is_sleeping. A sleeping server frees its
    weights and KV cache. In Python, `sleep` and `wake_up` always work."""

    def __post_init__(self) -> None:
        if self.data_parallel_size == 1 and self.prefill_replicas and self.decode_replicas:
            count = self.prefill_replicas + self.decode_replicas
            object.__setattr__(self, "data_parallel_size", count)
        external = self.data_parallel_external_lb or self.data_parallel_rank is not None
        part = self.data_parallel_start_rank != 0 and self.data_parallel_size_local is not None
        if part and not external:
            object.__setattr__(self, "data_parallel_hybrid_lb", True)

    @property
    def replicas(self) -> range:
        """Return the numbers of the replicas behind this server's port."""
        if (one := self.data_parallel_rank) is not None:
            return range(one, one + 1)
        if not self.data_parallel_hybrid_lb:
            return range(self.data_parallel_size)
        first, count = self.data_parallel_start_rank, self.data_parallel_size_local
        return range(first, first + (self.data_parallel_size if count is None else count))

    @property
    def far_replicas(self) -> range:
        """Return the numbers of those that `quire serve --headless` starts on other machines."""
        local, others = self.data_parallel_size_local, self.data_parallel_hybrid_lb
        others = others or self.data_parallel_external_lb or self.data_parallel_rank is not None
        if local is None or others or self.data_parallel_backend == "ray":
            return range(0)
        return range(local, self.data_parallel_size)

    @staticmethod
    def add_cli_args(
        parser: ArgumentParser, defaults: Mapping[str, Any] | None = None
    ) -> ArgumentParser:
        """Add one flag for each field to `parser`, with other `defaults` if given; return it."""
        from quire.resolve.field_flags import add_flags

        add_flags(EngineArgs, parser, defaults)
        return parser

    @staticmethod
    def from_cli_args(args: Namespace) -> EngineArgs:
        """Return what the flags of `add_cli_args` spell; ignore other names."""
        from quire.resolve.field_flags import arguments_from

        return arguments_from(EngineArgs, args)

    def memory_share(self, device: DeviceType) -> float:
        """Return `gpu_memory_utilization`, or its default on this device."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return 0.5 if device == "cpu" else 0.9
