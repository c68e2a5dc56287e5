"""Configuration. Every object is frozen: it is resolved once and never changed.

`EngineConfig` is what the engine runs on. `resolve.engine` makes it from the user's `EngineArgs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from quire.core.lora import LoRAConfig
from quire.core.quantization import Form

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
Activation = Literal["silu_mul", "gelu_tanh_mul", "gelu_mul", "gelu", "gelu_tanh", "relu"]
"""The op behind a feed-forward's first product; with "_mul" the feed-forward has a gate."""

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
    """A model's shape and its differences from the plain Llama, free of any file format."""

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
    norm_gain: Literal["rounded", "float32", "plus_one"] = "rounded"
    """How an RMSNorm multiplies by its weight: after rounding x to its dtype; in float32, rounded
    once (OLMo 2); or by 1 + weight in float32, rounded once (Gemma)."""
    norms: tuple[str, ...] = ("attn_norm", "mlp_norm", "norm")
    """Where norms are: `attn_norm` in front of attention, `attn_post_norm` behind it,
    `attn_sum_norm` behind its residual sum (BERT); the same of `mlp`; `embed_norm` behind the
    embeddings, `norm` behind the last layer, `head.norm` inside a classifier."""
    missing_norms: tuple[str, ...] = ()
    """Single norms that are missing: "layers.0.attn_norm" (ModernBERT)."""
    activation: Activation = "silu_mul"
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
    qk_norm: Literal["head", "full"] | None = None
    """RMSNorm of q and k before RoPE: over each head (Qwen3), or over all heads (OLMo 2)."""
    sliding_window: int | None = None
    """Tokens each position attends to, itself included; None is all. Where it looks ahead, too, as
    many on that side."""
    sliding_layers: tuple[bool, ...] | None = None
    """Which layers slide; None is all, where `sliding_window` is set."""
    tie_word_embeddings: bool = False
    vocab_run: tuple[int, int] | None = None
    """First, and how many: the tokens whose embeddings and logits a rank computes; None is all."""
    causal: bool = True
    """A token attends to no later one. Else a prompt is computed in one step, and no longer
    needs its keys and values then."""
    token_types: int = 0
    """Rows of the table of token types (BERT's segments)."""
    lm_head: bool = True
    """Whether it makes logits."""
    num_labels: int = 0
    """Outputs of the classification head that stands in the lm_head's place; 0 is none."""
    classifier_activation: Literal["tanh", "relu", "gelu", "gelu_tanh"] | None = None
    """Between the two layers of an encoder's classification head; None is a head of one layer."""
    classifier_bias: bool = True
    """Of the first of these two."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def gated_mlp(self) -> bool:
        return self.activation.endswith("_mul")

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
    """Where native code notes whose grammar it is at (see `system.native_marks`)."""
    share: RankShare | None = None
    """Set where `model`, `num_threads` and the bytes of memory are one rank's."""

    @property
    def packing(self) -> str | None:
        """The name in `core.quantization.QUANTIZATIONS` by which dense weights are packed."""
        return None if self.weight_forms or self.quantization_config else self.quantization
