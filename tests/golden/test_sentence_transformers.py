"""sentence-transformers' own embeddings, where the package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM
from tests.golden.test_pooling import TOLERANCE, embeddings
from tests.golden.tiny_encoders import TEXTS, add_sentence_transformers, make_encoder

sentence_transformers: Any = pytest.importorskip("sentence_transformers")


@pytest.mark.parametrize("kind", ["bert", "distilbert", "xlm-roberta", "qwen3"])
@pytest.mark.parametrize("mode", ["pooling_mode_mean_tokens", "pooling_mode_cls_token"])
@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings(kind: str, mode: str, normalize: bool, tmp_path: Path) -> None:
    make_encoder(tmp_path, kind)
    prompts: dict[str, Any] = {"prompts": {"query": "the old "}, "default_prompt_name": None}
    add_sentence_transformers(tmp_path, mode, normalize=normalize, **prompts)
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    with LLM(str(tmp_path)) as llm:
        plain, named = embeddings(llm, TEXTS), embeddings(llm, TEXTS, prompt_name="query")
    np.testing.assert_allclose(plain, theirs.encode(TEXTS), atol=TOLERANCE)
    np.testing.assert_allclose(named, theirs.encode(TEXTS, prompt_name="query"), atol=TOLERANCE)
