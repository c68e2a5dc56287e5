"""Evidence of one fault each, made up."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.messages import StageStats
from quire.explain.evidence import Evidence, Platform
from quire.explain.host import HostUse, Worker
from quire.explain.standing import Standing
from quire.system.stacks import Place, Stacks
from tests.unit.explain.made import LIMITS, healthy, profile

UNBOUND = profile(("linear", "layers.0.mlp.up", 9.0, 10.0, 40.0), model_seconds=9.1)
"""Operations that are at no limit."""


SLOW: dict[str, Any] = {"steps": 200, "step_sizes": [(8.0, 200)], "computed_tokens": 1600}
"""A fifth of the healthy engine's steps in the same time."""


def stacks(*places: Place, collecting: float = 0.0) -> Stacks:
    """Return ten seconds of one process."""
    return Stacks(1, 10.0, list(places), collecting)


def drafting(accepted: int, **fields: object) -> Evidence:
    """Half of the drafts' rows are time that plain steps would not take."""
    config = '{"method": "ngram", "num_speculative_tokens": 7}'
    shape = {"step_sizes": [(64.0, 1000)], "computed_tokens": 64000, "steps": 1000}
    return healthy(
        args={"speculative_config": config},
        **shape,
        drafted_passes=8000,
        draft_tokens=56000,
        accepted_tokens=accepted,
        **fields,
    )


SLEEP = Place("MainThread", "/x/sitecustomize.py:7 slow", True, 4.0, 3.9)
FAULTS: dict[str, tuple[Evidence, str | None]] = {
    "foreign_code": (
        msgspec.structs.replace(healthy(), stacks=[stacks(), stacks(SLEEP)]),
        "a start without /x/sitecustomize.py",
    ),
    "blocked": (
        healthy(
            ops=UNBOUND,
            around={"standing": [Standing(9, "process", 0.5, "pipe_write", computes=True)]},
        ),
        "py-spy dump",
    ),
    "garbage_collection": (
        msgspec.structs.replace(healthy(), stacks=[stacks(), stacks(collecting=3.0)]),
        "no gc.set_threshold",
    ),
    "dispatch_overhead": (
        healthy(
            args={"enforce_eager": True},
            ops=profile(("linear", "layers.0.mlp.up", 4.0, 10.0, 40.0)),
        ),
        "--no-enforce-eager",
    ),
    "idle_gaps": (
        healthy(parts={"receive": 4.0}, ops=UNBOUND),
        "--async-scheduling",
    ),
    "rank_imbalance": (
        healthy(ops=msgspec.structs.replace(UNBOUND, rank_waits=[4.5, 4.5, 0.0, 4.5])),
        "--num-threads",
    ),
    "memory_bandwidth": (
        healthy(ops=profile(("linear", "layers.0.mlp.up", 9.0, 36.0, 20.0), model_seconds=9.1)),
        "--quantization",
    ),
    "compute": (
        healthy(
            ops=profile(("linear", "layers.0.mlp.up", 9.0, 1.0, 1200.0), model_seconds=9.1),
            step_sizes=[(2048.0, 100)],
            computed_tokens=204_800,
            prompt_tokens=204_000,
        ),
        "--quantization",
    ),
    "few_threads": (
        healthy(args={"num_threads": 1}, ops=UNBOUND),
        "--num-threads 4",
    ),
    "wide_weights": (
        healthy(args={"dtype": "float32"}, ops=UNBOUND),
        "--dtype bfloat16",
    ),
    "busy_neighbour": (
        healthy(
            ops=UNBOUND,
            host=HostUse(10.0, 4, busy=39.0, own=29.0, steal=0.0, waited=12.0),
        ),
        "--num-threads 4",
    ),
    "kv_cache_too_small": (
        healthy(
            ops=UNBOUND,
            waiting=20.0,
            kv_share=0.9,
            kv_blocks=200,
            args={"num_gpu_blocks_override": 200},
        ),
        "--num-gpu-blocks-override 700",
    ),
    "preemption": (
        healthy(
            ops=UNBOUND,
            preemptions=50,
            computed_tokens=88_000,
            step_sizes=[(8.0, 900), (808.0, 100)],
            kv_share=0.9,
        ),
        "--gpu-memory-utilization",
    ),
    "prefix_misses": (
        healthy(
            ops=UNBOUND,
            args={"enable_prefix_caching": False},
            prompt_tokens=100_000,
            repeated_tokens=90_000,
            requests=100,
            computed_tokens=108_000,
            step_sizes=[(8.0, 950), (2000.0, 50)],
        ),
        "--enable-prefix-caching",
    ),
    "state_misses": (
        healthy(
            ops=UNBOUND,
            args={"model": "qwen3-next-4l"},
            prompt_tokens=100_000,
            repeated_tokens=90_000,
            requests=100,
            computed_tokens=108_000,
            step_sizes=[(8.0, 950), (2000.0, 50)],
            kv_held=0.3,
        ),
        "--kv-offloading-size 2",
    ),
    "queueing": (
        healthy(ops=UNBOUND, args={"max_num_seqs": 8}, waiting=24.0),
        "--max-num-seqs 32",
    ),
    "encoder": (
        healthy(parts={"encode": 6.0}, ops=UNBOUND),
        "smaller images",
    ),
    "image_preparation": (
        healthy(parts={"idle": 7.0, "images": 19.0}, ops=UNBOUND),
        "smaller images",
    ),
    "tokenization": (
        healthy(parts={"idle": 7.0, "tokenize": 9.5}, ops=UNBOUND),
        "--tokenizer-pool-size 2",
    ),
    "slow_client": (
        healthy(ops=UNBOUND, slow_outputs=4000),
        None,
    ),
    "aborted_requests": (
        healthy(ops=UNBOUND, ended=40, aborted=30, aborted_tokens=6000),
        "a longer time-out",
    ),
    "refused_requests": (
        healthy(
            ops=UNBOUND,
            args={"max_model_len": 256},
            mix={},
            refused={"context_length_exceeded": 8, "queue_full": 90},
        ),
        "--max-model-len 2048",
    ),
    "unmet_stops": (
        healthy(ops=UNBOUND, mix={"stops": 8}, ended=8, cut=8),
        None,
    ),
    "few_clients": (
        healthy(ops=UNBOUND, running=1.0, demand=1, step_sizes=[(1.0, 1000)]),
        None,
    ),
    "low_priority": (
        healthy(
            ops=UNBOUND,
            around={"nice": 10},
            host=HostUse(10.0, 4, 39.0, 29.0, 0.0, 12.0, [0.0, 8.0, 6.0, 6.0, 9.9]),
        ),
        "renice",
    ),
    "memory_pressure": (
        healthy(ops=UNBOUND, around={"memory_wait": 3.0}),
        "--gpu-memory-utilization 0.35",
    ),
    "open_files": (
        healthy(ops=UNBOUND, around={"open_files": 1020, "most_files": 1024}),
        "ulimit -n",
    ),
    "long_turns": (
        healthy(ops=UNBOUND, args={"num_scheduler_steps": 64}, itl_p50=0.01, itl_p99=0.9),
        "--num-scheduler-steps 8",
    ),
    "too_many_threads": (
        healthy(ops=UNBOUND, args={"num_threads": 16}, **SLOW),
        "--num-threads 4",
    ),
    "reference_ops": (
        healthy(ops=UNBOUND, platform=Platform("torch avx2", "avx2"), **SLOW),
        "--ops auto",
    ),
    "small_chunks": (
        healthy(
            ops=UNBOUND,
            args={"max_num_batched_tokens": 64},
            step_sizes=[(8.0, 500), (64.0, 500)],
            computed_tokens=36_000,
            prompt_tokens=32_000,
        ),
        "--max-num-batched-tokens 2048",
    ),
    "adapter_seats": (
        healthy(
            ops=UNBOUND,
            args={"enable_lora": True, "max_loras": 1},
            adapters=6,
            running=2.0,
            waiting=10.0,
        ),
        "--max-loras 6",
    ),
    "swapping": (
        healthy(ops=UNBOUND, around={"swap_rate": 1e8, "swapped": 1 << 30}),
        "--gpu-memory-utilization 0.35",
    ),
    "offload_reads": (
        healthy(
            ops=UNBOUND,
            args={"cpu_offload_gb": 0.1},
            around={"read_rate": 5e8, "free": 16 << 30, "disk_wait": 20.0},
        ),
        "--cpu-offload-gb 0",
    ),
    "needless_ranks": (
        healthy(
            args={"tensor_parallel_size": 4, "num_threads": 4},
            ops=msgspec.structs.replace(UNBOUND, rank_waits=[3.0, 3.0, 3.0, 3.0]),
        ),
        "--tensor-parallel-size 1",
    ),
    "long_prompts": (
        healthy(
            ops=UNBOUND,
            args={"max_num_batched_tokens": 4096},
            itl_p50=0.01,
            itl_p99=0.2,
            step_sizes=[(8.0, 500), (3000.0, 20)],
            computed_tokens=64_000,
            prompt_tokens=60_000,
        ),
        "--max-itl-stretch 1.5",
    ),
    "slow_disk": (
        healthy(
            ops=UNBOUND,
            args={"kv_offloading_dir": "/tmp", "kv_offloading_size": 1.0},
            loaded_blocks=500,
            around={"disk_wait": 20.0},
        ),
        "--kv-offloading-size 2",
    ),
    "failed_writes": (
        healthy(
            ops=UNBOUND,
            args={"kv_offloading_dir": "/full", "kv_offloading_size": 1.0},
            loaded_blocks=500,
            loading=4.0,
            unsaved_blocks=40,
        ),
        "room in /full",
    ),
    "cpu_quota": (
        healthy(ops=UNBOUND, around={"quota": 1.5, "throttled": 12.0}),
        "--num-threads 1",
    ),
    "affinity": (
        msgspec.structs.replace(
            healthy(ops=UNBOUND, args={"num_threads": 1}, around={"allowed": 1}), cores=1
        ),
        "taskset --cpu-list 0-3",
    ),
    "stopped": (healthy(ops=UNBOUND, around={"stopped": 0.4}), "kill -CONT PID"),
    "slow_stage": (
        healthy(
            args={"pipeline_parallel_size": 2},
            ops=UNBOUND,
            host=HostUse(
                10.0, 4, 20.0, 20.0, 0.0, 6.0, workers=[Worker(7, 3.0, 0.0), Worker(8, 4.0, 5.5)]
            ),
        ),
        "cores of its own for stage 1",
    ),
    "slow_link": (
        healthy(
            args={"pipeline_parallel_size": 2, "nnodes": 2},
            ops=UNBOUND,
            stages=[StageStats(2.0, 5.0, 4_000_000, 500), StageStats(2.5)],
        ),
        "a faster network between node 0 and node 1",
    ),
    "traced": (healthy(ops=UNBOUND, around={"tracer": 99}), "the end of process 99"),
    "python_debugging": (
        healthy(ops=UNBOUND, around={"debugging": ["PYTHONDEVMODE"]}),
        "a start without PYTHONDEVMODE",
    ),
    "slow_clock": (healthy(ops=UNBOUND, around={"clock": 0.4}), "cpupower"),
    "huge_pages_off": (healthy(ops=UNBOUND, around={"huge_pages": "never"}), "echo madvise"),
    "remote_memory": (
        healthy(ops=UNBOUND, around={"nodes": 2, "remote": 0.6}),
        "--tensor-parallel-size 2",
    ),
    "stolen_cpu": (
        healthy(ops=UNBOUND, host=HostUse(10.0, 4, busy=36.0, own=26.0, steal=10.0, waited=0.0)),
        "a machine whose CPUs are not shared",
    ),
    "forced_isa": (
        healthy(ops=UNBOUND, platform=Platform("portable", "avx512_vnni"), **SLOW),
        "unset QUIRE_CPU_ISA",
    ),
    "cold_start": (
        healthy(platform=Platform("avx2", "avx2", loading=9.0, unkept=2_000_000_000)),
        "a QUIRE_CACHE_DIR that lasts",
    ),
    "untuned_kernels": (
        healthy(
            ops=UNBOUND,
            platform=Platform("avx2", "avx2", tuned=4),
            limits=msgspec.structs.replace(LIMITS, reads={"bfloat16": LIMITS.bandwidth}),
            **SLOW,
        ),
        "quire tune kernels --model opt-125m",
    ),
    "slow_kernels": (
        healthy(
            ops=UNBOUND,
            platform=Platform("avx2", "avx2"),
            limits=msgspec.structs.replace(LIMITS, reads={"bfloat16": LIMITS.bandwidth}),
            **SLOW,
        ),
        "quire bench kernels",
    ),
    "decoded_weights": (
        healthy(args={"quantization": "fp8"}, ops=UNBOUND, platform=Platform("avx2", "avx2")),
        "--quantization int8",
    ),
    "slow_replica": (
        healthy(
            args={"data_parallel_size": 2},
            ops=UNBOUND,
            host=HostUse(
                10.0,
                4,
                39.0,
                15.0,
                0.0,
                5.0,
                waits=[5.0, 0.1],
                workers=[Worker(7, 9.8, 0.1), Worker(8, 4.9, 5.0)],
            ),
        ),
        "cores of its own for replica 1 (taskset of process 8)",
    ),
    "logprobs": (
        healthy(
            ops=UNBOUND,
            parts={"sample": 3.0, "core_send": 1.0},
            mix={"logprobs": 8, "top_logprobs": 160},
        ),
        "logprobs=0",
    ),
    "prompt_logprobs": (
        healthy(ops=UNBOUND, parts={"sample": 2.0}, mix={"prompt_logprobs": 8}),
        "no prompt_logprobs",
    ),
    "penalties": (
        healthy(ops=UNBOUND, parts={"sample": 2.0}, mix={"penalties": 8}),
        "fewer requests with penalties",
    ),
    "token_edits": (
        healthy(ops=UNBOUND, parts={"sample": 2.0}, mix={"edits": 8}),
        "fewer requests with edits",
    ),
    "structures": (
        healthy(ops=UNBOUND, parts={"sample": 2.0}, mix={"structures": 8}),
        "fewer requests with structures",
    ),
    "many_choices": (
        healthy(ops=UNBOUND, mix={"requests": 2, "sequences": 16}, waiting=6.0),
        None,
    ),
    "adapters": (
        healthy(
            ops=profile(
                ("linear", "layers.0.mlp.up", 7.0, 10.0, 40.0),
                ("lora", "layers.0.mlp.up", 2.0, 1.0, 1.0),
                model_seconds=9.1,
            )
        ),
        "a merged model",
    ),
    "salted_prefixes": (
        healthy(
            ops=UNBOUND,
            prompt_tokens=100_000,
            requests=100,
            computed_tokens=108_000,
            step_sizes=[(8.0, 950), (2000.0, 50)],
            mix={"salted_tokens": 90_000},
        ),
        "one cache_salt",
    ),
    "shifted_prefixes": (
        healthy(
            ops=UNBOUND,
            prompt_tokens=100_000,
            requests=100,
            computed_tokens=108_000,
            step_sizes=[(8.0, 950), (2000.0, 50)],
            mix={"shifted_tokens": 90_000},
        ),
        "the changing part",
    ),
    "detokenization": (
        healthy(ops=UNBOUND, parts={"idle": 4.0, "detokenize": 8.0}),
        "stream=false",
    ),
    "http_overload": (
        healthy(ops=UNBOUND, parts={"idle": 4.0, "http": 9.0}),
        "smaller or fewer requests",
    ),
    "poor_drafts": (
        drafting(500, parts={"prepare": 3.0}, draft_seconds=2.9),
        "without --speculative-config",
    ),
    "tls": (
        healthy(ops=UNBOUND, parts={"idle": 4.0, "http": 6.0}, tls=True),
        "a proxy",
    ),
    "scrapes": (
        healthy(ops=UNBOUND, polls={"/metrics": 5000}, scrape_seconds=2.0),
        "scrape_interval",
    ),
}
"""Cause → its evidence, and how the flag begins that helps, if one does."""
