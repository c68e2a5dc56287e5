"""What images cost: the pace of streams beside them, and their preparation.

    python benchmarks/images.py pace [--turns 3] [--seconds 10] [--json FILE.jsonl]
    python benchmarks/images.py preparation [--repetitions 9] [--json FILE.jsonl]

`pace` times the tokens of eight streams, in turns alone and while an image of four megapixels
arrives each second. The text model has the shape of SmolVLM-256M's, with random weights. Its own
tower is more than a few cores can read, so images queue; a small tower keeps up. `preparation`
compares CPU seconds with the processors of Transformers, in turns; the fast ones need torchvision.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, summarise, write_json
from quire.bench.serving.http_client import HTTPClient
from quire.bench.serving.server_process import running_server
from quire.resolve.arguments import EngineArgs

IMAGE = "<image>"
TEMPLATE = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}"
    "{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
TOWER = {"model_type": "idefics3_vision", "patch_size": 16, "image_size": 512}
TOWERS: dict[str, tuple[dict[str, int], int]] = {
    "SmolVLM's": (
        {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
         "num_attention_heads": 12}, 2048,
    ),
    "small": (
        {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 6,
         "num_attention_heads": 3}, 512,
    ),
}  # fmt: skip
"""Their sizes, and the longer edge of an image before it is cut into tiles."""
TEXT = {
    "model_type": "llama", "vocab_size": 259, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}  # fmt: skip
CONFIG = {
    "model_type": "idefics3", "architectures": ["Idefics3ForConditionalGeneration"],
    "text_config": TEXT, "image_token_id": 258, "scale_factor": 4,
    "pad_token_id": 0, "torch_dtype": "bfloat16",
}  # fmt: skip
STREAMS, TOKENS = 8, 4000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pace", "preparation"))
    parser.add_argument("--images-per-second", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--start-timeout", type=float, default=300.0)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    EngineArgs.add_cli_args(parser)
    args = parser.parse_args()
    if args.what == "pace":
        rows = [_pace(args, tower) for tower in TOWERS]
    else:
        rows = _preparation(args.repetitions)
    for row in rows:
        print(json.dumps(row, indent=2))
        if args.json:
            write_json(args.json, row | circumstances("images", "python benchmarks/images.py"))
    return 0


def photo(width: int, height: int, seed: int) -> bytes:
    """Return a JPEG with smooth parts and edges, as photographs have."""
    draw = np.random.default_rng(seed)
    small = draw.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((width, height), 3).save(out, "JPEG", quality=90)
    return out.getvalue()


def _pace(args: argparse.Namespace, tower: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        _write_model(Path(folder), *TOWERS[tower])
        args.model, args.load_format = folder, "dummy"
        with running_server(args) as url:
            return {"tower": tower} | asyncio.run(_measure(url, args))


async def _measure(url: str, args: argparse.Namespace) -> dict[str, Any]:
    streams = [HTTPClient(url) for _ in range(STREAMS)]
    tasks = [asyncio.create_task(_stream(client, i)) for i, client in enumerate(streams)]
    answered: list[float] = []
    spans: dict[str, list[tuple[float, float]]] = {"alone": [], "beside": []}
    count = int(args.seconds * args.images_per_second)
    images = [photo(2464, 1632, number) for number in range(args.turns * count)]
    await asyncio.sleep(5)  # the streams begin
    for turn in range(args.turns):
        begun = time.monotonic()
        await asyncio.sleep(args.seconds)
        middle = time.monotonic()
        sent = images[turn * count : (turn + 1) * count]
        await _send(url, sent, args.images_per_second, answered)
        spans["alone"].append((begun, middle))
        spans["beside"].append((middle, time.monotonic()))
        await asyncio.sleep(2)  # the images that were not answered are aborted
    times = [[moment for moment, _ in client.pieces] for client in streams]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return (
        {"streams": STREAMS, "images_per_second": args.images_per_second}
        | _row(times, spans)
        | {
            "images_sent": len(images),
            "images_answered": len(answered),
            "image_p50_s": round(float(np.median(answered)), 2) if answered else None,
        }
    )


async def _send(url: str, images: list[bytes], per_second: float, answered: list[float]) -> None:
    """Send images at this rate; abort those that are not answered when the last second is over."""
    begun, tasks = time.monotonic(), []
    for number, data in enumerate(images, 1):
        tasks.append(asyncio.create_task(_ask(url, data, answered)))
        await asyncio.sleep(max(0.0, begun + number / per_second - time.monotonic()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _row(times: list[list[float]], spans: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return percentiles of all turns, and the ratio of the 99th ones in each."""
    row: dict[str, Any] = {}
    each = list[list[float]]()
    for name, turns in spans.items():
        gaps = [_gaps(times, *span) for span in turns]
        each.append([float(np.percentile(turn, 99)) for turn in gaps])
        together = [gap for turn in gaps for gap in turn]
        row[f"{name}_p50_ms"] = round(1e3 * float(np.percentile(together, 50)), 2)
        row[f"{name}_p99_ms"] = round(1e3 * float(np.percentile(together, 99)), 2)
        row[f"{name}_max_ms"] = round(1e3 * max(together), 2)
    row["p99_ratio"] = round(row["beside_p99_ms"] / row["alone_p99_ms"], 3)
    row["p99_ratios"] = [round(b / a, 3) for a, b in zip(*each, strict=True)]
    return row


def _gaps(times: list[list[float]], begin: float, end: float) -> list[float]:
    """Return the seconds between a stream's tokens in a span of time."""
    inside = [[t for t in each if begin <= t < end] for each in times]
    return [b - a for each in inside for a, b in pairwise(each)]


async def _stream(client: HTTPClient, number: int) -> None:
    body = {
        "prompt": f"Stream {number}:", "max_tokens": TOKENS, "temperature": 0.0,
        "ignore_eos": True, "stream": True, "skip_special_tokens": False,  # each token has a text
    }  # fmt: skip
    await client.exchange("POST", "/v1/completions", body)


async def _ask(url: str, data: bytes, answered: list[float]) -> None:
    address = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    parts = [
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "text", "text": "What is this?"},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 8}
    begun = time.monotonic()
    await HTTPClient(url).exchange("POST", "/v1/chat/completions", body)
    answered.append(time.monotonic() - begun)


def _write_model(folder: Path, sizes: dict[str, int], longest_edge: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # Bytes of ASCII, and pairs of letters: no stream waits for the rest of a character.
    letters = ["Ġ", *(chr(code) for code in range(33, 127))]
    words = (
        letters + [a + b for a in "abcdefghijklm" for b in "nopqrstuvwxyz"][: 256 - len(letters)]
    )
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in ("<s>", "</s>", IMAGE)]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    files: dict[str, Any] = {
        "config.json": CONFIG | {"vision_config": TOWER | sizes},
        "tokenizer_config.json": {
            "bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE,
        },
        "preprocessor_config.json": {
            "size": {"longest_edge": longest_edge}, "max_image_size": {"longest_edge": 512},
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def _preparation(repetitions: int) -> list[dict[str, Any]]:
    """Return a row for each kind: CPU seconds of Quire and of Transformers, in turns."""
    import torch
    import transformers

    from quire.core.images import ImageConfig, ImageSpan, Product, VisionConfig
    from quire.frontend.images.prepare import prepare
    from quire.models.vision.tower import patches_of

    torch.set_num_threads(1)
    half = (0.5, 0.5, 0.5)
    tower: dict[str, Any] = {
        "image_token": 1, "hidden_size": 768, "intermediate_size": 3072, "num_layers": 12,
        "num_heads": 12, "activation": "gelu_tanh", "connector": (Product(576),),
    }  # fmt: skip
    cases: list[tuple[VisionConfig, dict[str, Any], dict[str, Any]]] = [
        (
            VisionConfig("qwen2_vl", patch_size=14, merge=2, frames=2, **tower),
            {"shortest_edge": 3136, "longest_edge": 12845056, "resample": 3},
            {"size": {"shortest_edge": 3136, "longest_edge": 12845056}},
        ),
        (
            VisionConfig("gemma3", fit="panned", patch_size=14, image_size=896, **tower),
            {"crop": 896, "resample": 2},
            {"size": {"height": 896, "width": 896}},
        ),
        (
            VisionConfig("idefics3", fit="split", patch_size=16, image_size=512, merge=4, **tower),
            {"longest_edge": 2048, "crop": 512, "split": True, "resample": 1},
            {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        ),
        (
            VisionConfig("llava", fit="cropped", patch_size=14, image_size=336, **tower),
            {"shortest_edge": 336, "crop": 336, "resample": 3},
            {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        ),
    ]
    names = {"qwen2_vl": "Qwen2VL", "gemma3": "Gemma3", "idefics3": "Idefics3", "llava": "Llava"}
    data, rows = photo(2464, 1632, 0), []
    for vision, sizes, settings in cases:
        config = ImageConfig(half, half, 1, 0, **sizes)
        processor = getattr(transformers, f"{names[vision.kind]}ImageProcessor")(**settings)

        def ours(vision: VisionConfig = vision, config: ImageConfig = config) -> int:
            count = 0
            for tile in prepare(data, vision, config).tiles:
                size = tile.height, tile.width
                span = ImageSpan(0, 0, b"", None, size, tile.pixels)
                count += patches_of(span, vision, config).size
            return count

        def theirs(processor: Any = processor) -> int:
            with Image.open(io.BytesIO(data)) as image:
                found = processor(images=[image.convert("RGB")], return_tensors="pt")
            return int(found["pixel_values"].numel())

        assert ours() == theirs(), "both prepare as many values"

        samples = []
        for _ in range(repetitions):
            found = {"quire_s": _cpu(ours), "transformers_s": _cpu(theirs)}
            samples.append(found | {"ratio": found["quire_s"] / found["transformers_s"]})
        fixed = {"kind": vision.kind, "processor": type(processor).__name__}
        rows.append(summarise(fixed, samples))
    return rows


def _cpu(work: Any) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
