"""Fields of Anthropic's API that have no effect here, with the reason of each."""

from __future__ import annotations

from quire.server.openai import elsewhere
from quire.server.rules import Rules, each, ignored, refused

_NO_SERVER_TOOLS = "The server runs no tools of its own."

COUNT: Rules = {
    **elsewhere.SAMPLERS,
    **elsewhere.CHAT_SAMPLING,
    "prompt": refused("Send messages instead."),
    "priority": ignored("This API has no priorities."),
    "cache_salt": refused("This API does not have it; /v1/chat/completions does."),
    "stream_options": ignored("Every stream reports its usage."),
    "parallel_tool_calls": refused("Send tool_choice.disable_parallel_tool_use.", True),
    **each(
        "max_tokens stop_sequences stream temperature top_p top_k metadata service_tier",
        ignored("count_tokens counts only the prompt."),
    ),
    "thinking_token_budget": refused("Send thinking.budget_tokens instead."),
    "speed": ignored("There is one speed.", strict=("standard",)),
    "inference_geo": ignored("The server computes where it runs."),
    "container": ignored(_NO_SERVER_TOOLS),
    "mcp_servers": ignored(f"{_NO_SERVER_TOOLS} Their tools are left out.", strict=([],)),
    "diagnostics": ignored("Cache misses are not diagnosed."),
    **each("user_profile_id workspace_id", ignored("The server does not tell callers apart.")),
    **each("billing_policy fallback_credit_token", ignored("Nothing is billed.")),
    "fallbacks": ignored("The server has one model, which refuses nothing."),
    "anthropic_version": ignored("There is one version of the API."),
    **each("anthropic_beta betas", ignored("Every feature is on.")),
    "compaction": refused("The server does not summarize; the client must."),
}
