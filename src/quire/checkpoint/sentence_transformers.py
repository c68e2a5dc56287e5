"""Settings of sentence-transformers in a model's folder: pooling, and prompts before texts.

```
modules.json                        the modules, in order: Transformer, Pooling, Normalize
1_Pooling/config.json               how to pool
2_Dense/config.json, *.safetensors  a linear layer behind it
sentence_bert_config.json           max_seq_length
config_sentence_transformers.json   prompts
```
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from quire.checkpoint.json_file import read_json
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.model_config import DenseConfig, PoolingType
from quire.system.records import dataclass

_TYPES: dict[str, PoolingType] = {
    "pooling_mode_cls_token": "CLS",
    "pooling_mode_mean_tokens": "MEAN",
    "pooling_mode_lasttoken": "LAST",
}
_MODES: dict[str, PoolingType] = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}
_KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")
_WITHOUT_EFFECT = ("Dropout",)
_ACTIVATIONS: dict[str, Literal["none", "tanh", "relu", "sigmoid"]] = {
    "Identity": "none",
    "Tanh": "tanh",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
}
"""torch's modules behind a Dense layer."""


@dataclass(frozen=True, slots=True)
class SentenceTransformer:
    """A folder's settings.

    Attributes:
        normalize: embeddings get length 1.
        dense: layers that a pooled vector passes.
        max_seq_length: tokens that a text may have.
        prompts: name → what may be put before a text.
        default_prompt: the name of the one that is.
    """

    pooling_type: PoolingType
    normalize: bool
    dense: tuple[DenseConfig, ...] = ()
    max_seq_length: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def read_sentence_transformer(folder: Path) -> SentenceTransformer | None:
    """Return the settings in `folder`; None if it is not a sentence-transformers model.

    Raises:
        UnsupportedModelError: a module, or a way to pool, that Quire does not have.
        CheckpointError: a file is damaged; names it.
    """
    if not (folder / "modules.json").is_file():
        return None
    pooling, dense, normalize = None, list[DenseConfig](), False
    for module in read_json(folder / "modules.json", list):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if kind == "LogitScore":  # a reranker that answers with a token: a model that generates
            return None
        if kind not in (*_KNOWN, *_WITHOUT_EFFECT):
            raise UnsupportedModelError(
                f"modules.json has the module {kind!r}; Quire has {', '.join(_KNOWN)}.",
                param="modules.json",
            )
        # Its name alone: a path must not lead out of the folder.
        own = folder / Path(str(module.get("path", ""))).name
        if kind == "Pooling":
            pooling = _pooling(own / "config.json")
        if kind == "Dense":
            if pooling is None or normalize:
                raise UnsupportedModelError(
                    "modules.json has a Dense layer that is not between Pooling and Normalize.",
                    param="modules.json",
                )
            dense.append(_dense(own))
        normalize |= kind == "Normalize"
    settings = _optional(folder / "sentence_bert_config.json")
    prompts = _optional(folder / "config_sentence_transformers.json")
    found = prompts.get("prompts") or {}
    default = prompts.get("default_prompt_name")
    if not isinstance(found, dict) or not all(isinstance(p, str) for p in found.values()):
        raise _damaged("config_sentence_transformers.json", "prompts", "texts by their names")
    if default is not None and default not in found:
        raise _damaged("config_sentence_transformers.json", "default_prompt_name", "a prompt's")
    longest = settings.get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise _damaged("sentence_bert_config.json", "max_seq_length", "a positive number")
    return SentenceTransformer(pooling or "MEAN", normalize, tuple(dense), longest, found, default)


def _pooling(path: Path) -> PoolingType:
    config = read_json(path)
    mode = config.get("pooling_mode")
    wanted = [kind for name, kind in _TYPES.items() if config.get(name) is True]
    others = [
        name
        for name, value in config.items()
        if name.startswith("pooling_mode_") and value is True and name not in _TYPES
    ]
    if isinstance(mode, str):
        wanted = [_MODES[mode]] if mode in _MODES else []
        others = [] if mode in _MODES else [mode]
    if len(wanted) != 1 or others:
        asked = ", ".join([*wanted, *others]) or "nothing"
        raise UnsupportedModelError(
            f"{path.parent.name}/config.json pools by {asked}; Quire pools by one of CLS, MEAN and "
            "LAST.",
            param="pooling_mode",
        )
    if config.get("include_prompt") is False and wanted == ["MEAN"]:
        raise UnsupportedModelError(
            f"{path.parent.name}/config.json leaves prompts out of the mean, which Quire cannot.",
            param="include_prompt",
        )
    return wanted[0]


def _dense(folder: Path) -> DenseConfig:
    config, file = read_json(folder / "config.json"), f"{folder.name}/config.json"
    said = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if said not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{file}: activation_function is {said!r}; Quire has {', '.join(_ACTIVATIONS)}.",
            param="activation_function",
        )
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            raise UnsupportedModelError(
                f"{file}: {name} is {config[name]!r}; Quire computes Dense layers of whole texts.",
                param=name,
            )
    bias = config.get("bias", True)
    if type(bias) is not bool:
        raise _damaged(file, "bias", "true or false")
    rows, columns = (_size(config, file, name) for name in ("out_features", "in_features"))
    weights = f"{folder.name}/model.safetensors"
    return DenseConfig(weights, rows, columns, bias, _ACTIVATIONS[said])


def _size(config: dict[str, Any], file: str, name: str) -> int:
    size = config.get(name)
    if type(size) is not int or size < 1:
        raise _damaged(file, name, "a positive number")
    return size


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _damaged(file: str, name: str, wanted: str) -> CheckpointError:
    return CheckpointError(f"{file}: {name} must be {wanted}.", param=name)
