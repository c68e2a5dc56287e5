"""Images inside prompts: their spans, the tower that reads them, and their preparation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from quire.system.records import dataclass

if TYPE_CHECKING:
    Pixels = bytes | memoryview
else:
    Pixels = memoryview  # msgspec decodes it without a copy, as a view of its frame
IMAGE_PROCESSES = 3
"""Processes that decode images."""
Fit = Literal[
    "anyres", "bounded", "budget", "canvas", "cropped", "frames", "grown", "panned", "split",
    "square", "tiled", "whole",
]  # fmt: skip
"""How an image is resized and cut (`frontend.images.prepare`)."""
Place = Literal["ended_lines", "framed", "labelled", "lines", "plain", "run", "tile_lines", "tiles"]
"""What stands around an image's rows in a prompt (`frontend.images.expand`)."""
Positions = Literal["none", "nearest", "corners", "centers", "cubic", "smooth", "axes"]
"""How a grid finds learned positions: the nearest before counts; or four around, from corner to
corner or from center to center; or sixteen; or all that a patch covers. "axes": columns and rows
have their own."""
HeadOrder = Literal["halves", "pairs", "quarters"]
"""Which elements of a head RoPE turns together: i and i + half of all; neighbours; or i and i +
half in each half, one by columns and one by rows."""
ProductActivation = Literal["none", "gelu", "gelu_tanh", "silu_mul"]


class ImageSpan(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive prompt tokens that stand for one image, or for one tile of it.

    Attributes:
        start: the first of these tokens.
        rows: how many there are.
        digest: sha256 of the image's bytes, the settings of its preparation, and the tile.
        grid: rows in height and in width, if positions have three parts.
        size: height and width of the prepared image.
        pixels: uint8 [height, width, 3].
        whole: tokens [first, last) that this image makes see each other, later ones too. They are
            computed in one step.
        tiling: tiles down and across, and the lines and columns of patches that count of these;
            the whole image stands before them in `pixels`. None if there is one tile.
        given: `pixels` are the tower's results, float32 [rows, width].
        line: tokens of each line of rows and its end, a token of text. The span has no end behind
            the last line. 0: all tokens are rows.
    """

    start: int
    rows: int
    digest: bytes
    grid: tuple[int, int] | None
    size: tuple[int, int]
    pixels: Pixels
    whole: tuple[int, int] | None = None
    tiling: tuple[int, int, int, int] | None = None
    given: bool = False
    line: int = 0

    @property
    def end(self) -> int:
        return self.start + self.rows


class Product(NamedTuple):
    """A product behind a tower's layers.

    Attributes:
        rows: width of its result.
        activation: behind it; a gated one has the rows of gate and up.
        bias: it has one.
        swapped: the checkpoint has up's rows before the gate's.
        norm: in front of it: a LayerNorm of each row, or of each patch in it, or an RMSNorm of each
            patch by weight, by 1 + weight, or by nothing.
        eps: of the norm.
        norm_activation: between both.
    """

    rows: int
    activation: ProductActivation = "none"
    bias: bool = True
    swapped: bool = False
    norm: Literal["layer", "patch", "rms", "plus_one", "unit"] | None = None
    eps: float = 1e-5
    norm_activation: Literal["none", "gelu"] = "none"


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The tower that turns an image into rows of the text model.

    Attributes:
        kind: the family (`models.vision.registry`), which decides the names of weights.
        image_token: id of the token that stands for an image's row.
        placeholder: id of the token that stands for an image in a prompt; -1: the same.
        begin_token, end_token: ids of the tokens around an image's rows; -1 without.
        own_token: id of the token whose embeddings in layers an image's rows have.
        hidden_size, intermediate_size, num_layers, num_heads: of the tower's layers.
        patch_size: pixels of a patch's side.
        activation, norm, norm_eps: of the tower.
        connector: the products behind the layers, in order.
        fit: how an image is resized and cut.
        place: what stands around its rows.
        merge: patches of a row's side; a row of the text model is merge² patches.
        pooled: a row is the mean of its patches, else they lie side by side.
        pool_factor, standardized: the mean is multiplied by a number; then a vector is subtracted,
            and another one multiplies the rest.
        channels_last: the numbers of a patch are stored pixel by pixel.
        by_channel: their numbers lie side by side channel by channel, not patch by patch.
        line_ends: a token of text ends each line of rows.
        layer_scale: each sub-layer's result is multiplied by a vector.
        whole: the rows of each image see each other, later ones too, in all layers or in those that
            slide; or all tokens of a prompt do.
        frames: how often a patch is repeated, where the tower also reads videos.
        image_size: side of the square image of learned positions, and often of images.
        positions: how the learned positions of other grids are found.
        kv_heads: heads of keys and values; 0: as many as of queries.
        qk_norm: of each head of queries and of keys, or of all heads at once.
        head_dim: 0: the heads together are as wide as the tower.
        v_norm, attention_scale, norm_gain: see `ModelConfig`.
        post_norms: each sub-layer's result has a norm, too.
        clipped: what enters and leaves each product of the layers is bounded.
        class_token: a row before the patches, dropped behind the layers.
        patch_bias, mlp_bias, qkv_bias, output_bias: these products have biases.
        patch_norm, embed_norm, final_norm: norms of patches before their positions are added, and
            before and behind the layers.
        rope_theta: of the rotation by height and width; 0 without it.
        head_order, columns_first: what is turned, and whether columns turn the first half of it.
        alternate: height and width turn by every other frequency each, else both by the same.
        window: side, in pixels, of windows that layers attend in; 0 without them.
        full_layers: layers that attend to the whole image, if there are windows.
        sections: frequencies of the text model's RoPE that turn by time, height and width; () if
            its positions are plain.
        interleaved: these frequencies take turns, else they follow each other.
        deep_layers: layers whose results, by products of their own, are added to the text model's
            residual stream behind its first layers, one each.
        feature_layers: layers whose results lie side by side before the products; (): the last's.
        resolutions: heights and widths of images that are cut into tiles; () if none are.
        pool: an image has one row, its embedding: the class row, or what a learned query finds.
            It is no input of the text model.
    """

    kind: str
    image_token: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    activation: Literal["quick_gelu", "gelu", "gelu_tanh", "gelu_mul", "gelu_tanh_mul", "silu_mul"]
    connector: tuple[Product, ...]
    fit: Fit = "whole"
    place: Place = "plain"
    norm: Literal["rms_norm", "layer_norm"] = "layer_norm"
    norm_eps: float = 1e-6
    placeholder: int = -1
    begin_token: int = -1
    end_token: int = -1
    own_token: int = 0
    merge: int = 1
    pooled: bool = False
    pool_factor: float = 1.0
    standardized: bool = False
    channels_last: bool = False
    by_channel: bool = False
    line_ends: bool = False
    layer_scale: bool = False
    whole: Literal["image", "sliding", "prompt"] | None = None
    frames: int = 1
    image_size: int = 0
    positions: Positions = "nearest"
    class_token: bool = False
    patch_bias: bool = True
    mlp_bias: bool = True
    qkv_bias: bool = True
    kv_heads: int = 0
    qk_norm: Literal["head", "full"] | None = None
    head_dim: int = 0
    v_norm: bool = False
    attention_scale: float | None = None
    norm_gain: Literal["rounded", "float32"] = "rounded"
    post_norms: bool = False
    clipped: bool = False
    output_bias: bool = True
    patch_norm: bool = False
    embed_norm: bool = False
    final_norm: bool = True
    rope_theta: float = 0.0
    head_order: HeadOrder = "halves"
    columns_first: bool = False
    alternate: bool = False
    window: int = 0
    full_layers: tuple[int, ...] = ()
    sections: tuple[int, ...] = ()
    interleaved: bool = False
    deep_layers: tuple[int, ...] = ()
    feature_layers: tuple[int, ...] = ()
    resolutions: tuple[tuple[int, int], ...] = ()
    pool: Literal["class", "attention"] | None = None

    @property
    def row_patches(self) -> int:
        """Return the patches that lie side by side in a row of the first product."""
        return 1 if self.pooled else self.merge**2

    @property
    def row_values(self) -> int:
        """Return the numbers of a row of the first product."""
        return self.hidden_size * self.row_patches * max(1, len(self.feature_layers))

    @property
    def marker(self) -> int:
        """Return the token that stands for an image in a prompt."""
        return self.image_token if self.placeholder < 0 else self.placeholder

    @property
    def patch_values(self) -> int:
        """Return the numbers of a patch."""
        return 3 * self.frames * self.patch_size**2

    @property
    def learned_positions(self) -> int:
        """Return the rows of the table of positions; 0 without one."""
        side = self.image_size // self.patch_size
        if self.positions == "axes":
            return 2 * side
        return 0 if self.positions == "none" else side * side + self.class_token


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
        tiles: the least and most of these, if the model's files say; (0, 0) if not.
        aspect: the longer side over the shorter one from which an image is cut (Gemma 3), or its
            pixels over `longest_edge` (LFM2-VL).
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
    tiles: tuple[int, int] = (0, 0)
    aspect: float = 0.0
