"""Transformers' `generate` in plain torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from quire.bench.peers.driver import Options, config_of, main
from quire.core.outputs import RequestMetrics


class Transformers:
    """One static batch; the clock is read after each token."""

    def __init__(self, options: Options) -> None:
        import torch
        import transformers

        if options.quantization is not None:
            raise SystemExit("Transformers runs here without quantization only.")
        torch.set_num_threads(options.num_threads)
        auto: Any = transformers.AutoModelForCausalLM
        dtype = getattr(torch, options.dtype)
        if Path(options.model).is_dir():
            self._model = auto.from_pretrained(options.model, dtype=dtype)
        else:
            torch.manual_seed(options.seed)
            config = transformers.AutoConfig.for_model(**config_of(options.model))
            self._model = auto.from_config(config, dtype=dtype)
        self._model.eval()
        self.vocab_size: int = self._model.config.vocab_size
        self.name = f"transformers {transformers.__version__}"

    def generate(self, prompts: list[list[int]], output_len: int) -> list[RequestMetrics]:
        import torch

        moments: list[float] = []

        def clock(token_ids: torch.Tensor, _: object) -> torch.Tensor:
            moments.append(time.monotonic())
            return torch.zeros(len(token_ids), dtype=torch.bool)

        token_ids = torch.tensor(prompts)
        start = time.monotonic()
        self._model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=False,
            min_new_tokens=output_len,
            max_new_tokens=output_len,
            pad_token_id=0,
            stopping_criteria=[clock],
        )
        times = RequestMetrics(
            arrival_time=start, first_token_time=moments[0], last_token_time=moments[-1]
        )
        return [times] * len(prompts)


if __name__ == "__main__":
    main(Transformers)
