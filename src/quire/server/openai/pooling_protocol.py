"""The requests and responses of embeddings (OpenAI's), scores and pooling (vLLM's), and reranking
(Jina's and Cohere's). See `server.openai.protocol` for the rules."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quire.server.notices import Warnings
from quire.server.openai.protocol import ChatMessage
from quire.server.rules import MAX_SEQUENCES, Messages, Rules, Strict, ignored, refused

D = TypeVar("D")
Input = str | list[str | int | list[int]]
"""One text or one list of token ids, or a list of either."""
Texts = Annotated[list[str], Meta(max_length=MAX_SEQUENCES)]


_ENCODING: Rules = {
    "embed_dtype": refused("Numbers are float32.", "float32"),
    "endianness": refused("base64 is little-endian.", "little", "native"),
}


class CommonPooling(Strict):
    """Fields of all pooling requests."""

    model: str | None = None
    """The served model's name; optional, as in vLLM."""
    user: str | None = None
    """An identifier of the caller; no effect here."""
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    """See `core.pooling_params`."""
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    """Cohere's, NIM's and TEI's: leave out the text's start or end, if it is too long. True means
    the end."""
    priority: int | None = None

    cache_salt: str | None = None
    mm_processor_kwargs: None = None
    """Refused unless null."""

    rules: ClassVar[Rules] = {
        "padding": refused("Texts are not padded.", "do_not_pad"),
        "request_id": ignored("A request's id is its X-Request-Id."),
    }


class OfInput(CommonPooling, kw_only=True):
    """Texts, token ids, or a conversation."""

    input: Input | None = None
    messages: Messages[ChatMessage] | None = None
    """Instead of `input`: the chat template renders them as one text."""
    add_generation_prompt: bool | None = None
    """With `messages`; default: false."""
    add_special_tokens: bool | None = None
    """False: read texts without the model's special tokens. True, with `messages`: add them to
    those of the template."""
    chat_template_kwargs: dict[str, Any] | None = None


class EmbeddingRequest(OfInput, kw_only=True):
    """POST /v1/embeddings."""

    encoding_format: Literal["float", "base64"] | None = None
    """`base64`: float32 numbers, little-endian."""
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    """Which of the model's prompts (sentence-transformers) to put before texts."""

    input_type: str | None = None
    """Cohere's and NIM's name of `prompt_name`; no effect if the model has no prompts."""

    rules: ClassVar[Rules] = {
        **_ENCODING,
        "task": refused("Send prompt_name instead."),
        "late_chunking": refused("Each text has one vector.", False),
    }


class PoolingRequest(OfInput, kw_only=True):
    """POST /pooling: the model's vector, an embedding or classes."""

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None

    task: Literal["embed", "classify"] | None = None
    """The model's; a check."""

    rules: ClassVar[Rules] = _ENCODING


class ClassificationRequest(OfInput, kw_only=True):
    """POST /classify."""

    use_activation: bool | None = None


class ScoreRequest(CommonPooling, kw_only=True):
    """POST /score: one text against each of several, or pair by pair."""

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    queries: str | Texts | None = None
    documents: str | Texts | None = None
    items: str | Texts | None = None
    data_1: str | Texts | None = None
    data_2: str | Texts | None = None
    """vLLM's other names for the two: `queries` or `data_1`; `documents`, `items` or `data_2`."""
    use_activation: bool | None = None


class DocumentText(Strict):
    text: str


class RerankRequest(CommonPooling, kw_only=True):
    """POST /rerank."""

    query: str
    documents: Annotated[list[str | DocumentText], Meta(max_length=MAX_SEQUENCES)]
    top_n: int | None = None
    """The number of best results to return; 0 returns all."""
    return_documents: bool | None = None
    """Return the documents' texts, too; default: true."""
    use_activation: bool | None = None

    max_tokens_per_doc: None = None
    max_chunks_per_doc: None = None

    rules: ClassVar[Rules] = {"rank_fields": refused("Documents have one field, text.", ["text"])}


class PoolingUsage(msgspec.Struct):
    """Tokens of all prompts; an embedding model reads a repeated text once, and it counts once."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class EmbeddingData(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class PoolingData(msgspec.Struct):
    index: int
    data: list[float] | str
    object: str = "pooling"


class ClassificationData(msgspec.Struct):
    """`label` is that of the likeliest class."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ScoreData(msgspec.Struct):
    index: int
    score: float
    object: str = "score"


class ListResponse(msgspec.Struct, Generic[D], kw_only=True):
    """One entry per prompt or pair, in the request's order."""

    data: list[D]
    id: str
    created: int
    model: str
    usage: PoolingUsage
    object: str = "list"
    warnings: Warnings = UNSET


class EmbeddingResponse(ListResponse[EmbeddingData]): ...


class PoolingResponse(ListResponse[PoolingData]): ...


class ClassificationResponse(ListResponse[ClassificationData]): ...


class ScoreResponse(ListResponse[ScoreData]): ...


class RerankResult(msgspec.Struct):
    """A document, by its index in the request."""

    index: int
    relevance_score: float
    document: DocumentText | UnsetType = UNSET


class RerankResponse(msgspec.Struct):
    """The best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: PoolingUsage
    warnings: Warnings = UNSET
