"""Find a model: from the user's name to a folder or file, and its configuration."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from quire.checkpoint import hub
from quire.checkpoint.json_file import read_config, read_json
from quire.checkpoint.presets import preset_config, preset_names
from quire.checkpoint.weight_files import PICKLES, split_names
from quire.core.config import LoadFormat
from quire.core.errors import CheckpointError, ConfigError, ModelNotFoundError
from quire.core.registry import closest, did_you_mean
from quire.system.records import dataclass

EMBEDDED = {"embedded": "story", "embedded-draft": "story-draft"}
_ASSETS = Path(__file__).parent.parent / "assets"
"""Built-in name → folder under the package's `assets`."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(/[\w.-]+\.gguf)?", re.ASCII)
_QUANTIZATION_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
_TOKENIZER_FILES = (
    "tokenizer.json", "tekken.json", "tiktoken.model", "tokenizer.model", "vocab.json", "vocab.txt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found.

    Attributes:
        name: what the user wrote.
        kind: "dummy" for random weights; then `path` only provides the config.
        path: a Hugging Face folder, a .gguf file, or None for a preset.
        config: the content of config.json; for GGUF, its metadata in the same terms.
        generation_config: the content of generation_config.json, {} if there is none.
        tokenizer_path: argument of `text.tokenizers.tokenizer.load_tokenizer`; None means a dummy.
    """

    name: str
    kind: Literal["hf", "gguf", "dummy"]
    path: Path | None
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer_path: Path | None


def resolve(
    model: str,
    *,
    load_format: LoadFormat = "auto",
    revision: str | None = None,
    download_dir: str | None = None,
) -> ModelSource:
    """Find `model`: a built-in name, a preset, a folder, a .gguf file, or a hub id.

    A hub id is downloaded (only its config and tokenizer if `load_format` is "dummy").

    Raises:
        ModelNotFoundError: not found; the message lists where it was searched.
        CheckpointError: one of its files is damaged or missing.
        ConfigError: `load_format` does not fit the model, or `revision` is set for a local model.
    """
    dummy = load_format == "dummy"
    preset = preset_config(model)
    path = None if dummy and preset is not None else _local(model)
    if revision is not None and (path is not None or (dummy and preset is not None)):
        raise ConfigError(
            f"{model} is on this machine, where it has no revisions.",
            fix="Leave --revision out, or name a hub id.",
            param="--revision",
        )
    if dummy and preset is not None:
        return ModelSource(model, "dummy", None, preset, {}, None)
    if path is None:
        if not _HUB_ID.fullmatch(model):
            raise _not_found(model, dummy)
        try:
            path = hub.download(model, revision, download_dir, weights=not dummy)
        except ModelNotFoundError as error:
            if preset is not None:
                hint = "For speed without weights: --load-format dummy."
            elif names := closest(model, _built_in(dummy)):
                hint = f"Of the built-in names, did you mean {' or '.join(names)}?"
            else:
                raise
            raise ModelNotFoundError(error.what, fix=f"{error.fix} {hint}") from error
    source = _from_gguf(model, path) if path.is_file() else _from_folder(model, path, dummy)
    if load_format not in ("auto", "dummy") and load_format != _FORMATS[source.kind]:
        raise ConfigError(
            f"{model} is {_FORMATS[source.kind]}, not {load_format}.",
            fix="Leave --load-format unset.",
            param="--load-format",
        )
    return replace(source, kind="dummy") if dummy else source


_FORMATS = {"hf": "safetensors", "gguf": "gguf"}


def _local(model: str) -> Path | None:
    """Return the folder or file on disk that `model` names, or None."""
    if model in EMBEDDED:
        path = _ASSETS / EMBEDDED[model]
        if not path.is_dir():
            raise ModelNotFoundError(
                f"This installation lacks the model {model!r}.", fix="Install quire again."
            )
        return path
    path = local_path(model)
    if path.is_file():
        return _checked_file(path)
    if not path.is_dir():
        return None
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs and [file.name for file in ggufs] == split_names(ggufs[0].name):
        return ggufs[0]
    if ggufs:
        raise ConfigError(
            f"{path.name} holds {len(ggufs)} .gguf files: "
            f"{', '.join(file.name for file in ggufs[:8])}.",
            fix="Name one of them.",
            param="--model",
        )
    raise ModelNotFoundError(
        f"{path.name} holds neither config.json nor a .gguf file.",
        fix="Name the folder of a Hugging Face model, a .gguf file or a hub id.",
    )


def local_path(name: str) -> Path:
    """Return the path that `name` means, whether or not it exists.

    Raises:
        ModelNotFoundError: `name` is not a valid path, or its folder may not be read.
    """
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # the second of an unknown ~user
        why = getattr(error, "strerror", None) or error
        shown = name if len(name) <= 200 else f"{name[:200]} …"
        raise ModelNotFoundError(
            f"{shown!r} cannot be read: {why}.", fix="Check the path and who may read it."
        ) from None
    return path


def _checked_file(path: Path) -> Path:
    if path.suffix.lower() == ".gguf":
        return path
    if path.suffix.lower() in PICKLES:
        raise CheckpointError(
            f"{path.name} is a pickled checkpoint, which can run code when it is opened.",
            fix="Convert it to safetensors where you trust it.",
        )
    raise ConfigError(
        f"{path.name} is not a model that Quire reads.",
        fix="Name a .gguf file, or the folder that holds config.json and the weights.",
        param="--model",
    )


def _from_folder(model: str, path: Path, dummy: bool) -> ModelSource:
    config = read_config(path / "config.json")
    _add_quantization(config, path)
    generation_file = path / "generation_config.json"
    generation = read_json(generation_file) if generation_file.is_file() else {}
    tokenizer = path
    lacks_tokenizer = not any((path / name).is_file() for name in _TOKENIZER_FILES)
    return ModelSource(
        model, "hf", path, config, generation, None if dummy and lacks_tokenizer else tokenizer
    )


def _add_quantization(config: dict[str, Any], path: Path) -> None:
    """Add quantization settings that older tools write in a separate file."""
    for name, method in _QUANTIZATION_FILES.items():
        if config.get("quantization_config") is None and (path / name).is_file():
            found = read_json(path / name)
            found = found.get("quantization", found) if method == "modelopt" else found
            if isinstance(found, dict):
                config["quantization_config"] = {"quant_method": method, **found}


def _from_gguf(model: str, path: Path) -> ModelSource:
    from quire.checkpoint import gguf_config
    from quire.checkpoint.gguf import GGUFFile

    file = GGUFFile(path)
    config = gguf_config.hf_config(file)
    generation = gguf_config.generation_config(config, file.metadata)
    return ModelSource(model, "gguf", path, config, generation, path)


def _built_in(dummy: bool) -> list[str]:
    """Return names that work without a file: presets only with random weights."""
    return [*EMBEDDED, *(preset_names() if dummy else [])]


def _not_found(model: str, dummy: bool) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"There is no model at {model!r}, and it is no hub id.",
        fix=f"Check the path; of the built-in names, {did_you_mean(model, _built_in(dummy))}",
    )
