"""The products and the attention of a model, as subjects of a search.

The cases are those of `quire bench kernels`. Their arguments are too large for any cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from quire.bench.kernels import attention as attention_cases
from quire.bench.kernels import cases as product_cases
from quire.bench.kernels.case import Call
from quire.bench.kernels.cases import Setting
from quire.core.dtypes import HostArray, dtype_of
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.native.attention import AttentionKernels
from quire.ops.native.gemm import PackedLinear
from quire.ops.native.kernels import Pool, native_kernels
from quire.ops.tuning import AttentionTuning, GemmTuning, Shape, TunedAttention, TunedGemm
from quire.ops.weights import LinearWeight
from quire.system.records import dataclass
from quire.tune.kernels.search import Found, Subject, Values

_KIB = 1 << 10
_ANY_ROWS = 1 << 40
_PREFETCHES = (-1, 2048, 8192, 32768)
_GROUPS = tuple(size * _KIB for size in (32, 64, 128, 256, 512))
_CHUNKS = tuple(size * _KIB for size in (128, 512, 1024))
_THREAD_TASKS = (2, 4, 16, 32)


@dataclass(frozen=True)
class Task:
    """A subject, its name, and its entry in the tuning file.

    Attributes:
        label: shown to the user.
        entry: makes the file's entry from the result.
        rows: range of rows of a product.
    """

    label: str
    shape: Shape
    subject: Subject
    entry: Callable[[Found], Any]
    rows: tuple[int, int] | None = None


def ranges(last_rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return the row ranges with these ends: 1, 8 and 32 give 1 to 1, 2 to 8, 9 to 32."""
    return [(before + 1, last) for before, last in pairwise([0, *sorted(set(last_rows))])]


class Product(NamedTuple):
    """A linear layer with a range of rows.

    Attributes:
        weights: equal ones, through which the calls rotate.
        rows: first and last of the range.
        calls: products with both.
    """

    label: str
    weights: list[LinearWeight]
    rows: tuple[int, int]
    calls: list[Call]


def remembering(ops: Ops) -> tuple[Ops, list[LinearWeight]]:
    """Return `ops`, and the list to which they add each weight that they pack."""
    packed: list[LinearWeight] = []

    def pack_linear(*args: Any, **kwargs: Any) -> LinearWeight:
        packed.append(ops.pack_linear(*args, **kwargs))
        return packed[-1]

    return ops.using(pack_linear=pack_linear), packed


def layers(setting: Setting) -> Iterator[Product]:
    """Yield each linear layer with each row range; `setting.rows` are the ranges' ends.

    A range is tuned at its first and its last number of rows together.
    """
    ops, packed = remembering(setting.ops)
    parts = ranges(setting.rows)
    ends = sorted({end for part in parts for end in part})
    for cases in product_cases.gemm(replace(setting, rows=ends, ops=ops)):
        weights = packed[:]
        packed.clear()
        known = {case.variant.rows: case for case in cases}
        for first, last in parts:
            if last in known:
                calls = [known[rows].call for rows in dict.fromkeys((first, last))]
                label = f"gemm {cases[0].name} {cases[0].shape}, rows {first} to {last}"
                yield Product(label, weights, (first, last), calls)


def products(setting: Setting) -> Iterator[Task]:
    """Yield the linear layers as tasks; see `layers`."""
    for product in layers(setting):
        yield _product(product, setting.variant.isa)


def attention(setting: Setting, threads: int) -> Iterator[Task]:
    """Yield attention with the model's heads, decode and prefill together; none over latents,
    whose kernel has nothing to tune."""
    if setting.model.latent is not None:
        return
    native = AttentionKernels(native_kernels(setting.variant.isa), Pool(threads))
    chosen = AttentionTuning()

    def attend(
        q: HostArray,
        cache: KVCache[HostArray],
        meta: AttentionMetadata[HostArray],
        rules: AttentionRules[HostArray],
    ) -> Array:
        return native.paged_attention(q, cache, meta, rules, tuning=chosen)

    def apply(values: Values) -> None:
        nonlocal chosen
        chosen = AttentionTuning(**values)

    m = setting.model
    heads = m.num_attention_heads, m.num_key_value_heads, m.head_dim
    dtype = setting.variant.kv_cache_dtype
    own = setting.variant.numpy_dtype
    kv_dtype = str(own if dtype in (None, "auto") else dtype_of(dtype))
    ops = setting.ops.using(paged_attention=attend)
    found = [c for group in attention_cases.attention(replace(setting, ops=ops)) for c in group]
    subject = Subject(
        [case.call for case in found],
        {
            "thread_tasks": _THREAD_TASKS,
            "tall_rows": (4, 8, 16, 32),
            "ahead_bytes": (4096, 20480, 40960),
        },
        apply,
    )

    def entry(result: Found) -> TunedAttention:
        return TunedAttention(*heads, kv_dtype, AttentionTuning(**result.values), result.gain)

    label = f"attention {heads[0]}/{heads[1]}x{heads[2]} {kv_dtype}"
    yield Task(label, ("attention", *heads, kv_dtype), subject, entry)


def _product(product: Product, isa: str) -> Task:
    label, _, rows, calls = product
    weights = [weight for weight in product.weights if isinstance(weight, PackedLinear)]
    one = weights[0]
    (n, k), kind, group = one.shape, one.kind, one.group

    def apply(values: Values) -> None:
        for weight in weights:
            weight.tune({_ANY_ROWS: GemmTuning(**values)})

    def entry(result: Found) -> TunedGemm:
        return TunedGemm(kind, n, k, group, rows, GemmTuning(**result.values), result.gain)

    subject = Subject(calls, _fields(kind, rows, tiles=isa.startswith("amx")), apply)
    return Task(f"{label}, {kind}", ("gemm", kind, n, k, group), subject, entry, rows)


def _fields(kind: str, rows: tuple[int, int], *, tiles: bool) -> dict[str, Sequence[int]]:
    """Return the fields that such a product reads, with values to try."""
    fields: dict[str, Sequence[int]] = {
        "group_bytes": _GROUPS,
        "thread_tasks": _THREAD_TASKS,
        "ahead_bytes": _PREFETCHES,
    }
    if kind.startswith("u") and tiles:
        fields["vector_rows"] = (-1, 2, 8, 16)
    if rows[1] > 4 and (not tiles or kind in {"f32", "f16"}):
        fields["pass_rows"] = (4, 5, 6, 8)
    if rows[1] > 32 and not kind.startswith("u"):
        fields["chunk_bytes"] = _CHUNKS
    return fields
