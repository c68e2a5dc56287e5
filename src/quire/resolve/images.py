"""Resolve how images are prepared, from the model's files and the user's flags."""

from __future__ import annotations

import json
import re
from typing import Any

from quire.checkpoint.json_file import read_json
from quire.checkpoint.source import ModelSource
from quire.core.config import HEAD_METHODS
from quire.core.errors import ConfigError
from quire.core.extras import require
from quire.core.images import ImageConfig, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision.registry import vision_architecture
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import read_object, wrong_flag
from quire.resolve.speculative import parse_speculative_config
from quire.resolve.values import step_tokens

_MOST_IMAGES = 128
"""Of a prompt. Their pixels stay in memory until they are read; the context bounds them, too."""
_PIXELS = (56 * 56, 28 * 28 * 1280)
"""Qwen2-VL: least and most pixels without settings."""
_MOST_TILES = 64
"""InternVL: of one image."""
_SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Gemma 4: the most rows of an image."""
_LONGEST_SIDE = 2**13
"""Pixtral: of an image."""
_PAN_AND_SCAN = {
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
"""Gemma 3: settings that cut long images, and what absent ones mean."""
_PAIRS = re.compile(r"\w+=\d{1,4}(,\w+=\d{1,4})*", re.ASCII)
"""vLLM's older form of `--limit-mm-per-prompt`: image=4,video=0."""


def resolve_images(args: EngineArgs, source: ModelSource, model: ModelConfig) -> ImageConfig | None:
    """Return how images are prepared; None if the engine accepts none.

    Raises:
        ConfigError: a flag is wrong, or does not fit the model.
    """
    vision = model.vision
    if vision is None:
        wanted = {
            "limit_mm_per_prompt": args.limit_mm_per_prompt is not None and _limit(args) > 0,
            "mm_processor_kwargs": args.mm_processor_kwargs is not None,
        }
        for name in (name for name, given in wanted.items() if given):
            raise wrong_flag(name, "this model reads text only.")
        return None
    most = _limit(args)
    if args.language_model_only or most == 0:
        if vision.whole == "prompt":
            name = "language_model_only" if args.language_model_only else "limit_mm_per_prompt"
            raise wrong_flag(name, "each prompt of this model has an image.")
        return None
    require("PIL", f"{args.model} reads images and", "model")
    speculative = parse_speculative_config(args.speculative_config, step_tokens(args), [])
    if speculative is not None and speculative.method in HEAD_METHODS:
        raise wrong_flag(
            "speculative_config", "draft heads do not read images.", "Use --language-model-only."
        )
    family = vision_architecture(vision.kind)
    settings = family.processor | _stored(source) | _kwargs(args, family.settings)
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        hf.only(settings, name, family.processor.get(name, True), "images in one form")
    if "do_normalize" in family.processor:
        settings |= {name: family.processor[name] for name in ("image_mean", "image_std")}
    hf.only(settings, "rescale_factor", 1 / 255, "channels from 0 to 255")
    if vision.frames > 1:
        _check_patches(settings, vision)
    sizes = _sizes(settings, vision)
    _check_step(args, model, vision, sizes)
    return ImageConfig(
        mean=_channels(settings, "image_mean"),
        std=_channels(settings, "image_std"),
        most=most,
        cache_bytes=int(args.mm_processor_cache_gb * 2**30),
        resample=hf.integer(settings, "resample"),
        **sizes,
    )


def _check_patches(settings: dict[str, Any], vision: VisionConfig) -> None:
    """Check that Qwen's processor cuts images as the tower reads them."""
    read = vision.patch_size, vision.merge, vision.frames
    names = ("patch_size", "merge_size", "temporal_patch_size")
    for name, value in zip(names, read, strict=True):
        if settings.get(name, value) not in (None, value):
            raise ConfigError(
                f"preprocessor_config.json: {name} is {settings[name]!r}; the tower reads {value}.",
                fix="Take both files from one model.",
            )


def _check_step(
    args: EngineArgs, model: ModelConfig, vision: VisionConfig, sizes: dict[str, Any]
) -> None:
    """Check that a step can hold what it must."""
    if vision.whole is None:
        return
    unit = vision.patch_size * vision.merge
    rows = (vision.image_size // unit) ** 2
    if vision.fit == "budget":
        rows = sizes["longest_edge"] // unit**2
    needed = rows + args.max_num_seqs
    if step_tokens(args) < needed:
        raise wrong_flag(
            "max_num_batched_tokens",
            f"it must be at least {needed}, an image and max_num_seqs: "
            "an image of this model is computed in one step.",
        )
    window = model.sliding_window
    if vision.whole == "prompt" and window is not None and step_tokens(args) > window:
        raise wrong_flag(
            "max_num_batched_tokens",
            f"it must be at most {window}, this model's window, which prompts must fit in.",
        )


_SIDES = ("height", "width")


def _sizes(settings: dict[str, Any], vision: VisionConfig) -> dict[str, Any]:
    """Return the sizes in `ImageConfig`."""
    fit, image_size = vision.fit, vision.image_size
    size, crop = settings.get("size"), settings.get("crop_size")
    size = {"shortest_edge": size} if isinstance(size, int) else dict(size or {})
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else dict(crop or {})
    size, crop = ({k: v for k, v in each.items() if v is not None} for each in (size, crop))
    if fit in ("canvas", "panned", "square"):
        sides = {size.get(name, image_size) for name in _SIDES}
        if sides != {image_size}:
            raise ConfigError(
                f"preprocessor_config.json: size is {size}; the tower reads {image_size}."
            )
        cuts = {"canvas": _tiles, "panned": _pan_and_scan}
        return {"crop": image_size, **(cuts[fit](settings) if fit in cuts else {})}
    if fit == "anyres":
        sides = {crop.get("height", image_size), size.get("shortest_edge", image_size)}
        if sides != {image_size}:
            raise ConfigError(
                f"preprocessor_config.json: size is {size} and crop_size {crop}; the tower reads "
                f"{image_size}."
            )
        return {"crop": image_size}
    if fit == "budget":
        return _budget(settings, vision)
    if fit == "tiled":
        return _large(settings, vision)
    if fit == "cropped":
        hf.only(settings, "do_center_crop", True, "square images")
        hf.only(settings, "do_pad", False, "images that are cut, not padded")
        square = "shortest_edge" not in size and "height" in size  # whatever the aspect
        sides = {table.get(name, image_size) for table in (crop, size) for name in _SIDES}
        if sides != {image_size} or "longest_edge" in size:
            raise ConfigError(
                f"preprocessor_config.json: size is {size} and crop_size {crop}; Quire resizes "
                "images of this model by their shorter edge, or to a square, and cuts "
                f"{image_size} × {image_size}."
            )
        edge = 0 if square else hf.integer(size, "shortest_edge", default=image_size)
        return {"shortest_edge": edge, "crop": image_size}
    if fit == "bounded":
        return {"longest_edge": _longest_edge(size, image_size)}
    if fit == "split":
        tile = hf.integer(hf.table(settings, "max_image_size"), "longest_edge", default=image_size)
        if tile != image_size:
            raise ConfigError(
                f"preprocessor_config.json: max_image_size is {tile}; the tower reads {image_size}."
            )
        return {
            "longest_edge": hf.integer(size, "longest_edge", default=4 * tile),
            "crop": tile,
            "split": hf.boolean(settings, "do_image_splitting", default=True),
        }
    least = settings.get("min_pixels") or size.get("shortest_edge") or _PIXELS[0]
    most = settings.get("max_pixels") or size.get("longest_edge") or _PIXELS[1]
    for value in (least, most):
        if type(value) is not int or not 0 < value <= 2**28:
            raise wrong_flag("mm_processor_kwargs", f"{value!r} is no number of pixels.")
    return {"shortest_edge": least, "longest_edge": most}


def _budget(settings: dict[str, Any], vision: VisionConfig) -> dict[str, Any]:
    """Return the most pixels of Gemma 4's images."""
    for name, value in (("patch_size", vision.patch_size), ("pooling_kernel_size", vision.merge)):
        hf.only(settings, name, value, "what the tower reads")
    rows = hf.integer(settings, "max_soft_tokens")
    if rows not in _SOFT_TOKENS:
        raise hf.wrong("max_soft_tokens", rows, f"one of {', '.join(map(str, _SOFT_TOKENS))}")
    return {"longest_edge": rows * (vision.patch_size * vision.merge) ** 2}


def _large(settings: dict[str, Any], vision: VisionConfig) -> dict[str, Any]:
    """Return the sizes of LFM2-VL's images, and how large ones are cut."""
    for name, value in (
        ("encoder_patch_size", vision.patch_size),
        ("downsample_factor", vision.merge),
        ("use_thumbnail", True),
    ):
        hf.only(settings, name, value, "what the tower reads")
    unit = vision.patch_size * vision.merge
    least, most = (hf.integer(settings, f"{name}_image_tokens") for name in ("min", "max"))
    tiles = hf.integer(settings, "min_tiles"), hf.integer(settings, "max_tiles")
    side = hf.integer(settings, "tile_size")
    if least > most or tiles[0] > tiles[1] or tiles[1] > _MOST_TILES or side % unit:
        raise ConfigError(
            f"preprocessor_config.json: {least} to {most} rows, {tiles[0]} to {tiles[1]} tiles of "
            f"{side} pixels; at most {_MOST_TILES} tiles are read, of a multiple of {unit}."
        )
    split = hf.boolean(settings, "do_image_splitting", default=True)
    return {
        "shortest_edge": least * unit**2,
        "longest_edge": most * unit**2,
        "crop": side,
        "split": split and tiles != (1, 1),
        "tiles": tiles,
        "aspect": hf.number(settings, "max_pixels_tolerance"),
    }


def _tiles(settings: dict[str, Any]) -> dict[str, Any]:
    """Return how InternVL's images are cut, if they are."""
    if not hf.boolean(settings, "crop_to_patches", default=False):
        return {}
    least = hf.integer(settings, "min_patches", default=1)
    most = hf.integer(settings, "max_patches", default=12)
    if not least <= most <= _MOST_TILES:
        raise wrong_flag("mm_processor_kwargs", f"{least} to {most} tiles, of {_MOST_TILES}.")
    return {"split": most > 1, "tiles": (least, most)}


def _longest_edge(size: dict[str, Any], image_size: int) -> int:
    """Return the bound of both sides of Pixtral's images."""
    bounds = [size[name] for name in _SIDES if name in size] or [image_size]
    edge = hf.integer(size, "longest_edge", default=bounds[0])
    if {*bounds} != {bounds[0]} or not 0 < edge <= _LONGEST_SIDE:
        raise ConfigError(
            f"preprocessor_config.json: size is {size}; Quire bounds both sides of images of this "
            f"model by one longest_edge, of at most {_LONGEST_SIDE}."
        )
    return edge


def _pan_and_scan(settings: dict[str, Any]) -> dict[str, Any]:
    """Return how long images of Gemma 3 are cut, if they are."""
    given = {name: value for name, value in settings.items() if value is not None}
    given = _PAN_AND_SCAN | given
    if not hf.boolean(given, "do_pan_and_scan", default=False):
        return {}
    most = hf.integer(given, "pan_and_scan_max_num_crops")
    if most > _MOST_TILES:
        raise wrong_flag("mm_processor_kwargs", f"{most} crops; at most {_MOST_TILES} are read.")
    return {
        "split": True,
        "shortest_edge": hf.integer(given, "pan_and_scan_min_crop_size"),
        "tiles": (min(2, most), most),
        "aspect": hf.number(given, "pan_and_scan_min_ratio_to_activate"),
    }


def _stored(source: ModelSource) -> dict[str, Any]:
    """Return the settings in the model's folder."""
    if source.path is None:
        return {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (file := source.path / name).is_file():
            content = read_json(file)
            return hf.table(content, "image_processor") or content
    return {}


def _kwargs(args: EngineArgs, known: tuple[str, ...]) -> dict[str, Any]:
    given = read_object("mm_processor_kwargs", args.mm_processor_kwargs)
    for name in given:
        if name not in known:
            raise wrong_flag(
                "mm_processor_kwargs",
                f"{name!r} cannot be changed; known: {', '.join(known) or 'none'}.",
            )
    return given


def _limit(args: EngineArgs) -> int:
    """Return the most images of a prompt."""
    text = args.limit_mm_per_prompt
    if text is not None and _PAIRS.fullmatch(text):
        pairs = (pair.split("=") for pair in text.split(","))
        text = json.dumps({name: int(value) for name, value in pairs})
    given = read_object("limit_mm_per_prompt", text, '{"image": 4}')
    for name, value in given.items():
        if name not in ("image", "video", "audio"):
            raise wrong_flag("limit_mm_per_prompt", f"{name!r} is no kind of input.")
        if type(value) is not int or not 0 <= value <= 1024:
            raise wrong_flag("limit_mm_per_prompt", f"{name} is {value!r}; it must be 0 to 1024.")
    return int(given.get("image", _MOST_IMAGES))


def _channels(settings: dict[str, Any], name: str) -> tuple[float, float, float]:
    found = settings[name]
    if (
        not isinstance(found, list)
        or len(found) != 3
        or not all(isinstance(value, int | float) for value in found)
        or (name == "image_std" and not all(found))
    ):
        raise hf.wrong(name, found, "three numbers")
    return float(found[0]), float(found[1]), float(found[2])
