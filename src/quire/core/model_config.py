"""A model's shape, and how a pooling model makes vectors. All objects are frozen."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from quire.core.images import VisionConfig
from quire.core.layers import (
    PLAIN_LAYER,
    DraftHeadConfig,
    LatentConfig,
    MoEConfig,
    QueryGrowth,
    RecurrentConfig,
    SubLayerKind,
)
from quire.system.records import dataclass

PoolingType = Literal["LAST", "CLS", "MEAN"]
PoolingTask = Literal["embed", "classify"]
Activation = Literal[
    "silu_mul",
    "gelu_tanh_mul",
    "gelu_mul",
    "gelu",
    "gelu_tanh",
    "relu",
    "relu2",
    "swigluoai_mul",
    "relu2_mul",
    "quick_gelu",
]
"""The op after the MLP's first product; with "_mul" the MLP has a gate."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the geometric series of wavelengths.
        rotary_dim: leading elements of each head that are rotated.
        scaling: "default", "linear", "dynamic", "llama3", "yarn", "longrope" or "proportional".
        params: the scaling's parameters, as in the checkpoint's `rope_scaling`.
        interleaved: elements 2i and 2i + 1 turn together, not i and i + rotary_dim / 2.
        backwards: they turn the other way (nanochat).
    """

    theta: float
    rotary_dim: int
    scaling: str = "default"
    params: dict[str, Any] = field(default_factory=dict, hash=False)
    interleaved: bool = False
    backwards: bool = False


OWN_INPUTS = -1
"""The number of the embeddings that layers have of their own, among what is tapped."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's shape and its differences from a plain Llama, independent of file formats."""

    architecture: str
    """Key in `models.registry`: "llama", "qwen3", "gpt2" …"""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    dtype: str = "float32"
    """The checkpoint's dtype: "float32", "bfloat16" or "float16"."""
    norm: Literal["rms_norm", "layer_norm"] = "rms_norm"
    norm_eps: float = 1e-6
    norm_bias: bool = True
    """LayerNorms have a bias."""
    norm_weights: bool = True
    """Norms have weights and biases (not those of OLMo 1 and nanochat)."""
    norm_gain: Literal["rounded", "float32", "plus_one"] = "rounded"
    """How an RMSNorm multiplies by its weight: after rounding x to its dtype; in float32, rounded
    once (OLMo 2); or by 1 + weight in float32, rounded once (Gemma). A LayerNorm rounds once, and
    with "plus_one" 1 + weight is rounded first (Nemotron)."""
    norms: tuple[str, ...] = ("attn_norm", "mlp_norm", "norm")
    """Positions of the norms: `attn_norm` before attention, `attn_post_norm` after it,
    `attn_sum_norm` after its residual sum (BERT); the same for `mlp`; `embed_norm` after the
    embeddings, `norm` after the last layer, `head.norm` inside a classifier."""
    missing_norms: tuple[str, ...] = ()
    """Single norms that are missing: "layers.0.attn_norm" (ModernBERT)."""
    parallel: int = 1
    """How many sub-layers at the beginning of a layer read the same input. 2 are attention and the
    feed-forward (Cohere), or a recurrent layer and attention (Falcon-H1)."""
    parallel_norms: bool = False
    """Each of these sub-layers has a norm of its own before it (GPT-NeoX)."""
    qkv_by_head: bool = False
    """Checkpoints store q, k and v by key-value heads, not one after the other (GPT-NeoX)."""
    activation: Activation = "silu_mul"
    xielu: bool = False
    """Feed-forwards have xIELUs in its place, each with numbers of its own (Apertus)."""
    moe: MoEConfig | None = None
    latent: LatentConfig | None = None
    """Latent attention. The cache then has one key-value head, as wide as `LatentConfig.row`."""
    recurrent: RecurrentConfig | None = None
    """Its layers with a state in place of keys and values."""
    sublayers: tuple[tuple[SubLayerKind, ...], ...] | None = None
    """Of each layer; None means attention and feed-forward."""
    embedding_scale: float | None = None
    """Factor of token embeddings (Gemma: the square root of hidden_size)."""
    embedding_scale_rounded: bool = False
    """The factor is rounded to the model's dtype first (Gemma)."""
    residual_scale: float | None = None
    """Factor of what attention and feed-forward add to the residual stream (Granite)."""
    row_factors: dict[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    """Linear layer, by its stem within a layer → the factor of each part of its result; they are
    factors of packed rows (Falcon-H1)."""
    attention_scale: float | None = None
    """Factor of q · k; None means 1 / sqrt(head_dim)."""
    attention_softcap: float | None = None
    """Scores s become softcap · tanh(s / softcap) (Gemma 2)."""
    sub_norms: bool = False
    """RMSNorms before the last product of attention and of feed-forwards (BitNet)."""
    norm_rank: tuple[int, int] | None = None
    """A rank, and how many there are, with `sub_norms`: the ranks gather what these norms read, and
    each computes some rows of the products behind them."""
    output_gate: Literal["of_q", "own", "per_head"] | None = None
    """Attention's result is multiplied by the sigmoid of a gate, which the product of q makes, too
    (Qwen3-Next); or one of its own (Trinity), with one number for each head (LFM3)."""
    attention_sinks: bool = False
    """The softmax of each head has one more score, a parameter, that has no value (gpt-oss)."""
    logits_softcap: float | None = None
    logits_scale: float | None = None
    """Factor of the logits (Cohere 2, Granite)."""
    rope: RopeConfig | None = None
    local_rope: RopeConfig | None = None
    """The RoPE of sliding layers, if it differs (Gemma 3)."""
    rotated_layers: tuple[bool, ...] | None = None
    """Which layers have RoPE; None means all. The others have no positions (SmolLM3's NoPE)."""
    learned_positions_offset: int | None = None
    """Set if positions are a learned table: its row of position 0 (OPT: 2)."""
    qkv_bias: bool = False
    output_bias: bool = False
    """The attention's output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: Literal["head", "full", "rotated", "unit"] | None = None
    """RMSNorm of q and k before RoPE: over each head (Qwen3), or over all heads (OLMo 2); or over
    each head behind RoPE (HunYuan); or over each head of the layers with RoPE, without a gain
    (Llama 4)."""
    v_norm: bool = False
    """RMSNorm of each head of v, without a gain (Gemma 4)."""
    full_heads: tuple[int, int] | None = None
    """Key-value heads and head_dim of the layers that attend to all, if these differ (Gemma 4)."""
    values_are_keys: bool = False
    """In the layers that attend to all, values are products with the weight of keys (Gemma 4)."""
    borrowing_layers: int = 0
    """So many last layers store no keys and values: they read those of the last earlier layer with
    the same kind of attention (Gemma 4)."""
    borrower_mlp: int | None = None
    """The `intermediate_size` of these layers, if it differs."""
    own_input: int = 0
    """Width of the embedding that each layer has of its own (Gemma 4); 0 means none."""
    layer_factors: bool = False
    """Each layer multiplies the residual stream by a parameter (Gemma 4)."""
    query_growth: QueryGrowth | None = None
    sliding_window: int | None = None
    """Tokens that each position attends to, including itself; None means all. A model that is not
    causal attends to as many later tokens."""
    sliding_layers: tuple[bool, ...] | None = None
    """Which layers slide; None means all, if `sliding_window` is set."""
    chunked: bool = False
    """These layers attend to tokens of the same chunk of `sliding_window` tokens (Llama 4)."""
    tie_word_embeddings: bool = False
    lm_head_bias: bool = False
    vocab_run: tuple[int, int] | None = None
    """A rank's tokens in embeddings and logits: the first one and how many. None means all."""
    layer_run: tuple[int, int] | None = None
    """A stage's layers: the first one and how many. None means all. Embeddings belong to the first
    stage, what follows the layers to the last."""
    causal: bool = True
    """No token attends to a later one. Else a prompt is computed in one step, and its keys and
    values are not needed afterwards."""
    token_types: int = 0
    """Rows of the token type table (BERT's segments)."""
    lm_head: bool = True
    """Whether the model computes logits."""
    num_labels: int = 0
    """Outputs of the head that replaces the lm_head: labels of a classifier, or the numbers of an
    embedding that ends in a product (CLIP); 0 if there is none."""
    label_tokens: tuple[int, ...] = ()
    """Tokens whose rows of the lm_head are the classifier's: one row each; or with one label and
    two tokens, the second less the first (Qwen3-Reranker)."""
    projection_bias: bool = False
    """This product has a bias (SigLIP)."""
    padded: bool = False
    """Texts are padded to `max_position_embeddings`, and padding is attended to (SigLIP)."""
    classifier_activation: Literal["tanh", "relu", "relu2", "gelu", "gelu_tanh"] | None = None
    """Between the two layers of an encoder's classification head; None if it has one layer."""
    classifier_bias: bool = True
    """The first of these two layers has a bias."""
    draft_head: DraftHeadConfig | None = None
    """Set if this is no model of its own, but a head that drafts for one."""
    head_embeds: bool = False
    """The last of several stages has the embeddings, too, for a draft head."""
    head_taps: tuple[int, ...] = ()
    """Layers whose inputs go with the rows to the last of several stages, for a draft head."""
    vision: VisionConfig | None = None
    """The tower that reads images; None if the model reads text only."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def gated_mlp(self) -> bool:
        return self.activation.endswith("_mul")

    @property
    def layers(self) -> range:
        first, count = self.layer_run or (0, self.num_hidden_layers)
        return range(first, first + count)

    @property
    def vision_deep_layers(self) -> int:
        """Return the number of first layers that images are added behind."""
        return 0 if self.vision is None else len(self.vision.deep_layers)

    @property
    def given_in_each_stage(self) -> bool:
        """Return whether images change more of a step than the first layer's rows."""
        return self.vision is not None and bool(self.vision.sections or self.vision.whole)

    @property
    def in_first_stage(self) -> bool:
        return self.layers.start == 0

    @property
    def in_last_stage(self) -> bool:
        return self.layers.stop == self.num_hidden_layers

    @property
    def own_taps(self) -> list[int]:
        """Return what leaves it beside its rows: `OWN_INPUTS`, and those of `head_taps` that are
        its layers."""
        hands_on = self.own_input and self.in_first_stage and not self.in_last_stage
        return [
            *([OWN_INPUTS] if hands_on else []),
            *filter(self.layers.__contains__, self.head_taps),
        ]

    @property
    def own_columns(self) -> int:
        """Return the columns of all layers' own embeddings."""
        return self.num_hidden_layers * self.own_input

    def window(self, layer: int) -> int | None:
        """Return the sliding window of `layer`; None for full attention."""
        slides = self.sliding_layers is None or self.sliding_layers[layer]
        return self.sliding_window if slides else None

    def kv_shape(self, layer: int) -> tuple[int, int]:
        """Return the key-value heads of `layer`, and their width."""
        if self.full_heads is not None and self.window(layer) is None:
            return self.full_heads
        return self.num_key_value_heads, self.head_dim

    @property
    def widest_head(self) -> int:
        return max(self.head_dim, self.full_heads[1] if self.full_heads else 0)

    def kv_owner(self, layer: int) -> int:
        """Return the layer whose keys and values `layer` reads.

        Layers that are not causal share one memory: no step reads what another stored.
        """
        if not self.causal:
            return self.layers.start
        first = self.num_hidden_layers - self.borrowing_layers
        if layer < first:
            return layer
        window = self.window(layer)
        return next(i for i in reversed(range(first)) if self.window(i) == window)

    @property
    def last_cut(self) -> int:
        """Return the last layer that may be a stage's first one: layers that share keys and values
        belong to one stage."""
        last = self.num_hidden_layers
        return min(
            (self.kv_owner(i) for i in range(last - self.borrowing_layers, last)), default=last - 1
        )

    def borrows(self, layer: int) -> bool:
        """Return whether `layer` computes no keys and values."""
        return layer >= self.num_hidden_layers - self.borrowing_layers

    def layer_rope(self, layer: int) -> RopeConfig | None:
        """Return the RoPE of `layer`; None if it has none."""
        if self.rotated_layers is not None and not self.rotated_layers[layer]:
            return None
        return self.rope if self.window(layer) is None else self.local_rope or self.rope

    @property
    def common_window(self) -> int | None:
        """Return the window of all layers; None if a layer has full attention."""
        everywhere = self.sliding_layers is None or all(self.sliding_layers)
        return self.sliding_window if everywhere and self.causal else None

    def kinds(self, layer: int) -> tuple[SubLayerKind, ...]:
        return PLAIN_LAYER if self.sublayers is None else self.sublayers[layer]

    def layers_with(self, kind: SubLayerKind) -> list[int]:
        return [i for i in self.layers if kind in self.kinds(i)]

    @property
    def kv_layers(self) -> list[int]:
        """Return the layers that have keys and values of their own."""
        return [i for i in self.layers_with("attention") if self.kv_owner(i) == i]


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """A linear layer behind pooling, as sentence-transformers has them.

    Attributes:
        file: in the model's folder, with its weight [rows, columns], and its bias if it has one.
        activation: of its result.
    """

    file: str
    rows: int
    columns: int
    bias: bool
    activation: Literal["none", "tanh", "relu", "sigmoid"]


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """How a pooling model makes a vector from a prompt's hidden states.

    Attributes:
        task: `embed` returns the pooled hidden state, `classify` the head's output.
        pooling_type: the last token's state, the first token's, or the mean of all.
        dense: layers that the pooled state of an embedding passes.
        normalize: embeddings get length 1.
        activation: of the classifier's outputs.
        matryoshka: the allowed lengths of embeddings; any length if empty, only the full one if
            None.
        prompts: name → text to put before an input.
        default_prompt: the name to use if a request names none.
    """

    task: PoolingTask
    pooling_type: PoolingType
    normalize: bool = True
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    matryoshka: tuple[int, ...] | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dense: tuple[DenseConfig, ...] = ()
