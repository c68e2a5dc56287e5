"""POST /v1/embed and /v2/embed: Cohere's API of embeddings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.input.pooling_input import PoolingPrompt
from quire.frontend.input.pooling_task import check_task, instructed
from quire.server.contract import OF_GENERATION, contract
from quire.server.errors import invalid
from quire.server.http.json_text import json_response
from quire.server.notices import Warnings, notices_of
from quire.server.openai.pooling import PoolingCall, prompt_of_kind
from quire.server.openai.pooling_protocol import CommonPooling, Texts
from quire.server.openai.protocol import TextPart
from quire.server.openai.vectors import written
from quire.server.rules import MAX_SEQUENCES, Messages, Rules, Strict, refused
from quire.server.turns import in_turns

Encoding = Literal["float", "base64", "binary", "ubinary"]


class EmbedInput(Strict):
    """One text, in parts."""

    content: Messages[TextPart]


class EmbedRequest(CommonPooling, kw_only=True):
    """POST /v1/embed and /v2/embed."""

    texts: Texts | None = None
    inputs: Annotated[list[EmbedInput], Meta(max_length=MAX_SEQUENCES)] | None = None
    """The same, in parts."""
    input_type: str | None = None
    """The name of the model's prompt (`search_query`: query); no effect if it has none."""
    embedding_types: Annotated[list[Encoding], Meta(max_length=4)] | None = None
    """What to return of each vector. `binary` and `ubinary` have one bit per number: whether it is
    positive; eight of them are one signed or unsigned integer."""
    output_dimension: int | None = None

    rules: ClassVar[Rules] = {
        "images": refused("Send them to /v1/embeddings, in messages."),
        "max_tokens": refused("Send truncate_prompt_tokens instead."),
    }


class BilledUnits(msgspec.Struct):
    input_tokens: int


class ApiVersion(msgspec.Struct, frozen=True):
    version: str = "2"


class EmbedMeta(msgspec.Struct):
    billed_units: BilledUnits
    api_version: ApiVersion = ApiVersion()


class EmbedResponse(msgspec.Struct):
    """`embeddings` has a list per embedding type, in the order of the texts; /v1/embed returns the
    list alone if the request names no type."""

    id: str
    embeddings: dict[str, list[Any]] | list[Any]
    texts: list[str]
    meta: EmbedMeta
    response_type: str = "embeddings_by_type"
    warnings: Warnings = msgspec.UNSET


@contract(body=EmbedRequest, answer=EmbedResponse, errors=OF_GENERATION)
async def create_cohere_embedding(request: Request) -> Response:
    """Return embeddings of texts, in the types that the request names."""
    call = await PoolingCall.of(request, EmbedRequest, "embd", "texts")
    body = call.body
    config = check_task(call.config, "embed")
    if (body.texts is None) == (body.inputs is None):
        raise invalid("Give either texts or inputs.", "texts")
    texts = body.texts or [
        "".join(part.text for part in each.content) for each in body.inputs or ()
    ]
    if not texts:
        raise invalid("texts is empty.", "texts")
    if body.truncate is None:
        body.truncate = "END"
    name = prompt_of_kind(request, config, body.input_type)
    prompts: list[PoolingPrompt] = [instructed(config, text, name) for text in texts]
    vectors = await call.vectors(prompts, call.params(dimensions=body.output_dimension))
    embeddings = {
        encoding: await in_turns(written(lambda _, vector: vector, vectors, encoding))
        for encoding in body.embedding_types or ("float",)
    }
    meta = EmbedMeta(BilledUnits(call.prompt_tokens))
    answer = EmbedResponse(call.id, embeddings, texts, meta, warnings=notices_of(request))
    if request.url.path == "/v1/embed" and not body.embedding_types:
        answer.embeddings, answer.response_type = embeddings["float"], "embeddings_floats"
    return json_response(answer)
