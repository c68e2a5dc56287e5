"""The user's request: scheme, method and their options, with checks."""

from __future__ import annotations

import re
from typing import Literal

from quire.core.errors import ConfigError
from quire.core.registry import did_you_mean
from quire.system.records import dataclass

Method = Literal["rtn", "awq", "gptq"]

COMPRESSED = ("int8", "int8_w8a16", "int4", "fp8")
"""Schemes that are written as compressed-tensors, in safetensors."""
GGUF = (
    *("q2_k", "q3_k", "q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0"),
    *("iq4_nl", "iq4_xs", "mxfp4", "f16", "bf16"),
)
"""Schemes that are written as GGUF, by llama.cpp's names."""
SCHEMES = (*COMPRESSED, *GGUF)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is quantized.

    Attributes:
        scheme: one of `SCHEMES`.
        method: "rtn" rounds to nearest; "awq" and "gptq" use each layer's inputs from calibration
            texts.
        group_size: columns that share a scale under int4.
        symmetric: int4's groups have no zero points.
        act_order: GPTQ quantizes the columns with the largest inputs first.
        ignore: modules that are not quantized: names, "lm_head", or patterns, "re:.*down_proj".

    Raises:
        ConfigError: the attributes contradict each other.
    """

    scheme: str
    method: Method = "rtn"
    group_size: int = 128
    symmetric: bool = True
    act_order: bool = True
    ignore: tuple[str, ...] = ("lm_head",)

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ConfigError(
                f"there is no scheme {self.scheme!r}; {did_you_mean(self.scheme, SCHEMES)}",
                param="--scheme",
            )
        if self.method == "gptq" and self.is_gguf:
            raise ConfigError(
                f"GPTQ does not go with {self.scheme}, whose blocks hold scales of their own.",
                fix="Use --method awq or rtn, or --scheme int4.",
                param="--method",
            )
        if self.method != "rtn" and self.scheme in ("f16", "bf16"):
            raise ConfigError(f"{self.scheme} rounds nothing that --method {self.method} helps.")
        if not self.symmetric and self.scheme != "int4":
            raise ConfigError(f"--asymmetric is for int4, not {self.scheme}.", param="--asymmetric")
        if self.group_size < 1 or self.group_size % 8:
            raise ConfigError(
                f"--group-size is {self.group_size}; it must be a multiple of 8.",
                param="--group-size",
            )
        for word in self.ignore:
            _pattern(word)

    @property
    def is_gguf(self) -> bool:
        return self.scheme in GGUF

    @property
    def needs_calibration(self) -> bool:
        return self.method != "rtn"

    def ignores(self, module: str) -> bool:
        """Return whether the linear layer `module` ("model.layers.0.mlp.down_proj") is not
        quantized.
        """
        return any(matches(word, module) for word in self.ignore)


def matches(word: str, module: str) -> bool:
    """Return whether an entry of `Recipe.ignore` matches the module."""
    return _pattern(word).fullmatch(module) is not None


def _pattern(word: str) -> re.Pattern[str]:
    if not word.startswith("re:"):
        return re.compile(re.escape(word))
    try:
        return re.compile(word[3:])
    except re.error as error:
        raise ConfigError(f"--ignore {word} is no pattern: {error}.", param="--ignore") from None
