"""Measure Transformers' `generate` in plain torch as `quire bench` measures Quire."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from peer import RequestMetrics, config_of, main


class Transformers:
    """One static batch; the clock is read after each token."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        import transformers

        if args.quantization is not None:
            raise SystemExit("Transformers runs here without quantization only.")
        torch.set_num_threads(args.num_threads)
        auto, dtype = transformers.AutoModelForCausalLM, getattr(torch, args.dtype)
        if Path(args.model).is_dir():
            self._model = auto.from_pretrained(args.model, dtype=dtype)
        else:
            torch.manual_seed(args.seed)
            config = transformers.AutoConfig.for_model(**config_of(args.model))
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
