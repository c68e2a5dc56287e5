"""An embedding model behind `quire serve`, asked by the official OpenAI client and by others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openai
import pytest

from tests.e2e.serving import Server
from tests.golden.tiny_encoders import TEXTS


@pytest.fixture
def client(encoder: Server) -> Iterator[openai.OpenAI]:
    with encoder.openai_client() as client:
        yield client


def test_embeds(client: openai.OpenAI) -> None:
    packed = client.embeddings.create(model="tiny", input=TEXTS)  # the client asks for base64
    plain = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    vectors = np.array([entry.embedding for entry in packed.data])
    assert vectors.shape == (len(TEXTS), 48)
    assert (vectors == np.array([entry.embedding for entry in plain.data])).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0
    [alone] = client.embeddings.create(model="tiny", input=TEXTS[2]).data
    assert (np.array(alone.embedding) == vectors[2]).all()


def test_what_it_cannot_do_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="generates no text"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}])
    for count in (100, 2000):  # the longer one is tokenized by another process
        with pytest.raises(openai.BadRequestError, match="context length is 64") as caught:
            client.embeddings.create(model="tiny", input="cat " * count)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError, match="Matryoshka"):
        client.embeddings.create(model="tiny", input="cat", dimensions=4)


def test_long_texts_are_cut_where_that_is_asked_for(encoder: Server) -> None:
    """By the process that tokenizes long texts, too."""
    for count in (100, 2000):
        body = {"input": "cat " * count, "truncate_prompt_tokens": -1}
        answer = encoder.http.post("/v1/embeddings", json=body).json()
        assert answer["usage"]["prompt_tokens"] == 64


def test_the_end_of_a_text_may_be_kept(client: openai.OpenAI) -> None:
    def embed(text: str, **extra: object) -> list[float]:
        answer = client.embeddings.create(model="tiny", input=text, extra_body=extra)
        return answer.data[0].embedding

    for count in (100, 2000):
        long = "cat " * count + "a dog"
        cut = {"truncate_prompt_tokens": 4}
        assert embed(long, **cut, truncation_side="left") == embed("a dog")
        assert embed(long, **cut) == embed("cat cat")


def test_scores_and_the_rest_of_the_server(encoder: Server) -> None:
    body = {"query": TEXTS[0], "documents": TEXTS}
    results = encoder.http.post("/v1/rerank", json=body).json()["results"]
    assert results[0]["index"] == 0
    assert results[0]["relevance_score"] == pytest.approx(1.0)
    for path in ("/health", "/ready", "/v1/models", "/metrics", "/explain", "/"):
        assert encoder.http.get(path).status_code == 200, path
    tokens = encoder.http.post("/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    text = encoder.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert TEXTS[0] in text
    encoder.wait_until_idle()
    assert encoder.metric("prompt_tokens_total") > 0
