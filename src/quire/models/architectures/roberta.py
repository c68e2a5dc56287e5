"""RoBERTa and XLM-R: BERT whose positions begin behind the padding token's id."""

from __future__ import annotations

from quire.core.errors import CheckpointError
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import bert

NAMES = bert.names("roberta", "classifier.dense", "classifier.out_proj")


def parse(config: hf.HFConfig) -> ModelConfig:
    found = hf.token_ids(config, "pad_token_id", 1)
    if len(found) != 1:
        raise hf.wrong("pad_token_id", config.get("pad_token_id"), "a token id")
    (padding,) = found
    rows = hf.integer(config, "max_position_embeddings")
    if rows <= padding + 1:
        raise CheckpointError(
            f"config.json: max_position_embeddings is {rows}; the first {padding + 1}, up to "
            "pad_token_id, are no positions.",
            param="max_position_embeddings",
        )
    return bert.parse(
        config,
        architecture="roberta",
        max_position_embeddings=rows - padding - 1,
        learned_positions_offset=padding + 1,
    )
