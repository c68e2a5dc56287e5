"""The resolved configuration. All objects are frozen.

`resolve.engine` makes the engine's `EngineConfig` from the user's `EngineArgs`.
"""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

from quire.core.images import ImageConfig
from quire.core.kv_sharing import KVEventsConfig, SharedKV, TransferConfig
from quire.core.lora import LoRAConfig
from quire.core.model_config import ModelConfig, PoolingConfig
from quire.core.quantization import Form
from quire.system import env
from quire.system.records import dataclass

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
DTypeName = Literal["auto", "float32", "bfloat16", "float16", "half", "float"]
Policy = Literal["fcfs", "priority", "lpm"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
HashAlgo = Literal["sha256", "xxhash"]
PreemptionMode = Literal["auto", "recompute", "swap"]
OpsProvider = Literal["auto", "reference", "cpu", "triton"]
ON_TORCH: frozenset[OpsProvider] = frozenset({"reference", "triton"})
"""Providers whose arrays are torch's."""
DeviceType = Literal["cpu", "cuda", "mps"]
AttentionPackage = Literal["flash_attn", "flashinfer"]
"""Packages that may compute the attention of prompts, by module."""
SpeculativeMethod = Literal["ngram", "suffix", "draft_model", "mtp", "eagle", "eagle3"]
TEXT_METHODS = ("ngram", "suffix")
"""Methods that look drafts up in texts."""
HEAD_METHODS = ("mtp", "eagle", "eagle3")
"""Methods whose drafts come from a head on top of the target."""

ProfilerKind = Literal["torch", "cuda"]
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
        return Path(self.torch_profiler_dir) if self.torch_profiler_dir else env.trace_dir()


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
        return self.num_slots * block_bytes + self.num_state_slots * slot_bytes

    @property
    def of_states(self) -> TierConfig:
        """Return the same of states, as if they were blocks."""
        return replace(self, num_swap_slots=0, num_offload_slots=self.num_state_slots)


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
    report_tokens: bool = False
    """Whether the manager notes the tokens of blocks that enter."""
    first_block: int | None = None
    """The first block's number, if replicas lend each other blocks."""


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
class PromptOps:
    """What may compute prompts in place of the provider's own ops. Both change bits.

    Attributes:
        compile_backend: of `torch.compile`, which fuses the reference ops.
        attention_package: replaces Triton's attention.
    """

    compile_backend: str | None = None
    attention_package: AttentionPackage | None = None


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
    prompts: PromptOps = PromptOps()
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
    max_logprobs: int = 20
    """Most log-probabilities per token that a request may ask for."""
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """What a request's log-probabilities report; those of a prompt are raw_logprobs."""
    images: ImageConfig | None = None
    """None if no images are accepted."""
    lora: LoRAConfig | None = None
    """None without adapters."""
    step_timeout: float = 0.0
    """Seconds of silence after which a core is replaced; 0 means never."""
    pooling: PoolingConfig | None = None
    """None if the model generates text."""
    device: DeviceType = "cpu"
    """Unless "cpu", `memory_budget_bytes` is GPU memory, and `ops` is one of `ON_TORCH`."""
    first_gpu: int = 0
    """Number of rank 0's GPU; each rank has one of its own."""
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
    kv_events: KVEventsConfig | None = None
    """Where to publish them; None for nowhere."""
    shared_kv: SharedKV | None = None
    """Set if replicas lend each other blocks."""
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
