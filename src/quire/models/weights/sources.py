"""Which stored tensor fills which part of which parameter: decided before any data is read."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.checkpoint.gguf_forms import GGUF_FORMS
from quire.core.errors import CheckpointError
from quire.core.quantization import Form
from quire.models.architecture import WeightNames
from quire.models.parameters import Parameter
from quire.models.weights.stacks import Cut, Stacked, stacks
from quire.quant.scheme import FLOATS, Method, Scheme, Stored
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.checkpoint.weights import Weights

logger = logging.getLogger(__name__)

_FIX = "Use weights and config.json of the same model."
_TIE = "Set tie_word_embeddings to true in config.json if the embeddings are the head, too."
_MOST_NAMED = 5
_OTHER_HEADS = r"(?:v_head|value_head|reward_head|score|classifier)\..*"
"""Heads that other training adds, and that no answer of this model depends on."""
_KV_SCALE = (
    r"(?:self_attn|attn)\."
    r"(?:(?:[kvq]_proj\.|attn\.)?([kvq])_scale|([kvq])_proj\.output_scale)"  # the latter Quark's
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [row, row + rows) of `parameter`, as they are stored.

    Attributes:
        columns: of the weight; 0 of a vector.
        stored: suffix → name of each tensor that it is stored in; a dense one has one.
        transposed: it is stored [in, out].
        form: what it is in the canonical form of quantized weights; None where it is dense.
        scheme: what reads it; None where it is dense, or its file tells codes from scales.
        cut: which rows of a tensor of all experts; None where the tensor is the piece.
    """

    parameter: str
    row: int
    rows: int
    columns: int
    stored: Mapping[str, str]
    transposed: bool
    form: Form | None = None
    scheme: Scheme | None = None
    cut: Cut | None = None

    @property
    def name(self) -> str:
        """Return the first of its tensors' names, for messages."""
        return next(iter(self.stored.values()))


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a checkpoint's tensors go.

    Attributes:
        pieces: they cover every parameter, each row once.
        copies: pairs of stored names that must hold the same values, because one of the two is
            left unread (a tied lm_head that was stored all the same).
        zeros: stored biases of layers that have none; some writers add them.
        kv_scales: "layers.0.attn.k_scale" or "….v_scale" → the stored scale of an 8-bit KV cache.
    """

    pieces: list[Piece]
    copies: list[tuple[str, str]]
    zeros: list[str]
    kv_scales: dict[str, str]


def match(
    weights: Weights, wanted: Sequence[Parameter], names: WeightNames, method: Method | None = None
) -> Sources:
    """Match the stored tensors with the decoder's parameters, one to one.

    Args:
        method: how linear layers are quantized, if the checkpoint says that they are. A layer that
            is stored dense all the same is dense.

    Raises:
        CheckpointError: a tensor is missing, has the wrong shape or type, is there under two names,
            or has no place in the architecture; names it, what was expected and what is there.
    """
    return _Matcher(weights, names, method).match(wanted)


class _Matcher:
    """Keeps account of which stored tensors have found their place."""

    def __init__(self, weights: Weights, names: WeightNames, method: Method | None) -> None:
        self._weights = weights
        self._names = names
        self._method = method
        self._stored = _by_full_name(weights, names.base_prefix)
        self._layers = {name.rpartition(".")[0] for name in self._stored}
        self._used: set[str] = set()

    def match(self, wanted: Sequence[Parameter]) -> Sources:
        headless = all(parameter.name != "lm_head.weight" for parameter in wanted)
        stored = "lm_head.weight" in self._stored
        tied = headless and stored and not re.fullmatch(self._names.ignored, "lm_head.weight")
        if headless and stored:
            self._let_head_stand_in()
        pieces = [piece for parameter in wanted for piece in self._pieces(parameter)]
        copies = self._tied_copies(pieces) if tied else []
        kv_scales = self._kv_scales()
        zeros = self._zero_biases(pieces)
        self._refuse_leftovers(_num_layers(wanted))
        return Sources(pieces, copies, zeros, kv_scales)

    def _let_head_stand_in(self) -> None:
        """Read a tied embedding under the head's name, if only that is stored."""
        (embed,) = self._names.sources("embed.weight")
        self._stored.setdefault(embed, self._stored["lm_head.weight"])

    def _pieces(self, parameter: Parameter) -> list[Piece]:
        if pieces := self._stacked(parameter):
            return pieces
        transposed = self._names.is_transposed(parameter.name)
        pieces, row = [], 0
        for source, rows in self._names.stored_in(self._layers, parameter):
            shape = (rows, *parameter.shape[1:])
            layer = source.removesuffix(".weight")
            quantizable = parameter.kind in ("linear", "router", "heads") and len(shape) == 2
            scheme = self._scheme(layer, *shape) if quantizable else None
            if scheme is None:
                piece = self._dense(parameter, row, source, shape, transposed)
            else:
                columns = shape[1]
                piece = Piece(
                    parameter.name, row, rows, columns,
                    self._find_all(scheme, layer, rows, columns),
                    False, scheme.form(columns), scheme,
                )  # fmt: skip
            pieces.append(piece)
            row += rows
        return pieces

    def _stacked(self, parameter: Parameter) -> list[Piece]:
        """Return the pieces of experts that share tensors; none if each has its own."""
        found = [
            piece
            for name, stacked, parts in stacks(self._names, parameter, self._stored)
            for piece in self._cuts(parameter, name, stacked, parts)
        ]
        pieces, row = [], 0
        for expert in range(parameter.experts):
            for piece, cut in found:
                pieces.append(replace(piece, row=row, cut=replace(cut, expert=expert)))
                row += piece.rows
        return pieces

    def _cuts(
        self, parameter: Parameter, name: str, stacked: Stacked, parts: tuple[int, ...]
    ) -> list[tuple[Piece, Cut]]:
        """Return the cut of each part of the first expert in a tensor of all experts."""
        height, columns = sum(parts), parameter.shape[1:]
        transposed = stacked.transposed and bool(columns)
        inner = (height, *columns)
        square = inner == inner[::-1]
        if (stacked.either or not square) and self._shape(name) == (parameter.experts, *inner):
            transposed = False
        width = columns[0] if columns else 0
        rows = parameter.experts * height
        scheme = self._scheme(name, rows, width) if columns else None
        if scheme is not None:
            found = self._find_all(scheme, name, rows, width, (parameter.experts, height))
            form: Form | None = scheme.form(width)
        else:
            shape = (parameter.experts, *(inner[::-1] if transposed else inner))
            found = {"weight": self._find(name, shape)}
            dtype = self._weights.tensors[found["weight"]].dtype
            form = GGUF_FORMS.get(dtype) if columns else None
        return [
            (Piece(parameter.name, 0, part, width, found, transposed, form, scheme), cut)
            for part, cut in zip(parts, stacked.cuts(parts), strict=True)
        ]

    def _dense(
        self, parameter: Parameter, row: int, source: str, shape: tuple[int, ...], transposed: bool
    ) -> Piece:
        wanted = shape[::-1] if transposed else shape
        found = self._shape(source)
        # A vector as a matrix of one row (ERNIE), or a convolution of single channels.
        loose = parameter.kind in ("exact", "bias", "table")
        if found is not None and loose and _above_one(found) == _above_one(shape):
            wanted = found
        if found and _is_convolution(found, shape):
            wanted = found
        stored = self._find(source, wanted)
        matrix = len(shape) == 2
        form = GGUF_FORMS.get(self._weights.tensors[stored].dtype) if matrix else None
        columns = shape[1] if matrix else 0
        return Piece(parameter.name, row, shape[0], columns, {"weight": stored}, transposed, form)

    def _scheme(self, layer: str, rows: int, columns: int) -> Scheme | None:
        """Return a linear layer's quantization scheme; None if it is stored dense, whatever the
        configuration says."""
        scheme = self._method.scheme(layer) if self._method is not None else None
        for name in (f"{layer}.weight", layer):
            if scheme is not None and (stored := self._stored.get(name)) is not None:
                info = self._weights.tensors[stored]
                if info.dtype in (*FLOATS, "F64") and math.prod(info.shape) == rows * columns:
                    return None
        return scheme

    def _specs(self, scheme: Scheme, layer: str, rows: int, columns: int) -> dict[str, Stored]:
        try:
            return scheme.stored(rows, columns)
        except ValueError as error:
            raise CheckpointError(
                f"Layer {layer!r} cannot be quantized as said: {error}."
            ) from None

    def _find_all(
        self,
        scheme: Scheme,
        layer: str,
        rows: int,
        columns: int,
        stack: tuple[int, int] | None = None,
    ) -> dict[str, str]:
        """Return suffix → stored name of the tensors of a quantized layer.

        With `stack`, (experts, rows of one), these are the first dimensions, and the others may be
        split."""
        found = {}
        for suffix, spec in self._specs(scheme, layer, rows, columns).items():
            name = f"{layer}.{suffix}"
            stored = self._stored.get(name)
            if stored is None:
                if spec.optional:
                    continue
                raise CheckpointError(f"Tensor {name!r} is missing; {_expected(spec)}.", fix=_FIX)
            info = self._weights.tensors[stored]
            fits = not spec.shapes or info.shape in spec.shapes
            if stack is not None:
                sizes = [math.prod(shape) for shape in spec.shapes]
                fits = info.shape[:2] == stack and math.prod(info.shape) in sizes
            if info.dtype not in spec.dtypes or not fits:
                raise CheckpointError(
                    f"Tensor {stored!r} does not fit its layer: {_expected(spec)}, got "
                    f"{info.dtype} {list(info.shape)} in {info.file.name}.",
                    fix=_FIX,
                )
            self._used.add(stored)
            found[suffix] = stored
        return found

    def _find(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the stored tensor of parameter `name`, after checking its shape."""
        stored = self._stored.get(name)
        if stored is None:
            fix = _TIE if name == "lm_head.weight" else _FIX
            raise CheckpointError(
                f"Tensor {name!r} is missing; expected shape {list(shape)}.", fix=fix
            )
        info = self._weights.tensors[stored]
        if info.shape != shape:
            raise CheckpointError(
                f"Tensor {stored!r} has the wrong shape: expected {list(shape)}, got "
                f"{list(info.shape)} in {info.file.name}.",
                fix=_FIX,
            )
        self._used.add(stored)
        return stored

    def _shape(self, name: str) -> tuple[int, ...] | None:
        stored = self._stored.get(name)
        return None if stored is None else self._weights.tensors[stored].shape

    def _tied_copies(self, pieces: list[Piece]) -> list[tuple[str, str]]:
        """Return lm_head if it is tied, and yet stored in addition to the embeddings."""
        embed = next(piece.name for piece in pieces if piece.parameter == "embed.weight")
        head = self._stored.get("lm_head.weight", embed)
        if head == embed:
            return []
        expected, got = (self._weights.tensors[name].shape for name in (embed, head))
        if expected != got:
            raise CheckpointError(
                f"Tensor {head!r} has the wrong shape: expected {list(expected)}, got {list(got)}.",
                fix=_FIX,
            )
        self._used.add(head)
        return [(embed, head)]

    def _kv_scales(self) -> dict[str, str]:
        """Return the scales of an 8-bit KV cache, by any of the names that they have had."""
        prefix = re.escape(self._names.layer_prefix).replace(r"\{\}", r"(\d+)")
        pattern = re.compile(prefix + _KV_SCALE)
        found = {}
        for full, stored in self._stored.items():
            if (named := pattern.fullmatch(full)) is None or stored in self._used:
                continue
            layer, *letters = named.groups()
            letter = letters[0] or letters[1]
            if letter in ("k", "v"):
                found[f"layers.{layer}.attn.{letter}_scale"] = stored
            self._used.add(stored)
        return found

    def _zero_biases(self, pieces: list[Piece]) -> list[str]:
        found = []
        for piece in pieces:
            suffix, stored = next(iter(piece.stored.items()))
            bias = stored.removesuffix(suffix) + "bias"
            info = self._weights.tensors.get(bias)
            if info is not None and bias not in self._used and info.shape == (piece.rows,):
                self._used.add(bias)
                found.append(bias)
        return found

    def _refuse_leftovers(self, num_layers: int) -> None:
        left = [
            name
            for name in self._weights.tensors
            if name not in self._used and not re.fullmatch(self._names.ignored, name)
        ]
        if heads := [name for name in left if re.fullmatch(_OTHER_HEADS, name)]:
            logger.warning("The checkpoint's %s are not read.", ", ".join(heads[:_MOST_NAMED]))
            left = [name for name in left if name not in heads]
        if beyond := self._layers_beyond(num_layers, left):
            logger.warning(
                "The checkpoint has tensors of layer %d and later, %d in all. They are not read: "
                "config.json says that the model has %d layers.",
                num_layers, len(beyond), num_layers,
            )  # fmt: skip
            left = [name for name in left if name not in beyond]
        if left:
            more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
            raise CheckpointError(
                f"Unexpected tensors: {', '.join(map(repr, left[:_MOST_NAMED]))}{more}; "
                "the architecture in config.json has no place for them.",
                fix=_FIX,
            )

    def _layers_beyond(self, num_layers: int, names: list[str]) -> set[str]:
        """Return those of `names` that belong to layers which the model does not have."""
        if not num_layers or "{}" not in self._names.layer_prefix:
            return set()
        pattern = re.compile(re.escape(self._names.layer_prefix).replace(r"\{\}", r"(\d+)"))
        found = {name: pattern.match(_full(name, self._names.base_prefix)) for name in names}
        return {name for name, layer in found.items() if layer and int(layer[1]) >= num_layers}


def _num_layers(wanted: Sequence[Parameter]) -> int:
    numbers = (each.name.split(".")[1] for each in wanted if each.name.startswith("layers."))
    return 1 + max(map(int, numbers), default=-1)


def _above_one(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size > 1]


def _is_convolution(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether a matrix is stored as a convolution of windows that do not overlap."""
    wide = len(shape) == 2 < len(found)
    return wide and found[0] == shape[0] and math.prod(found) == math.prod(shape)


def _expected(spec: Stored) -> str:
    shapes = " or ".join(str(list(shape)) for shape in spec.shapes)
    return f"expected {' or '.join(spec.dtypes)} {shapes}".rstrip()


def _by_full_name(weights: Weights, base_prefix: str) -> dict[str, str]:
    """Name as a causal LM has it → stored name; aliases included.

    A checkpoint of the bare model lacks `base_prefix` everywhere but on the lm_head.
    """
    found: dict[str, str] = {}
    for stored in weights.tensors:
        full = _full(stored, base_prefix)
        if full in found:
            raise CheckpointError(
                f"Tensor {full!r} is stored twice, as {found[full]!r} and {stored!r}.",
                fix="Remove the copy that does not belong to this model.",
            )
        found[full] = stored
    for alias, stored in weights.aliases.items():
        found.setdefault(_full(alias, base_prefix), stored)
    return found


def _full(name: str, base_prefix: str) -> str:
    # Norms as TensorFlow calls them, in conversions from it.
    name = name.replace(".LayerNorm.gamma", ".LayerNorm.weight")
    name = name.replace(".LayerNorm.beta", ".LayerNorm.bias")
    name = re.sub(r"_proj_(blocks|scales)$", r"_proj.\1", name)  # gpt-oss's experts
    name = re.sub(r"^embed_out\.", "lm_head.", name)  # GPT-NeoX's head
    return name if name.startswith((base_prefix, "lm_head.")) else base_prefix + name
