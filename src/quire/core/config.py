"""The resolved configuration. All objects are frozen.

`resolve.engine` makes the engine's `EngineConfig` from the user's `EngineArgs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from quire.core.images import ImageConfig, VisionConfig
from quire.core.layers import (
    PLAIN_LAYER,
    DraftHeadConfig,
    LatentConfig,
    MoEConfig,
    QueryGrowth,
    RecurrentConfig,
    SubLayerKind,
)
from quire.core.lora import LoRAConfig
from quire.core.quantization import Form
from quire.system import env

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
DTypeName = Literal["auto", "float32", "bfloat16", "float16", "half", "float"]
Policy = Literal["fcfs", "priority", "lpm"]
HashAlgo = Literal["sha256", "xxhash"]
PreemptionMode = Literal["auto", "recompute", "swap"]
OpsProvider = Literal["auto", "reference", "cpu", "triton"]
ON_TORCH: frozenset[OpsProvider] = frozenset({"reference", "triton"})
"""Providers whose arrays are torch's."""
DeviceType = Literal["cpu", "cuda"]
SpeculativeMethod = Literal["ngram", "suffix", "draft_model", "mtp", "eagle", "eagle3"]
TEXT_METHODS = ("ngram", "suffix")
"""Methods that look drafts up in texts."""
HEAD_METHODS = ("mtp", "eagle", "eagle3")
"""Methods whose drafts come from a head on top of the target."""

ProfilerKind = Literal["torch", "cuda"]
PoolingType = Literal["LAST", "CLS", "MEAN"]
PoolingTask = Literal["embed", "classify"]
Activation = Literal[
    "silu_mul",
    "gelu_tanh_mul",
    "gelu_mul",
    "gelu",
    "gelu_tanh",
    "relu",
    "relu2",
    "swigluoai_mul",
    "relu2_mul",
    "quick_gelu",
]
"""The op after the MLP's first product; with "_mul" the MLP has a gate."""

MAX_CONVERTED_HEAD_DIM = 4096
"""Largest head size if the KV cache has another dtype than the model."""
KVCacheDType = Literal["float32", "bfloat16", "float16", "int8", "int4", "fp8_e4m3", "fp8_e5m2"]
ITL_STRETCH = 1.5
"""`max_itl_stretch` when serving. With it, prompts less than double the p99 of decoding (measured
with 8 streams and prompts of 4,096 tokens, in bfloat16)."""
STEP_TOKENS = 2048
"""Default of `max_num_batched_tokens`."""
LOGITS_ROWS = 64
"""Rows of logits that exist at a time, if `max_num_seqs` is not more: those of a long prompt would
take gigabytes."""


@dataclass(frozen=True, slots=True)
class ProfilerConfig:
    """What `start_profile` records, under vLLM's names."""

    profiler: ProfilerKind | None = None
    """Unset: a trace of steps and native operations, for Perfetto, in `QUIRE_CACHE_DIR/traces`.
    `torch` adds torch's events. `cuda` starts and stops an external profiler, such as Nsight."""
    torch_profiler_dir: str = ""
    """Folder for torch's traces; created if it does not exist."""
    torch_profiler_record_shapes: bool = False
    """Record the shapes of torch's tensors."""
    torch_profiler_with_memory: bool = False
    """Record torch's allocations."""
    torch_profiler_with_stack: bool = False
    """Record each call of a Python function: several times slower. (vLLM's default is on.)"""
    torch_profiler_with_flops: bool = False
    """Record FLOPs of torch's products. Native operations always have them."""
    torch_profiler_use_gzip: bool = True
    """Compress the traces."""
    delay_iterations: int = 0
    """Begin recording with the N-th step after `start_profile`; 0 and 1 mean the first."""
    max_iterations: int = 0
    """Stop recording after N steps; 0 means after 1,000 steps or a minute."""

    @property
    def folder(self) -> Path:
        """Return the folder for traces."""
        return Path(self.torch_profiler_dir) if self.torch_profiler_dir else env.trace_dir()


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the geometric series of wavelengths.
        rotary_dim: leading elements of each head that are rotated.
        scaling: "default", "linear", "dynamic", "llama3", "yarn", "longrope" or "proportional".
        params: the scaling's parameters, as in the checkpoint's `rope_scaling`.
        interleaved: elements 2i and 2i + 1 turn together, not i and i + rotary_dim / 2.
    """

    theta: float
    rotary_dim: int
    scaling: str = "default"
    params: dict[str, Any] = field(default_factory=dict, hash=False)
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's shape and its differences from a plain Llama, independent of file formats."""

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
    """The checkpoint's dtype: "float32", "bfloat16" or "float16"."""
    norm: Literal["rms_norm", "layer_norm"] = "rms_norm"
    norm_eps: float = 1e-6
    norm_bias: bool = True
    """LayerNorms have a bias."""
    norm_gain: Literal["rounded", "float32", "plus_one"] = "rounded"
    """How an RMSNorm multiplies by its weight: after rounding x to its dtype; in float32, rounded
    once (OLMo 2); or by 1 + weight in float32, rounded once (Gemma). A LayerNorm rounds once, and
    with "plus_one" 1 + weight is rounded first (Nemotron)."""
    norms: tuple[str, ...] = ("attn_norm", "mlp_norm", "norm")
    """Positions of the norms: `attn_norm` before attention, `attn_post_norm` after it,
    `attn_sum_norm` after its residual sum (BERT); the same for `mlp`; `embed_norm` after the
    embeddings, `norm` after the last layer, `head.norm` inside a classifier."""
    missing_norms: tuple[str, ...] = ()
    """Single norms that are missing: "layers.0.attn_norm" (ModernBERT)."""
    parallel: int = 1
    """How many sub-layers at the beginning of a layer read the same input. 2 are attention and the
    feed-forward (Cohere), or a recurrent layer and attention (Falcon-H1)."""
    activation: Activation = "silu_mul"
    moe: MoEConfig | None = None
    latent: LatentConfig | None = None
    """Latent attention. The cache then has one key-value head, as wide as `LatentConfig.row`."""
    recurrent: RecurrentConfig | None = None
    """Its layers with a state in place of keys and values."""
    sublayers: tuple[tuple[SubLayerKind, ...], ...] | None = None
    """Of each layer; None means attention and feed-forward."""
    embedding_scale: float | None = None
    """Factor of token embeddings (Gemma: the square root of hidden_size)."""
    embedding_scale_rounded: bool = False
    """The factor is rounded to the model's dtype first (Gemma)."""
    residual_scale: float | None = None
    """Factor of what attention and feed-forward add to the residual stream (Granite)."""
    row_factors: dict[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    """Linear layer, by its stem within a layer → the factor of each part of its result; they are
    factors of packed rows (Falcon-H1)."""
    attention_scale: float | None = None
    """Factor of q · k; None means 1 / sqrt(head_dim)."""
    attention_softcap: float | None = None
    """Scores s become softcap · tanh(s / softcap) (Gemma 2)."""
    sub_norms: bool = False
    """RMSNorms before the last product of attention and of feed-forwards (BitNet)."""
    output_gate: bool = False
    """Attention's result is multiplied by the sigmoid of a gate, which the product of q makes, too
    (Qwen3-Next)."""
    attention_sinks: bool = False
    """The softmax of each head has one more score, a parameter, that has no value (gpt-oss)."""
    logits_softcap: float | None = None
    logits_scale: float | None = None
    """Factor of the logits (Cohere 2, Granite)."""
    rope: RopeConfig | None = None
    local_rope: RopeConfig | None = None
    """The RoPE of sliding layers, if it differs (Gemma 3)."""
    rotated_layers: tuple[bool, ...] | None = None
    """Which layers have RoPE; None means all. The others have no positions (SmolLM3's NoPE)."""
    learned_positions_offset: int | None = None
    """Set if positions are a learned table: its row of position 0 (OPT: 2)."""
    qkv_bias: bool = False
    output_bias: bool = False
    """The attention's output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: Literal["head", "full", "rotated", "unit"] | None = None
    """RMSNorm of q and k before RoPE: over each head (Qwen3), or over all heads (OLMo 2); or over
    each head behind RoPE (HunYuan); or over each head of the layers with RoPE, without a gain
    (Llama 4)."""
    v_norm: bool = False
    """RMSNorm of each head of v, without a gain (Gemma 4)."""
    full_heads: tuple[int, int] | None = None
    """Key-value heads and head_dim of the layers that attend to all, if these differ (Gemma 4)."""
    values_are_keys: bool = False
    """In the layers that attend to all, values are products with the weight of keys (Gemma 4)."""
    borrowing_layers: int = 0
    """So many last layers store no keys and values: they read those of the last earlier layer with
    the same kind of attention (Gemma 4)."""
    borrower_mlp: int | None = None
    """The `intermediate_size` of these layers, if it differs."""
    own_input: int = 0
    """Width of the embedding that each layer has of its own (Gemma 4); 0 means none."""
    layer_factors: bool = False
    """Each layer multiplies the residual stream by a parameter (Gemma 4)."""
    query_growth: QueryGrowth | None = None
    sliding_window: int | None = None
    """Tokens that each position attends to, including itself; None means all. A model that is not
    causal attends to as many later tokens."""
    sliding_layers: tuple[bool, ...] | None = None
    """Which layers slide; None means all, if `sliding_window` is set."""
    chunked: bool = False
    """These layers attend to tokens of the same chunk of `sliding_window` tokens (Llama 4)."""
    tie_word_embeddings: bool = False
    lm_head_bias: bool = False
    vocab_run: tuple[int, int] | None = None
    """A rank's tokens in embeddings and logits: the first one and how many. None means all."""
    layer_run: tuple[int, int] | None = None
    """A stage's layers: the first one and how many. None means all. Embeddings belong to the first
    stage, what follows the layers to the last."""
    causal: bool = True
    """No token attends to a later one. Else a prompt is computed in one step, and its keys and
    values are not needed afterwards."""
    token_types: int = 0
    """Rows of the token type table (BERT's segments)."""
    lm_head: bool = True
    """Whether the model computes logits."""
    num_labels: int = 0
    """Outputs of the classification head, which replaces the lm_head; 0 if there is none."""
    classifier_activation: Literal["tanh", "relu", "relu2", "gelu", "gelu_tanh"] | None = None
    """Between the two layers of an encoder's classification head; None if it has one layer."""
    classifier_bias: bool = True
    """The first of these two layers has a bias."""
    draft_head: DraftHeadConfig | None = None
    """Set if this is no model of its own, but a head that drafts for one."""
    vision: VisionConfig | None = None
    """The tower that reads images; None if the model reads text only."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def gated_mlp(self) -> bool:
        return self.activation.endswith("_mul")

    @property
    def layers(self) -> range:
        """Return the numbers of its layers."""
        first, count = self.layer_run or (0, self.num_hidden_layers)
        return range(first, first + count)

    @property
    def in_first_stage(self) -> bool:
        return self.layers.start == 0

    @property
    def in_last_stage(self) -> bool:
        return self.layers.stop == self.num_hidden_layers

    def window(self, layer: int) -> int | None:
        """Return the sliding window of `layer`; None for full attention."""
        slides = self.sliding_layers is None or self.sliding_layers[layer]
        return self.sliding_window if slides else None

    def kv_shape(self, layer: int) -> tuple[int, int]:
        """Return the key-value heads of `layer`, and their width."""
        if self.full_heads is not None and self.window(layer) is None:
            return self.full_heads
        return self.num_key_value_heads, self.head_dim

    @property
    def widest_head(self) -> int:
        return max(self.head_dim, self.full_heads[1] if self.full_heads else 0)

    def kv_owner(self, layer: int) -> int:
        """Return the layer whose keys and values `layer` reads.

        Layers that are not causal share one memory: no step reads what another stored.
        """
        if not self.causal:
            return self.layers.start
        first = self.num_hidden_layers - self.borrowing_layers
        if layer < first:
            return layer
        window = self.window(layer)
        return next(i for i in reversed(range(first)) if self.window(i) == window)

    def borrows(self, layer: int) -> bool:
        """Return whether `layer` computes no keys and values."""
        return layer >= self.num_hidden_layers - self.borrowing_layers

    def layer_rope(self, layer: int) -> RopeConfig | None:
        """Return the RoPE of `layer`; None if it has none."""
        if self.rotated_layers is not None and not self.rotated_layers[layer]:
            return None
        return self.rope if self.window(layer) is None else self.local_rope or self.rope

    @property
    def common_window(self) -> int | None:
        """Return the window of all layers; None if a layer has full attention."""
        everywhere = self.sliding_layers is None or all(self.sliding_layers)
        return self.sliding_window if everywhere and self.causal else None

    def kinds(self, layer: int) -> tuple[SubLayerKind, ...]:
        """Return the sub-layers of `layer`."""
        return PLAIN_LAYER if self.sublayers is None else self.sublayers[layer]

    def layers_with(self, kind: SubLayerKind) -> list[int]:
        """Return the layers that have such a sub-layer."""
        return [i for i in self.layers if kind in self.kinds(i)]

    @property
    def kv_layers(self) -> list[int]:
        """Return the layers that have keys and values of their own."""
        return [i for i in self.layers_with("attention") if self.kv_owner(i) == i]


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """How a pooling model makes a vector from a prompt's hidden states.

    Attributes:
        task: `embed` returns the pooled hidden state, `classify` the head's output.
        pooling_type: the last token's state, the first token's, or the mean of all.
        normalize: embeddings get length 1.
        activation: of the classifier's outputs.
        matryoshka: the allowed lengths of embeddings; any length if empty, only the full one if
            None.
        prompts: name → text to put before an input.
        default_prompt: the name to use if a request names none.
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
    """How many KV blocks are stored outside of the KV cache, and where.

    Attributes:
        num_swap_slots: blocks of preempted requests in host memory.
        num_offload_slots: blocks in host memory that the prefix cache evicted.
        num_state_slots: the same of states.
        directory: folder for the files of all blocks that enter the prefix cache; None if off.
        disk_bytes: most bytes of files in it, of all engines.
        read_only: other engines write the files.
    """

    num_swap_slots: int = 0
    num_offload_slots: int = 0
    num_state_slots: int = 0
    directory: str | None = None
    disk_bytes: int = 0
    read_only: bool = False

    @property
    def saves(self) -> bool:
        """Return whether blocks are written to files."""
        return bool(self.directory) and not self.read_only

    @property
    def enabled(self) -> bool:
        return bool(self.num_slots or self.directory)

    @property
    def num_slots(self) -> int:
        """Return the number of slots in host memory."""
        return self.num_swap_slots + self.num_offload_slots

    def host_bytes(self, block_bytes: int, slot_bytes: int) -> int:
        """Return the bytes of all slots in host memory."""
        return self.num_slots * block_bytes + self.num_state_slots * slot_bytes

    @property
    def of_states(self) -> TierConfig:
        """Return the same of states, as if they were blocks."""
        return replace(self, num_swap_slots=0, num_offload_slots=self.num_state_slots)


KVRole = Literal["kv_producer", "kv_consumer", "kv_both"]
LoadFailurePolicy = Literal["recompute", "fail"]


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Hands the KV blocks of prompts from one engine to another.

    Attributes:
        role: a producer computes prompts, a consumer answers them.
        engine_id: this engine's name in answers.
        policy: what to do with a request whose promised blocks cannot be loaded.
        address: where a producer serves its blocks, and where a consumer asks for them; None if
            they share the folder.
    """

    role: KVRole
    engine_id: str
    policy: LoadFailurePolicy = "recompute"
    address: tuple[str, int] | None = None

    @property
    def produces(self) -> bool:
        return self.role != "kv_consumer"


@dataclass(frozen=True, slots=True)
class StateConfig:
    """States of recurrent layers.

    Attributes:
        num_slots: slots, each of one sequence's states of all layers.
        per_request: slots that a running request has to itself.
        spacing: most tokens between the snapshots of a prompt: at least as many as take as much
            memory as a state.
    """

    num_slots: int
    per_request: int
    spacing: int


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int
    num_blocks: int
    enable_prefix_caching: bool = True
    hash_algo: HashAlgo = "sha256"
    hash_seed: int = 0
    sliding_window: int | None = None
    """Tokens that any layer attends to, including the newest; earlier blocks are freed."""
    tiers: TierConfig = TierConfig()
    states: StateConfig | None = None
    """None without recurrent layers."""
    report_changes: bool = False
    """Whether the pool notes which blocks enter and leave the prefix cache."""


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How to draft tokens, and how many to verify at once.

    Attributes:
        num_speculative_tokens: most drafts of a sequence in one pass.
        model: of `draft_model`, or the head's; `revision`, `quantization` and `max_model_len` are
            its own.
        prompt_lookup_min, prompt_lookup_max: lengths of the n-grams of `ngram`.
        suffix_decoding_max_tree_depth: most tokens of a context, and of drafts.
        suffix_decoding_max_cached_requests: earlier answers to search; 0 searches only the request.
        suffix_decoding_max_spec_factor: drafts per token of matched context.
        suffix_decoding_min_token_prob: least estimated probability of a draft.
        num_speculative_tokens_per_batch_size: (first, last, drafts): fixed numbers of drafts by the
            number of decoding sequences. Without it, predicted times decide.
        synthetic_acceptance: for each position, the probability of accepting a draft whatever it
            is, if those before it were accepted. For measurements: the answers have no meaning.
    """

    method: SpeculativeMethod
    num_speculative_tokens: int
    model: str | None = None
    revision: str | None = None
    quantization: str | None = None
    max_model_len: int | None = None
    prompt_lookup_min: int = 5
    prompt_lookup_max: int = 5
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    synthetic_acceptance: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and the order of the queue."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: Policy = "fcfs"
    preemption_mode: PreemptionMode = "auto"
    max_itl_stretch: float | None = None
    """See `scheduler.budget`; with None each step may use all of `max_num_batched_tokens`."""
    whole_prompts: bool = False
    """Compute each prompt in one step."""
    max_loras: int | None = None
    """Most adapters in one step; None without LoRA."""
    speculative: SpeculativeConfig | None = None
    """None without speculative decoding."""
    fails_without_blocks: bool = False
    """End requests whose promised KV blocks cannot be loaded; else these are computed."""
    micro_batches: int = 1
    """Steps in flight at a time, each with other requests; 1 without pipeline stages."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """A worker's share of a model (see `models.weights.shares`).

    Attributes:
        rank, ranks: the worker's number in its stage, and how many that has.
        model, weight_forms: those of the whole model.
        stage, stages: likewise.
    """

    rank: int
    ranks: int
    model: ModelConfig
    weight_forms: dict[str, list[Form | None]]
    stage: int = 0
    stages: int = 1

    @property
    def worker(self) -> int:
        """Return its number among all workers (see `parallel.grid`)."""
        return self.stage * self.ranks + self.rank


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The machines ("nodes") of an engine: each has equally many neighbouring pipeline stages.

    Attributes:
        nnodes: number of machines.
        master_addr, master_port: where node 0 listens for the others.
        flags: with Ray, the engine's arguments as JSON, from which each other machine resolves its
            configuration. Empty if somebody starts the machines.
    """

    nnodes: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    flags: str = ""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine core's whole configuration, sent to it as one msgpack document.

    `memory_budget_bytes` limits weights plus KV cache. If `num_blocks` is None, the worker fits the
    cache into it once the weights are loaded (see `executor.worker`).
    """

    model_path: str
    """A local folder or file, or a preset's name if `load_format` is "dummy"."""
    model: ModelConfig
    load_format: LoadFormat
    dtype: Literal["float32", "bfloat16", "float16"]
    quantization: str | None
    """The quantization of the checkpoint's weights, or how to quantize dense ones."""
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
    capture_sizes: tuple[int, ...] = ()
    """Rows of the decode steps that a GPU replays from graphs."""
    async_scheduling: bool = False
    num_scheduler_steps: int = 1
    pack_cache_bytes: int = 0
    cpu_offload_bytes: int = 0
    """Most bytes of weights in a mapped file (see `models.weights.offload`), or with a GPU in host
    memory (see `models.weights.host_offload`)."""
    prefix_caching_hash_algo: HashAlgo = "sha256"
    prefix_caching_hash_seed: int = 0
    tiers: TierConfig = TierConfig()
    transfer: TransferConfig | None = None
    """None if no blocks are handed over."""
    profiler: ProfilerConfig = ProfilerConfig()
    calculate_kv_scales: bool = False
    quantization_config: dict[str, Any] | None = None
    """A quantized checkpoint's own configuration; None if its weights are dense."""
    weight_forms: dict[str, list[Form | None]] = field(default_factory=dict)
    """See `models.forms`; empty if packing quantizes the weights, or nothing does."""
    tokenizer_path: str | None = None
    """For structured output; None if the tokenizer has no files."""
    enable_prompt_embeds: bool = False
    images: ImageConfig | None = None
    """None if no images are accepted."""
    lora: LoRAConfig | None = None
    """None without adapters."""
    step_timeout: float = 0.0
    """Seconds of silence after which a core is replaced; 0 means never."""
    pooling: PoolingConfig | None = None
    """None if the model generates text."""
    device: DeviceType = "cpu"
    """With "cuda", `memory_budget_bytes` is GPU memory, and `ops` is one of `ON_TORCH`."""
    tensor_parallel_size: int = 1
    stage_layers: tuple[int, ...] = ()
    """How many layers each pipeline stage has; () for one stage."""
    cluster: ClusterConfig = ClusterConfig()
    """`num_threads` and the memory sizes are those of each node."""
    marks_path: str | None = None
    """File in which native code notes the present grammar (see `system.native_marks`)."""
    share: RankShare | None = None
    """Set if `model`, `num_threads` and the memory sizes are one worker's."""
    report_cache: bool = False
    """Whether step outputs name the blocks that enter and leave the prefix cache."""
    cpus: tuple[int, ...] = ()
    """CPUs that the core's process may use; () means all that its parent may."""
    draft: EngineConfig | None = None
    """The draft model's; its limits are this engine's, except for `max_model_len`."""

    @property
    def pipeline_parallel_size(self) -> int:
        return max(1, len(self.stage_layers))

    @property
    def steps_in_flight(self) -> int:
        """Return how many steps have begun at a time: one per stage, and one more that waits."""
        return self.pipeline_parallel_size + self.async_scheduling

    @property
    def states_per_request(self) -> int:
        """Return the state slots that a running request needs (see `runner.recurrent`)."""
        speculative = self.scheduler.speculative
        drafts = speculative.num_speculative_tokens if speculative else 0
        return 2 + drafts + (self.num_scheduler_steps > 1)

    @property
    def packing(self) -> str | None:
        """Return the key in `core.quantization.QUANTIZATIONS` for packing dense weights."""
        return None if self.weight_forms or self.quantization_config else self.quantization
