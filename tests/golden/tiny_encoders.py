"""Small random models that pool, with a WordPiece tokenizer, saved as real checkpoints are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

WORDS = "the a cat dog sat ran on under mat tree and was very old new red blue one two ##s ##ing"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = (
    SPECIAL
    + WORDS.split()
    + [chr(c) for c in range(97, 123)]
    + ["##" + chr(c) for c in range(97, 123)]
)
TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "one old red dog was running under the new blue tree and the cats sat",
    "cat",
]
MAX_LEN = 64

_SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def make_encoder(folder: Path, kind: str, *, labels: int = 0, **config: Any) -> PreTrainedModel:
    """A `bert`, `xlm-roberta` … of random weights, saved with a tokenizer; with `labels` its
    sequence classifier."""
    encoder = kind in ("bert", "distilbert", "modernbert", "roberta", "xlm-roberta")
    shape = _SHAPE | {"max_position_embeddings": MAX_LEN if encoder else 256}
    if not encoder:
        shape |= {"num_key_value_heads": 3, "head_dim": 16}
    if kind == "modernbert":  # every other layer sees four tokens to either side
        shape |= {"num_hidden_layers": 4, "global_attn_every_n_layers": 2, "local_attention": 8}
        shape |= {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    if kind == "distilbert":  # which takes the one name for the other, but for this one
        shape["hidden_dim"] = shape.pop("intermediate_size")
    if labels:
        shape["num_labels"] = labels
    torch.manual_seed(1)
    made = AutoModelForSequenceClassification if labels else AutoModel
    model: PreTrainedModel = made.from_config(AutoConfig.for_model(kind, **shape | config)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # which are zero at first, and would hide a mistake
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    return model


def make_causal(folder: Path) -> PreTrainedModel:
    """A Qwen3 of random weights that generates, saved with a tokenizer."""
    shape = _SHAPE | {"num_key_value_heads": 3, "head_dim": 16, "tie_word_embeddings": True}
    torch.manual_seed(1)
    config = AutoConfig.for_model("qwen3", **shape, max_position_embeddings=256)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    return model


def wordpiece() -> PreTrainedTokenizerFast:
    """A tokenizer such as BERT's."""
    ids = {token: i for i, token in enumerate(VOCAB)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        pad_token="[PAD]", mask_token="[MASK]",
    )  # fmt: skip


def add_sentence_transformers(
    folder: Path, mode: str, *, normalize: bool, dense: Sequence[torch.nn.Linear] = (), **extra: Any
) -> None:
    """What sentence-transformers keeps beside a model.

    Args:
        dense: layers behind pooling, each with a tanh if it has a bias.
    """
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "",
         "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    for i, layer in enumerate(dense, start=2):
        biased = layer.bias is not None
        named = "activation.Tanh" if biased else "linear.Identity"
        config = {
            "in_features": layer.in_features, "out_features": layer.out_features, "bias": biased,
            "activation_function": f"torch.nn.modules.{named}",
        }  # fmt: skip
        (folder / f"{i}_Dense").mkdir()
        (folder / f"{i}_Dense" / "config.json").write_text(json.dumps(config))
        tensors = {f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}
        save_file(tensors, folder / f"{i}_Dense" / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 48, mode: True})
    )
    (folder / "config_sentence_transformers.json").write_text(json.dumps(extra))


def hidden_states(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Transformers' last hidden states of one text: [T, hidden]."""
    with torch.inference_mode():
        tokens = torch.tensor([ids])
        return model(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state[0]


def pooled(model: PreTrainedModel, ids: list[int], how: str, *, normalize: bool) -> torch.Tensor:
    """Transformers' embedding of one text, unbatched."""
    hidden = hidden_states(model, ids)
    vector = {"CLS": hidden[0], "LAST": hidden[-1], "MEAN": hidden.mean(0)}[how]
    return vector / vector.norm() if normalize else vector
