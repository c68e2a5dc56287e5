"""A decoder without weights whose logits betray every mistake in the runner's bookkeeping,
and a stand-in for the scheduler that drives the runner step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.core.batch import BlockRun, ModelOutput, NewSequence, SchedulerOutput, block_columns
from quire.core.config import SchedulerConfig
from quire.core.messages import TokenLogprobs
from quire.core.model_config import ModelConfig
from quire.core.options import RequestInputs
from quire.core.sampling_params import SamplingParams
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.torch_ops.provider import TorchOps
from quire.runner.drafts import Proposer
from quire.runner.runner import ModelRunner
from tests.unit.engine.fakes import engine_config

VOCAB = 61

MODEL = ModelConfig(
    architecture="fake",
    vocab_size=VOCAB,
    hidden_size=1,
    intermediate_size=1,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=1,
    max_position_embeddings=512,
)


class FakeDecoder:
    """Writes each token's id (k) and position (v) into the cache, then reads a row's whole
    context back through the block table; the logits are noise seeded by what it read.

    Args:
        spoil: called with the logits; may change them.
    """

    kv_units = None

    def __init__(self, spoil: Callable[[Tensor], None] = lambda logits: None) -> None:
        self.spoil = spoil

    def modules(self, kv_caches: list[KVCache]) -> dict[int, str]:
        return {}

    def forward(
        self,
        ops: Ops,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[KVCache],
        meta: AttentionMetadata,
        rows: Tensor,
        **given: object,
    ) -> Tensor:
        (cache,) = kv_caches
        assert torch.is_inference_mode_enabled()
        block, offset = meta.slot_mapping // meta.block_size, meta.slot_mapping % meta.block_size
        cache.k[block, 0, offset, 0] = input_ids.to(cache.k.dtype)
        cache.v[block, 0, offset, 0] = positions.to(cache.v.dtype)
        hidden = torch.zeros(len(input_ids), 1, dtype=torch.float64)
        for i, span in enumerate(meta.spans):
            slots = np.arange(span.seq_len)
            table = meta.block_tables[i].numpy()
            blocks = torch.from_numpy(table[slots // meta.block_size]).long()
            offsets = torch.from_numpy(slots % meta.block_size)
            tokens = cache.k[blocks, 0, offsets, 0].numpy()
            where = cache.v[blocks, 0, offsets, 0].numpy()
            assert where.tolist() == slots.tolist(), "a row reads a wrong slot"
            for row in range(span.start, span.end):
                seen = span.seq_len - (span.end - 1 - row)
                assert int(positions[row]) == seen - 1
                seed = np.uint64(0)
                for token in tokens[:seen].astype(np.uint64):
                    seed = (seed * np.uint64(31) + token) % np.uint64(2**40)
                hidden[row] = float(seed)
        return hidden[rows]

    def compute_logits(self, ops: Ops, hidden: Tensor) -> Tensor:
        rows = [
            np.random.default_rng(int(seed)).normal(0, 2, VOCAB) for seed in hidden[:, 0].tolist()
        ]
        logits = torch.from_numpy(np.array(rows, dtype=np.float32))
        self.spoil(logits)
        return logits


def make_runner(
    decoder: Any = None,
    *,
    seqs: int = 8,
    tokens: int = 64,
    block_size: int = 8,
    length: int = 96,
    proposer: Proposer | None = None,
) -> ModelRunner:
    config = engine_config(
        model=MODEL,
        scheduler=SchedulerConfig(length, seqs, tokens),
        block_size=block_size,
        kv_cache_dtype="float64",
    )
    return ModelRunner(config, 200, decoder or FakeDecoder(), TorchOps(), proposer=proposer)


class Driver:
    """Keeps requests as a scheduler would, without a policy: the test says what runs."""

    def __init__(self, runner: ModelRunner, block_size: int = 8, seed: int = 0) -> None:
        self.runner = runner
        self.block_size = block_size
        # Blocks in a random order, so that no test passes by luck.
        self.free = np.random.default_rng(seed).permutation(200).tolist()
        self.tokens: dict[str, list[int]] = {}
        self.prompt: dict[str, int] = {}
        self.params: dict[str, SamplingParams] = {}
        self.computed: dict[str, int] = {}
        self.blocks: dict[str, list[int]] = {}
        self.removed: list[str] = []
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self.errors: dict[str, str] = {}
        self._known: set[str] = set()

    def add(self, name: str, prompt: list[int], **params: Any) -> None:
        self.tokens[name] = list(prompt)
        self.prompt[name] = len(prompt)
        self.params[name] = SamplingParams(**{"temperature": 0.0, **params})
        self.computed[name] = 0
        self.blocks[name] = []

    def preempt(self, name: str) -> None:
        self.free += self.blocks[name]
        self.blocks[name] = []
        self.computed[name] = 0
        self._known.discard(name)
        self.removed.append(name)

    def remove(self, name: str) -> None:
        self.preempt(name)
        del self.tokens[name]

    def schedule(
        self, counts: dict[str, int], num_steps: int = 1, *, num_passes: int | None = None
    ) -> SchedulerOutput:
        """A step of `counts[name]` tokens of each; or up to `num_steps` tokens of each.

        Args:
            num_passes: of the model; one per token if None.
        """
        added = []
        new_blocks: list[BlockRun] = []
        for name, count in counts.items():
            if name not in self._known:
                self._known.add(name)
                added.append(
                    NewSequence(
                        name,
                        list(self.tokens[name]),
                        self.prompt[name],
                        self.params[name],
                        RequestInputs(eos_token_ids=(1,)),
                    )
                )
            needed = -(-(self.computed[name] + count * num_steps) // self.block_size)
            fresh = [self.free.pop() for _ in range(needed - len(self.blocks[name]))]
            new_blocks.append((len(new_blocks), len(self.blocks[name]), fresh))
            self.blocks[name] += fresh
        removed, self.removed = self.removed, []
        return SchedulerOutput(
            step=0,
            request_ids=list(counts),
            num_scheduled_tokens=np.array(list(counts.values())),
            num_computed_tokens=np.array([self.computed[name] for name in counts]),
            new_blocks=block_columns(new_blocks),
            new_sequences=added,
            removed=removed,
            total_num_scheduled_tokens=sum(counts.values()) * num_steps,
            max_new_tokens=np.full(len(counts), num_steps) if num_steps > 1 else None,
            num_passes=num_steps if num_passes is None else num_passes,
        )

    def step(
        self, counts: dict[str, int], num_steps: int = 1, *, num_passes: int | None = None
    ) -> ModelOutput:
        batch = self.schedule(counts, num_steps, num_passes=num_passes)
        return self.update(batch, self.runner.execute(batch))

    def update(self, batch: SchedulerOutput, output: ModelOutput) -> ModelOutput:
        rows = zip(
            batch.request_ids,
            batch.num_scheduled_tokens.tolist(),
            output.sampled_token_ids.tolist(),
            strict=True,
        )
        for name, count, sampled in rows:
            new = [token for token in sampled if token >= 0]
            self.tokens[name] += new
            computed = self.computed[name] + count + max(0, len(new) - 1)
            self.computed[name] = min(computed, len(self.tokens[name]) - 1)
            self.logprobs.setdefault(name, []).extend(output.logprobs.get(name, []))
            entries = output.prompt_logprobs.get(name, [])
            self.prompt_logprobs.setdefault(name, []).extend(entries)
        self.errors |= output.errors
        return output

    def pending(self, name: str) -> int:
        return len(self.tokens[name]) - self.computed[name]

    def output(self, name: str) -> list[int]:
        return self.tokens[name][self.prompt[name] :]

    def finish(self, name: str, num_output: int, chunk: int = 1000) -> list[int]:
        """Run one request alone until it has `num_output` output tokens."""
        while len(self.output(name)) < num_output:
            self.step({name: min(chunk, self.pending(name))})
        return self.output(name)
