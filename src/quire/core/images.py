"""Images inside prompts: their spans, the tower that reads them, and their preparation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

VisionKind = Literal["llava", "qwen2_vl", "qwen2_5_vl", "idefics3", "paligemma"]


class ImageSpan(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive prompt tokens that stand for one image, or for one tile of it.

    Attributes:
        start: the first of these tokens.
        rows: how many there are.
        digest: sha256 of the image's bytes, the settings of its preparation, and the tile.
        grid: rows in height and in width, if positions have three parts.
        size: height and width of the prepared image.
        pixels: uint8 [height, width, 3].
    """

    start: int
    rows: int
    digest: bytes
    grid: tuple[int, int] | None
    size: tuple[int, int]
    pixels: bytes

    @property
    def end(self) -> int:
        return self.start + self.rows


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The tower that turns an image into rows of the text model.

    Attributes:
        kind: the family (`models.vision.registry`); it decides names and preparation.
        image_token: id of the token that stands for an image's row.
        hidden_size, intermediate_size, num_layers, num_heads: of the tower's layers.
        patch_size: pixels of a patch's side.
        activation, norm, norm_eps: of the tower.
        connector: widths and activations of the products behind the layers, in order.
        connector_bias: they have biases.
        merge: patches of a row's side; a row of the text model is merge² patches.
        frames: how often a patch is repeated, where the tower also reads videos.
        image_size: side of the square image of learned positions; 0 without them.
        class_token: a row before the patches, dropped behind the layers.
        patch_bias, mlp_bias, qkv_bias: these products have biases.
        embed_norm, final_norm: norms before and behind the layers.
        rope_theta: of the rotation by height and width; 0 without it.
        window: side, in pixels, of windows that layers attend in; 0 without them.
        full_layers: layers that attend to the whole image, if there are windows.
        sections: frequencies of the text model's RoPE that turn by time, height and width; () if
            its positions are plain.
    """

    kind: VisionKind
    image_token: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    activation: Literal["quick_gelu", "gelu", "gelu_tanh", "silu_mul"]
    connector: tuple[tuple[int, Literal["none", "gelu"]], ...]
    connector_bias: bool = True
    norm: Literal["rms_norm", "layer_norm"] = "layer_norm"
    norm_eps: float = 1e-6
    merge: int = 1
    frames: int = 1
    image_size: int = 0
    class_token: bool = False
    patch_bias: bool = True
    mlp_bias: bool = True
    qkv_bias: bool = True
    embed_norm: bool = False
    final_norm: bool = True
    rope_theta: float = 0.0
    window: int = 0
    full_layers: tuple[int, ...] = ()
    sections: tuple[int, ...] = ()

    @property
    def patch_values(self) -> int:
        """Return the numbers of a patch."""
        return 3 * self.frames * self.patch_size**2

    @property
    def learned_positions(self) -> int:
        """Return the rows of the table of positions; 0 without one."""
        side = self.image_size // self.patch_size
        return side * side + self.class_token if self.image_size else 0


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How images are prepared and bounded.

    Attributes:
        mean, std: of each channel, which normalize values in [0, 1].
        most: images of one prompt.
        cache_bytes: of the encoder cache.
        shortest_edge, longest_edge: sizes that the image is resized to; by kind, lengths of edges
            or numbers of pixels.
        resample: Pillow's number of the resize filter.
        crop: side of the square that is read; 0 reads all.
        split: cut images into tiles of this side.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    most: int
    cache_bytes: int
    shortest_edge: int = 0
    longest_edge: int = 0
    resample: int = 3
    crop: int = 0
    split: bool = False
