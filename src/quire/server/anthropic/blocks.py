"""The content blocks of messages: their types, and those that are left out of the prompt."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from starlette.requests import Request

from quire.server.errors import invalid
from quire.server.http.body import read_part
from quire.server.notices import ignore
from quire.server.opaque import decode_reasoning
from quire.server.openai.protocol import ImageAddress, ImagePart, Part, TextPart
from quire.server.rules import Messages, Rules, Strict, each, ignored
from quire.server.state import server_state
from quire.server.tool_results import left_out

_CITATIONS = ignored("The text is read; answers cite nothing.", strict=({"enabled": False},))
_FILES = "send its text in a source of type text; PDFs, URLs and file ids are not served"
_LEFT_OUT = {
    "container_upload": "This server runs no code.",
    "fallback": "It has no text.",
    "compaction": "It has no text.",
    "mcp_tool_listing": "This server does not ask other servers for tools.",
    "server_tool_use": "Another server ran the tool.",
    "mcp_tool_use": "Another server ran the tool.",
    "tool_addition": "Every tool of `tools` is shown from the start.",
}
_RESULT = "_tool_result"
"""Suffix of the types of other servers' results, which chat templates do not support."""


class Block(Strict, tag_field="type", kw_only=True):
    """A part of a message's content."""

    cache_control: Any = None
    """No effect: every prefix is cached."""

    rules: ClassVar[Rules] = {
        **each("caller toolset_name", ignored("The chat template does not get it.")),
        "transformations": ignored("Images are read as they are sent."),
    }


class TextBlock(Block, tag="text"):
    text: str
    citations: Any = None
    """Citations of an earlier answer; ignored, because the text is complete."""


class ThinkingBlock(Block, tag="thinking"):
    """Reasoning of an earlier answer, as a client sends it back."""

    thinking: str
    signature: str | None = None


class ToolUseBlock(Block, tag="tool_use"):
    id: str
    name: str
    input: Any = None
    """An object; or any other value, if the call was cut off."""


class ToolResultBlock(Block, tag="tool_result"):
    tool_use_id: str
    content: str | Messages[dict[str, Any]] | None = None
    is_error: bool | None = None


class TextSource(Strict, tag_field="type", tag="text"):
    data: str
    media_type: str | None = None


class ContentSource(Strict, tag_field="type", tag="content"):
    content: str | Messages[dict[str, Any]]


class Base64Source(Strict, tag_field="type", tag="base64"):
    data: str
    media_type: Literal["image/png", "image/jpeg", "image/webp", "image/gif"]


class UrlSource(Strict, tag_field="type", tag="url"):
    url: str


class ImageBlock(Block, tag="image"):
    """An image, for a model that reads images."""

    source: Base64Source | UrlSource

    @property
    def address(self) -> str:
        source = self.source
        if isinstance(source, UrlSource):
            return source.url
        return f"data:{source.media_type};base64,{source.data}"


class DocumentBlock(Block, tag="document"):
    source: TextSource | ContentSource
    title: str | None = None
    context: str | None = None

    rules: ClassVar[Rules] = {"citations": _CITATIONS}


class SearchResultBlock(Block, tag="search_result"):
    content: Messages[TextBlock]
    source: str
    title: str

    rules: ClassVar[Rules] = {"citations": _CITATIONS}


Known = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | ImageBlock
"""The blocks that a chat request can express."""

_KNOWN = {
    kind.__struct_config__.tag: kind
    for kind in (ImageBlock, ThinkingBlock, ToolUseBlock, ToolResultBlock)
}


def read_block(request: Request, value: dict[str, Any], where: str) -> Known | None:
    """Return a block of a message; None if it is left out, with a notice.

    Raises:
        ApiError: 400 for an invalid block, or one whose omission would change the answer.
    """
    kind = value.get("type")
    if isinstance(kind, str):
        if (known := _KNOWN.get(kind)) is not None:
            block: Known = read_part(request, value, known, where)
            return _recalled(block) if isinstance(block, ThinkingBlock) else block
        if kind == "compaction" and isinstance(value.get("content"), str):
            return TextBlock(text=value["content"])
        if kind == "redacted_thinking":
            ignore(request, where, "This server cannot decrypt it; it is left out.")
            return None
        if kind == "tool_addition" and _defines_tool(value):
            raise invalid(f"{where} defines a tool; send it in tools.", where)
        if kind in _LEFT_OUT or kind.endswith(_RESULT):
            reason = _LEFT_OUT.get(kind, "Another server ran the tool.")
            ignore(request, where, f"A block of type {kind} is left out. {reason}")
            return None
        if (text := read_text(request, value, where)) is not None:
            return TextBlock(text=text)
    raise _unknown(kind, where)


def read_text(request: Request, value: dict[str, Any], where: str) -> str | None:
    """Return the text of a text-only block; None if its type is unknown.

    Raises:
        ApiError: 400 for an invalid block, or a file.
    """
    match value.get("type"):
        case "text":
            block: TextBlock = read_part(request, value, TextBlock, where)
            return block.text
        case "document":
            source = value.get("source")
            if isinstance(source, dict) and source.get("type") in ("base64", "url", "file"):
                raise invalid(f"{where} is a document of type {source['type']}; {_FILES}.", where)
            return _document(request, read_part(request, value, DocumentBlock, where), where)
        case "search_result":
            found: SearchResultBlock = read_part(request, value, SearchResultBlock, where)
            return _joined(found.title, found.source, *(each.text for each in found.content))
    return None


def result_content(request: Request, block: ToolResultBlock, where: str) -> str | list[Part]:
    """Return a tool's result for the model: text, or parts if it has images that the model reads.

    Raises:
        ApiError: 400 for an invalid block.
    """
    begin, parts = "Error: " if block.is_error else "", list[Part]()
    if block.content is None or isinstance(block.content, str):
        return begin + (block.content or "")
    for index, value in enumerate(block.content):
        place = f"{where}.content[{index}]"
        kind = value.get("type")
        if kind == "tool_reference":
            parts.append(TextPart(f"[tool: {value.get('tool_name')}]"))
        elif kind in ("text", "search_result") or _is_text_document(value):
            parts.append(TextPart(read_text(request, value, place) or ""))
        elif not isinstance(kind, str):
            raise _unknown(kind, place)
        elif kind == "image" and server_state(request).tool_images:
            image: ImageBlock = read_part(request, value, ImageBlock, place)
            parts.append(ImagePart(ImageAddress(image.address)))
        else:
            parts.append(TextPart(left_out(request, kind, place)))
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts):
        return begin + "\n".join(texts)
    return [TextPart(begin), *parts] if begin else parts


def _recalled(block: ThinkingBlock) -> ThinkingBlock:
    """Return a block with the thinking from its signature, if that has it."""
    if not block.thinking:
        block.thinking = decode_reasoning(block.signature or "") or ""
    return block


def _document(request: Request, block: DocumentBlock, where: str) -> str:
    source = block.source
    if isinstance(source, TextSource):
        return _joined(block.title, block.context, source.data)
    if isinstance(source.content, str):
        return _joined(block.title, block.context, source.content)
    texts = []
    for index, value in enumerate(source.content):
        place = f"{where}.source.content[{index}]"
        text = read_text(request, value, place)
        if text is None:
            raise _unknown(value.get("type"), place)
        texts.append(text)
    return _joined(block.title, block.context, *texts)


def _defines_tool(value: dict[str, Any]) -> bool:
    tool = value.get("tool")
    return not isinstance(tool, dict) or tool.get("type") == "tool_definition"


def _is_text_document(value: dict[str, Any]) -> bool:
    source = value.get("source")
    is_text = isinstance(source, dict) and source.get("type") in ("text", "content")
    return value.get("type") == "document" and is_text


def _joined(*texts: str | None) -> str:
    return "\n".join(text for text in texts if text)


def _unknown(kind: object, where: str) -> Exception:
    known = "text, thinking, tool_use, tool_result, document and search_result"
    if not isinstance(kind, str):
        return invalid(f"{where}.type is missing.", f"{where}.type")
    return invalid(f"{where} has type {kind[:64]!r}; supported are {known}.", f"{where}.type")
