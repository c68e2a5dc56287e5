"""The results of `quire tune kernels` for a machine: where they are stored, and those of a shape.

Each machine has one file in `QUIRE_CACHE_DIR/tuned` (`~/.cache/quire/tuned`), named after the CPU,
the instruction set and the number of threads; or after the GPU (`ops.triton.tuning`). It changes
speed alone, never a result.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Meta

from quire.system import env
from quire.system.hardware import cpu_facts, cpu_name

logger = logging.getLogger(__name__)

VERSION = 1

Shape = tuple[str | int, ...]
"""What is tuned apart: an operation and the sizes that matter to it."""
_Size = Annotated[int, Meta(ge=0, le=1 << 40)]
_Tasks = Annotated[int, Meta(ge=0, le=1024)]


class GemmTuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a product; 0 is the kernel's own value. csrc/cpu/tuning.h, in whose order these stand.

    Attributes:
        pass_rows: rows of x that pass over the weight together; at most what registers hold.
        chunk_bytes, group_bytes: of x and of the weight, a task.
        thread_tasks: tasks a thread that the weight is cut into, if it is large enough.
        ahead_bytes: from what is read of the weight to what is fetched; -1 for no fetching.
        vector_rows: most rows that take VNNI where there are tiles, int8 (at most 4) and weights in
            groups; -1 for none.
    """

    pass_rows: _Size = 0
    chunk_bytes: _Size = 0
    group_bytes: _Size = 0
    thread_tasks: _Tasks = 0
    ahead_bytes: Annotated[int, Meta(ge=-1, le=1 << 24)] = 0
    vector_rows: Annotated[int, Meta(ge=-1, le=1 << 40)] = 0


class AttentionTuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of attention; 0 is the kernel's own value.

    Attributes:
        thread_tasks: tasks a thread from which their differences matter little.
        tall_rows: query rows from which a tile's keys are converted once for all of them.
        ahead_bytes: from what fewer rows read of the cache to what is fetched.
    """

    thread_tasks: _Tasks = 0
    tall_rows: _Size = 0
    ahead_bytes: Annotated[int, Meta(ge=0, le=1 << 24)] = 0


class TunedGemm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A product of a weight [n, k] with `rows[0]` to `rows[1]` rows of x.

    Attributes:
        kind: how the weight is stored ("bf16", "s8", "u4" …), `group` that of "u4" and its like,
            else 0.
        gain: 0.05 is 5 % faster than the kernel's own values, as measured when it was found.
    """

    kind: str
    n: int
    k: int
    group: int
    rows: tuple[int, int]
    tuning: GemmTuning
    gain: float

    @property
    def shape(self) -> Shape:
        return "gemm", self.kind, self.n, self.k, self.group


class TunedAttention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attention of a model's heads over a cache of `kv_dtype`."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: str
    tuning: AttentionTuning
    gain: float

    @property
    def shape(self) -> Shape:
        return "attention", self.heads, self.kv_heads, self.head_dim, self.kv_dtype


class _Entry(Protocol):
    """What was tuned for a shape."""

    @property
    def shape(self) -> Shape: ...


class _Ranged(_Entry, Protocol):
    @property
    def rows(self) -> tuple[int, int]: ...


P = TypeVar("P", bound=_Ranged)
A = TypeVar("A", bound=_Entry)


class Tuning(msgspec.Struct, Generic[P, A], frozen=True, forbid_unknown_fields=True):
    """All that is tuned for one device; what it does not name keeps the kernels' own values.

    Attributes:
        isa: for what the kernels were compiled.
        threads: compute threads; 0 for a GPU.
    """

    device: str
    isa: str
    threads: int
    gemm: list[P] = []
    attention: list[A] = []
    version: int = VERSION

    def with_results(
        self: T, measured: Collection[Shape], gemm: Collection[P], others: Collection[A]
    ) -> T:
        """Return a copy in which these results replace all others of the `measured` shapes.

        Of several results for one shape and range of rows, as of two models, the last counts.
        """
        products = [t for t in self.gemm if t.shape not in measured] + [*gemm]
        attentions = [t for t in self.attention if t.shape not in measured] + [*others]
        one_each = {(t.shape, t.rows): t for t in products}, {t.shape: t for t in attentions}
        return msgspec.structs.replace(
            self,
            gemm=[one_each[0][key] for key in sorted(one_each[0])],
            attention=[one_each[1][key] for key in sorted(one_each[1])],
        )


T = TypeVar("T", bound=Tuning[Any, Any])


class KernelTuning(
    Tuning[TunedGemm, TunedAttention], frozen=True, forbid_unknown_fields=True
):  # fmt: skip
    """All that is tuned for the native kernels of one machine."""

    def of_gemm(self, kind: str, n: int, k: int, group: int) -> dict[int, GemmTuning]:
        """Return most rows of x → their tuning, as `PackedLinear.tune` takes it."""
        found: dict[int, GemmTuning] = {}
        wanted = (t for t in self.gemm if t.shape == ("gemm", kind, n, k, group))
        for entry in sorted(wanted, key=lambda t: t.rows):
            first, last = entry.rows
            if first > 1 and first - 1 not in found:
                found[first - 1] = GemmTuning()
            found[last] = entry.tuning
        return found

    def of_attention(
        self, heads: int, kv_heads: int, head_dim: int, kv_dtype: object
    ) -> AttentionTuning:
        shape = "attention", heads, kv_heads, head_dim, str(kv_dtype)
        return next((t.tuning for t in self.attention if t.shape == shape), AttentionTuning())


def untuned(isa: str, threads: int) -> KernelTuning:
    """Return a tuning without entries for this machine."""
    return KernelTuning(_device(), isa, threads)


def tuned_folder() -> Path:
    """Return the folder of the user's tuning files."""
    return env.cache_dir() / "tuned"


def load_tuning(isa: str, threads: int) -> KernelTuning:
    """Return this machine's tuning; the log names the file, or says why one is not used."""
    return load(untuned(isa, threads), read)


def load(empty: T, read: Callable[[bytes], T]) -> T:
    """Return the tuning in the user's file for the device of `empty`, or `empty`; see
    `load_tuning`."""
    file = tuned_folder() / file_name(empty)
    try:
        found = read(file.read_bytes())
    except OSError:
        return empty
    except ValueError as error:
        logger.warning("kernels: %s is not used: %s", file, error)
        return empty
    count = len(found.gemm) + len(found.attention) + len(getattr(found, "recurrent", ()))
    logger.info("kernels: %d shapes tuned for this machine, from %s", count, file)
    return found


def read(text: bytes) -> KernelTuning:
    """Parse a file's content.

    Raises:
        ValueError: it is damaged, of another version, or says what no kernel could heed.
    """
    return checked(msgspec.json.decode(text, type=KernelTuning))


def checked(found: T) -> T:
    """Return the tuning; raise ValueError if its version or its ranges of rows are wrong."""
    if found.version != VERSION:
        raise ValueError(f"version {found.version}; this Quire reads {VERSION}")
    ends: dict[Shape, int] = {}
    for product in sorted(found.gemm, key=lambda t: t.rows):
        first, last = product.rows
        if not ends.get(product.shape, 0) < first <= last:
            raise ValueError(f"rows {first} to {last} of {product.shape} overlap or are none")
        ends[product.shape] = last
    return found


def save_tuning(tuning: Tuning[Any, Any], folder: Path | None = None) -> Path:
    """Write the device's file into `folder`, the user's if None, all or nothing; its path."""
    folder = folder or tuned_folder()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / file_name(tuning)
    partial = file.with_suffix(".partial")
    text = msgspec.json.format(msgspec.json.encode(tuning), indent=1)
    partial.write_bytes(text + b"\n")
    partial.replace(file)
    return file


def file_name(tuning: Tuning[Any, Any]) -> str:
    device = re.sub(r"[^a-z0-9]+", "-", tuning.device.lower()).strip("-")
    threads = f"_{tuning.threads}-threads" if tuning.threads else ""
    return f"{device}_{tuning.isa}{threads}.json"


def _device() -> str:
    """Return the CPU's name with its family and model, because virtual machines cut names short."""
    facts, name = cpu_facts(), cpu_name()
    if "cpu family" in facts and "model" in facts:
        name += f" (family {facts['cpu family']}, model {facts['model']})"
    return name
