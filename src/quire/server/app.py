"""The HTTP application: one engine, its routes, its middleware. No globals."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire import __version__
from quire.core.errors import ConfigError, EngineSleepingError
from quire.frontend.fingerprint import fingerprint
from quire.metrics.families import CONTENT_TYPE
from quire.profile.device_reading import Device
from quire.server.adapters import ServedAdapters
from quire.server.anthropic.messages import count_tokens, create_message
from quire.server.contract import OF_ENGINE, contract
from quire.server.errors import HANDLERS, error_response
from quire.server.http.json_text import json_response
from quire.server.http.middleware import (
    OPEN_PATH,
    ApiKeyMiddleware,
    PathMiddleware,
    RequestMiddleware,
)
from quire.server.models import list_models, retrieve_model
from quire.server.monitoring.explain import explain_engine
from quire.server.monitoring.feed import Feed, stream
from quire.server.monitoring.metrics import Metrics
from quire.server.monitoring.pages import page_routes
from quire.server.monitoring.profile import profile_ops, start_profile, stop_profile
from quire.server.monitoring.requests import request_timeline
from quire.server.monitoring.snapshot import Camera
from quire.server.openai import pooling
from quire.server.openai.adapters import load_lora_adapter, unload_lora_adapter
from quire.server.openai.chat import create_chat_completion
from quire.server.openai.cohere import create_cohere_embedding
from quire.server.openai.completions import create_completion
from quire.server.openai.tokens import detokenize, tokenize, tokenizer_info
from quire.server.openapi import show_openapi
from quire.server.options import AppOptions
from quire.server.responses import endpoints
from quire.server.responses.store import ResponseStore
from quire.server.sleep import is_sleeping, sleep, wake_up
from quire.server.state import ServerState, server_state
from quire.server.tools.table import choose_parsers
from quire.text.chat import own_variables

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

DEFAULT_OPTIONS = AppOptions()


def create_app(
    engine: AsyncLLM,
    model_names: Sequence[str],
    options: AppOptions = DEFAULT_OPTIONS,
    *,
    devices: Sequence[Device] = (),
    adapters: ServedAdapters | None = None,
    tool_images: bool = False,
) -> Starlette:
    """Return the ASGI application that serves `engine`.

    Args:
        model_names: names for clients, at least one; requests without a name get the first.
        devices: hardware whose power, heat and load are in the metrics.
        adapters: served adapters, and the folder from which clients may load others.
        tool_images: the result of `tool_results.reads_images`.

    Raises:
        ConfigError: no parser has this name, or a default variable of the template is Quire's own.
    """
    defaults = options.default_chat_template_kwargs or {}
    if taken := own_variables(engine.tokenizer, defaults):
        flag = "--default-chat-template-kwargs"
        raise ConfigError(
            f"{flag} may not set {', '.join(taken)}.", fix="Leave them out.", param=flag
        )
    template = options.chat_template or "\n".join(engine.tokenizer.chat_templates.values())
    parsers = choose_parsers(template, options.tool_call_parser, options.reasoning_parser)
    routes = _routes()
    app = Starlette(
        routes=routes,
        middleware=_middleware(options, routes, engine.stats.polls),
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False  # `PathMiddleware` normalizes the path
    app.state.server = server = ServerState(
        engine,
        tuple(model_names),
        int(time.time()),
        options,
        parsers,
        adapters or ServedAdapters(),
        fingerprint(engine.resolved, engine.facts, engine.default_sampling_params, template),
        tool_images,
    )
    app.state.responses = ResponseStore(options.max_stored_responses)
    app.state.explaining = asyncio.Lock()
    app.state.metrics = Metrics(engine.stats, model_names[0], devices)

    camera = Camera(server)

    async def make_snapshot() -> bytes:
        return msgspec.json.encode(await camera.take())

    app.state.feed = Feed(make_snapshot)
    return app


def _middleware(
    options: AppOptions, routes: Sequence[Route], polls: Counter[str]
) -> list[Middleware]:
    """Return the middleware, the outermost first."""
    paths = [route.path for route in routes]
    found = [Middleware(PathMiddleware, prefix=options.root_path, paths=paths, polls=polls)]
    if (cors := options.cors) is not None:  # before the key's check: a preflight has no key
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=cors.origins,
                allow_methods=cors.methods,
                allow_headers=cors.headers,
                allow_credentials=cors.credentials,
                expose_headers=("X-Request-Id", "Request-Id", "Retry-After"),
            )
        )
    found.append(Middleware(RequestMiddleware))
    if options.api_keys:
        found.append(Middleware(ApiKeyMiddleware, keys=tuple(options.api_keys)))
    return found


def _routes() -> list[Route]:
    return [
        *page_routes(),
        Route(OPEN_PATH, health),
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/ready", ready),
        Route("/version", version),
        Route("/load", load),
        Route("/openapi.json", show_openapi),
        Route("/metrics", metrics),
        Route("/explain", explain_engine),
        Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
        Route("/dashboard/stream", stream),
        Route("/dashboard/requests/{id}", request_timeline),
        Route("/sleep", sleep, methods=["POST"]),
        Route("/wake_up", wake_up, methods=["POST"]),
        Route("/is_sleeping", is_sleeping),
        Route("/start_profile", start_profile, methods=["POST"]),
        Route("/stop_profile", stop_profile, methods=["POST"]),
        Route("/profile_ops", profile_ops, methods=["POST"]),
        Route("/v1/messages", create_message, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokenizer_info),
        Route("/v1/embeddings", pooling.create_embedding, methods=["POST"]),
        Route("/v1/embed", create_cohere_embedding, methods=["POST"]),
        Route("/v2/embed", create_cohere_embedding, methods=["POST"]),
        Route("/pooling", pooling.create_pooling, methods=["POST"]),
        Route("/classify", pooling.create_classification, methods=["POST"]),
        Route("/score", pooling.create_score, methods=["POST"]),
        Route("/v1/score", pooling.create_score, methods=["POST"]),
        Route("/rerank", pooling.create_rerank, methods=["POST"]),
        Route("/v1/rerank", pooling.create_rerank, methods=["POST"]),
        Route("/v2/rerank", pooling.create_rerank, methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/v1/models/{model:path}", retrieve_model),
        Route("/v1/load_lora_adapter", load_lora_adapter, methods=["POST"]),
        Route("/v1/unload_lora_adapter", unload_lora_adapter, methods=["POST"]),
        Route("/v1/completions", create_completion, methods=["POST"]),
        Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
        Route("/v1/responses", endpoints.create_response, methods=["POST"]),
        Route("/v1/responses/input_tokens", endpoints.count_input_tokens, methods=["POST"]),
        Route("/v1/responses/{id}", endpoints.retrieve_response),
        Route("/v1/responses/{id}", endpoints.delete_response, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", endpoints.cancel_response, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", endpoints.list_input_items),
    ]


class Version(msgspec.Struct):
    version: str


@contract(errors=OF_ENGINE)
async def health(request: Request) -> Response:
    """Answer 200 while the engine lives or sleeps; 503 while a lost core is replaced, and
    for good if none will be."""
    error = server_state(request).engine.error
    if error is None or isinstance(error, EngineSleepingError):
        return Response()
    return error_response(error, request.scope)


@contract(errors=OF_ENGINE, error=None)
async def ready(request: Request) -> Response:
    """Answer 200 while requests are accepted; 503 while the model loads, during shutdown, and
    without an engine."""
    return Response(status_code=200 if server_state(request).engine.is_ready else 503)


@contract(answer=Version)
async def version(request: Request) -> Response:
    """Quire's version."""
    return json_response(Version(__version__))


class ServerLoad(msgspec.Struct):
    server_load: int


@contract(answer=ServerLoad)
async def load(request: Request) -> Response:
    """Sequences in progress, waiting ones included, under vLLM's name."""
    engine = server_state(request).engine
    return json_response(ServerLoad(engine.num_queued + engine.max_num_seqs))


@contract(errors=OF_ENGINE)
async def reset_prefix_cache(request: Request) -> Response:
    """Remove all cached prefixes; requests in progress keep their blocks."""
    await server_state(request).live_engine().call("reset_prefix_cache")
    return Response()


@contract(answer="text/plain")
async def metrics(request: Request) -> Response:
    """Return the engine's counters, for Prometheus."""
    exposition: Metrics = request.app.state.metrics
    return Response(exposition.scrape(), headers={"Content-Type": CONTENT_TYPE})
