"""Write a model's shape as a real checkpoint, for benchmarks that read weights from disk.

    python benchmarks/make_checkpoint.py qwen3-0.6b /tmp/qwen3-0.6b

The folder holds config.json, one model.safetensors of random bfloat16 numbers, and a byte-level
BPE tokenizer with as many tokens as the model has, whose text is nonsense.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from quire.checkpoint.presets import preset_config, preset_names
from quire.models.layout import parameters
from quire.models.registry import architecture, model_config
from quire.text.tokenizers.token_bytes import CHAR_OF_BYTE

CHUNK = 1 << 24
ONE = 0x3F80
"""1.0 in bfloat16."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", choices=preset_names())
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    nbytes = write(args.preset, args.folder)
    print(f"{args.folder}: {nbytes / 1e9:.2f} GB of weights")


def write(preset: str, folder: Path) -> int:
    """Write the checkpoint; return the bytes of its weights."""
    config = preset_config(preset)
    assert config is not None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    shapes = stored_shapes(config)
    write_safetensors(folder / "model.safetensors", shapes)
    write_tokenizer(folder / "tokenizer.json", config["vocab_size"])
    return 2 * sum(map(math.prod, shapes.values()))


def stored_shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Name → shape, as Hugging Face stores the model."""
    model = model_config(config)
    names, shapes = architecture(model.architecture).names, dict[str, tuple[int, ...]]()
    for parameter in parameters(model):
        sources = names.sources(parameter.name)
        parts = parameter.parts if len(sources) > 1 else (parameter.shape[0],)
        for source, rows in zip(sources, parts, strict=True):
            shape = (rows, *parameter.shape[1:])
            shapes[source] = shape[::-1] if names.is_transposed(parameter.name) else shape
    return shapes


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Norms are 1, all else is normal with a deviation of 0.02."""
    header, end = dict[str, object](), 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = np.random.default_rng(0).standard_normal(CHUNK, np.float32) * 0.02
    bits = (numbers.view(np.uint32) >> 16).astype("<u2")
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            count = math.prod(shape)
            if "norm" in name and name.endswith("weight"):
                file.write(np.full(count, ONE, "<u2").tobytes())
                continue
            for begin in range(0, count, CHUNK):
                file.write(bits[: min(CHUNK, count - begin)].tobytes())


def write_tokenizer(path: Path, vocab_size: int) -> None:
    """The 256 bytes, then merges of them: all pairs, then pairs and a byte."""
    letters = [CHAR_OF_BYTE[byte] for byte in range(256)]
    merges = list(islice(pairs(letters), vocab_size - len(letters)))
    tokens = letters + [left + right for left, right in merges]
    model = models.BPE({token: i for i, token in enumerate(tokens)}, merges)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(path))


def pairs(letters: list[str]) -> Iterator[tuple[str, str]]:
    yield from product(letters, letters)
    yield from product(map("".join, product(letters, letters)), letters)


if __name__ == "__main__":
    main()
