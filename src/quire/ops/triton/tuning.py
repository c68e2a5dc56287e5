"""The results of `quire tune kernels` for a GPU: sizes that change speed and no bit of a result.

A field is here only if a row's sums do not depend on it:

- products: `columns`, `rows` cut the result; each element is still one sum in the order of k.
  `warps` share a tile's rows and columns, never k. `stages` and `early` say when a weight is read.
  `waves` says which programs add the segments, which are cut at the same places and added in order.
- attention: `stages`, and `waves` as above; `prompt_rows` cuts the rows of a prompt.
- recurrent layers: `stages` as above; `channels` cuts the result of a convolution.

Not here, because bits depend on them: the segments of columns and of keys, the keys of a tile, the
warps that share a row of keys or of a norm. Columns that are added at a time are not here either:
a card's matrix units add them in order, but the interpreter cannot show it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from quire.ops.tuning import Shape, Tuning, checked, load

if TYPE_CHECKING:
    import torch

_Waves = Annotated[int, Meta(ge=-1, le=64)]
_Stages = Annotated[int, Meta(ge=0, le=8)]


class TileTuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a product; 0 is the kernel's own value.

    Attributes:
        columns, rows: of the result, a program.
        warps: of a program.
        stages: tiles that are loaded ahead, if shared memory has room.
        early: tiles of the weight that are read before the kernel before has ended; -1 for none.
        waves: programs per processor up to which each segment has a program of its own; -1 for
            none.
    """

    columns: Literal[0, 64, 128, 256] = 0
    rows: Literal[0, 64, 128, 256] = 0
    warps: Literal[0, 4, 8] = 0
    stages: _Stages = 0
    early: Annotated[int, Meta(ge=-1, le=4)] = 0
    waves: _Waves = 0


class HeadTuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of attention; 0 is the kernel's own value.

    Attributes:
        stages, prompt_stages: as in `TileTuning`, for few rows and for a prompt's.
        waves: programs per processor that share the segments of keys; -1 for one program.
        prompt_rows: of a tile of a prompt.
    """

    stages: _Stages = 0
    waves: _Waves = 0
    prompt_rows: Literal[0, 64, 128] = 0
    prompt_stages: _Stages = 0


class StateTuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a recurrent op; 0 is the kernel's own value.

    Attributes:
        stages: tokens whose rows are loaded ahead, of ops with a matrix state.
        channels: of a program, of a convolution.
    """

    stages: _Stages = 0
    channels: Literal[0, 128, 256, 512, 1024] = 0


class TunedTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A product of a weight [n, k] with `rows[0]` to `rows[1]` rows; of experts, rows of a tile.

    Attributes:
        kind: form and type of the weight, and type of the rows.
        group: columns that share a scale; 0 for all.
        gain: 0.05 is 5 % faster than the kernel's own values.
    """

    kind: str
    n: int
    k: int
    group: int
    rows: tuple[int, int]
    tuning: TileTuning
    gain: float

    @property
    def shape(self) -> Shape:
        return "gemm", self.kind, self.n, self.k, self.group


class TunedHeads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attention of a model's heads over a cache of `kv_dtype`."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: str
    tuning: HeadTuning
    gain: float

    @property
    def shape(self) -> Shape:
        return "attention", self.heads, self.kv_heads, self.head_dim, self.kv_dtype


class TunedStates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recurrent op with a state of `rows` times `columns`: width − 1 and channels of a
    convolution, else those of a head's matrix."""

    op: str
    rows: int
    columns: int
    tuning: StateTuning
    gain: float

    @property
    def shape(self) -> Shape:
        return "recurrent", self.op, self.rows, self.columns


class CardTuning(Tuning[TunedTile, TunedHeads], frozen=True, forbid_unknown_fields=True):
    """All that is tuned for Triton's kernels on one kind of GPU."""

    recurrent: tuple[TunedStates, ...] = ()

    def with_results(
        self, measured: Collection[Shape], gemm: Collection[TunedTile], others: Collection[Any]
    ) -> Self:
        """See `Tuning.with_results`; `others` are of attention and of recurrent layers."""
        heads = [entry for entry in others if isinstance(entry, TunedHeads)]
        states = {t.shape: t for t in self.recurrent if t.shape not in measured}
        states |= {t.shape: t for t in others if isinstance(t, TunedStates)}
        kept = tuple(states[shape] for shape in sorted(states))
        return msgspec.structs.replace(super().with_results(measured, gemm, heads), recurrent=kept)


class Chosen:
    """The sizes that launches on one device use."""

    def __init__(self, tuning: CardTuning) -> None:
        self.use(tuning)

    def use(self, tuning: CardTuning) -> None:
        """Have launches use these sizes from now on; recorded graphs keep theirs."""
        self._tiles: dict[Shape, list[TunedTile]] = {}
        for entry in tuning.gemm:
            self._tiles.setdefault(entry.shape, []).append(entry)
        self._heads: Mapping[Shape, HeadTuning] = {t.shape: t.tuning for t in tuning.attention}
        self._states: Mapping[Shape, StateTuning] = {t.shape: t.tuning for t in tuning.recurrent}

    @property
    def has_tiles(self) -> bool:
        return bool(self._tiles)

    def tile(self, shape: Shape, rows: int) -> TileTuning:
        """Return the sizes of a product with so many rows."""
        for entry in self._tiles.get(shape, ()):
            if entry.rows[0] <= rows <= entry.rows[1]:
                return entry.tuning
        return _OWN_TILE

    def heads(self, heads: int, kv_heads: int, width: int, kv_dtype: str) -> HeadTuning:
        """Return the sizes of attention."""
        if not self._heads:
            return _OWN_HEADS
        return self._heads.get(("attention", heads, kv_heads, width, kv_dtype), _OWN_HEADS)

    def states(self, op: str, rows: int, columns: int) -> StateTuning:
        """Return the sizes of a recurrent op; see `TunedStates`."""
        return self._states.get(("recurrent", op, rows, columns), _OWN_STATES)


_OWN_TILE, _OWN_HEADS, _OWN_STATES = TileTuning(), HeadTuning(), StateTuning()


def untuned(device: torch.device) -> CardTuning:
    """Return a tuning without entries for this device, of this version of Triton."""
    import torch
    import triton

    if device.type != "cuda":
        return CardTuning(device.type, "interpreter", 0)
    from quire.ops.triton.launch import amd_arch

    own = torch.cuda.get_device_capability(device)
    arch = amd_arch(device) if torch.version.hip else "sm{}{}".format(*own)
    isa = f"{arch}_triton-{triton.__version__}"
    return CardTuning(torch.cuda.get_device_name(device), isa, 0)


def read(text: bytes) -> CardTuning:
    """Parse a file's content; see `tuning.read`."""
    return checked(msgspec.json.decode(text, type=CardTuning))


@cache
def chosen(device: torch.device) -> Chosen:
    """Return the sizes for launches on a device: those of the user's file, if there is one."""
    empty = untuned(device)
    return Chosen(load(empty, read) if device.type == "cuda" else empty)
