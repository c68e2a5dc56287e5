"""Rows of the first layer's input that no token id stands for: embeddings and images of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from quire.core.batch import Column, ModelOutput, SchedulerOutput
from quire.core.dtypes import HostArray, converted
from quire.core.images import ImageSpan, VisionConfig
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata
from quire.runner.images import EncoderCache
from quire.runner.inputs import StepInputs
from quire.runner.state import SequenceStates

if TYPE_CHECKING:
    from quire.models.decoder import Decoder

GivenRows = tuple[int, HostArray]
"""An index into the step's tokens, and the rows [n, hidden] from there on."""


def _axes(vision: VisionConfig) -> NDArray[np.int64]:
    """Return by which of the three positions each frequency turns."""
    if not vision.interleaved:
        return np.repeat(np.arange(3), vision.sections)
    axes = np.zeros(sum(vision.sections), np.int64)
    for axis in (1, 2):
        axes[axis : 3 * vision.sections[axis] : 3] = axis
    return axes


class _Part(NamedTuple):
    """Tokens [start, end) of entry `entry`; `whole` if they see each other."""

    entry: int
    start: int
    end: int
    whole: bool


class _Place(NamedTuple):
    """Rows [first, last) of an image or of embeddings, at an index into the step's tokens."""

    row: int
    source: ImageSpan | NDArray[np.float32]
    first: int
    last: int


class RowGiver:
    """Completes the inputs of steps that compute such rows.

    Args:
        encoder: reads images; None if none are accepted.
    """

    def __init__(
        self, states: SequenceStates, decoder: Decoder, ops: Ops, encoder: EncoderCache | None
    ) -> None:
        self._states = states
        self._decoder = decoder
        self._ops = ops
        self._cache = encoder
        self._encoded = 0, 0.0
        vision = decoder.config.vision
        self._whole = vision is not None and vision.whole
        self._num_deep = decoder.config.vision_deep_layers
        self._axes: NDArray[np.int64] | None = None
        if vision is not None and vision.sections:
            self._axes = _axes(vision)

    def read_ahead(self, step: SchedulerOutput, output: ModelOutput) -> float:
        """Read what the step says ahead, and report what the tower has done since the last call.

        Returns:
            The tower's seconds before this call, within the step's model.
        """
        if (cache := self._cache) is None:
            return 0.0
        within = cache.seconds - self._encoded[1]
        ahead = step.read_ahead
        if ahead is not None and cache.read_ahead(ahead.image, ahead.seconds):
            output.read_ahead = ahead.image.digest
        rows, seconds = self._encoded
        self._encoded = cache.encoded_tokens, cache.seconds
        output.encoded_tokens = cache.encoded_tokens - rows
        output.encode_seconds = cache.seconds - seconds
        output.encoded_images, cache.encoded_images = cache.encoded_images, []
        return within

    def complete(self, step: SchedulerOutput, slots: Column, inputs: StepInputs) -> StepInputs:
        """Return the step's inputs with the given rows, or as they are if there are none."""
        states = self._states
        if not states.prompt_embeds and not states.images:
            return inputs
        places = self._places(step, slots)
        parts = self._parts(step, slots) if self._whole else []
        if not places and not any(part.whole for part in parts):
            return inputs
        if self._decoder.embedding is None:  # rows come from the stage before
            inputs = replace(inputs, embeds=inputs.input_ids)
        else:
            inputs = self._with_rows(self._numbered(inputs, places), self._given(places))
        if self._whole:
            inputs = replace(inputs, metadata=self._apart(inputs.metadata, parts))
        if self._axes is None:
            return inputs
        return replace(
            inputs,
            positions=self._ops.array(np.arange(len(self._ops.numpy(inputs.positions)))),
            rotations=self._rotations(step, slots, inputs, self._axes),
        )

    def _numbered(self, inputs: StepInputs, places: Sequence[_Place]) -> StepInputs:
        """Return the inputs with the token whose embeddings in layers an image's rows have."""
        config = self._decoder.config
        if config.vision is None or not config.own_input:
            return inputs
        ids = np.array(self._ops.numpy(inputs.input_ids))
        for row, source, first, last in places:
            if isinstance(source, ImageSpan):
                ids[row : row + last - first] = config.vision.own_token
        return replace(inputs, input_ids=self._ops.array(ids))

    def _with_rows(self, inputs: StepInputs, given: Sequence[GivenRows]) -> StepInputs:
        """Return the inputs with the first layer's rows, and what is added behind its layers."""
        ops, decoder = self._ops, self._decoder
        ids = ops.array(np.maximum(ops.numpy(inputs.input_ids), 0))
        rows = ops.numpy(decoder.embed(ops, ids))
        width = rows.shape[1]
        deep = [np.zeros_like(rows) for _ in range(self._num_deep)]
        for start, found in given:
            first, *others = np.split(found, range(width, found.shape[1], width), axis=1)
            rows[start : start + len(found)] = first
            for each, added in zip(deep, others, strict=False):  # given embeddings add nothing
                each[start : start + len(found)] = added
        return replace(
            inputs, input_ids=ids, embeds=ops.array(rows), deep=tuple(map(ops.array, deep))
        )

    def _places(self, step: SchedulerOutput, slots: Column) -> list[_Place]:
        """Return where the step's tokens have given rows."""
        states, found, row = self._states, list[_Place](), 0
        for entry, slot in enumerate(slots.tolist()):
            count = int(step.num_scheduled_tokens[entry])
            start = int(step.num_computed_tokens[entry])
            embeds = states.prompt_embeds.get(slot)
            if embeds is not None and start < len(embeds):
                found.append(_Place(row, embeds, start, min(start + count, len(embeds))))
            elif (images := states.images.get(slot)) is not None and start < images.num_prompt:
                for span in images.spans:
                    first, last = max(start, span.start), min(start + count, span.end)
                    if first < last:
                        at = row + first - start
                        found.append(_Place(at, span, first - span.start, last - span.start))
            row += count
        return found

    def _given(self, places: Sequence[_Place]) -> list[GivenRows]:
        given = list[GivenRows]()
        for row, source, first, last in places:
            if isinstance(source, ImageSpan):
                assert self._cache is not None, "the engine reads no images"
                rows = self._cache.rows(source)
                line = source.line or source.rows
                for begin in range(first // line * line, last, line):  # all but its end
                    start, end = max(begin, first), min(begin + line - (source.line > 0), last)
                    if start < end:
                        given.append((row + start - first, rows[start:end]))
            else:
                given.append((row, self._scaled(source[first:last])))
        return given

    def _parts(self, step: SchedulerOutput, slots: Column) -> list[_Part]:
        """Return the step's sequences, those with rows that see each other in parts."""
        parts = list[_Part]()
        for entry, slot in enumerate(slots.tolist()):
            start = int(step.num_computed_tokens[entry])
            end = start + int(step.num_scheduled_tokens[entry])
            images = self._states.images.get(slot)
            for span in () if images is None else images.spans:
                first, last = span.whole or (0, 0)
                if last <= start or first >= end:
                    continue
                if first > start:
                    parts.append(_Part(entry, start, first, whole=False))
                parts.append(_Part(entry, max(first, start), last, whole=True))
                start = last
            if start < end:
                parts.append(_Part(entry, start, end, whole=False))
        return parts

    def _apart(self, meta: AttentionMetadata, parts: list[_Part]) -> AttentionMetadata:
        """Return the metadata with each part as a sequence of its own."""
        rows = np.cumsum([0, *(part.end - part.start for part in parts)])
        tables = self._ops.numpy(meta.block_tables)[[part.entry for part in parts]]
        return replace(
            meta,
            query_start_loc=rows.astype(np.int32),
            seq_lens=np.array([part.end for part in parts], np.int32),
            block_tables=self._ops.array(tables),
            num_seqs=len(parts),
            whole=np.array([part.whole for part in parts], np.int32),
        )

    def _scaled(self, embeds: NDArray[np.float32]) -> HostArray:
        """Return a prompt's embeddings as the first layer takes them."""
        embedding, ops = self._decoder.embedding, self._ops
        assert embedding is not None, "only the first stage has embeddings"
        wide = np.ascontiguousarray(converted(embeds, self._decoder.dtype))
        return ops.numpy(embedding.scaled(ops, ops.array(wide)))

    def _rotations(
        self, step: SchedulerOutput, slots: Column, inputs: StepInputs, axes: NDArray[np.int64]
    ) -> Array:
        """Return each token's row of cosines and sines, turned by three positions."""
        positions = np.tile(self._ops.numpy(inputs.positions), (3, 1))
        row = 0
        for entry, slot in enumerate(slots.tolist()):
            count = int(step.num_scheduled_tokens[entry])
            images = self._states.images.get(slot)
            if images is not None and images.turned:
                start = int(step.num_computed_tokens[entry])
                positions[:, row : row + count] = images.positions(start, count)
            row += count
        assert self._decoder.rotations is not None, "the model has RoPE"
        table = self._ops.numpy(self._decoder.rotations)
        half = table.shape[1] // 2
        of_axis = positions[axes].T  # [T, half]
        columns = np.arange(half)
        turned = np.empty((len(of_axis), 2 * half), np.float32)
        turned[:, :half], turned[:, half:] = table[of_axis, columns], table[of_axis, half + columns]
        return self._ops.array(turned)
