"""Loads of served engines with nothing wrong."""

from __future__ import annotations

from benchmarks.explain_loads import (
    CHAT,
    COMPLETIONS,
    EMBEDDED,
    OPT,
    REPLICAS,
    STAGES,
    Fault,
    asks,
    chats,
    of_tokens,
    shared,
)

HEALTHY_LOADS: dict[str, Fault] = {
    f"healthy_{name}": Fault((), flags, body, clients, path, pause=pause)
    for name, flags, body, clients, path, pause in (
        ("stream", EMBEDDED, asks(), 4, COMPLETIONS, 0.0),
        ("many", EMBEDDED, asks(max_tokens=128), 16, COMPLETIONS, 0.0),
        ("alone", EMBEDDED, asks(max_tokens=128), 1, COMPLETIONS, 0.0),
        ("whole", EMBEDDED, asks(stream=False), 4, COMPLETIONS, 0.0),
        ("chat", EMBEDDED, chats, 4, CHAT, 0.0),
        ("sampled", EMBEDDED, asks(temperature=0.8, top_p=0.9), 8, COMPLETIONS, 0.0),
        ("fresh", EMBEDDED, of_tokens(200, 64), 8, COMPLETIONS, 0.0),
        ("cached", EMBEDDED, shared, 4, COMPLETIONS, 0.0),
        ("rare", EMBEDDED, asks(), 2, COMPLETIONS, 0.3),
        ("bursts", EMBEDDED, asks(), 12, COMPLETIONS, 0.5),
        ("opt", OPT, asks(), 4, COMPLETIONS, 0.0),
        ("opt_many", OPT, asks(max_tokens=96), 16, COMPLETIONS, 0.0),
        ("opt_alone", OPT, asks(), 1, COMPLETIONS, 0.0),
        ("opt_whole", OPT, asks(stream=False), 8, COMPLETIONS, 0.0),
        ("opt_prompts", OPT, of_tokens(400, 16), 4, COMPLETIONS, 0.0),
        ("opt_mixed", OPT, lambda i: of_tokens(16 + 37 * i % 300, 8 + 11 * i % 90)(i), 6,
         COMPLETIONS, 0.0),
        ("opt_sampled", OPT, asks(temperature=0.8, top_k=40), 4, COMPLETIONS, 0.0),
        ("opt_cached", OPT, shared, 4, COMPLETIONS, 0.0),
        ("opt_rare", OPT, asks(), 2, COMPLETIONS, 0.5),
        ("opt_bursts", OPT, asks(max_tokens=24), 8, COMPLETIONS, 1.0),
        ("limit", EMBEDDED, asks(max_tokens=100), 60, COMPLETIONS, 0.0),
        ("opt_limit", OPT, of_tokens(64, 64), 60, COMPLETIONS, 0.0),
        ("replicas", REPLICAS, asks(), 8, COMPLETIONS, 0.0),
    )
}  # fmt: skip
HEALTHY_LOADS["healthy_stages"] = Fault(
    (),
    STAGES,
    asks(),
    environment={"VLLM_PP_LAYER_PARTITION": "8,4"},  # the head is in the last
)
