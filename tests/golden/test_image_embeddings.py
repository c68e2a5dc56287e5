"""CLIP and SigLIP: embeddings of texts and images are those of Transformers."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, processors

from quire.core.errors import ConfigError, InvalidRequestError
from quire.frontend.llm import LLM
from quire.models.registry import model_config
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from tests.e2e.serving import serving
from tests.e2e.tiny_model import BOS, EOS, byte_tokenizer

PAD, END = 258, 257
LENGTH = 40
TEXTS = ["a cat", "a dog on the old mat", "x"]
LIMITS: dict[str, Any] = {"max_num_seqs": 8, "num_threads": 1, "num_gpu_blocks_override": 64}
_SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2,
}  # fmt: skip
_TEXT = _SHAPE | {
    "hidden_size": 48, "vocab_size": 300, "max_position_embeddings": LENGTH, "eos_token_id": END,
    "bos_token_id": 256, "pad_token_id": PAD,
}  # fmt: skip
_VISION = _SHAPE | {"patch_size": 8, "image_size": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "CLIP": {"text_config": _TEXT, "vision_config": _VISION, "projection_dim": 24},
    # No patch reads the last lines, as in siglip-so400m-patch14-384.
    "Siglip": {
        "text_config": _TEXT | {"projection_size": 32},
        "vision_config": _VISION | {"image_size": 37},
    },
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "CLIP": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    "Siglip": {"size": {"height": 37, "width": 37}},
}


class Pair:
    """A tiny random model in a folder, and Transformers' embeddings with it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        torch.manual_seed(2)
        config = getattr(transformers, f"{name}Config")(**CONFIGS[name])
        self.oracle = getattr(transformers, f"{name}Model")(config).eval()
        with torch.no_grad():
            for parameter in self.oracle.parameters():
                noise = 0.2 * torch.randn_like(parameter)
                parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
        self.oracle.save_pretrained(folder)
        self._processor = getattr(transformers, f"{name}ImageProcessorPil")(**PROCESSORS[name])
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[name]))
        self.tokenizer = byte_tokenizer()
        self.tokenizer.add_special_tokens([AddedToken("<pad>", special=True)])
        self.tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A {EOS}", special_tokens=[(BOS, 256), (EOS, END)]
        )
        self.tokenizer.save(str(folder / "tokenizer.json"))
        roles = {"bos_token": BOS, "eos_token": EOS, "pad_token": "<pad>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(roles))

    def embeddings(self, texts: list[str], images: list[Image.Image]) -> tuple[Any, Any]:
        """Return those of texts and of images, each of length 1."""
        ids = [self.tokenizer.encode(text).ids for text in texts]
        padded = torch.tensor([each + [PAD] * (LENGTH - len(each)) for each in ids])
        pixels = self._processor(images=images, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            found = self.oracle(input_ids=padded, pixel_values=pixels)
        return found.text_embeds.numpy(), found.image_embeds.numpy()


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


def pictures() -> list[Image.Image]:
    draw = np.random.default_rng(4)
    sizes = ((37, 53), (60, 41), (32, 32))
    return [Image.fromarray(draw.integers(0, 256, (*s, 3), dtype=np.uint8)) for s in sizes]


def of_image(image: Any) -> dict[str, Any]:
    return {"prompt": "", "multi_modal_data": {"image": image}}


def test_embeddings_are_those_of_transformers(pair: Pair) -> None:
    images = pictures()
    texts, of_images = pair.embeddings(TEXTS, images)
    with LLM(str(pair.folder), **LIMITS) as llm:
        both = [*TEXTS, *map(of_image, images)]
        found = [each.outputs.embedding for each in llm.embed(both, use_tqdm=False)]
        np.testing.assert_allclose(found, np.concatenate([texts, of_images]), rtol=0, atol=1e-5)
        [alone] = llm.embed(of_image(images[1]), use_tqdm=False)
        assert alone.outputs.embedding == found[len(TEXTS) + 1]
        for wrong, why in (
            ({"prompt": "a", "multi_modal_data": {"image": images[0]}}, "each by itself"),
            ({"prompt": "", "multi_modal_data": {"image": images}}, "an embedding is of one"),
        ):
            with pytest.raises(InvalidRequestError, match=why):
                llm.embed(wrong, use_tqdm=False)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_absent_fields_mean_what_they_mean_to_transformers(name: str) -> None:
    config = getattr(transformers, f"{name}Config")()
    kind = name.lower()
    found = model_config(
        {"architectures": [f"{name}Model"], "text_config": {"model_type": f"{kind}_text_model"},
         "vision_config": {}}
    )  # fmt: skip
    for ours, theirs, names in (
        (found, config.text_config, ("hidden_size", "intermediate_size", "vocab_size",
         "num_hidden_layers", "num_attention_heads", "max_position_embeddings")),
        (found.vision, config.vision_config, ("hidden_size", "intermediate_size", "patch_size",
         "image_size")),
    ):  # fmt: skip
        assert [getattr(ours, n) for n in names] == [getattr(theirs, n) for n in names]
        assert ours.norm_eps == theirs.layer_norm_eps
    assert found.vision.num_layers == config.vision_config.num_hidden_layers
    assert found.num_labels == (config.projection_dim if kind == "clip" else 768)


def test_half_precision_is_near(pair: Pair) -> None:
    images = pictures()
    expected = np.concatenate(pair.embeddings(TEXTS, images))
    with LLM(str(pair.folder), dtype="bfloat16", **LIMITS) as llm:
        found = llm.embed([*TEXTS, *map(of_image, images)], use_tqdm=False)
    cosines = np.einsum("ij,ij->i", [each.outputs.embedding for each in found], expected)
    assert cosines.min() > 0.995


def test_other_lengths_of_padding_are_refused(pair: Pair) -> None:
    args = EngineArgs(model=str(pair.folder), max_model_len=LENGTH - 1)
    if pair.name == "CLIP":
        assert resolve(args, detect()).config.scheduler.max_model_len == LENGTH - 1
    else:
        with pytest.raises(ConfigError, match="pads texts to 40 tokens"):
            resolve(args, detect())


@pytest.mark.parametrize("pair", ["CLIP"], indirect=True)
def test_the_server_embeds_texts_and_images(pair: Pair) -> None:
    image = pictures()[0]
    texts, of_images = pair.embeddings(TEXTS, [image])
    out = io.BytesIO()
    image.save(out, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    picture = {"type": "image_url", "image_url": {"url": url}}
    text = {"type": "text", "text": TEXTS[1]}
    with serving(pair.folder, "--num-gpu-blocks-override", "64") as server:

        def ask(*parts: dict[str, Any]) -> httpx.Response:
            body = {"messages": [{"role": "user", "content": parts}]}
            return httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60)

        for parts, expected in (((picture,), of_images[0]), ((text,), texts[1])):
            [found] = ask(*parts).json()["data"]
            np.testing.assert_allclose(found["embedding"], expected, rtol=0, atol=1e-5)
        answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": TEXTS}, timeout=60)
        found = [each["embedding"] for each in answer.json()["data"]]
        np.testing.assert_allclose(found, texts, rtol=0, atol=1e-5)
        for parts, why in (((text, picture), "each by itself"), ((picture,) * 2, "is of one")):
            refusal = ask(*parts)
            assert refusal.status_code == 400
            assert why in refusal.json()["error"]["message"]
            assert refusal.json()["error"]["param"] == "messages"
