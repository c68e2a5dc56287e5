"""Settings of the HTTP application."""

from __future__ import annotations

from typing import Any

from quire.system.records import dataclass

DEFAULT_MAX_BODY_BYTES = 32 * 2**20
DEFAULT_MAX_QUEUED_REQUESTS = 1024
DEFAULT_MAX_STORED_RESPONSES = 1024


@dataclass(frozen=True, slots=True)
class Cors:
    """What pages of other origins may do in browsers."""

    origins: tuple[str, ...]
    """`*` means any."""
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    credentials: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """Settings of the application; see `cli.serve` for the flags."""

    api_keys: tuple[str, ...] = ()
    """Each of them admits a request. If empty, requests need no key."""
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """Largest request body; a larger one gets 413."""
    max_queued_requests: int = DEFAULT_MAX_QUEUED_REQUESTS
    """Most sequences that wait in addition to one batch; more get 429."""
    max_stored_responses: int = DEFAULT_MAX_STORED_RESPONSES
    """Most responses stored for `previous_response_id`; the oldest are deleted."""
    chat_template: str | None = None
    """Jinja source that replaces the model's template."""
    strict_fields: bool = False
    """Refuse fields without effect, which are otherwise ignored and reported."""
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    """Names in `tools.table`; if None, the chat template decides."""
    cors: Cors | None = None
    """Other origins whose pages may use the server; None means no origins."""
    root_path: str = ""
    """The prefix under which a proxy serves the application, such as `/llm`."""
    force_include_usage: bool = False
    """Report usage in every stream, even if the request does not ask for it."""
    trust_request_chat_template: bool = False
    """Requests may have their own chat template."""
    default_chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the chat template that a request does not set."""
    return_tokens_as_token_ids: bool = False
    """Name tokens in log-probabilities by their ids, unless the request says otherwise."""

    def names_tokens_by_id(self, asked: bool | None) -> bool:
        """Return whether log-probabilities name tokens by their ids."""
        return self.return_tokens_as_token_ids if asked is None else asked
