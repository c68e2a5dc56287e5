"""docs/compatibility.md says what the server does."""

from quire.server.anthropic.protocol import CountRequest, MessagesRequest
from quire.server.openai.protocol import ChatRequest, CompletionRequest
from quire.server.responses.protocol import ResponsesRequest
from quire.server.rules import rules_of
from tools.compatibility import PATH, page


def test_the_tables_are_those_of_the_types() -> None:
    text = PATH.read_text()
    assert page(text) == text, "run python -m tools.compatibility"
    assert "`mirostat` (except `0`)" in text


def test_every_api_knows_the_fields_of_chats() -> None:
    """What one API follows, no other ignores as a field that it has never heard of."""
    for kind in (CompletionRequest, ResponsesRequest, MessagesRequest):
        known = {*kind.__struct_fields__, *rules_of(kind)}
        assert {*ChatRequest.__struct_fields__} <= known, kind
    of_sampling = {"stream", "temperature", "top_k", "top_p"}
    known = {*CountRequest.__struct_fields__, *rules_of(CountRequest), *of_sampling}
    assert {*ChatRequest.__struct_fields__} <= known
