"""Embeddings, scores and reranking over HTTP, around a model that counts.

Its vector of a prompt is [first token, tokens, where the second text begins, 0 …].
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.errors import InvalidRequestError
from quire.core.model_config import PoolingConfig
from quire.core.pooling_params import PoolingParams
from quire.executor.base import ForwardError
from quire.server.openai.pooling_protocol import (
    ClassificationRequest,
    EmbeddingData,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from quire.server.openai.vectors import NUMBERS_PER_TURN, written
from quire.server.turns import at_once
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.faults.requests import extremes
from tests.unit.engine.echo import EchoExecutor
from tests.unit.engine.fakes import resolved
from tests.unit.server.fake_engine import MODEL, Running, running

EMBED = PoolingConfig("embed", "LAST", normalize=False, prompts={"query": "??"})
SCORE = PoolingConfig("classify", "LAST", activation="none")
SIZE = 8


class CountingExecutor(EchoExecutor):
    """A prompt that begins with token 7 fails, with 8 its step."""

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        output = ModelOutput(token_columns([[] for _ in batch.request_ids]))
        new = {new.request_id: new for new in batch.new_sequences}
        for i, name in enumerate(batch.request_ids):
            if name in new:
                self.tokens[name] = list(new[name].token_ids)
            tokens = self.tokens[name]
            if tokens[0] == 8:
                raise ForwardError([], 0.0) from RuntimeError("no")
            if batch.num_computed_tokens[i] + batch.num_scheduled_tokens[i] < len(tokens):
                continue
            if tokens[0] == 7:
                output.errors[name] = "NaN"
                continue
            second = new[name].inputs.second_text if name in new else 0
            vector = np.zeros(SIZE, np.float32)
            vector[:3] = tokens[0], len(tokens), second
            output.pooled[name] = vector.tobytes()
        return output


@asynccontextmanager
async def counting(
    config: PoolingConfig, chat_template: str | None = None, **shape: Any
) -> AsyncIterator[Running]:
    plain = resolved()
    model = replace(plain.config.model, **shape)
    source = replace(plain.source, config={"id2label": {"0": "bad", "1": "good"}})
    changed = replace(plain.config, model=model, pooling=config)
    found = replace(plain, config=changed, source=source)
    async with running(0.0, None, CountingExecutor, found, chat_template=chat_template) as app:
        yield app
        app.core.scheduler.check_integrity()
        assert not app.core.scheduler.requests


@asynccontextmanager
async def pooling(
    config: PoolingConfig, chat_template: str | None = None, **shape: Any
) -> AsyncIterator[httpx.AsyncClient]:
    async with counting(config, chat_template, **shape) as app:
        yield app.http


async def ask(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def refused(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("abc", [[97, 3]]),
        (["abc", "z"], [[97, 3], [122, 1]]),
        ([5, 6, 9], [[5, 3]]),
        ([[5, 6], [9]], [[5, 2], [9, 1]]),
    ],
)
async def test_embeddings_of_every_kind_of_input(given: Any, expected: list[list[int]]) -> None:
    async with pooling(EMBED) as http:
        answer = await ask(http, "/v1/embeddings", model=MODEL, input=given)
    assert [entry["embedding"][:2] for entry in answer["data"]] == expected
    assert [entry["index"] for entry in answer["data"]] == list(range(len(expected)))
    assert answer["object"] == "list"
    total = sum(length for _, length in expected)
    assert answer["usage"] == {
        "prompt_tokens": total, "total_tokens": total, "completion_tokens": 0
    }  # fmt: skip


async def test_base64_holds_the_same_floats() -> None:
    async with pooling(EMBED) as http:
        answer = await ask(http, "/v1/embeddings", input="abc", encoding_format="base64")
    packed = base64.b64decode(answer["data"][0]["embedding"])
    assert struct.unpack("<8f", packed)[:3] == (97.0, 3.0, 0.0)


async def test_a_prompt_of_the_model_is_put_before_texts() -> None:
    async with pooling(replace(EMBED, default_prompt="query")) as http:
        answer = await ask(http, "/v1/embeddings", input="abc")
        assert answer["data"][0]["embedding"][:2] == [ord("?"), 5]
        error = await refused(http, "/v1/embeddings", input="abc", prompt_name="passage")
        assert error["param"] == "prompt_name"


async def test_special_tokens_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        DummyTokenizer, "encode_bounded", lambda self, text, *rest: ([1, *text.encode()], 0)
    )
    async with pooling(EMBED) as http:
        for given, expected in ((True, [1, 4]), (None, [1, 4]), (False, [97, 3])):
            body = {"input": "abc", "add_special_tokens": given}
            for path in ("/v1/embeddings", "/pooling"):
                answer = await ask(http, path, **body)
                [entry] = answer["data"]
                assert entry.get("embedding", entry.get("data"))[:2] == expected
        whole = {"input": [[5, 6]], "add_special_tokens": False}
        assert (await ask(http, "/v1/embeddings", **whole))["usage"]["prompt_tokens"] == 2


async def test_lengths() -> None:
    async with pooling(EMBED) as http:
        whole = await ask(http, "/v1/embeddings", input="a" * 256)
        assert whole["usage"]["prompt_tokens"] == 256
        error = await refused(http, "/v1/embeddings", input="a" * 257)
        assert "maximum context length is 256 tokens" in error["message"]
        assert "it has at least 257." in error["message"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
        for kept, count in ((-1, 256), (3, 3)):
            body = {"input": "a" * 300, "truncate_prompt_tokens": kept}
            cut = await ask(http, "/v1/embeddings", **body)
            assert cut["usage"]["prompt_tokens"] == count
        for truncate, first in ((True, "a"), ("END", "a"), ("START", "b")):
            cut = await ask(http, "/v1/embeddings", input="a" + "b" * 300, truncate=truncate)
            assert cut["usage"]["prompt_tokens"] == 256
            assert cut["data"][0]["embedding"][0] == ord(first)
        for truncate in (False, "NONE"):
            error = await refused(http, "/v1/embeddings", input="a" * 300, truncate=truncate)
            assert error["code"] == "context_length_exceeded"
        for wrong in (0, -2, 257):
            error = await refused(http, "/v1/embeddings", input="a", truncate_prompt_tokens=wrong)
            assert error["param"] == "truncate_prompt_tokens"


async def test_dimensions() -> None:
    async with pooling(replace(EMBED, matryoshka=(2, 4))) as http:
        cut = await ask(http, "/v1/embeddings", input="abc", dimensions=2, normalize=True)
        np.testing.assert_allclose(cut["data"][0]["embedding"], np.array([97, 3]) / 97.0464, 1e-4)
        assert (await refused(http, "/v1/embeddings", input="a", dimensions=3))["param"]
    async with pooling(EMBED) as http:
        assert (
            "Matryoshka"
            in (await refused(http, "/v1/embeddings", input="a", dimensions=2))["message"]
        )
        await ask(http, "/v1/embeddings", input="a", dimensions=SIZE)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_scores_of_a_cross_encoder(path: str) -> None:
    async with pooling(SCORE, num_labels=1, token_types=2) as http:
        answer = await ask(http, path, text_1="ab", text_2=["c", "def"])
        assert [entry["score"] for entry in answer["data"]] == [97.0, 97.0]
        assert answer["usage"]["prompt_tokens"] == 3 + 5
        answer = await ask(http, path, text_1=["ab", "c"], text_2=["c", "ab"])
        assert [entry["score"] for entry in answer["data"]] == [97.0, 99.0]
        assert (await refused(http, path, text_1=["a"] * 2, text_2=["a"] * 3))["param"] == "text_1"
        raw = await ask(http, "/pooling", input="abc")
        assert raw["data"][0]["data"][:2] == [97.0, 3.0]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_reranking(path: str) -> None:
    async with pooling(EMBED) as http:
        documents = ["aaaa", {"text": "zzzzzzzzzzzz"}, "b"]
        body = {"query": "zzzzzzzzzzzz", "documents": documents}
        answer = await ask(http, path, **body)
        assert [result["index"] for result in answer["results"]] == [1, 0, 2]
        assert answer["results"][0]["document"] == {"text": "zzzzzzzzzzzz"}
        assert answer["results"][0]["relevance_score"] == pytest.approx(1.0)
        assert answer["usage"]["total_tokens"] == 12 + 4 + 1  # the query is one of the documents
        best = await ask(http, path, **body, top_n=1, return_documents=False)
        assert [*best["results"][0]] == ["index", "relevance_score"]
        assert len(best["results"]) == 1
        assert (await refused(http, path, query="a", documents=[]))["param"] == "documents"
        assert (await refused(http, path, **body, top_n=-1))["param"] == "top_n"


async def test_classification() -> None:
    config = replace(SCORE, activation="softmax")
    async with pooling(config, num_labels=2) as http:
        answer = await ask(http, "/classify", input=["abc"])
        [entry] = answer["data"]
        assert entry["label"] == "bad"
        assert entry["num_classes"] == SIZE
        assert sum(entry["probs"]) == pytest.approx(1.0)
        raw = await ask(http, "/classify", input="abc", use_activation=False)
        assert raw["data"][0]["probs"][0] == 97.0
        assert "2 classes" in (await refused(http, "/score", text_1="a", text_2="b"))["message"]
        assert (await refused(http, "/v1/embeddings", input="a"))["param"] == "model"


async def test_a_model_is_asked_for_what_it_is_not() -> None:
    async with pooling(EMBED) as http:
        chat = {"messages": [{"role": "user", "content": "hello"}]}
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "a"})):
            assert "generates no text" in (await refused(http, path, **body))["message"]
    async with running() as app:
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/score", {"text_1": "a", "text_2": "b"}),
            ("/rerank", {"query": "a", "documents": ["b"]}),
        ):
            error = await refused(app.http, path, **body)
            assert "generates text" in error["message"]
            assert error["param"] == "model"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ""}, "input"),
        ({"input": [[999]]}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"input": "a", "dimension": 4}, "dimension"),
        ({"input": ["a"] * 2049}, "input"),
    ],
)
async def test_bad_requests_name_the_field(body: dict[str, Any], param: str) -> None:
    async with pooling(EMBED) as http:
        assert (await refused(http, "/v1/embeddings", **body))["param"] == param


async def test_one_that_fails_fails_its_request_alone() -> None:
    async with pooling(EMBED) as http:
        for token in (7, 8):
            bad, good = await asyncio.gather(
                http.post("/v1/embeddings", json={"input": [[1], [token]]}),
                http.post("/v1/embeddings", json={"input": [[1], [2]]}),
            )
            assert (bad.status_code, good.status_code) == (500, 200)
        await ask(http, "/v1/embeddings", input=[[1], [2]])
        metrics = (await http.get("/metrics")).text
        assert "vllm:prompt_tokens_total" in metrics


async def test_the_engine_encodes_without_a_server() -> None:
    async with counting(EMBED) as app:
        engine = app.engine
        found = [output async for output in engine.encode("abc", PoolingParams(normalize=True))]
        assert len(found) == 1
        assert found[0].prompt_token_ids == list(b"abc")
        assert float(np.linalg.norm(found[0].outputs.data)) == pytest.approx(1.0)
        for wrong in ({"prompt_embeds": [[0.0]]}, {"prompt": 1}, 5):
            with pytest.raises(InvalidRequestError):
                await anext(engine.encode(wrong))  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="NaN"):
            await anext(engine.encode([7]))


async def test_a_conversation_is_one_text() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    async with pooling(EMBED, chat_template=template) as http:
        one = (await http.post("/v1/embeddings", json={"input": "abc"})).json()
        same = (await http.post("/v1/embeddings", json={"messages": messages})).json()
        assert same["data"] == one["data"]
        assert same["usage"] == one["usage"]


async def test_pairs_have_newer_names() -> None:
    async with pooling(EMBED) as http:
        older = (await http.post("/score", json={"text_1": "a", "text_2": ["b", "c"]})).json()
        newer = (await http.post("/score", json={"queries": "a", "documents": ["b", "c"]})).json()
        assert newer["data"] == older["data"]
        for names in (("queries", "items"), ("data_1", "data_2")):
            body = dict(zip(names, ("a", ["b", "c"]), strict=True))
            assert (await http.post("/score", json=body)).json()["data"] == older["data"]
        for body, param in [({"queries": "a"}, "text_2"), ({"documents": "a"}, "text_1")]:
            assert (await refused(http, "/score", **body))["param"] == param
        both = {"text_1": "a", "queries": "a", "documents": "b"}
        assert (await refused(http, "/score", **both))["param"] == "queries"


async def test_fields_without_effect_are_reported() -> None:
    same = {"embed_dtype": "float32", "endianness": "native", "zzz": 1, "cache_salt": "s"}
    async with pooling(EMBED) as http:
        for path in ("/v1/embeddings", "/pooling"):
            plain = (await http.post(path, json={"input": "a"})).json()
            answer = (await http.post(path, json={"input": "a", **same})).json()
            assert answer["data"] == plain["data"]
            assert [each["param"] for each in answer["warnings"]] == [*same][:3]
            assert "warnings" not in plain
        body = {"query": "a", "documents": ["b"], "zzz": 1}
        answer = (await http.post("/rerank", json=body)).json()
        assert [each["param"] for each in answer["warnings"]] == ["zzz"]
        for name, value in (("embed_dtype", "float16"), ("task", "retrieval.query")):
            assert (await refused(http, "/v1/embeddings", input="a", **{name: value}))[
                "param"
            ] == name


async def test_other_names_of_prompts_and_tasks() -> None:
    async with pooling(EMBED) as http:
        named = await ask(http, "/v1/embeddings", input="a", prompt_name="query")
        for kind in ("query", "search_query"):
            asked = await ask(http, "/v1/embeddings", input="a", input_type=kind)
            assert asked["data"] == named["data"]
            assert "warnings" not in asked
        both = {"input": "a", "input_type": "query"}
        same = await ask(http, "/v1/embeddings", **both, prompt_name="query")
        assert same["data"] == named["data"]
        error = await refused(http, "/v1/embeddings", **both, prompt_name="passage")
        assert error["param"] == "input_type"
        assert "prompt_name 'passage'" in error["message"]
        plain = await ask(http, "/v1/embeddings", input="a")
        for kind in ("passage", "search_document"):  # the model has a prompt for queries only
            asked = await ask(http, "/v1/embeddings", input="a", input_type=kind)
            assert asked["data"] == plain["data"]
        error = await refused(http, "/v1/embeddings", input="a", input_type="clustering")
        assert error["param"] == "input_type"
        assert "query" in error["message"]
        assert (await ask(http, "/pooling", input="a", task="embed"))["data"]
        assert (await refused(http, "/pooling", input="a", task="classify"))["param"] == "task"
        score = {"query": "a", "documents": [{"text": "b"}]}
        assert await ask(http, "/rerank", **score, rank_fields=["text"])
        assert (await refused(http, "/rerank", **score, rank_fields=["x"]))[
            "param"
        ] == "rank_fields"
    async with pooling(replace(EMBED, prompts={})) as http:
        [warning] = (await ask(http, "/v1/embeddings", input="a", input_type="query"))["warnings"]
        assert warning["param"] == "input_type"


async def test_coheres_embeddings() -> None:
    async with pooling(EMBED) as http:
        query = (await ask(http, "/v1/embeddings", input="b", input_type="query"))["data"]
        kinds = ["float", "base64", "binary", "ubinary"]
        asked = {"texts": ["b"], "input_type": "search_query", "embedding_types": kinds}
        answer = await ask(http, "/v2/embed", **asked)
        found = answer["embeddings"]
        assert found["float"] == [query[0]["embedding"]]
        packed = base64.b64decode(found["base64"][0])
        assert list(struct.unpack(f"<{SIZE}f", packed)) == found["float"][0]
        assert found["ubinary"] == [[0b11000000]]
        assert found["binary"] == [[0b11000000 - 128]]
        assert answer["texts"] == ["b"]
        assert answer["meta"]["billed_units"] == {"input_tokens": 3}
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        joined = await ask(http, "/v2/embed", inputs=[{"content": parts}])
        assert joined["texts"] == ["ab"]
        assert list(joined["embeddings"]) == ["float"]
        older = await ask(http, "/v1/embed", texts=["b"], input_type="search_query")
        assert older["embeddings"] == found["float"]
        assert older["response_type"] == "embeddings_floats"
        assert (await ask(http, "/v1/embed", **asked))["embeddings"] == found
        for wrong in ({}, {"texts": ["a"], "inputs": []}, {"texts": []}):
            assert (await refused(http, "/v2/embed", **wrong))["param"] == "texts"
        error = await refused(http, "/v2/embed", texts=["a"], embedding_types=["int8"])
        assert error["param"] == "embedding_types[0]"


async def test_many_vectors_are_written_in_turns() -> None:
    vectors = [np.full(NUMBERS_PER_TURN // 2, i, np.float32) for i in range(6)]
    turns = written(EmbeddingData, vectors, "base64")
    assert sum(1 for _ in turns) == 2
    assert msgspec.json.decode(at_once(written(EmbeddingData, vectors, None))[5])["index"] == 5


EXTREME: dict[str, tuple[type[msgspec.Struct], PoolingConfig, dict[str, Any]]] = {
    "/score": (ScoreRequest, EMBED, {"text_1": "a", "text_2": "b"}),
    "/rerank": (RerankRequest, SCORE, {"query": "a", "documents": ["b"]}),
    "/v1/embeddings": (EmbeddingRequest, EMBED, {"input": "a"}),
    "/classify": (ClassificationRequest, SCORE, {"input": "a"}),
    "/pooling": (PoolingRequest, EMBED, {"input": "a"}),
}


@pytest.mark.parametrize("path", EXTREME)
async def test_extremes_in_every_field(path: str) -> None:
    kind, config, body = EXTREME[path]
    async with pooling(config, num_labels=1) as http:
        expected = await ask(http, path, **body)
        for field in msgspec.structs.fields(kind):
            for whole in extremes(body, field.encode_name):
                headers = {"content-type": "application/json"}
                response = await http.post(path, content=whole.encode(), headers=headers)
                assert response.status_code in (200, 400, 404), (whole, response.text)
        again = await ask(http, path, **body)
        assert again.get("data", again.get("results")) == expected.get(
            "data", expected.get("results")
        )
