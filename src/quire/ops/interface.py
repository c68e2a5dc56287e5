"""The operations that model code calls. Their signatures stand here once, and mypy checks them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, Self

from quire.core.config import LogprobsMode
from quire.core.dtypes import FLOAT32, DType, HostArray
from quire.core.errors import ConfigError
from quire.core.layers import RouteSpec
from quire.core.messages import TokenLogprobs
from quire.core.model_config import Activation
from quire.core.quantized import Weights
from quire.ops.array import A
from quire.ops.filters import FloatRow
from quire.ops.metadata import (
    AttentionMetadata,
    AttentionRules,
    Convolution,
    DeltaRules,
    GatedNorm,
    Heads,
    KVCache,
    ScanRules,
)
from quire.ops.reported import ReportedRow
from quire.ops.sample_row import SampleRow, TokenIds
from quire.ops.weights import Epilogue, LinearWeight

if TYPE_CHECKING:
    from quire import _native
    from quire.ops.device import Device
    from quire.ops.graphs import Capture
    from quire.ops.last_tokens import LastTokens
    from quire.ops.lora import LoraTable
    from quire.ops.packed_file import StoredLinear


class StepOps(ABC, Generic[A]):
    """The ops of a step. `torch_ops` defines what each computes, and documents it in full."""

    @abstractmethod
    def embedding(self, ids: A, table: A | LinearWeight) -> A:
        """Return rows `ids` of a table, which `pack_linear` may have made."""

    @abstractmethod
    def add(self, x: A, y: A) -> A: ...

    @abstractmethod
    def linear(self, x: A, packed: LinearWeight, dtype: DType | None = None) -> A:
        """Return epilogue(x @ weight.T + bias), of `dtype` or x's."""

    @abstractmethod
    def logits(self, x: A, packed: LinearWeight) -> A:
        """Return the product as float32."""

    @abstractmethod
    def all_reduce(self, x: A, dtype: Any) -> A:
        """Return the sum over all ranks, rounded to `dtype`, the provider's."""

    @abstractmethod
    def all_gather(self, x: A, first: int, width: int) -> A:
        """Return the ranks' columns side by side; this rank's begin at `first`."""

    @abstractmethod
    def vocab_embedding(self, ids: A, table: A | LinearWeight, first: int, vocab: int) -> A:
        """Return rows of a table that is split among ranks; this rank's begin at `first`."""

    @abstractmethod
    def rms_norm(self, x: A, weight: A, eps: float) -> A: ...

    @abstractmethod
    def add_rms_norm(self, x: A, residual: A, weight: A, eps: float) -> tuple[A, A]: ...

    @abstractmethod
    def layer_norm(self, x: A, weight: A, bias: A, eps: float) -> A: ...

    @abstractmethod
    def add_layer_norm(self, x: A, residual: A, weight: A, bias: A, eps: float) -> tuple[A, A]: ...

    @abstractmethod
    def rope_kv_write(
        self,
        qkv: A,
        positions: A,
        cos_sin: A | None,
        cache: KVCache[A],
        slot_mapping: A,
        heads: Heads[A],
    ) -> A:
        """Split qkv, normalize q, k and v, rotate q and k, store k and v; return q."""

    @abstractmethod
    def paged_attention(
        self, q: A, cache: KVCache[A], meta: AttentionMetadata[A], rules: AttentionRules[A]
    ) -> A:
        """Return the attention of each new token over its sequence's cached tokens."""

    @abstractmethod
    def latent_kv_write(
        self,
        q: A,
        kv: A,
        positions: A,
        cos_sin: A | None,
        gain: A,
        eps: float,
        cache: KVCache[A],
        slot_mapping: A,
        heads: int,
    ) -> A:
        """Normalize latents, rotate q's and kv's rope parts (unless `cos_sin` is None), store kv;
        return q."""

    @abstractmethod
    def head_linear(self, x: A, packed: LinearWeight, first: int = 0) -> A:
        """Return each head's product with its own weight, from its element `first` on."""

    @abstractmethod
    def latent_attention(
        self, q: A, q_rope: A, cache: KVCache[A], meta: AttentionMetadata[A], scale: float
    ) -> A:
        """Return the attention of each new token's heads over its sequence's cached latents."""

    @abstractmethod
    def causal_conv1d(self, x: A, conv: Convolution[A], state: A, meta: AttentionMetadata[A]) -> A:
        """Return the causal convolution of each channel over the tokens of its sequence."""

    @abstractmethod
    def gated_delta_rule(
        self, qkv: A, decay: A, beta: A, rules: DeltaRules[A], state: A, meta: AttentionMetadata[A]
    ) -> A:
        """Return each new token's query times the state that its key and value have changed."""

    @abstractmethod
    def mamba2_scan(
        self, xbc: A, dt: A, rules: ScanRules[A], state: A, meta: AttentionMetadata[A]
    ) -> A:
        """Return each new token's C times the state that its x and B have changed, and skip · x."""

    @abstractmethod
    def gated_norm(self, x: A, gate: A, norm: GatedNorm[A]) -> A:
        """Return the RMS norm of x in groups times f(gate), or the norm of that product."""

    @abstractmethod
    def activation(self, x: A, kind: Activation) -> A: ...

    @abstractmethod
    def scale(self, x: A, factor: float) -> A: ...

    @abstractmethod
    def softcap(self, x: A, cap: float) -> A: ...

    @abstractmethod
    def xielu(self, x: A, positive: float, negative: float, linear: float) -> A:
        """Return linear · x + positive · x², or where x < 0 + negative · (exp(x) - 1 - x)."""

    @abstractmethod
    def lora_add(self, adapter: A, y: A, x: A, table: LoraTable) -> A:
        """Add each row's adapter to y, in place."""

    @abstractmethod
    def route(
        self, logits: A, bias: A | None, spec: RouteSpec, factors: A | None = None
    ) -> tuple[A, A]:
        """Return the experts of each row and their weights."""

    @abstractmethod
    def moe(
        self,
        x: A,
        experts: A,
        weights: A,
        gate_up: LinearWeight,
        down: LinearWeight,
        dtype: DType | None = None,
        weight_on_input: bool = False,
    ) -> A:
        """Return the weighted sum of each row's experts, of `dtype` or x's."""

    @abstractmethod
    def argmax(self, logits: A) -> tuple[TokenIds, FloatRow]:
        """Return the first index of each row's largest logit, and that logit, on the host."""

    @abstractmethod
    def sample(self, logits: A, rows: Sequence[SampleRow]) -> list[int]:
        """Return a token for each of `rows`; -1 if its largest logit is not finite."""

    @abstractmethod
    def report(
        self, logits: A, rows: Sequence[ReportedRow], mode: LogprobsMode
    ) -> list[TokenLogprobs]:
        """Return what answers report of these rows (see `ops.reported.report_row`)."""


class Ops(StepOps[A]):
    """What a provider of operations has: the ops of a step, and arrays and weights for them.

    Attributes:
        provider: "reference", "triton" or "cpu".
        sources: op → who computes it: "reference" or "native avx512" …
        note: why this provider was chosen, where the choice was "auto".
        ranks: processes among which layers are split: over which `all_reduce` sums.
        new_plan: makes an empty plan that these ops can be recorded into (see `ops.plans`); None
            where nothing is native.
        sampler: the native sampler; None where sampling is not native.
        capture: records steps as graphs (see `ops.graphs`); None where nothing can.
        device: where they compute: of all their arrays, unless the op says "on the host".
    """

    provider: str
    note = ""
    ranks = 1
    new_plan: Callable[[], _native.Plan] | None = None
    sampler: _native.Sampler | None = None
    capture: Capture | None = None

    def __init__(self, device: Device) -> None:
        self.device = device
        self.sources = dict.fromkeys(OP_NAMES, "reference")

    def last_tokens(self, slots: int) -> LastTokens | None:
        """Return the last tokens of so many slots; None where the host knows them in time."""
        return None

    @property
    @abstractmethod
    def isa(self) -> str:
        """Return the instruction set of the kernels, for reports."""

    @abstractmethod
    def pack_linear(
        self,
        weight: Weights | StoredLinear,
        bias: HostArray | None = None,
        *,
        epilogue: Epilogue = "none",
        head: bool = False,
        exact: bool = False,
        dtype: DType = FLOAT32,
        experts: int = 1,
    ) -> LinearWeight:
        """Return what `linear` and `logits` take for this weight [out, in] and bias [out].

        Args:
            weight: on the host; several are one weight, whose rows follow each other. They are
                copied and may be freed. A `StoredLinear` is what the provider packed before.
            head: the weight makes logits; a provider may round it less than others.
            exact: packing does not quantize the weight.
            dtype: the model's. A quantized weight is dequantized to it if no product exists for
                its form, and rows that are looked up have it.
            experts: the rows are those of so many experts, each as many, one after the other:
                for `moe`, or those of heads for `head_linear`.
        """

    @abstractmethod
    def array(self, values: HostArray) -> A:
        """Return the values on the device; on the host it shares their memory if it can."""

    @abstractmethod
    def numpy(self, values: A) -> HostArray:
        """Return the values on the host: their own memory if they are there, else a copy."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType) -> A:
        """Allocate an array on the device; what it holds means nothing.

        On the host see `ops.memory`.
        """

    @abstractmethod
    def lora_table(
        self, columns: int, parts: Sequence[int], adapters: int, dtype: DType
    ) -> LoraTable:
        """Return an empty `LoraTable` on the device."""

    @abstractmethod
    def inference(self) -> AbstractContextManager[object]:
        """Return the context in which a step is computed."""

    @abstractmethod
    def use_threads(self, num_threads: int) -> None:
        """Let the provider compute with so many threads."""

    def whole(self, quantization: str | None) -> Self:
        """Return ops on the same threads, for a model that each rank has the whole of.

        Args:
            quantization: how they pack its linear weights.

        Raises:
            ConfigError: they cannot quantize.
        """
        if quantization is not None:
            raise ConfigError("the reference ops have no quantized products.", param="quantization")
        return self

    def using(self, **ops: Callable[..., Any]) -> Self:
        """Return a copy that calls these in place of its own ops of these names."""
        assert all(callable(getattr(self, name, None)) for name in ops)
        changed = copy(self)
        vars(changed).update(ops)
        return changed

    def wrapped(self, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Self:
        """Return a copy that calls wrap(name, op) in place of each op of a step."""
        return self.using(**{name: wrap(name, getattr(self, name)) for name in OP_NAMES})


OP_NAMES = tuple(name for name in vars(StepOps) if not name.startswith("_"))
"""The ops that a step may call."""
SAMPLING_OPS = frozenset({"argmax", "sample", "report"})
"""Ops that take logits and return to Python."""
