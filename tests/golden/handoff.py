"""The two sides of a hand-off, as engine cores."""

from __future__ import annotations

import json
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.core.config import TierConfig
from quire.core.images import ImageSpan
from quire.core.kv_sharing import SharedKV
from quire.core.messages import AddRequest, BlocksReturned, CoreOutput
from quire.core.options import KVTransfer, RequestInputs, RequestOptions
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.uniproc import UniprocExecutor
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect


class Side:
    """An engine core with a role in a hand-off.

    Args:
        shared: lends and borrows blocks in this memory, in place of the folder.
    """

    def __init__(
        self,
        model: Path,
        folder: Path,
        role: str,
        shared: SharedKV | None = None,
        **fields: Any,
    ) -> None:
        extra = {"shared_storage_path": str(folder)}
        transfer = {"kv_connector": "ExampleConnector", "kv_role": role} | fields
        transfer["kv_connector_extra_config"] = extra
        args = EngineArgs(
            model=str(model),
            dtype="float32",
            ops="cpu",
            max_num_seqs=4,
            num_gpu_blocks_override=64,
            max_num_batched_tokens=64,
            block_size=8,
            kv_transfer_config=json.dumps(transfer),
        )
        config = resolve(args, detect()).config
        if shared is not None:
            config = replace(config, shared_kv=shared, tiers=TierConfig())
        self.core = EngineCore(config, UniprocExecutor(config))
        self.returned: list[int] = []
        self.core.scheduler._admission._tier_cost = None  # computing a tiny model is faster

    def answer(
        self,
        prompt: list[int],
        count: int,
        transfer: KVTransfer,
        images: tuple[ImageSpan, ...] = (),
    ) -> CoreOutput:
        """Return the last output, with all tokens."""
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        options = RequestOptions(kv_transfer=transfer)
        inputs = RequestInputs(options, images=images)
        self.core.add(AddRequest("a", pack_tokens(prompt), params, 0.0, inputs))
        tokens: list[int] = []
        last: CoreOutput | None = None
        while step := self.core.step():
            self.core.scheduler.check_integrity()
            self.returned += step.returned
            for output in step.each():
                tokens += output.new_token_ids
                last = output
        assert last is not None
        last.new_token_ids = tokens
        return last


class FarSide:
    """A side in another process, one at a time.

    Args:
        pool: a pool of one process.
    """

    def __init__(self, pool: Executor, *args: Any, **fields: Any) -> None:
        self._pool = pool
        pool.submit(_open, *args, **fields).result()

    def answer(self, prompt: list[int], count: int, transfer: KVTransfer) -> CoreOutput:
        return self._pool.submit(_answer, prompt, count, transfer).result()

    def take_back(self, blocks: list[int]) -> tuple[int, int]:
        """Return lent blocks; return how many are in use before and after that."""
        return self._pool.submit(_take_back, blocks).result()

    def close(self) -> None:
        self._pool.submit(_close).result()


_SIDES: list[Side] = []
"""That of this process."""


def _open(*args: Any, **fields: Any) -> None:
    _close()
    _SIDES.append(Side(*args, **fields))


def _answer(*args: Any) -> CoreOutput:
    return _SIDES[0].answer(*args)


def _take_back(blocks: list[int]) -> tuple[int, int]:
    core = _SIDES[0].core
    before = core.scheduler.kv.pool.num_used
    core.handle(BlocksReturned(blocks))
    core.scheduler.check_integrity()
    return before, core.scheduler.kv.pool.num_used


def _close() -> None:
    while _SIDES:
        _SIDES.pop().core.shutdown()


def promised(output: CoreOutput) -> KVTransfer:
    """What a router passes on from a producer's answer."""
    assert output.kv_transfer_params["do_remote_prefill"]
    blocks = output.kv_transfer_params["remote_block_ids"]
    return KVTransfer(promised=tuple(map(bytes.fromhex, blocks)))
