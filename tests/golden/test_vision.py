"""Models that read images, against Transformers and against themselves."""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from PIL import Image
from safetensors.torch import load_file, save_file

from quire import LoRARequest
from quire.core.errors import InvalidRequestError
from quire.core.images import ImageConfig, ImageSpan, VisionConfig
from quire.core.options import KVTransfer
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.explain.fit import Fit, fit
from quire.frontend.images.expand import expand
from quire.frontend.images.prepare import prepare
from quire.frontend.llm import LLM
from quire.models.vision import pieces
from quire.models.vision.grids import grid_of
from quire.models.vision.layout import tower_bytes
from quire.models.vision.tower import patches_of
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import Hardware, detect
from tests.golden.handoff import Side, promised
from tests.golden.tiny_vision import IMAGE, MODELS, ROW, write_vision_model

PARAMS = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, logprobs=1)
PROMPT = [5, 6, 7, IMAGE, 8, 9, IMAGE, 10, 11]
FEW: list[Any] = ["gemma3", "llava", "qwen3_5", "qwen3_vl"]
"""Enough for what lies around a tower: causal rows or not, one axis of positions or three, and rows
for later layers; and layers with states."""
MORE = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in FEW]
LIMITS: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 512,
    "block_size": 8,
    "num_threads": 1,
    "num_gpu_blocks_override": 200,
    "max_model_len": 510,
    "limit_mm_per_prompt": {"image": 2},
}


def images(seed: int = 1) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = ((37, 53, 3), (60, 41, 3))
    return [random.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]


def asked(found: list[np.ndarray], tokens: list[int] = PROMPT) -> dict[str, Any]:
    return {"prompt_token_ids": tokens, "multi_modal_data": {"image": found}}


class Tiny:
    """A model's folder, and Transformers' model."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.oracle = write_vision_model(folder, kind)

    def llm(self, **fields: Any) -> LLM:
        return LLM(str(self.folder), **LIMITS | fields)

    def logits(self, llm: LLM, answer: list[int], found: list[np.ndarray]) -> torch.Tensor:
        """Return the oracle's logits of the prompt with images and of an answer."""
        config, model = llm.resolved.config.images, llm.resolved.config.model.vision
        assert config is not None
        prepared = [prepare(image, model, config) for image in found]
        ids, spans = expand(PROMPT, prepared, model, llm.tokenizer)
        ids += answer
        given: dict[str, Any] = {}
        if model.frames > 1 or model.fit == "grown":
            patches = [patches_of(span, model, config) for span in spans]
            if model.fit == "grown":
                size = 3, model.patch_size, model.patch_size
                patches = [in_lines(s, model, config)[0].reshape(-1, *size) for s in spans]
            sides = [[1, *(side // model.patch_size for side in span.size)] for span in spans]
            given["pixel_values"] = torch.from_numpy(np.concatenate(patches))
            given["image_grid_thw"] = torch.tensor(sides)
            if model.sections:
                kinds = [[int(token == IMAGE) for token in ids]]
                given["mm_token_type_ids"] = torch.tensor(kinds)
        elif model.fit == "budget":
            unit, pad = model.merge**2 * 70, torch.nn.utils.rnn.pad_sequence
            pixels = [by_pixel(*in_lines(span, model, config)) / 2 + 0.5 for span in spans]
            lines = [places_of(span, model) for span in spans]
            places = [each[np.lexsort(each.numpy().T)] for each in lines]
            empty = torch.zeros(unit, pixels[0].shape[1]), torch.full((unit, 2), -1)
            given["pixel_values"] = pad([*pixels, empty[0]], True)[:-1]
            given["image_position_ids"] = pad([*places, empty[1]], True, -1)[:-1]
            kinds = [[int(token == IMAGE) for token in ids]]
            given["mm_token_type_ids"] = torch.tensor(kinds)
        elif model.fit == "tiled":
            pixels = [by_pixel(*in_lines(span, model, config)) for span in spans]
            given["pixel_values"] = torch.nn.utils.rnn.pad_sequence(pixels, True)
            ones = [torch.ones(len(each)) for each in pixels]
            given["pixel_attention_mask"] = torch.nn.utils.rnn.pad_sequence(ones, True).long()
            sides = [[side // model.patch_size for side in span.size] for span in spans]
            given["spatial_shapes"] = torch.tensor(sides)
        elif model.fit == "bounded":
            lines = [normalized(span, config.mean, config.std) for span in spans]
            sides = torch.tensor([span.size for span in spans])
            most = sides.max(dim=0).values.tolist()
            pixels = torch.zeros(len(lines), 3, *most)
            for each, line in zip(pixels, lines, strict=True):
                each[:, : line.shape[1], : line.shape[2]] = line
            given |= {"pixel_values": pixels, "image_sizes": sides}
        else:
            pixels = torch.cat([squares(span, config.mean, config.std) for span in spans])
            given["pixel_values"] = pixels[None] if model.kind == "idefics3" else pixels
        if model.fit == "anyres":
            tiles = [squares(span, config.mean, config.std) for span in spans]
            rest = model.image_size - tiles[0].shape[-1]  # pixels that no patch reads
            tiles = [torch.nn.functional.pad(each, (0, rest, 0, rest)) for each in tiles]
            given["pixel_values"] = torch.nn.utils.rnn.pad_sequence(tiles, batch_first=True)
            given["image_sizes"] = torch.tensor([image.shape[:2] for image in found])
        if self.kind == "gemma3":
            given["token_type_ids"] = torch.tensor([[int(token == ROW) for token in ids]])
        if self.kind == "paligemma":
            kinds = [*[0] * (len(ids) - len(answer)), *[1] * len(answer)]
            given["token_type_ids"] = torch.tensor([kinds])
        with torch.no_grad():
            return self.oracle(input_ids=torch.tensor([ids]), **given).logits[0]


def in_lines(
    span: ImageSpan, model: VisionConfig, config: ImageConfig
) -> tuple[np.ndarray, VisionConfig]:
    """Return the patches of a span line by line."""
    order = np.lexsort(places_of(span, model).numpy().T)
    return patches_of(span, model, config)[order], model


def by_pixel(patches: np.ndarray, model: VisionConfig) -> torch.Tensor:
    """Return patches [count, 3 · size²] with the channels of each pixel side by side."""
    parts = torch.from_numpy(patches).view(len(patches), 3, -1)
    return parts.transpose(1, 2).reshape(len(patches), model.patch_values)


def places_of(span: ImageSpan, model: VisionConfig) -> torch.Tensor:
    """Return column and row of each patch, in the order of `patches_of`."""
    height, width = (side // model.patch_size for side in span.size)
    return torch.from_numpy(grid_of(height, width, model.merge)[:, ::-1].copy())


def squares(span: ImageSpan, mean: Any, std: Any) -> torch.Tensor:
    """Return the normalized tiles of a span [tiles, 3, side, side]."""
    side = span.size[1]
    return normalized(span, mean, std).unflatten(1, (-1, side)).transpose(0, 1)


def normalized(span: ImageSpan, mean: Any, std: Any) -> torch.Tensor:
    pixels = torch.frombuffer(bytearray(span.pixels), dtype=torch.uint8).reshape(*span.size, 3)
    return ((pixels / 255 - torch.tensor(mean)) / torch.tensor(std)).permute(2, 0, 1)


@pytest.fixture(scope="module", params=list(MODELS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llm(tiny: Tiny) -> Iterator[LLM]:
    with tiny.llm() as running:
        yield running


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_logits_and_tokens_are_those_of_transformers(tiny: Tiny, llm: LLM) -> None:
    [output] = llm.generate([asked(images())], PARAMS, use_tqdm=False)
    answer, prompt = output.outputs[0], output.prompt_token_ids
    assert answer.finish_reason == "length", "the request failed"
    logits = tiny.logits(llm, answer.token_ids, images())
    likely = torch.log_softmax(logits, dim=-1)[len(prompt) - 1 : -1]
    assert answer.token_ids == likely.argmax(dim=-1).tolist()
    [both] = llm.generate([asked(images())], PARAMS.replace(n=2, max_tokens=8), use_tqdm=False)
    assert [each.token_ids for each in both.outputs] == [answer.token_ids[:8]] * 2
    for row, token, found in zip(likely, answer.token_ids, answer.logprobs, strict=True):
        assert abs(found[token].logprob - row[token].item()) <= 1e-4


@pytest.mark.parametrize("tiny", FEW + MORE, indirect=True)
def test_an_image_is_read_once_and_no_other_stands_for_it(llm: LLM) -> None:
    first, second = images(2)
    for found in ([first, second], [second, first], [first, first]):
        [output] = llm.generate([asked(found)], PARAMS, use_tqdm=False)
        [again] = llm.generate([asked(found)], PARAMS, use_tqdm=False)
        assert tokens([again]) == tokens([output])
        # All whole blocks but the one of the last token are found again.
        assert again.num_cached_tokens == (len(output.prompt_token_ids) - 1) // 8 * 8
    encoder = llm._core.executor._worker._runner._rows._cache  # type: ignore[attr-defined]
    before = encoder.encoded_tokens
    llm.generate([asked([second, second])], PARAMS, use_tqdm=False)
    assert encoder.encoded_tokens == before, "both images have been read"
    one, last, begin = PARAMS.replace(max_tokens=1), first.copy(), first.copy()
    last[-1, -1, -1] ^= 1  # CLIP crops it away
    begin[0, 0, 0] ^= 1
    turned = first.reshape(first.shape[1], first.shape[0], 3)
    for other in (last, begin, turned, first[:-1]):
        [output] = llm.generate([asked([other, second])], one, use_tqdm=False)
        text = output.prompt_token_ids.index(IMAGE)
        assert (output.num_cached_tokens or 0) <= text, other.shape


def test_an_image_is_read_in_pieces_with_the_same_bits(
    tiny: Tiny, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 rows, or as many windows: the pieces of a step beside text streams."""
    monkeypatch.setattr(pieces, "PIECE_FLOPS", 1)
    cache = llm._core.executor._worker._runner._rows._cache  # type: ignore[attr-defined]
    config, model = llm.resolved.config.images, llm.resolved.config.model.vision
    assert config is not None
    prepared = [prepare(image, model, config) for image in images(3)]
    _, (span, *_) = expand(PROMPT, prepared, model, llm.tokenizer)
    before, steps = cache.encoded_tokens, 0
    while not cache.read_ahead(span if steps == 0 else replace(span, pixels=b""), 0.0):
        assert cache.encoded_tokens == before
        steps += 1
    # Patches, queries and the rest of each layer, and the products behind the layers.
    assert steps > 2 * model.num_layers
    assert cache.encoded_tokens == before + span.rows
    found = cache.rows(span)
    assert cache.encoded_tokens == before + span.rows, "it is read once"
    del cache._rows[span.digest]
    assert np.array_equal(cache.rows(span), found)


@pytest.mark.parametrize("tiny", ["gemma3", "paligemma", "qwen3_vl"], indirect=True)
def test_beside_a_stream_an_image_is_read_over_many_steps(
    tiny: Tiny, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step computes one piece and a token of the stream; the answers are those of alone."""
    monkeypatch.setattr(pieces, "PIECE_FLOPS", 1)
    params = PARAMS.replace(max_tokens=8, logprobs=None)
    text: Any = asked(images(5)) if tiny.kind == "paligemma" else list(range(20, 30))
    asks = {"stream": (text, params.replace(max_tokens=90)), "image": (asked(images(6)), params)}
    alone = {name: tokens(llm.generate([p], q, use_tqdm=False)) for name, (p, q) in asks.items()}
    fields = {
        "max_num_batched_tokens": None,
        "max_itl_stretch": 1.0,
        "enable_prefix_caching": False,
    }
    with tiny.llm(**fields) as engine:
        engine.add_request("stream", *asks["stream"])
        while not any(len(output.outputs[0].token_ids) > 2 for output in engine.step()):
            pass
        engine.add_request("image", *asks["image"])
        found, waited = dict[str, Any](), 0
        while engine.has_unfinished_requests():
            waited += "image" not in found
            found |= {output.request_id: [output] for output in engine.step()}
        assert {name: tokens(output) for name, output in found.items()} == alone
        assert waited > 10, "without pieces, a step for each image"


# Plain rows, rows with positions of their own, and rows with deep layers behind them.
@pytest.mark.parametrize("tiny", ["llava", "qwen2_vl", "qwen3_vl"], indirect=True)
def test_an_image_may_be_given_as_its_rows(tiny: Tiny, llm: LLM) -> None:
    params, found = PARAMS.replace(max_tokens=16), images()
    runner = llm._core.executor._worker._runner  # type: ignore[attr-defined]
    config, model = llm.resolved.config.images, llm.resolved.config.model.vision
    assert config is not None
    prepared = [prepare(image, model, config) for image in found]
    _, spans = expand(PROMPT, prepared, model, llm.tokenizer)
    given: list[Any] = []
    for span in spans:
        rows = torch.from_numpy(np.array(runner._rows._cache.rows(span)))
        sides = [side // model.patch_size for side in span.size]
        grid = {"image_grid_thw": torch.tensor([[1, *sides]])} if model.sections else {}
        given.append({"image_embeds": rows, **grid} if grid else rows)
    expected = tokens(llm.generate([asked(found)], params, use_tqdm=False))
    with pytest.raises(InvalidRequestError, match="--enable-prompt-embeds"):
        llm.generate([asked(given)], params, use_tqdm=False)
    with tiny.llm(enable_prompt_embeds=True) as taking:
        uuids = {"multi_modal_uuids": {"image": ["a", "b"]}}
        assert tokens(taking.generate([asked(given) | uuids], params, use_tqdm=False)) == expected
        cache = taking._core.executor._worker._runner._rows._cache  # type: ignore[attr-defined]
        assert cache.encoded_tokens == 0
        for wrong in (given[0]["image_embeds"] if model.sections else torch.zeros(4, 63),
                      {"image_embeds": torch.full((4, 64), torch.nan)}):  # fmt: skip
            with pytest.raises(InvalidRequestError, match=r"image_grid_thw|shape|finite"):
                taking.generate([asked([wrong, given[1]])], params, use_tqdm=False)


@pytest.mark.parametrize("tiny", ["qwen2_vl"], indirect=True)
def test_a_trace_shows_the_ops_of_the_tower(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    with tiny.llm() as llm:
        llm.start_profile()
        llm.generate([asked(images())], PARAMS.replace(max_tokens=1), use_tqdm=False)
        [trace] = llm.stop_profile()
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    found = [e["name"] for e in events if e["name"].startswith("tower.")]
    layer = ["attn.qkv linear", "attn paged_attention", "attn.out linear", "mlp.up linear"]
    for name in ("patch linear", *(f"layers.1.{each}" for each in layer), "connector.1 linear"):
        assert found.count(f"tower.{name}") == 2, sorted(set(found))  # one of each image


@pytest.mark.parametrize("tiny", ["paligemma"], indirect=True)
def test_a_prompt_needs_an_image(tiny: Tiny, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="an image in each prompt"):
        llm.generate([[5, 6]], PARAMS, use_tqdm=False)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
# One of each name of the text model.
@pytest.mark.parametrize("tiny", ["gemma3", "idefics3", "qwen2_vl"], indirect=True)
def test_an_adapter_changes_the_text_model(tiny: Tiny, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    text = ".*(language_model|text_model).*(q_proj|v_proj|down_proj)"
    config = peft.LoraConfig(r=4, lora_alpha=6, init_lora_weights=False, target_modules=text)
    plain = tiny.oracle
    adapted = peft.get_peft_model(copy.deepcopy(plain), config)
    adapted.save_pretrained(tmp_path)
    params, adapter = PARAMS.replace(max_tokens=16), LoRARequest("a", 1, str(tmp_path))
    with tiny.llm(enable_lora=True) as llm:
        without, found = llm.generate(
            [asked(images())] * 2, params, use_tqdm=False, lora_request=[None, adapter]
        )
        try:
            tiny.oracle = adapted
            logits = tiny.logits(llm, found.outputs[0].token_ids, images())
        finally:
            tiny.oracle = plain
    likely = logits[len(found.prompt_token_ids) - 1 : -1].argmax(dim=-1)
    assert found.outputs[0].token_ids == likely.tolist() != without.outputs[0].token_ids


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize(
    "fields",
    [
        {"max_num_batched_tokens": 64},
        {"enforce_eager": True, "max_num_batched_tokens": 16},
        {"quantization": "int8"},
        {"kv_cache_dtype": "int8"},
        {"preemption_mode": "recompute"},
        {"preemption_mode": "swap", "swap_space": 0.01},
        {"tensor_parallel_size": 2, "num_threads": 2},
        {"pipeline_parallel_size": 2, "num_threads": 2},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}},
    ],
    ids=[
        "chunks-64",
        "eager-chunks-16",
        "int8",
        "int8-kv",
        "preempted",
        "swapped",
        "ranks",
        "stages",
        "drafts",
        "suffix",
    ],
)
def test_an_answer_is_the_same_alone_and_in_a_batch(tiny: Tiny, fields: dict[str, Any]) -> None:
    params = PARAMS.replace(max_tokens=24)
    prompts: list[Any] = [asked(images(seed), [seed, *PROMPT]) for seed in (3, 4)]
    if tiny.kind == "gemma4" and "pipeline_parallel_size" in fields:
        pytest.skip("its last layers read the keys of others, so they need one stage")
    least = {"paligemma": 48, "gemma4_moe": 80}.get(tiny.kind, 0)  # what is computed whole
    fields = {n: max(value, least) if "tokens" in n else value for n, value in fields.items()}
    if tiny.kind != "paligemma":  # a prompt has an image
        prompts.append(list(range(1, 90)))
    rounding = {k: v for k, v in fields.items() if k in ("quantization", "kv_cache_dtype")}
    with tiny.llm(enable_prefix_caching=False, **rounding) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        alone = [tokens(llm.generate([p], params, use_tqdm=False))[0] for p in prompts]
    assert tokens(outputs) == alone
    if preempted := "preemption_mode" in fields:  # blocks for all prompts, not for their answers
        lengths = [len(output.prompt_token_ids or ()) for output in outputs]
        blocks = sum(-(-length // 8) for length in lengths) + 2
        fields = fields | {
            "num_gpu_blocks_override": blocks,
            "max_model_len": max(lengths) + params.max_tokens,
        }
    with tiny.llm(**fields) as llm:
        assert tokens(llm.generate(prompts, params, use_tqdm=False)) == alone
        assert tokens(llm.generate(prompts, params, use_tqdm=False)) == alone, "from the cache"
        assert (llm.stats.scheduler.num_preemptions > 0) == preempted


# One with three positions, and one whose image rows see each other.
@pytest.mark.parametrize("tiny", ["qwen2_vl", "gemma3"], indirect=True)
def test_prompts_and_answers_may_be_computed_apart(tiny: Tiny, llm: LLM, tmp_path: Path) -> None:
    config, model = llm.resolved.config.images, llm.resolved.config.model.vision
    assert config is not None
    assert model is not None
    prepared = [prepare(image, model, config) for image in images()]
    ids, spans = expand(PROMPT + [7] * 12, prepared, model, llm.tokenizer)
    producer = Side(tiny.folder, tmp_path, "kv_producer")
    expected = producer.answer(ids, 12, KVTransfer(), spans).new_token_ids
    first = promised(producer.answer(ids, 1, KVTransfer(hands_over=True), spans))
    consumer = Side(tiny.folder, tmp_path, "kv_consumer")
    assert consumer.answer(ids, 12, first, spans).new_token_ids == expected
    cache = consumer.core.executor._worker._runner._rows._cache  # type: ignore[attr-defined]
    assert cache.encoded_tokens == 0, "the rows came with the blocks"


@pytest.mark.parametrize("tiny", ["qwen2_vl"], indirect=True)
def test_plan_counts_the_tower_and_the_encoder_cache(tiny: Tiny) -> None:
    """Two configurations' numbers of blocks differ by what they say (vLLM's issue 6623)."""
    machine = Hardware(cores=2, memory_bytes=3 << 29, available_bytes=3 << 29)

    def planned(**fields: Any) -> Fit:
        fields |= {"max_num_seqs": 4096, "gpu_memory_utilization": 0.9}
        return fit(EngineArgs(str(tiny.folder), **fields), machine, None)

    small, large = (planned(mm_processor_cache_gb=gib) for gib in (0.25, 0.75))
    block = small.kv_bytes_per_token * small.block_size
    assert abs((small.num_blocks - large.num_blocks) - (1 << 29) / block) < 1
    text = planned(language_model_only=True)
    config = resolve(EngineArgs(str(tiny.folder)), machine).config
    tower = tower_bytes(config)
    assert small.weights - text.weights == tower > 0
    less = tower + (1 << 28) + small.activations - text.activations
    assert abs((text.num_blocks - small.num_blocks) - less / block) < 1


@functools.cache
def files() -> list[tuple[str, bytes]]:
    """Return 54 images of odd sizes, modes and orientations, some transparent or animated."""
    random, found = np.random.default_rng(0), []
    sizes = [(1, 1), (7, 93), (64, 64), (101, 33), (250, 40), (31, 200), (90, 91), (160, 120)]
    for mode, kind, count in (
        ("RGB", "PNG", 8), ("RGBA", "PNG", 8), ("P", "PNG", 8), ("RGB", "JPEG", 8),
        ("RGBA", "WEBP", 8), ("CMYK", "JPEG", 2), ("I;16", "PNG", 2), ("LA", "PNG", 2),
        ("1", "PNG", 2), ("PA", "PNG", 2), ("P", "GIF", 2), ("RGB", "WEBP", 2),
    ):  # fmt: skip
        for number, (width, height) in enumerate(sizes[-count:]):
            pixels = random.integers(0, 256, (height, width, 4), dtype=np.uint8)
            image = Image.fromarray(pixels if mode == "RGBA" else pixels[..., :3].copy())
            extra: dict[str, Any] = {}
            if mode == "I;16":
                image = Image.fromarray(np.ascontiguousarray(pixels).view(np.uint16)[..., 0])
            elif mode in ("P", "PA"):
                image = image.quantize(16)
                extra["transparency"] = 3 if mode == "P" else bytes(range(0, 256, 16))
            elif mode in ("CMYK", "1"):
                image = image.convert(mode)
            elif mode == "LA":
                image = Image.merge("LA", image.split()[:2])
            if kind == "JPEG":
                extra["exif"] = Image.Exif()
                extra["exif"][0x0112] = 8 - number
            if count == 2 and kind in ("GIF", "WEBP"):
                extra |= {"save_all": True, "append_images": [image.rotate(180)]}
            out = io.BytesIO()
            image.save(out, kind, **extra)
            found.append((f"{mode}-{kind}-{width}x{height}", out.getvalue()))
    return found


PANNED = {
    "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 3,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}  # fmt: skip


def test_parts_of_a_long_image_stand_between_texts(tmp_path: Path) -> None:
    write_vision_model(tmp_path, "gemma3")
    with LLM(str(tmp_path), mm_processor_kwargs=PANNED, **LIMITS) as llm:
        image = {
            "prompt": "<image>",
            "multi_modal_data": {"image": np.zeros((30, 90, 3), np.uint8)},
        }
        [output] = llm.generate(image, PARAMS.replace(max_tokens=1), use_tqdm=False)
        ids = output.prompt_token_ids
        spans = [ids[i : i + 6] for i, token in enumerate(ids) if token == IMAGE]
        assert spans == [[IMAGE, *[ROW] * 4, 260]] * 4
        text = llm.tokenizer.decode([i for i in ids if i not in (IMAGE, ROW, 260)])
    lines = "\n" * 4
    assert text == (
        f"Here is the original image {lines} and here are some crops to help you see better "
        f"{lines} {lines} {lines}"
    )


PROCESSORS = [
    "gemma3", "panned", "paligemma", "internvl", "llava", "whole", "llava_siglip", "llava_next",
    "mistral3", "qwen2_vl", "qwen3_vl", "idefics3", "smolvlm", "glm4v",
    "gemma4", "paddleocr_vl", "granite_vision",
]  # fmt: skip


# Three processors in turn see every file.
@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", PROCESSORS)
def test_pixels_are_those_of_transformers(tmp_path: Path, kind: str, share: int) -> None:
    from PIL import ImageOps

    some = files()[PROCESSORS.index(kind) % share :: share]
    changes = PANNED if kind == "panned" else None
    size = {"size": {"height": 32, "width": 32}} if kind == "whole" else {}
    kind = kind.replace("panned", "gemma3").replace("whole", "llava")
    write_vision_model(tmp_path, kind)
    processor = MODELS[kind][2] | size
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    args = EngineArgs(model=str(tmp_path), mm_processor_kwargs=json.dumps(changes or {}))
    config = resolve(args, detect()).config
    vision, settings = config.model.vision, config.images
    assert vision is not None
    assert settings is not None
    named = {"Qwen3VL": "Qwen2VL", "PaliGemma": "Siglip", "InternVL": "GotOcr2"}
    name = (named | {"Mistral3": "Pixtral"}).get(MODELS[kind][0], MODELS[kind][0])
    name = "Siglip" if kind == "llava_siglip" else name
    oracle = getattr(transformers, f"{name}ImageProcessorPil")(**processor, **(changes or {}))
    assert len(some) == 54 // share
    for label, data in some:
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        assert image is not None
        expected = np.asarray(oracle(images=[image], return_tensors="np")["pixel_values"])
        found = prepare(data, vision, settings)
        spans = [
            ImageSpan(0, 0, b"", None, (tile.height, tile.width), tile.pixels)
            for tile in found.tiles
        ]
        if vision.fit == "budget":  # in lines, before the tower normalizes
            [span] = spans
            got = by_pixel(*in_lines(span, vision, settings)).numpy() / 2 + 0.5
            expected = expected[0, : len(got)]
        elif vision.fit == "grown":
            got = in_lines(spans[0], vision, settings)[0].reshape(expected.shape)
        elif vision.frames > 1:
            got = np.concatenate([patches_of(span, vision, settings) for span in spans])
        else:
            stacked = [normalized(span, settings.mean, settings.std) for span in spans]
            if kind in (
                "llava_siglip",
                "granite_vision",
            ):  # pixels behind the last whole patch, which are not read
                expected = expected[..., :32, :32]
            got = torch.stack(stacked).numpy().reshape(expected.shape)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=label)


def test_a_quantized_text_model_beside_a_dense_tower(tmp_path: Path) -> None:
    tiny = Tiny("llava", tmp_path)
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    dense = load_file(path)
    names = [name for name in dense if "language" in name and name.endswith("_proj.weight")]
    codes = {name: dense[name].to(torch.float8_e4m3fn) for name in names}
    save_file(dense | {name: code.float() for name, code in codes.items()}, path)
    params = PARAMS.replace(max_tokens=8)
    with tiny.llm() as llm:
        expected = tokens(llm.generate([asked(images())], params, use_tqdm=False))
    scales = {f"{name}_scale": torch.ones(1) for name in names}
    save_file(dense | codes | scales, path)
    method = {"quant_method": "fp8", "modules_to_not_convert": ["vision_tower", "lm_head"]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": method}))
    with tiny.llm() as llm:
        assert tokens(llm.generate([asked(images())], params, use_tqdm=False)) == expected
        assert len(llm.resolved.config.weight_forms) == 8
