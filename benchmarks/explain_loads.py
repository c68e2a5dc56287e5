"""Served engines with something wrong: their flags, their requests, and how clients behave."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from benchmarks.explain_injections import (
    Server,
    adapters,
    asked_for,
    beside_the_last,
    certificate,
    checkpoint,
    core_quota,
    few_files,
    frozen,
    full_disk,
    held_to_one_cpu,
    kv_folder,
    low_priority,
    low_weight,
    mistuned,
    neighbours,
    quota,
    slow_reads,
    small_pages,
    stopped,
    stopped_front,
    stopped_last,
    template,
    tokenizer,
    traced,
    wide_adapter,
)
from benchmarks.explain_strange import HERE, customized
from benchmarks.slow_link import KEY, behind_a_slow_link

Body = dict[str, Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
OPT = ("opt-125m", "--load-format", "dummy", "--dtype", "bfloat16")
EMBEDDED = ("embedded",)
WORDS = ("once", "upon", "a", "time", "there", "was", "little", "dog", "big", "red", "house")


def to_the_end(answer: HTTPResponse) -> bool:
    """Read a part of an answer; return whether more may follow."""
    return bool(answer.read(4096))


def not_at_all(answer: HTTPResponse) -> bool:
    """Leave as soon as the answer begins."""
    answer.read(32)
    return False


def drop_by_drop(answer: HTTPResponse) -> bool:
    """Read 256 bytes in 50 ms."""
    time.sleep(0.05)
    return bool(answer.read(256))


@dataclass(frozen=True)
class Fault:
    """A server and its load.

    Attributes:
        causes: right answers; the first is the one that was injected. Empty: nothing is amiss.
        body: the request with this number.
        during: what else happens while the server is watched.
        prepare: makes files in a folder, and returns further flags.
        start: what is in force while the server's process is started.
        reads: how clients read; see `to_the_end`.
        received: bytes that a client's socket holds; 0: the system's choice.
        pause: seconds between two requests of a client.
    """

    causes: tuple[str, ...]
    flags: tuple[str, ...]
    body: Callable[[int], Body]
    clients: int = 8
    path: str = COMPLETIONS
    during: Callable[[Server], Any] = lambda _: nullcontext()
    prepare: Callable[[Path], tuple[str, ...]] | None = None
    start: Callable[[], Any] = nullcontext
    environment: dict[str, str] = field(default_factory=dict)
    reads: Callable[[HTTPResponse], bool] = to_the_end
    received: int = 0
    pause: float = 0.0

    @property
    def server(self) -> tuple[object, ...]:
        """Return what two faults must share to share a server."""
        return self.flags, self.prepare, self.start, tuple(self.environment.items())


def text(seed: int, words: int = 12) -> str:
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) for _ in range(words))


def tokens(seed: int, count: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(10, 250) for _ in range(count)]


def asks(**fields: Any) -> Callable[[int], Body]:
    """Return bodies of short prompts with these fields."""
    usual = {"max_tokens": 48, "temperature": 0.0, "ignore_eos": True, "stream": True}
    return lambda i: {"prompt": text(i)} | usual | fields


def of_tokens(prompt: int, output: int, **fields: Any) -> Callable[[int], Body]:
    """Return bodies with fresh prompts of this many tokens."""
    return lambda i: {
        "prompt": tokens(i + 1000, prompt), "max_tokens": output, "ignore_eos": True,
    } | fields  # fmt: skip


def chats(i: int) -> Body:
    return {"messages": [{"role": "user", "content": text(i)}], "max_tokens": 32, "stream": True}


def salted(i: int) -> Body:
    return {"prompt": tokens(-1, 448), "max_tokens": 4, "cache_salt": f"user {i}"}


def shifted(i: int) -> Body:
    return {"prompt": tokens(i + 1, 32) + tokens(-2, 448), "max_tokens": 4}


def stamped(i: int) -> Body:
    """Return a long text behind a time, which has not always as many tokens."""
    time_of = f"{i % 12 + 1}/{i % 28 + 1} {i % 24}:{i * 7 % 60}:{i * 13 % 60}.{i * 7919 % 1000} "
    return {"prompt": time_of + text(-4, 200), "max_tokens": 4}


def shared(i: int) -> Body:
    return {"prompt": tokens(-3, 448) + tokens(i + 1, 16), "max_tokens": 4}


def schema(i: int) -> Body:
    """Return a request with a schema that nobody asked for before."""
    names = [f"field_{i}_{n}" for n in range(60)]
    kinds = {name: {"enum": [f"{name}_{v}" for v in range(20)]} for name in names}
    wanted = {"type": "object", "properties": kinds, "required": names}
    return asks(max_tokens=4, structured_outputs={"json": wanted})(i)


def chosen(i: int) -> Body:
    """Return a request with four hundred choices of its own."""
    choices = [f"answer number {i} {n}" for n in range(400)]
    return asks(max_tokens=8, structured_outputs={"choice": choices})(i)


def edited(i: int) -> Body:
    return asks(logit_bias={str(t): -1 for t in range(300)}, bad_words=["sat", "ran"])(i)


def beside_streams(i: int) -> Body:
    """Return streams, and for each two a long prompt."""
    if i % 3 == 2:
        return of_tokens(480, 2)(i)
    return of_tokens(16, 100, stream=True)(i)


def of_eight(i: int) -> Body:
    """Return prompts that begin with one of eight texts."""
    return of_tokens(0, 4)(i) | {"prompt": tokens(-30 - i % 8, 448) + tokens(i, 10)}


def mostly_refused(i: int) -> Body:
    """Return prompts of which two in three are longer than the context."""
    return of_tokens(48 if i % 3 == 0 else 200, 8)(i)


TIGHT = ("--max-num-seqs", "32", "--max-model-len", "512")
STAGES = (*OPT, "--pipeline-parallel-size", "2")
REPLICAS = (*OPT, "--data-parallel-size", "2", "--num-gpu-blocks-override", "400")
POOR_DRAFTER = {
    "method": "suffix",
    "num_speculative_tokens": 7,
    "num_speculative_tokens_per_batch_size": [[1, 64, 7]],
    "synthetic_acceptance_rate": 0.05,
}
SMALL = {
    "hidden_size": 256, "intermediate_size": 256, "vocab_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
HYBRID = (
    "qwen3-next-4l", *OPT[1:], "--hf-overrides", json.dumps(SMALL), "--max-model-len", "1024",
    "--max-num-seqs", "4",
)  # fmt: skip
FAULTS: dict[str, Fault] = {
    # Clients of one server without a fault of its own.
    "salt": Fault(("salted_prefixes",), EMBEDDED, salted, clients=4),
    "first_line": Fault(("shifted_prefixes",), EMBEDDED, shifted, clients=4),
    "timestamp": Fault(("shifted_prefixes",), EMBEDDED, stamped, clients=4),
    "many_choices": Fault(("many_choices",), EMBEDDED, asks(n=16)),
    "logprobs": Fault(("logprobs",), EMBEDDED, asks(logprobs=20)),
    "prompt_logprobs": Fault(
        ("prompt_logprobs",), EMBEDDED, of_tokens(400, 2, prompt_logprobs=5), clients=2
    ),
    "penalties": Fault(
        ("penalties",), EMBEDDED, asks(presence_penalty=0.4, frequency_penalty=0.3), clients=16
    ),
    "edits": Fault(("token_edits",), EMBEDDED, edited, clients=16),
    "grammar": Fault(
        ("structures",), EMBEDDED,
        asks(max_tokens=128, structured_outputs={"regex": "([a-z]+ ){50,200}"}), clients=16,
    ),
    "compilation": Fault(("structures",), EMBEDDED, schema),
    "choices": Fault(("structures",), EMBEDDED, chosen),
    "http": Fault(("http_overload",), EMBEDDED, of_tokens(1, 1), clients=32),
    "leaving": Fault(("aborted_requests",), EMBEDDED, asks(max_tokens=400), reads=not_at_all),
    "unmet_stop": Fault(
        ("unmet_stops",), EMBEDDED, asks(max_tokens=200, stop=["</answer>"]), clients=4
    ),
    "one_client": Fault(("few_clients",), EMBEDDED, asks(), clients=1),
    "scrapes": Fault(("scrapes",), EMBEDDED, asks(), clients=2, during=asked_for("/metrics", 0.01)),
    "polls": Fault(
        ("scrapes",), EMBEDDED, asks(), clients=2, during=asked_for("/health", 0.0, clients=4)
    ),
    "slow_reader": Fault(
        ("slow_client",), EMBEDDED, asks(max_tokens=900), reads=drop_by_drop, received=2304
    ),
    "stopped": Fault(("stopped",), EMBEDDED, asks(), during=stopped),
    "stopped_front": Fault(("stopped",), EMBEDDED, asks(), during=stopped_front),
    "frozen": Fault(("stopped",), EMBEDDED, asks(), during=frozen),
    "traced": Fault(("traced",), EMBEDDED, asks(), during=traced),
    "dev_mode": Fault(("python_debugging",), EMBEDDED, asks(), environment={"PYTHONDEVMODE": "1"}),
    "tracemalloc": Fault(
        ("python_debugging",), EMBEDDED, asks(), environment={"PYTHONTRACEMALLOC": "5"}
    ),
    "slow_link": Fault(("slow_link",), OPT, asks(), prepare=behind_a_slow_link, environment=KEY),
    **{
        name: Fault(
            (cause,), EMBEDDED, asks(), prepare=customized(name), environment=HERE
        )
        for name, cause in (
            ("sleeps", "foreign_code"), ("computes", "foreign_code"),
            ("delays_streams", "foreign_code"), ("telemetry", "foreign_code"),
            ("collects", "garbage_collection"),
        )
    },
    "tokenizer_sleeps": Fault(
        ("blocked",), EMBEDDED, lambda i: chats(i) | {"max_tokens": 8}, path=CHAT,
        prepare=customized("tokenizer_sleeps"), environment=HERE,
    ),
    "core_quota": Fault(("cpu_quota",), EMBEDDED, asks(), during=core_quota),
    "low_weight": Fault(("low_priority",), EMBEDDED, asks(), during=low_weight),
    "refused_all": Fault(("refused_requests",), EMBEDDED, of_tokens(1100, 8)),
    "files": Fault(("open_files",), EMBEDDED, asks(), clients=16, during=few_files),
    # Servers with something wrong.
    "seats": Fault(("queueing",), (*EMBEDDED, "--max-num-seqs", "2"), asks()),
    "one_seat": Fault(("queueing",), (*EMBEDDED, "--max-num-seqs", "1"), of_tokens(480, 24)),
    "refusals": Fault(
        ("queueing", "refused_requests"),
        (*EMBEDDED, "--max-num-seqs", "2", "--max-queued-requests", "2"), asks(), clients=16,
    ),
    "no_cache": Fault(
        ("prefix_misses",), (*EMBEDDED, "--no-enable-prefix-caching"), shared, clients=4
    ),
    "few_states": Fault(
        ("state_misses",), (*HYBRID, "--kv-cache-memory-bytes", "12MiB"), of_eight, clients=4
    ),
    "tiny_kv": Fault(
        ("kv_cache_too_small", "preemption"),
        (*EMBEDDED, *TIGHT, "--num-gpu-blocks-override", "48"), of_tokens(128, 64), clients=24,
    ),
    "preemption": Fault(
        ("preemption", "kv_cache_too_small"),
        (*EMBEDDED, *TIGHT, "--num-gpu-blocks-override", "64"), of_tokens(8, 300), clients=24,
    ),
    "slow_disk": Fault(
        ("slow_disk",), (*EMBEDDED, *TIGHT, "--num-gpu-blocks-override", "70"),
        lambda i: {"prompt": tokens(-10 - i % 6, 480), "max_tokens": 2}, clients=2,
        prepare=kv_folder, during=slow_reads,
    ),
    "full_disk": Fault(
        ("failed_writes",), (*EMBEDDED, *TIGHT, "--num-gpu-blocks-override", "70"),
        lambda i: {"prompt": tokens(i + 5000, 480), "max_tokens": 2}, clients=2,
        prepare=kv_folder, during=full_disk,
    ),
    "short_context": Fault(
        ("refused_requests",), (*EMBEDDED, "--max-model-len", "128"), mostly_refused
    ),
    "lora": Fault(
        ("adapter_seats",), EMBEDDED, lambda i: asks(model="abcd"[i % 4])(i), prepare=adapters
    ),
    "wide_adapter": Fault(("adapters",), EMBEDDED, asks(model="a"), prepare=wide_adapter),
    "tls": Fault(("tls",), EMBEDDED, asks(max_tokens=2), clients=16, prepare=certificate),
    "tokenizer": Fault(
        ("tokenization",), EMBEDDED, lambda i: asks(prompt=text(i, 700), max_tokens=4)(i),
        prepare=tokenizer,
    ),
    "template": Fault(
        ("tokenization",), EMBEDDED, lambda i: chats(i) | {"max_tokens": 2, "stream": False},
        path=CHAT, prepare=template,
    ),
    "long_prompts": Fault(
        ("long_prompts",), (*EMBEDDED, "--max-num-batched-tokens", "4096"), beside_streams,
        clients=10,
    ),
    "chunks": Fault(
        ("small_chunks",), (*OPT, "--max-num-batched-tokens", "8", "--max-num-seqs", "4"),
        of_tokens(256, 4), clients=4,
    ),
    "stretch": Fault(
        ("small_chunks",), (*OPT, "--max-itl-stretch", "1.001"), beside_streams, clients=10
    ),
    "many_steps": Fault(
        ("long_turns",), (*EMBEDDED, "--num-scheduler-steps", "256"),
        lambda i: asks(max_tokens=(4, 400)[i % 2])(i),
    ),
    "drafter": Fault(
        ("poor_drafts",), (*OPT, "--speculative-config", json.dumps(POOR_DRAFTER)), asks()
    ),
    "ranks": Fault(("needless_ranks",), (*OPT, "--tensor-parallel-size", "2"), asks()),
    "slow_rank": Fault(
        ("rank_imbalance", "needless_ranks"), (*OPT, "--tensor-parallel-size", "2"), asks(),
        during=beside_the_last,
    ),
    "uneven_replicas": Fault(
        ("slow_replica", "busy_neighbour"), REPLICAS, asks(), during=beside_the_last
    ),
    "stopped_stage": Fault(("stopped",), STAGES, asks(), during=stopped_last),
    "uneven_stages": Fault(
        ("slow_stage",), STAGES, asks(), environment={"VLLM_PP_LAYER_PARTITION": "3,9"}
    ),
    "stopped_replica": Fault(("stopped",), REPLICAS, asks(), during=stopped_last),
    "few_threads": Fault(("few_threads",), (*OPT, "--num-threads", "1"), asks()),
    "threads": Fault(("too_many_threads",), (*OPT, "--num-threads", "8"), asks()),
    "float32": Fault(("wide_weights",), (*OPT[:3], "--dtype", "float32"), asks()),
    "float_seats": Fault(
        ("wide_weights", "queueing"),
        (*OPT[:3], "--dtype", "float32", "--max-num-seqs", "2"), asks(),
    ),
    "thread_no_cache": Fault(
        ("prefix_misses", "few_threads"),
        (*OPT, "--num-threads", "1", "--no-enable-prefix-caching"), shared, clients=4,
    ),
    "eager": Fault(("dispatch_overhead",), (*EMBEDDED, "--enforce-eager"), asks()),
    "kv_float": Fault(
        ("wide_weights", "kv_cache_too_small"),
        (*OPT[:3], "--dtype", "float32", *TIGHT, "--num-gpu-blocks-override", "40"),
        of_tokens(128, 64), clients=12,
    ),
    "reference": Fault(("reference_ops",), (*OPT, "--ops", "reference"), asks()),
    "isa": Fault(("forced_isa",), OPT, asks(), environment={"QUIRE_CPU_ISA": "portable"}),
    "unkept": Fault(
        ("cold_start",), ("./model", "--pack-cache-bytes", "0"), asks(max_tokens=16), clients=4,
        prepare=checkpoint, environment={"QUIRE_CACHE_DIR": "."},
    ),
    "mistuned": Fault(
        ("untuned_kernels",), OPT, asks(), prepare=mistuned, environment={"QUIRE_CACHE_DIR": "."}
    ),
    "fp8": Fault(("decoded_weights",), (*OPT, "--quantization", "fp8"), asks()),
    "small_pages": Fault(("huge_pages_off",), OPT, asks(), clients=4, start=small_pages),
    "quota": Fault(("cpu_quota",), OPT, asks(), during=quota),
    "one_cpu": Fault(("affinity", "too_many_threads"), OPT, asks(), during=held_to_one_cpu(True)),
    "core_cpu": Fault(("affinity",), OPT, asks(), during=held_to_one_cpu(False)),
    "neighbours": Fault(("busy_neighbour",), OPT, asks(), during=neighbours),
    "low_priority": Fault(("low_priority", "busy_neighbour"), OPT, asks(), during=low_priority),
}  # fmt: skip
"""Faults by name. Those that share a server stand together."""
