"""Prompts with images, features combined at random: `python -m tests.fuzz.pictures`.

As `tests.fuzz.combinations`, for models that read images. Transformers makes them.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from quire.core.errors import ConfigError, InvalidRequestError
from tests.fuzz.asked import Asked
from tests.fuzz.combinations import run
from tests.fuzz.engines import draw_world

MODELS = (
    "gemma3", "llava", "internvl", "internvl_normed", "llava_next", "paligemma", "qwen2_vl",
    "qwen2_5_vl", "qwen3_vl_moe", "qwen3_vl", "qwen3_5", "idefics3", "smolvlm", "glm4v",
    "glm4v_moe", "glm_ocr", "exaone4_5", "gemma4", "gemma4_moe", "granite_vision", "lfm2_vl",
    "paddleocr_vl", "lighton_ocr", "mistral3", "pixtral",
)  # fmt: skip
TEXT_TOKENS, IMAGE = 256, 258
SPACE = 300
"""Tokens that images may take beyond those that stand for them."""


@cache
def model_of(kind: str) -> str:
    """Return the folder of a model, written once."""
    from tests.golden.tiny_vision import write_vision_model

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    write_vision_model(Path(folder), kind)
    return folder


def picture(random: Random, asked: Asked, *, needed: bool) -> None:
    """Put images into a prompt, of few, so that some come again."""
    asked.embeds = False
    asked.prompt = [token % TEXT_TOKENS for token in asked.prompt][-60:]
    count = 1 if needed else random.choice([0, 1, 1, 2])
    asked.images = [random.randrange(6) for _ in range(count)]
    for at in sorted(
        random.choice([0, len(asked.prompt) // 2, len(asked.prompt)]) for _ in asked.images
    ):
        asked.prompt.insert(0 if needed else at, IMAGE)
    for name in ("truncate_prompt_tokens", "truncation_side"):
        asked.params.pop(name, None)


def case(random: Random) -> str:
    """One world; how it went."""
    kind = random.choice(MODELS)
    world = draw_world(random)
    world.model = model_of(kind)
    world.numbers |= {"max_model_len": 500}
    world.numbers.pop("ops", None)
    for asked in world.asked:
        picture(random, asked, needed=kind == "paligemma")
    flags: dict[str, Any] = world.flags
    drafts = flags.get("speculative_config")
    if drafts and drafts["method"] not in ("ngram", "suffix"):
        drafts |= {"method": "suffix"}
        for name in ("model", "quantization"):
            drafts.pop(name, None)
    if "max_num_batched_tokens" in flags:
        flags["max_num_batched_tokens"] = max(flags["max_num_batched_tokens"], 128)
    longest = max(len(a.prompt) + a.params["max_tokens"] for a in world.asked) + SPACE
    flags["num_gpu_blocks_override"] = -(-longest // flags["block_size"]) + random.choice(
        [0, 4, 300]
    )
    try:
        befell = run(world)
    except (ConfigError, InvalidRequestError) as error:
        return f"refused: {error.param}"
    except BaseException as error:
        error.add_note(f"{kind}: {world!r}")
        raise
    return next((what for what, count in befell.items() if count), "plain")


if __name__ == "__main__":
    from tests.fuzz.replay import main

    logging.disable(logging.ERROR)
    sys.exit(main("tests.fuzz.pictures", case, 200))
