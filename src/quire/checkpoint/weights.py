"""The tensors of a model from any file format, under Hugging Face's names."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_blocks import QUANTIZED, quantized_arrays
from quire.checkpoint.gguf_translation import Translation
from quire.checkpoint.gguf_types import PLAIN
from quire.checkpoint.safetensors import SafetensorsFile
from quire.checkpoint.tensor_info import TensorInfo
from quire.core.dtypes import FLOAT32, converted
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.quantized import QuantizedWeight


class Weights(ABC):
    """A model's tensors.

    Names are as the files have them, so a loader must accept the variants that Hugging Face
    itself writes: with and without a leading "model." or "transformer.".

    Attributes:
        tensors: name → `TensorInfo`.
        aliases: alias → stored name, for tied weights that the writer stored once.
    """

    tensors: dict[str, TensorInfo]
    aliases: dict[str, str]

    @property
    def nbytes(self) -> int:
        """Return the size of all tensors as stored."""
        return sum(info.nbytes for info in self.tensors.values())

    @abstractmethod
    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the values of tensor `name`, in its `TensorInfo.shape`.

        GGUF's quantized types are dequantized to float32. Other tensors are views of the file:
        reading faults their pages in, and writing to them changes only this process's copy.

        Raises:
            KeyError: there is no such tensor.
        """

    def quantized(self, name: str) -> QuantizedWeight | None:
        """Return matrix `name` as codes and scales; None if it is stored as plain numbers.

        The rows of several matrices [n, out, in] follow each other. Always [out, in], also where
        `read` gives [in, out] (GPT-2's Conv1D).

        Raises:
            KeyError: there is no such tensor.
        """
        return None

    @abstractmethod
    def release(self, name: str) -> None:
        """Free the memory that reading tensor `name` took in the mapped file.

        Views of it stay good: reading them again reads the file again.
        """


class SafetensorsWeights(Weights):
    """One or more .safetensors files."""

    def __init__(self, files: list[SafetensorsFile]) -> None:
        self.tensors = {}
        self._home: dict[str, SafetensorsFile] = {}
        metadata: dict[str, str] = {}
        for file in files:
            for name, info in file.tensors.items():
                if name in self.tensors:
                    raise CheckpointError(
                        f"Tensor {name!r} is in both {self.tensors[name].file.name} and "
                        f"{info.file.name}.",
                        fix="Remove the file that does not belong to this model.",
                    )
                self.tensors[name] = info
                self._home[name] = file
            metadata |= file.metadata
        # The writer notes a tensor it left out, because it is another one, in the metadata.
        self.aliases = {
            alias: stored
            for alias, stored in metadata.items()
            if stored in self.tensors and alias not in self.tensors
        }

    def read(self, name: str) -> npt.NDArray[Any]:
        return self._home[name].read(name)

    def release(self, name: str) -> None:
        self._home[name].release(name)


class NamedWeights(Weights):
    """A part of other weights, under other names.

    Args:
        name: a stored name → the part's own; None leaves the tensor out.
    """

    def __init__(self, weights: Weights, name: Callable[[str], str | None]) -> None:
        self._weights = weights
        self._stored: dict[str, str] = {}
        for stored in weights.tensors:
            if (own := name(stored)) is None:
                continue
            if own in self._stored:
                raise CheckpointError(
                    f"Tensors {stored!r} and {self._stored[own]!r} are the same parameter.",
                    fix="Remove the copy that does not belong to this model.",
                )
            self._stored[own] = stored
        self.tensors = {own: weights.tensors[stored] for own, stored in self._stored.items()}
        own_names = {stored: own for own, stored in self._stored.items()}
        self.aliases = {
            own: own_names[stored]
            for alias, stored in weights.aliases.items()
            if stored in own_names and (own := name(alias)) is not None
        }

    def read(self, name: str) -> npt.NDArray[Any]:
        return self._weights.read(self._stored[name])

    def quantized(self, name: str) -> QuantizedWeight | None:
        return self._weights.quantized(self._stored[name])

    def release(self, name: str) -> None:
        self._weights.release(self._stored[name])


class LabelWeights(Weights):
    """Other weights, with a classifier's matrix made of rows of the output projection.

    Args:
        name: of the matrix.
        tokens: one row each.
        less: the matrix is the second row less the first.

    Raises:
        CheckpointError: the output projection is missing, or has too few rows.
    """

    def __init__(self, weights: Weights, name: str, tokens: Sequence[int], *, less: bool) -> None:
        ends = ("lm_head.weight", "embed_tokens.weight")  # the second if they are tied
        found = [stored for end in ends for stored in weights.tensors if stored.endswith(end)]
        heads = [stored for stored in weights.tensors if "lm_head." in stored]
        if not found or (heads and heads != found[:1]):  # scales, or a bias
            raise CheckpointError(
                f"{name} is made of the output projection, which must be one matrix; found "
                f"{', '.join(heads) or 'none'}.",
                fix="Use a checkpoint whose lm_head has no bias and is not quantized.",
            )
        head = weights.tensors[found[0]]
        if max(tokens) >= head.shape[0]:
            raise CheckpointError(f"Tensor {head.name!r} has no row {max(tokens)}.")
        self._weights, self._name, self._head = weights, name, found[0]
        self._rows, self._less = list(tokens), less
        shape = (1 if less else len(tokens), head.shape[1])
        made = TensorInfo(name, "F32", shape, 4 * math.prod(shape), head.file)
        self.tensors, self.aliases = weights.tensors | {name: made}, weights.aliases

    def read(self, name: str) -> npt.NDArray[Any]:
        if name != self._name:
            return self._weights.read(name)
        rows = converted(self._weights.read(self._head)[self._rows], FLOAT32)
        return rows[1:] - rows[:1] if self._less else rows

    def quantized(self, name: str) -> QuantizedWeight | None:
        return None if name == self._name else self._weights.quantized(name)

    def release(self, name: str) -> None:
        self._weights.release(self._head if name == self._name else name)


class GGUFWeights(Weights):
    """One .gguf file, its tensors renamed and reordered to Hugging Face's convention.

    A tensor of Hugging Face's may be two of GGUF's, [heads, rows, columns] each: the rows of both
    alternate by heads (`kv_b_proj` of latent attention). Such a tensor is read as float32.
    """

    def __init__(self, file: GGUFFile, translation: dict[str, Translation]) -> None:
        self.tensors = {}
        self.aliases = {}
        self._file = file
        self._stored: dict[str, list[str]] = {}
        self._translation = translation
        for stored, each in translation.items():
            type_ = file.tensors[stored].type.name
            if type_ not in PLAIN and type_ not in QUANTIZED:
                raise UnsupportedModelError(
                    f"{file.path.name}: tensor {stored!r} has the type {type_}.",
                    fix=f"Quire reads {', '.join((*PLAIN, *QUANTIZED))}; use a file in one of "
                    "these.",
                )
            self._stored.setdefault(each.name, []).append(stored)
        for name, names in self._stored.items():
            self.tensors[name] = self._info(name, names)

    def _info(self, name: str, names: list[str]) -> TensorInfo:
        tensors = [self._file.tensors[stored] for stored in names]
        reorder = self._translation[names[0]].reorder
        split = reorder in ("key_heads", "value_heads")
        fits = not split or [len(tensor.shape) for tensor in tensors] == [3, 3]
        shapes = [
            self._translation[stored].shape(tensor.shape) if fits else tensor.shape
            for stored, tensor in zip(names, tensors, strict=True)
        ]
        shape, kind = shapes[0], tensors[0].type.name
        if split:
            if not fits or shapes[1][::2] != shape[::2]:
                raise CheckpointError(
                    f"{self._file.path.name}: the tensors {', '.join(map(repr, names))} of shape "
                    f"{', '.join(str(list(tensor.shape)) for tensor in tensors)} are no keys and "
                    "values of the same heads.",
                    fix="The file is damaged or no model; convert or download it again.",
                )
            shape, kind = (shape[0] * sum(each[1] for each in shapes), shape[2]), "F32"
        elif reorder == "minus_one":
            kind = "F32"
        return TensorInfo(
            name, kind, shape, sum(tensor.nbytes for tensor in tensors), self._file.path
        )

    def read(self, name: str) -> npt.NDArray[Any]:
        parts = {self._translation[stored].reorder: stored for stored in self._stored[name]}
        if len(parts) == 1:
            return self._values(self._stored[name][0])
        keys, values = (
            self._values(parts[reorder]).astype(np.float32)
            for reorder in ("key_heads", "value_heads")
        )
        return np.concatenate([keys, values], axis=1).reshape(self.tensors[name].shape)

    def _values(self, stored: str) -> npt.NDArray[Any]:
        tensor = self._file.tensors[stored]
        raw = self._file.raw(stored)
        if tensor.type.name in PLAIN:
            values = raw.view(PLAIN[tensor.type.name])
        else:
            *rows, columns = tensor.shape
            values = quantized_arrays(raw, tensor.type, math.prod(rows), columns).dequantize()
        return self._translation[stored].apply(values.reshape(tensor.shape))

    def quantized(self, name: str) -> QuantizedWeight | None:
        stored, *others = self._stored[name]
        tensor = self._file.tensors[stored]
        if others or tensor.type.name in PLAIN or len(tensor.shape) < 2:
            return None
        *outer, columns = tensor.shape
        rows = math.prod(outer)
        # Whole rows change places, so their bytes may before they are unpacked.
        translation = self._translation[stored]
        raw = translation.apply_to_rows(self._file.raw(stored).reshape(rows, -1))
        found = quantized_arrays(raw, tensor.type, rows, columns)
        return found if translation.reorder != "grouped_columns" else _grouped(found, translation)

    def release(self, name: str) -> None:
        for stored in self._stored[name]:
            self._file.release(stored)


def _grouped(weight: QuantizedWeight, translation: Translation) -> QuantizedWeight:
    """Return the weight with its columns in Hugging Face's order.

    Raises:
        CheckpointError: heads are no whole groups of columns that share a scale.
    """
    heads = translation.served * translation.heads
    width = weight.shape[1] // heads
    if width % weight.group:
        raise CheckpointError(
            f"{translation.name}: heads of {width} columns change places, but {weight.group} "
            "columns share a scale.",
            fix="Use a file of another quantization.",
        )
    columns = translation.apply(np.arange(weight.shape[1])[np.newaxis])[0]
    groups = columns[:: weight.group] // weight.group
    return replace(
        weight,
        codes=weight.codes[:, columns],
        scale=weight.scale[:, groups],
        zero=None if weight.zero is None else weight.zero[:, groups],
        offset=None if weight.offset is None else weight.offset[:, groups],
    )
