"""Predicts a step's time: a roofline from a model's bytes and operations and a machine's rates.

A step reads all weights, and multiplies each token by all weights. The slower of the two decides.
Of a mixture of experts it reads those that some token chooses. If each token misses an expert with
the same probability, independently, t tokens miss it with the t-th power of that.
Near the corner, where both take equally long, the other one adds a little, because they overlap
imperfectly. The time of attention is added: it reads the keys and values of the context, and
multiplies each pair of tokens.

    seconds = overhead + overhead per sequence × sequences
            + (time to read weights⁴ + time of products⁴)^¼
            + time to read keys and values + time of pairs

At the corner, the smooth maximum is 1.19 times either time; if one is twice the other, 1.02 times
the larger. Measured limits have times of a few rows per weight format in its place, because kernels
multiply rows in groups. Small batches are limited by memory, so another row costs little more than
its attention. Beyond the corner, the time grows with the tokens.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple, Protocol

from quire.system.records import dataclass

SIMILAR = {"int4": "int8", "int8_w8a16": "", "fp8": ""}
"""Product types of packed weights → the type that counts if they were not measured; "" is the
model's. int4: codes of fewer than 8 bits, times int8."""
CORNER = 4.0
"""Exponent of the smooth maximum; infinity would be the plain maximum, and 1 the sum."""
Overlap = tuple[tuple[float, float], ...]
"""Measured times of products alone and of both, relative to reading, ascending; () is unknown."""


def together(reading: float, products: float, overlap: Overlap = ()) -> float:
    """Return the time of reading weights and multiplying by them, which overlap imperfectly."""
    if not overlap or not reading:
        total: float = (reading**CORNER + products**CORNER) ** (1.0 / CORNER)
        return total
    share, (left, low) = products / reading, (0.0, overlap[0][1])
    for right, high in overlap:
        if share < right:
            return reading * (low + (high - low) * (share - left) / (right - left))
        left, low = right, high
    return max(reading * low, products)


class StepCost(Protocol):
    """Predicts a step's seconds on the executor."""

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        """Predict one step.

        Args:
            num_tokens: computed tokens of all sequences.
            num_seqs: sequences in the step; each may sample a token.
            context_tokens: tokens whose keys and values are read, including the computed ones.
            attended: pairs of a computed token and one that it attends to; if None, each token
                is assumed to have the mean context.
        """

    def copy_seconds(self, num_tokens: int) -> float:
        """Predict copying the keys and values of `num_tokens` tokens to host memory, or back."""


@dataclass(frozen=True, slots=True)
class Link:
    """A network between two machines: its rate, and its delay one way. Default: 10 Gbit/s."""

    bytes_per_second: float = 1.25e9
    seconds: float = 1e-4


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """A machine's peak rates, and the shares of them that a step reaches.

    Attributes:
        memory_bytes: for weights and KV cache.
        bytes_per_second: peak bandwidth of that memory.
        flops_per_second: dense peak of products by product type: "float32", "bfloat16", "float16",
            "int8", and others of `SIMILAR` if they are known. A multiply-add counts as two
            operations.
        weight_bytes_per_second: rate of a step of one row by product type, if it was measured; else
            `bytes_per_second`.
        overlaps: of reading and multiplying by product type; else the smooth maximum.
        attention_flops_per_second: peak of attention's operations; if None, that of products of
            the model's type.
        bandwidth_share, flops_share, attention_share: shares of these peaks that a decode step, a
            large product, and attention in a prompt reach.
        kv_share: share of the bandwidth at which attention reads the blocks of many sequences.
        overhead_seconds: constant per step: launches, scheduling, sending.
        seq_overhead_seconds: additional per sequence: sampling, detokenizing, sending.
        request_overhead_seconds: per request, not in parallel: HTTP, tokenization, client.
        copy_bytes_per_second: between this memory and the host's, one way; for a CPU, a copy
            within memory.
        accelerator: whether its memory is separate from the host's.
        link: the network between two such machines.
        peer: the connection between two such cards in one machine; PCIe by default.
        cards: how many of them compute as one (see `on_cards`).
        spread: how much repeated measurements of this machine differed, relative to their median; 0
            if they agreed, or if nothing was measured.
        paged_by_length: `page_size` gives the tokens of a KV block there, as on TPUs.
    """

    name: str
    memory_bytes: int
    bytes_per_second: float
    flops_per_second: dict[str, float]
    bandwidth_share: float = 0.85
    flops_share: float = 0.6
    attention_share: float = 0.4
    kv_share: float = 0.6
    overhead_seconds: float = 5e-4
    seq_overhead_seconds: float = 2e-5
    request_overhead_seconds: float = 1e-3
    copy_bytes_per_second: float = 10e9
    accelerator: bool = False
    link: Link = Link()
    peer: Link = Link(25e9, 2e-5)
    cards: int = 1
    attention_flops_per_second: float | None = None
    spread: float = 0.0
    paged_by_length: bool = False
    weight_bytes_per_second: dict[str, float] = field(default_factory=dict)
    overlaps: dict[str, Overlap] = field(default_factory=dict)

    def flops_of(self, product: str, dtype: str) -> float:
        """Return the peak of a product type in a model of `dtype`; of a similar one if unknown."""
        known = self.flops_per_second
        return known[product] if product in known else known[SIMILAR[product] or dtype]

    def part(self, count: int) -> HardwareProfile:
        """Return the profile of one of `count` equal parts that compute at the same time."""
        return self._times(1 / count)

    def on_cards(self, count: int) -> HardwareProfile:
        """Return the profile of a machine with `count` such cards; other processors are one."""
        return replace(self._times(count / self.cards), cards=count) if self.accelerator else self

    def _times(self, factor: float) -> HardwareProfile:
        attention = self.attention_flops_per_second
        return replace(
            self,
            memory_bytes=int(self.memory_bytes * factor),
            bytes_per_second=self.bytes_per_second * factor,
            flops_per_second={name: rate * factor for name, rate in self.flops_per_second.items()},
            weight_bytes_per_second={
                name: rate * factor for name, rate in self.weight_bytes_per_second.items()
            },
            attention_flops_per_second=attention and attention * factor,
            copy_bytes_per_second=self.copy_bytes_per_second * factor,
        )


def page_size(max_model_len: int) -> int:
    """Return the tokens of a KV block for vLLM's paged attention on TPUs.

    It is a power of two from 16 to 256: a 16th of the context length, rounded up to one.
    """
    rounded = 1 << (max_model_len - 1).bit_length()
    return min(max(rounded // 16, 16), 256)


class StepParts(NamedTuple):
    """Seconds of a step: reading weights, products, states, pairs of attention, and all else."""

    weights: float
    products: float
    states: float
    pairs: float
    others: float
    overlap: Overlap = ()

    def seconds(self, memory: float = 1.0, compute: float = 1.0) -> float:
        """Return the step's time if it reaches these shares of the rates of memory and products."""
        linear = together(self.weights / memory, self.products / compute, self.overlap)
        return linear + self.states / memory + self.pairs / compute + self.others


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """A model on a machine. `models.cost.roofline` makes one.

    Attributes:
        weight_bytes: weights that each step reads.
        expert_bytes: weights of experts, of which a step reads the chosen ones.
        unchosen: share of the experts that one token does not choose.
        kv_bytes_per_token: keys and values of one token in all layers.
        state_bytes: one sequence's states in recurrent layers, which a step reads and writes.
        head_bytes: of `weight_bytes`, those of the output projection.
        head_read, head_products: time of its bytes and operations relative to those of layers,
            which may be quantized while it is not.
        flops_per_token: operations of the layers' products.
        flops_per_row: operations of the output projection, only for sampled rows.
        flops_per_pair: operations of attention per pair of tokens.
        window: tokens that sliding layers attend to; None if no layer slides.
        window_share: share of the layers that slide.
        bytes_per_second, flops_per_second, attention_flops_per_second: reached rates, not peaks.
        kv_bytes_per_second: rate of reading keys and values; that of weights if None.
        overlap: of reading weights and products.
        overhead_seconds, seq_overhead_seconds, copy_bytes_per_second: see `HardwareProfile`.
        sum_seconds, sum_token_seconds: of sums over cards, per step and per token.
        turn_share: of the host's time, what a turn of several passes spends once; each pass spends
            the rest.
    """

    weight_bytes: float
    kv_bytes_per_token: float
    flops_per_token: float
    flops_per_row: float
    flops_per_pair: float
    bytes_per_second: float
    flops_per_second: float
    attention_flops_per_second: float
    overhead_seconds: float = 0.0
    seq_overhead_seconds: float = 0.0
    copy_bytes_per_second: float = 10e9
    window: int | None = None
    window_share: float = 0.0
    kv_bytes_per_second: float | None = None
    expert_bytes: float = 0.0
    unchosen: float = 0.0
    state_bytes: float = 0.0
    overlap: Overlap = ()
    head_bytes: float = 0.0
    head_read: float = 1.0
    head_products: float = 1.0
    sum_seconds: float = 0.0
    sum_token_seconds: float = 0.0
    turn_share: float = 1.0

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        return self.parts(num_tokens, num_seqs, context_tokens, attended).seconds()

    def parts(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> StepParts:
        """Return what `seconds` adds up."""
        if num_tokens == 0:
            return StepParts(0.0, 0.0, 0.0, 0.0, 0.0)
        mean_context = context_tokens / num_seqs
        pairs = float(num_tokens * mean_context if attended is None else attended)
        context = float(context_tokens)
        if self.window is not None and mean_context > self.window:
            hidden = self.window_share * (1.0 - self.window / mean_context)
            context *= 1.0 - hidden
            pairs *= 1.0 - hidden
        experts = self.expert_bytes * (1.0 - self.unchosen**num_tokens)
        head = self.flops_per_row * self.head_products
        flops = self.flops_per_token * num_tokens + head * num_seqs
        weights = self.weight_bytes + self.head_bytes * (self.head_read - 1.0) + experts
        keys = self.kv_bytes_per_token * context
        return StepParts(
            weights / self.bytes_per_second,
            flops / self.flops_per_second,
            2 * self.state_bytes * num_seqs / self.bytes_per_second,
            self.flops_per_pair * pairs / self.attention_flops_per_second,
            self.host_seconds(num_seqs)
            + keys / (self.kv_bytes_per_second or self.bytes_per_second)
            + self.sum_seconds
            + self.sum_token_seconds * num_tokens,
            self.overlap,
        )

    def host_seconds(self, num_seqs: int) -> float:
        """Return the part of `seconds` in which the device is idle and the host works."""
        return self.overhead_seconds + self.seq_overhead_seconds * num_seqs

    def copy_seconds(self, num_tokens: int) -> float:
        return self.kv_bytes_per_token * num_tokens / self.copy_bytes_per_second


def cautious_cpu(threads: int, memory_bytes: int) -> HardwareProfile:
    """Return the profile of an unmeasured CPU: slow, especially in arithmetic."""
    flops = {"float32": 40e9, "float16": 40e9, "bfloat16": 80e9, "int8": 120e9}
    return HardwareProfile(
        name="cpu",
        memory_bytes=memory_bytes,
        bytes_per_second=min(10e9 * threads, 200e9),
        flops_per_second={dtype: rate * threads for dtype, rate in flops.items()},
        bandwidth_share=1.0,
        flops_share=1.0,
        attention_share=0.5,
        kv_share=0.5,
    )


def _gpu(
    name: str,
    gigabytes: int,
    bandwidth: float,
    *,
    float32: float,
    bfloat16: float,
    int8: float,
    pcie: float = 32e9,
    peer: float | None = None,
) -> HardwareProfile:
    """Return a GPU's profile from its datasheet: GB/s, and TFLOP/s without sparsity.

    Args:
        peer: GB/s to another card, one way; that of PCIe if None.
    """
    rates = {"float32": float32, "bfloat16": bfloat16, "float16": bfloat16, "int8": int8}
    return HardwareProfile(
        name=name,
        memory_bytes=gigabytes * 10**9,
        bytes_per_second=bandwidth * 1e9,
        flops_per_second={dtype: rate * 1e12 for dtype, rate in rates.items()},
        bandwidth_share=0.8,
        overhead_seconds=1e-3,
        seq_overhead_seconds=5e-6,
        copy_bytes_per_second=0.8 * pcie,
        accelerator=True,
        peer=Link(0.8 * (pcie if peer is None else peer * 1e9), 1e-5 if peer else 2e-5),
    )


def _tpu(
    name: str, gigabytes: int, bandwidth: float, *, bfloat16: float, int8: float, peer: float
) -> HardwareProfile:
    """Return a TPU chip's profile from its datasheet: GB/s and TFLOP/s. Its matrix unit multiplies
    float32 in three passes of bfloat16 or more."""
    chip = _gpu(
        name, gigabytes, bandwidth, float32=bfloat16 / 3, bfloat16=bfloat16, int8=int8, peer=peer
    )
    return replace(chip, paged_by_length=True)


def _cpu(
    name: str,
    gigabytes: int,
    *,
    cores: int,
    gigahertz: float,
    bandwidth: float,
    flops: tuple[int, int, int],
) -> HardwareProfile:
    """Return a CPU's profile from cores, base clock, memory bandwidth in GB/s and operations.

    Args:
        flops: operations of a core per cycle, in float32, bfloat16 and int8.
    """
    cycles, (float32, bfloat16, int8) = cores * gigahertz * 1e9, flops
    rates = {"float32": float32, "float16": float32, "bfloat16": bfloat16, "int8": int8}
    return HardwareProfile(
        name=name,
        memory_bytes=gigabytes * 10**9,
        bytes_per_second=bandwidth * 1e9,
        flops_per_second={dtype: rate * cycles for dtype, rate in rates.items()},
        copy_bytes_per_second=0.4 * bandwidth * 1e9,  # read, write-allocate and write
    )


# Bandwidth, memory and dense tensor-core rates: Nvidia's datasheets of H100 SXM, H200 SXM,
# A100 SXM and L4; the whitepapers of GA102 (3090) and AD102 (4090), with float32 sums. NVLink and
# the interconnect of TPUs: half of the published rate, which is of both directions.
# CPUs: cores, base clocks and memory from Intel's ARK and AMD's product pages. Operations per
# cycle: Zen 4 has two 256-bit multiply-add units, with twice the rate for bfloat16 and four times
# for int8. AMX multiplies a tile of 16 × 32 bfloat16 by one of 32 × 16 in 16 cycles, and twice as
# many int8.
PROFILES: dict[str, HardwareProfile] = {
    profile.name: profile
    for profile in (
        _gpu("h100", 80, 3350, float32=67, bfloat16=989, int8=1979, pcie=64e9, peer=450),
        _gpu("h200", 141, 4800, float32=67, bfloat16=989, int8=1979, pcie=64e9, peer=450),
        _gpu("a100-40gb", 40, 1555, float32=19.5, bfloat16=312, int8=624, peer=300),
        _gpu("a100-80gb", 80, 2039, float32=19.5, bfloat16=312, int8=624, peer=300),
        _gpu("l4", 24, 300, float32=30.3, bfloat16=121, int8=242),
        _gpu("rtx4090", 24, 1008, float32=82.6, bfloat16=165, int8=661),
        _gpu("rtx3090", 24, 936, float32=35.6, bfloat16=71, int8=284),
        _tpu("tpu-v5e", 16, 819, bfloat16=197, int8=394, peer=100),
        _tpu("tpu-v6e", 32, 1640, bfloat16=918, int8=1836, peer=224),
        # 12 channels of DDR5-4800, 8 of DDR5-4800, 2 of DDR5-5200
        _cpu("epyc-9654", 384, cores=96, gigahertz=2.4, bandwidth=460.8, flops=(32, 64, 128)),
        _cpu(
            "xeon-8480-amx", 512, cores=56, gigahertz=2.0, bandwidth=307.2, flops=(64, 1024, 2048)
        ),
        _cpu("ryzen-7950x", 64, cores=16, gigahertz=4.5, bandwidth=83.2, flops=(32, 64, 128)),
    )
}
