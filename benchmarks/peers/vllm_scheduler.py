"""Drive vLLM's scheduler as `benchmarks/scheduler.py` drives Quire's, which starts this.

Each line of standard input asks for one measurement, and is answered by a line of JSON. It needs
vLLM alone: no model is loaded, for the scheduler reads nothing but a configuration.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
from scheduler import BLOCK_SIZE, serve
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from quire.checkpoint.presets import preset_config


class VLLM:
    """vLLM's own scheduler with its own defaults, its hashes included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = preset_config("opt-125m") | {"max_position_embeddings": 16384}
        (folder / "config.json").write_text(json.dumps(config))

    def start(self, num_blocks: int, max_num_seqs: int, budget: int) -> None:
        model = ModelConfig(str(self._folder), skip_tokenizer_init=True, dtype="bfloat16")
        cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
        cache.num_gpu_blocks = num_blocks
        vllm = VllmConfig(
            model_config=model,
            cache_config=cache,
            scheduler_config=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max(budget, max_num_seqs),
                max_model_len=16384,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
            ),
            device_config=DeviceConfig(device="cpu"),
        )
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=12, head_size=64, dtype=torch.bfloat16
        )
        blocks = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        hash_function = get_hash_fn_by_name(cache.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)
        self._scheduler = Scheduler(
            vllm_config=vllm,
            kv_cache_config=blocks,
            structured_output_manager=StructuredOutputManager(vllm),
            block_size=BLOCK_SIZE,
            log_stats=True,
        )

    def message(self, name: str, prompt: list[int], max_tokens: int) -> Any:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        params.update_from_generation_config({}, 2)
        return EngineCoreRequest(
            request_id=name,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )

    def add(self, message: Any) -> None:
        self._scheduler.add_request(Request.from_engine_core_request(message, self._hasher))

    def schedule(self) -> None:
        self._batch = self._scheduler.schedule()

    def sample(self) -> None:
        names = list(self._batch.num_scheduled_tokens)
        requests = self._scheduler.requests
        # In time with Quire: everyone whose last token was computed samples one.
        tokens = [
            [7] if requests[name].num_computed_tokens >= requests[name].num_tokens else []
            for name in names
        ]
        rows = {name: row for row, name in enumerate(names)}
        self._output = ModelRunnerOutput(names, rows, sampled_token_ids=tokens)

    def update(self) -> None:
        self._scheduler.update_from_output(self._batch, self._output)

    def finish(self, name: str) -> None:
        self._scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        serve(VLLM(Path(folder)))
