"""Start engines on a card that is not here: python -m tests.triton.starting TARGET MODEL …

Tensors are on the fake device, and kernels are compiled for the fake card: all of a start is real
up to the driver, graphs included. Nothing computes, so tokens are what the memory held. MODEL is a
folder; TARGET is that of `compiling`.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor
from triton.runtime.jit import JITFunction

import quire.ops.providers
import quire.system.hardware
from quire import LLM, SamplingParams
from quire.ops.triton import launch
from quire.system.gpu_facts import Gpu
from tests.fake_device import FakeDevice, OnDevice
from tests.triton.fake_card import FakeCard

GIVEN: dict[str, Any] = {
    "device": "cuda", "ops": "triton", "dtype": "bfloat16", "max_model_len": 64, "max_num_seqs": 4,
    "num_gpu_blocks_override": 20, "num_threads": 1,
    "compilation_config": {"cudagraph_capture_sizes": [1, 4]},
}  # fmt: skip


def insert(card: FakeCard, device: FakeDevice) -> None:
    """Have engines of this process run on the card."""
    card.insert()
    compiled = JITFunction.run

    def run(kernel: Any, *args: Any, **given: Any) -> None:
        hosts = [a for a in args if isinstance(a, Tensor) and not isinstance(a, OnDevice)]
        assert not hosts, f"{kernel.__name__}: Triton cannot access a pointer (cpu tensor?)"
        there = [a.there if isinstance(a, OnDevice) else a for a in args]
        if kernel.__name__ == "fill":  # without it ids are no tokens
            there[0].clamp_(min=0)
        loaded = len(card.kernels)
        device.launch(
            lambda: compiled(kernel, *there, **given), [a for a in args if isinstance(a, OnDevice)]
        )
        recorded = device.capturing and len(card.kernels) > loaded
        assert not recorded, f"{kernel.__name__} is loaded while a graph is captured"

    JITFunction.run = run
    launch.check = lambda device: None
    quire.system.hardware.detect_gpu = lambda: Gpu("fake", device.total_bytes)
    quire.ops.providers.open_device = lambda name, card=0: device


def main() -> None:
    target, *models = sys.argv[1:]
    for model in models:
        card, device = FakeCard(target), FakeDevice(zeros=True)
        insert(card, device)
        params = [
            SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
            SamplingParams(temperature=0.8, top_p=0.9, top_k=5, max_tokens=4, ignore_eos=True),
        ]
        asked: Any = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (5, 30)]
        with device.watching(), LLM(model, skip_tokenizer_init=True, **GIVEN) as llm:
            llm.generate(asked, params, use_tqdm=False)
        assert device.replayed
        print(model, len(card.launches), "launches of", len(card.kernels), "kernels")


if __name__ == "__main__":
    main()
