"""Tokens that only the device knows, until they are read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from quire.core.batch import ModelOutput, token_columns
from quire.ops.sample_row import TokenIds
from quire.ops.torch_ops.last_tokens import TorchLastTokens
from quire.runner.state import SequenceStates
from quire.runner.unread import Unread
from tests.fake_device import LAZY, FakeDevice
from tests.unit.runner.test_state import new, step


class Told(NamedTuple):
    """Tokens that have come; a row without a peak is sick."""

    tokens: list[int]
    peaks: list[float]

    def read(self) -> tuple[TokenIds, np.ndarray]:
        return np.array(self.tokens), np.array(self.peaks, np.float32)


def test_tokens_take_their_places_when_they_are_read() -> None:
    """Two steps on the way: a sequence leaves and another takes its slot and name; one is sick."""
    states = SequenceStates(3, 32, 8)
    unread, names = Unread(states), ["same", "leaves", "sick"]
    slots = states.begin(
        step({name: (0, 1, [0]) for name in names}, [new(name, 7) for name in names])
    )
    first, second, known = (ModelOutput(token_columns([])) for _ in range(3))
    unread.append(first, names, np.arange(3), slots, Told([20, 21, 22], [1.0, 2.0, np.nan]))
    assert states.num_tokens[slots].tolist() == [2, 2, 2]
    assert states.token_ids[slots, 1].tolist() == [~slot for slot in slots.tolist()]
    unread.append(second, [*names, "waits"], np.arange(2), slots[:2], Told([30, 31], [1.0, 1.0]))
    states.remove(["leaves"])
    states.begin(step({"leaves": (0, 4, [1])}, [new("leaves", 1, 2, 3, 4)]))
    unread.read(known)
    assert len(unread) == 2
    unread.read(first)
    unread.read(second)
    assert not unread
    assert first.sampled_token_ids.tolist() == [[20], [21], [-1]]
    assert list(first.errors) == ["sick"]
    assert second.sampled_token_ids.tolist() == [[30], [31], [-1], [-1]]
    assert states.token_ids[slots[0], :3].tolist() == [7, 20, 30]
    assert states.token_ids[slots[1], :4].tolist() == [1, 2, 3, 4]


def test_the_device_knows_the_last_tokens() -> None:
    device = FakeDevice()
    with device.watching(), torch.inference_mode():
        last = TorchLastTokens(device, 4)
        logits = torch.zeros(2, 9).to(LAZY)
        logits[0, 5], logits[1, 3] = 2.0, torch.nan
        chosen = last.choose(logits, torch.tensor([2, 0]).to(LAZY), [])
        more = last.choose(logits[:1], torch.tensor([1]).to(LAZY), [])
        ids = torch.tensor([8, ~2, ~1, 0]).to(LAZY)
        last.fill(ids)
        assert ids.tolist() == [8, 5, 5, 0]
        tokens, peaks = chosen.read()
        assert tokens[0] == 5
        assert peaks[0] == 2.0
        assert np.isnan(peaks[1])
        assert more.read()[0].tolist() == [5]
        again = [last.choose(logits[:1], torch.tensor([1]).to(LAZY), []) for _ in range(2)]
        pins = len(device.pins)
        assert [each.read()[0].tolist() for each in again] == [[5], [5]]
        last.choose(logits[:1], torch.tensor([1]).to(LAZY), []).read()
        assert len(device.pins) == pins  # memory is used again
