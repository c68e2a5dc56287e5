"""Configuration. Every object is frozen: it is resolved once and never changed.

`EngineArgs` is what a user writes; the text under each field becomes its command-line help.
`EngineConfig` is what the engine runs on, made from the first by `engine.resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from quire.core.lora import LoRAConfig
from quire.core.quantization import Form
from quire.core.vllm_arguments import takes_vllm_names

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
DTypeName = Literal["auto", "float32", "bfloat16", "float16", "half", "float"]
Policy = Literal["fcfs", "priority", "lpm"]
HashAlgo = Literal["sha256", "xxhash"]
PreemptionMode = Literal["auto", "recompute", "swap"]
OpsProvider = Literal["auto", "reference", "cpu"]
DeviceType = Literal["cpu", "cuda"]

ProfilerKind = Literal["torch", "cuda"]
PoolingType = Literal["LAST", "CLS", "MEAN"]
PoolingTask = Literal["embed", "classify"]

MAX_CONVERTED_HEAD_DIM = 256
"""Largest heads that a KV cache of another dtype than the model's holds."""
KVCacheDType = Literal["float32", "bfloat16", "float16", "int8", "fp8_e4m3", "fp8_e5m2"]
ITL_STRETCH = 1.5
"""`max_itl_stretch` when serving: low enough for p99 to stay below twice what it is without
prompts (measured with 8 streams beside prompts of 4,096 tokens, in bfloat16)."""
STEP_TOKENS = 2048
"""Most tokens in one step where `max_num_batched_tokens` is unset."""


@dataclass(frozen=True, slots=True)
class ProfilerConfig:
    """What `start_profile` records, under vLLM's names."""

    profiler: ProfilerKind | None = None
    """`torch`: traces for Perfetto and TensorBoard, the native kernels' operations among them.
    `cuda`: starts and stops what watches the process from outside, such as Nsight."""
    torch_profiler_dir: str = ""
    """Folder for the traces; made if it is not there."""
    torch_profiler_record_shapes: bool = False
    """Shapes of torch's tensors."""
    torch_profiler_with_memory: bool = False
    """Torch's allocations."""
    torch_profiler_with_stack: bool = False
    """Python's functions, every call of them: several times slower. (vLLM's default is on.)"""
    torch_profiler_with_flops: bool = False
    """FLOPs of torch's products. Native operations have theirs always."""
    torch_profiler_use_gzip: bool = True
    """Compress the traces."""
    delay_iterations: int = 0
    """Recording begins with so many'th step after `start_profile`; 0 and 1 are the first."""
    max_iterations: int = 0
    """Record so many steps, then stop; 0 stops after 1,000 steps, or a minute."""


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
        from quire.core.flags import add_engine_flags

        add_engine_flags(parser)
        return parser

    @staticmethod
    def from_cli_args(args: Namespace) -> EngineArgs:
        """Return what the flags of `add_cli_args` spell; other names are passed over."""
        from quire.core.flags import engine_args_from

        return engine_args_from(args)

    def memory_share(self, device: DeviceType) -> float:
        """`gpu_memory_utilization`, or what it is on this device where it is unset."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return 0.9 if device == "cuda" else 0.5


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the geometric series of wavelengths.
        rotary_dim: leading elements of each head that are rotated.
        scaling: "default", "linear", "dynamic", "llama3", "yarn" or "longrope".
        params: the scaling's own numbers, as in the checkpoint's `rope_scaling`.
    """

    theta: float
    rotary_dim: int
    scaling: str = "default"
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's shape and its differences from the plain Llama, free of any file format."""

    architecture: str
    """Key in `models.registry`: "llama", "qwen3", "gpt2" …"""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    dtype: str = "float32"
    """The checkpoint's own: "float32", "bfloat16" or "float16"."""
    norm: Literal["rms_norm", "layer_norm"] = "rms_norm"
    norm_eps: float = 1e-6
    norm_bias: bool = True
    """LayerNorms add one."""
    norm_plus_one: bool = False
    """RMSNorms multiply by 1 + weight (Gemma)."""
    post_norms: bool = False
    """Attention and feed-forward have a norm behind them too (Gemma 2 and 3)."""
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"] = "silu"
    gated_mlp: bool = True
    embedding_scale: float | None = None
    """What token embeddings are multiplied by (Gemma: the root of hidden_size)."""
    attention_scale: float | None = None
    """What q · k is multiplied by; None is 1 / the root of head_dim."""
    attention_softcap: float | None = None
    """Scores s become softcap · tanh(s / softcap) (Gemma 2)."""
    logits_softcap: float | None = None
    rope: RopeConfig | None = None
    local_rope: RopeConfig | None = None
    """Of the layers that slide, where it is another one (Gemma 3)."""
    learned_positions_offset: int | None = None
    """Set where positions are a learned table; OPT's begins 2 rows in."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias of the attention's output projection."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k, before RoPE (Qwen3)."""
    sliding_window: int | None = None
    """Tokens each position attends to, itself included; None is all. Where it looks ahead, too, as
    many on that side."""
    sliding_layers: tuple[bool, ...] | None = None
    """Which layers slide; None is all, where `sliding_window` is set."""
    tie_word_embeddings: bool = False
    vocab_run: tuple[int, int] | None = None
    """First, and how many: the tokens whose embeddings and logits a rank computes; None is all."""
    encoder: bool = False
    """BERT's kind: a norm stands behind the embeddings, and behind each residual sum."""
    pre_norms: bool = False
    """An encoder's norms stand before attention and feed-forward instead, but before the first
    layer, and one behind the last (ModernBERT)."""
    causal: bool = True
    """A token attends to no later one. Else a prompt is computed in one step, and no longer
    needs its keys and values then."""
    token_types: int = 0
    """Rows of the table of token types (BERT's segments)."""
    lm_head: bool = True
    """Whether it makes logits."""
    num_labels: int = 0
    """Outputs of the classification head that stands in the lm_head's place; 0 is none."""
    classifier_activation: Literal["tanh", "relu", "gelu", "gelu_tanh"] = "tanh"
    """Between the two layers of an encoder's classification head."""
    classifier_bias: bool = True
    """Of the first of these two."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def window(self, layer: int) -> int | None:
        """The sliding window of `layer`, or None for full attention."""
        slides = self.sliding_layers is None or self.sliding_layers[layer]
        return self.sliding_window if slides else None

    @property
    def common_window(self) -> int | None:
        """The window beyond which no layer looks back; None if any looks back to the start."""
        everywhere = self.sliding_layers is None or all(self.sliding_layers)
        return self.sliding_window if everywhere and self.causal else None

    @property
    def kv_layers(self) -> int:
        """Layers whose keys and values are there at a time."""
        return self.num_hidden_layers if self.causal else 1


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """What becomes of a prompt's hidden states in a model that pools.

    Attributes:
        task: `embed` gives them, `classify` what the model's head makes of them.
        pooling_type: the last token's, the first one's, or the mean of all.
        normalize: embeddings get length 1.
        activation: of the classifier's outputs.
        matryoshka: how many numbers of an embedding may be kept: these, any if empty, and none
            but all if None.
        prompts: name → what may be put before a text.
        default_prompt: the one that is, where a request names none.
    """

    task: PoolingTask
    pooling_type: PoolingType
    normalize: bool = True
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    matryoshka: tuple[int, ...] | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class TierConfig:
    """How many KV blocks are kept outside of the KV cache, and where.

    Attributes:
        num_swap_slots: in host memory, of preempted requests.
        num_offload_slots: in host memory, evicted from the prefix cache.
        num_files: in files, evicted from those slots.
        directory: where the files are; each engine makes a folder of its own there.
    """

    num_swap_slots: int = 0
    num_offload_slots: int = 0
    num_files: int = 0
    directory: str | None = None

    @property
    def num_slots(self) -> int:
        """Slots in host memory."""
        return self.num_swap_slots + self.num_offload_slots


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int
    num_blocks: int
    enable_prefix_caching: bool = True
    hash_algo: HashAlgo = "sha256"
    hash_seed: int = 0
    sliding_window: int | None = None
    """Tokens that any layer attends to, the newest included; blocks before them are given back."""
    tiers: TierConfig = TierConfig()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and the order of the queue."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: Policy = "fcfs"
    preemption_mode: PreemptionMode = "auto"
    max_itl_stretch: float | None = None
    """See `scheduler.budget`; None gives every step all of `max_num_batched_tokens`."""
    whole_prompts: bool = False
    """A prompt is computed in one step."""
    max_loras: int | None = None
    """Most adapters in one step; None where there are none."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """Which part of a model a worker has, where several share it (see `models.shares`).

    Attributes:
        rank, ranks: which of how many.
        model, weight_forms: those of the whole model.
    """

    rank: int
    ranks: int
    model: ModelConfig
    weight_forms: dict[str, list[Form | None]]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All that the engine core needs to start; travels to it as one msgpack frame.

    `memory_budget_bytes` bounds weights plus KV cache; `num_blocks` of None means that the
    worker fits the cache into it once the weights are loaded (see `executor.worker`).
    """

    model_path: str
    """A local directory or file, or a preset's name where `load_format` is "dummy"."""
    model: ModelConfig
    load_format: LoadFormat
    dtype: Literal["float32", "bfloat16", "float16"]
    quantization: str | None
    """What the checkpoint's weights are quantized by, or else how to quantize them."""
    kv_cache_dtype: KVCacheDType
    seed: int
    block_size: int
    num_blocks: int | None
    kv_cache_memory_bytes: int | None
    memory_budget_bytes: int
    enable_prefix_caching: bool
    scheduler: SchedulerConfig
    ops: OpsProvider
    num_threads: int
    enforce_eager: bool = False
    async_scheduling: bool = False
    num_scheduler_steps: int = 1
    pack_cache_bytes: int = 0
    cpu_offload_bytes: int = 0
    """Most bytes of weights in a mapped file (see `models.offload`), or, beside a GPU, in host
    memory (see `models.host_offload`)."""
    prefix_caching_hash_algo: HashAlgo = "sha256"
    prefix_caching_hash_seed: int = 0
    tiers: TierConfig = TierConfig()
    profiler: ProfilerConfig = ProfilerConfig()
    calculate_kv_scales: bool = False
    quantization_config: dict[str, Any] | None = None
    """What a quantized checkpoint says of itself; None where its weights are dense."""
    weight_forms: dict[str, list[Form | None]] = field(default_factory=dict)
    """See `models.forms`; empty where packing itself quantizes, or nothing does."""
    tokenizer_path: str | None = None
    """For structured output; None is a tokenizer without files."""
    enable_prompt_embeds: bool = False
    lora: LoRAConfig | None = None
    """None: no adapters."""
    step_timeout: float = 0.0
    """Seconds without a word from the core until it is replaced; 0 is never."""
    pooling: PoolingConfig | None = None
    """None where text is generated."""
    device: DeviceType = "cpu"
    """On "cuda" `memory_budget_bytes` is the GPU's memory, and `ops` are "reference"."""
    tensor_parallel_size: int = 1
    marks_path: str | None = None
    """Where native code notes whose grammar it is at (see `core.native_marks`)."""
    share: RankShare | None = None
    """Set where `model`, `num_threads` and the bytes of memory are one rank's."""

    @property
    def packing(self) -> str | None:
        """The name in `core.quantization.QUANTIZATIONS` by which dense weights are packed."""
        return None if self.weight_forms or self.quantization_config else self.quantization
