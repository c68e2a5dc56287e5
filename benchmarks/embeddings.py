"""Embeddings a second, of Quire and of Transformers in turns, on the same texts and one shape.

    python benchmarks/embeddings.py [--model PRESET] [--dtype DTYPE] [--texts N] [--repetitions R]
        [--json FILE]

Random weights and token ids; lengths are uniform. Transformers gets its texts as
sentence-transformers would give them: sorted by length, in padded batches of 32. Its vectors are
compared with nothing, for the weights are others; tests/golden/test_pooling.py does that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

from quire import LLM
from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json
from quire.checkpoint.presets import preset_config

BATCH = 32


def transformers_model(preset: str, dtype: torch.dtype) -> PreTrainedModel:
    fields = preset_config(preset)
    assert fields is not None, f"no preset {preset}"
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model: PreTrainedModel = AutoModel.from_config(config, dtype=dtype).eval()
    return model


@torch.inference_mode()
def embed_all(model: PreTrainedModel, texts: list[list[int]]) -> None:
    """Normalized first hidden states, in padded batches of texts of like length."""
    texts = sorted(texts, key=len, reverse=True)
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        width = len(batch[0])
        ids = torch.zeros(len(batch), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(batch):
            ids[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        hidden = model(ids, attention_mask=mask).last_hidden_state
        torch.nn.functional.normalize(hidden[:, 0], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bge-small-en-v1.5")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--quantization")
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs=2, default=(8, 256))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=jsonl, help="a .jsonl file, to append a row")
    args = parser.parse_args()

    random = np.random.default_rng(0)
    lengths = random.integers(args.lengths[0], args.lengths[1] + 1, args.texts)
    texts = [random.integers(1000, 30000, n).tolist() for n in lengths.tolist()]
    llm = LLM(
        args.model, load_format="dummy", dtype=args.dtype, quantization=args.quantization,
        runner="pooling",
    )  # fmt: skip
    other = transformers_model(args.model, getattr(torch, args.dtype))
    threads = llm.resolved.config.num_threads
    seconds: dict[str, list[float]] = {"quire": [], "transformers": []}
    for repetition in range(args.repetitions + 1):
        start = time.perf_counter()
        llm.embed(texts, use_tqdm=False)
        ours = time.perf_counter()
        torch.set_num_threads(threads)
        embed_all(other, texts)
        theirs = time.perf_counter()
        torch.set_num_threads(1)
        if repetition:  # the first is to warm up
            seconds["quire"].append(ours - start)
            seconds["transformers"].append(theirs - ours)
    ratios = [b / a for a, b in zip(seconds["quire"], seconds["transformers"], strict=True)]
    row = {
        "model": args.model,
        "dtype": args.dtype,
        "quantization": args.quantization,
        "threads": threads,
        "texts": args.texts,
        "tokens": int(lengths.sum()),
        "texts_per_second": {k: args.texts / statistics.median(v) for k, v in seconds.items()},
        "tokens_per_second": {
            k: int(lengths.sum()) / statistics.median(v) for k, v in seconds.items()
        },
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }
    print(json.dumps(row, indent=2))
    if args.json is not None:
        write_json(args.json, row | circumstances("embeddings", "python benchmarks/embeddings.py"))
    llm.shutdown()


if __name__ == "__main__":
    main()
