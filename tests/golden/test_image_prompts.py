"""Tokens of prompts with images: those of Transformers' processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from tokenizers import AddedToken

from quire.frontend.images.expand import expand
from quire.frontend.images.prepare import prepare
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.e2e.tiny_model import BOS, EOS, byte_tokenizer
from tests.golden.tiny_vision import MODELS, write_vision_model

SIZES = ((64, 64), (101, 33), (31, 90), (20, 17), (200, 20))
PAN = {
    "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16, "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}  # fmt: skip
_GEMMA = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
_CLIP = {
    "patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
}  # fmt: skip
KINDS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "gemma3": ("Gemma3", _GEMMA, {"image_seq_length": 4}),
    "gemma4": ("Gemma4", ("<|image|>", "<boi>", "<eoi>"), {}),
    "idefics3": (
        "Idefics3",
        (
            "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
            *(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)),
        ),
        {"image_seq_len": 4},
    ),
    "internvl": ("GotOcr2", ("<IMG_CONTEXT>", "<img>", "</img>"), {"image_seq_length": 4}),
    "llava": ("Llava", ("<image>",), _CLIP),
    "llava_next": ("LlavaNext", ("<image>",), _CLIP),
    "qwen2_vl": ("Qwen2VL", ("<|image_pad|>",), {}),
}  # fmt: skip
"""Kind → image processor, special tokens, the one of an image first, and the processor's fields."""


def write(folder: Path, kind: str) -> dict[str, int]:
    """Write a model with the special tokens of its kind; return their ids."""
    write_vision_model(folder, kind)
    backend, names = byte_tokenizer(), KINDS[kind][1]
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    backend.save(str(folder / "tokenizer.json"))
    ids = {name: backend.token_to_id(name) for name in names}
    config = json.loads((folder / "config.json").read_text())
    fields = ("boi_token_index", "image_token_index", "eoi_token_index")
    if kind == "gemma3":
        config |= dict(zip(fields, ids.values(), strict=True))
    elif kind == "gemma4":
        named = ("image_token_id", "boi_token_id", "eoi_token_id")
        config |= dict(zip(named, ids.values(), strict=True))
    else:
        config["image_token_id" if "image_token_id" in config else fields[1]] = ids[names[0]]
    (folder / "config.json").write_text(json.dumps(config))
    return ids


def processor(folder: Path, kind: str, ids: dict[str, int], monkeypatch: Any) -> Any:
    images, names, fields = KINDS[kind]
    roles = dict(zip(("boi_token", "image_token", "eoi_token"), names, strict=False))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token=BOS, eos_token=EOS, pad_token=EOS,
        extra_special_tokens=roles if kind == "gemma3" else {},
    )  # fmt: skip
    if kind == "internvl":
        tokenizer.video_token, tokenizer.video_token_id = "<video>", -1
        for role, name in zip(("context_image", "start_image", "end_image"), names, strict=True):
            setattr(tokenizer, f"{role}_token", name)
            setattr(tokenizer, f"{role}_token_id", ids[name])
    elif kind != "gemma3":
        tokenizer.image_token, tokenizer.image_token_id = names[0], ids[names[0]]
    if kind == "gemma4":
        tokenizer.boi_token, tokenizer.eoi_token = names[1:]
        tokenizer.boa_token = tokenizer.eoa_token = EOS
        fields = {"feature_extractor": None, "video_processor": None}
    made = getattr(transformers, f"{MODELS[kind][0]}Processor")
    monkeypatch.setattr(made, "check_argument_for_proper_class", lambda self, name, given: None)
    pixels = getattr(transformers, f"{images}ImageProcessorPil")(**MODELS[kind][2])
    return made(image_processor=pixels, tokenizer=tokenizer, **fields)


@pytest.mark.parametrize("kind", [*KINDS, "panned"])
def test_tokens(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pan = PAN if kind == "panned" else {}
    kind = kind.replace("panned", "gemma3")
    ids = write(tmp_path, kind)
    if pan:
        settings = json.dumps(MODELS[kind][2] | pan)
        (tmp_path / "preprocessor_config.json").write_text(settings)
    oracle, tokenizer = processor(tmp_path, kind, ids, monkeypatch), load_tokenizer(tmp_path)
    config = resolve(EngineArgs(str(tmp_path)), detect()).config
    assert config.model.vision is not None
    assert config.images is not None
    random, mark = np.random.default_rng(0), KINDS[kind][1][0]
    pictures = [random.integers(0, 256, (h, w, 3), dtype=np.uint8) for w, h in SIZES]
    for first in range(len(SIZES)):
        for text in (f"a\n{mark}\nb", f"x\n\n\n{mark}{mark}\n\n", f"{mark} and {mark}"):
            given = [pictures[(first + i) % len(SIZES)] for i in range(text.count(mark))]
            shown = [Image.fromarray(each) for each in given]
            nested = [shown] if kind in ("gemma3", "gemma4", "idefics3") else shown
            expected = oracle(text=[text], images=nested, add_special_tokens=False, **pan)
            prepared = [prepare(each, config.model.vision, config.images) for each in given]
            plain = tokenizer.encode(text, add_special_tokens=False)
            found, _ = expand(plain, prepared, config.model.vision, tokenizer)
            assert found == expected["input_ids"][0], (text, SIZES[first])
