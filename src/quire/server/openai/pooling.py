"""POST /v1/embeddings, /pooling, /classify, /score and /rerank: one vector per prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response

from quire.core.model_config import PoolingConfig
from quire.core.outputs import RequestOutput
from quire.core.pooling_params import WHOLE_CONTEXT, PoolingParams
from quire.core.registry import did_you_mean
from quire.frontend.images.pooled import plain_prompt
from quire.frontend.input.pooling_input import PoolingPrompt
from quire.frontend.input.pooling_task import check_task, instructed
from quire.frontend.scoring import Scoring, paired
from quire.server.contract import OF_GENERATION, contract
from quire.server.errors import ApiError, invalid, renamed
from quire.server.http.body import read_request
from quire.server.http.connection import while_connected
from quire.server.http.json_text import json_response
from quire.server.message_parts import mend_chat
from quire.server.notices import ignore, notices_of
from quire.server.openai.completions import split_prompts, without_specials
from quire.server.openai.conversation import chat_prompt, plain_form
from quire.server.openai.generation import Call
from quire.server.openai.pooling_protocol import (
    ClassificationData,
    ClassificationRequest,
    ClassificationResponse,
    CommonPooling,
    DocumentText,
    EmbeddingData,
    EmbeddingRequest,
    EmbeddingResponse,
    Input,
    OfInput,
    PoolingData,
    PoolingRequest,
    PoolingResponse,
    PoolingUsage,
    RerankRequest,
    RerankResponse,
    RerankResult,
    ScoreData,
    ScoreRequest,
    ScoreResponse,
)
from quire.server.openai.protocol import ChatRequest
from quire.server.openai.vectors import finished, written
from quire.server.request_options import request_options
from quire.server.rules import MAX_SEQUENCES
from quire.server.state import MAX_NAME, request_id, server_state
from quire.server.turns import in_turns
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.frontend.output.pooling_output import Floats

B = TypeVar("B", bound=CommonPooling)
_DOCUMENTS = ("document", "passage", "corpus")
"""Names of the prompt of texts that are searched, as in sentence-transformers."""


@contract(body=EmbeddingRequest, answer=EmbeddingResponse, errors=OF_GENERATION)
async def create_embedding(request: Request) -> Response:
    """Return embeddings of texts or token ids."""
    call = await PoolingCall.of(request, EmbeddingRequest, "embd", "input")
    body = call.body
    config = check_task(call.config, "embed")
    name = prompt_of_kind(request, config, body.input_type, body.prompt_name)
    prompts = [
        instructed(config, prompt, name) if isinstance(prompt, str) else prompt
        for prompt in await call.prompts(body)
    ]
    params = call.params(dimensions=body.dimensions, normalize=body.normalize)
    vectors = await call.vectors(prompts, params)
    data = await in_turns(written(EmbeddingData, vectors, body.encoding_format))
    return json_response(EmbeddingResponse(data=data, **call.head()))


@contract(body=PoolingRequest, answer=PoolingResponse, errors=OF_GENERATION)
async def create_pooling(request: Request) -> Response:
    """Return the model's vectors, of any task."""
    call = await PoolingCall.of(request, PoolingRequest, "pool", "input")
    body, config = call.body, check_task(call.config, "score")
    if body.task not in (None, config.task):
        raise invalid(f"task is {body.task}; this model's is {config.task}.", "task")
    params = call.params(
        dimensions=body.dimensions, normalize=body.normalize, use_activation=body.use_activation
    )
    vectors = await call.vectors(await call.prompts(body), params)
    data = await in_turns(written(PoolingData, vectors, body.encoding_format))
    return json_response(PoolingResponse(data=data, **call.head()))


@contract(body=ClassificationRequest, answer=ClassificationResponse, errors=OF_GENERATION)
async def create_classification(request: Request) -> Response:
    """Return probabilities of the model's classes."""
    call = await PoolingCall.of(request, ClassificationRequest, "classify", "input")
    check_task(call.config, "classify")
    params = call.params(use_activation=call.body.use_activation)
    vectors = await call.vectors(await call.prompts(call.body), params)
    labels = call.server.engine.resolved.source.config.get("id2label") or {}
    data = []
    for i, vector in enumerate(vectors):
        best = str(int(vector.argmax()))
        label = str(labels.get(best, f"LABEL_{best}"))
        data.append(ClassificationData(i, label, vector.tolist(), len(vector)))
    return json_response(ClassificationResponse(data=data, **call.head()))


@contract(body=ScoreRequest, answer=ScoreResponse, errors=OF_GENERATION)
async def create_score(request: Request) -> Response:
    """Return how well texts match."""
    call = await PoolingCall.of(request, ScoreRequest, "score", "text_2")
    scores = await call.scores(paired(*_sides(call.body)), call.body.use_activation)
    data = [ScoreData(i, score) for i, score in enumerate(scores)]
    return json_response(ScoreResponse(data=data, **call.head()))


@contract(body=RerankRequest, answer=RerankResponse, errors=OF_GENERATION)
async def create_rerank(request: Request) -> Response:
    """Return documents by how well they answer a query, the best first."""
    call = await PoolingCall.of(request, RerankRequest, "rerank", "documents")
    body = call.body
    if body.top_n is not None and body.top_n < 0:
        raise invalid(f"top_n is {body.top_n}; it must not be negative.", "top_n")
    if not body.documents:
        raise invalid("documents is empty.", "documents")
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    scores = await call.scores([(body.query, text) for text in texts], body.use_activation)
    order = sorted(range(len(texts)), key=lambda i: -scores[i])[: body.top_n or None]
    results = [RerankResult(i, scores[i]) for i in order]
    if body.return_documents is not False:
        for result in results:
            result.document = DocumentText(texts[result.index])
    return json_response(
        RerankResponse(call.id, call.model, results, call.usage(), notices_of(request))
    )


@dataclass(slots=True, kw_only=True)
class PoolingCall(Call, Generic[B]):
    """One HTTP request in the engine."""

    request: Request
    body: B
    prompt_tokens: int = 0

    @classmethod
    async def of(
        cls, request: Request, kind: type[B], prefix: str, prompt_field: str
    ) -> PoolingCall[B]:
        server = server_state(request)
        body = await read_request(request, kind, mend_chat)
        model = server.served_name(body.model)
        server.live_engine()
        return cls(
            id=f"{prefix}-{request_id(request)}",
            model=model,
            server=server,
            options=request_options(request, body),
            prompt_field=prompt_field,
            request=request,
            body=body,
        )

    async def prompts(self, body: OfInput) -> list[PoolingPrompt]:
        """Return the texts of `input`, or the rendered text or the image of `messages`.

        Raises:
            ApiError: 400 if both are given, or neither.
        """
        if body.messages is None:
            for name in ("add_generation_prompt", "chat_template_kwargs"):
                if getattr(body, name) not in (None, False):
                    raise invalid(f"{name} needs messages.", name)
            if body.input is None:
                raise invalid("Give either input or messages.", "input")
            return _prompts(body.input)
        if body.input is not None:
            raise invalid("input and messages exclude each other.", "messages")
        self.prompt_field = "messages"
        chat = ChatRequest(
            messages=body.messages,
            add_generation_prompt=bool(body.add_generation_prompt),
            add_special_tokens=body.add_special_tokens,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        prompt = chat_prompt(plain_form(self.request, chat), self.server)
        vision = self.server.engine.resolved.config.model.vision
        if vision is not None and vision.pool is not None:
            return [plain_prompt(prompt)]
        work = self.server.engine.tokenize(prompt, False)
        with renamed(lambda name: "messages" if name == "image" else name):
            return [await while_connected(work, self.request.receive)]

    @property
    def config(self) -> PoolingConfig | None:
        return self.server.engine.resolved.config.pooling

    def params(self, **options: Any) -> PoolingParams:
        kept, cut = self.body.truncate_prompt_tokens, self.body.truncate
        if kept is None and cut not in (None, False, "NONE"):
            kept = WHOLE_CONTEXT
        return PoolingParams(
            truncate_prompt_tokens=kept,
            truncation_side=self.body.truncation_side or ("left" if cut == "START" else "right"),
            **options,
        )

    async def scores(
        self, pairs: Sequence[tuple[str, str]], use_activation: bool | None
    ) -> list[float]:
        scoring = Scoring(self.config, self.server.engine.resolved.config.model, pairs)
        params = self.params(use_activation=use_activation)
        return scoring.scores(await self.vectors(scoring.prompts, params))

    async def vectors(
        self, prompts: Sequence[PoolingPrompt], params: PoolingParams
    ) -> list[Floats]:
        """Return the model's vector of each prompt; a disconnect ends the work.

        Raises:
            InvalidRequestError: the model generates text, or a prompt cannot be served.
            ApiError: there are too many prompts, or the queue is full.
        """
        config = check_task(self.config, "score")
        if len(prompts) > MAX_SEQUENCES:
            raise invalid(
                f"There are {len(prompts)} prompts; one request may have {MAX_SEQUENCES}.",
                self.prompt_field,
            )

        async def outputs() -> list[RequestOutput]:
            given = prompts
            if getattr(self.body, "add_special_tokens", None) is False:
                given = await without_specials(given, self.server.engine)
            self.server.check_queue()
            return await self.run(given, params)

        found = await while_connected(outputs(), self.request.receive)
        self.prompt_tokens = sum(len(output.prompt_token_ids) for output in found)
        return await in_turns(finished(config, params, found))

    def usage(self) -> PoolingUsage:
        return PoolingUsage(self.prompt_tokens, self.prompt_tokens)

    def head(self) -> dict[str, Any]:
        """Return an answer's fields other than its data."""
        return {
            "id": self.id,
            "created": int(time.time()),
            "model": self.model,
            "usage": self.usage(),
            "warnings": notices_of(self.request),
        }


def prompt_of_kind(
    request: Request, config: PoolingConfig, kind: str | None, wanted: str | None = None
) -> str | None:
    """Return the name of the model's prompt for an `input_type`, such as query, or Cohere's
    search_query; documents may have none.

    Args:
        wanted: the request's `prompt_name`.

    Raises:
        ApiError: 400 if the model has prompts, but not this one, or if `wanted` is another one.
    """
    if kind is None:
        return wanted
    if not config.prompts:
        ignore(request, "input_type", "The model has no prompts.")
        return wanted
    plain = kind.removeprefix("search_")
    names = (kind, plain, *(_DOCUMENTS if plain in _DOCUMENTS else ()))
    name = next((each for each in names if each in config.prompts), None)
    if name is None and plain not in _DOCUMENTS:
        known = did_you_mean(kind, config.prompts)
        raise invalid(f"input_type is {kind[:MAX_NAME]!r}; {known}", "input_type")
    if wanted not in (None, name):
        text = f"input_type is {kind!r} and prompt_name {wanted[:MAX_NAME]!r}; send one of them."
        raise invalid(text, "input_type")
    return name


def _prompts(given: Input) -> list[PoolingPrompt]:
    """Split the input like a completion's prompt; errors name `input`."""
    try:
        return cast(list[PoolingPrompt], split_prompts(given))
    except ApiError as error:
        raise invalid(str(error).replace("prompt", "input", 1), "input") from None


def _sides(body: ScoreRequest) -> tuple[str | list[str], str | list[str]]:
    """Return the two sides of the pairs, under either names.

    Raises:
        ApiError: 400 if one is missing, or given twice.
    """
    sides = []
    for names in (("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2")):
        given = [name for name in names if getattr(body, name) is not None]
        if not given:
            raise invalid(f"{names[0]} is missing.", names[0])
        if len(given) > 1:
            raise invalid(f"{given[0]} and {given[1]} are the same; give one.", given[1])
        sides.append(getattr(body, given[0]))
    return sides[0], sides[1]
