"""What each of several replicas gets of a machine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.frontend.client.replica_configs import replica_configs
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.gpu_facts import Gpu
from quire.system.hardware import Hardware
from quire.utils import FlexibleArgumentParser

MACHINE = Hardware(cores=8, memory_bytes=64 * 2**30, available_bytes=60 * 2**30)
HYBRID = "-dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2"


def args(count: int, **fields: Any) -> EngineArgs:
    return EngineArgs("qwen3-0.6b", load_format="dummy", data_parallel_size=count, **fields)


def test_replicas_share_cores_and_memory() -> None:
    whole, half = (resolve(args(count), MACHINE) for count in (1, 2))
    assert (whole.config.num_threads, half.config.num_threads) == (8, 4)
    assert half.config.memory_budget_bytes == whole.config.memory_budget_bytes // 2
    assert any("2 times as many threads and as much memory" in note for note in half.notes)
    assert resolve(args(2, num_threads=6), MACHINE).config.num_threads == 3
    ranks = resolve(args(2, tensor_parallel_size=2), MACHINE).config
    assert (ranks.tensor_parallel_size, ranks.num_threads) == (2, 4)


def test_each_replica_has_its_cards() -> None:
    cards = replace(MACHINE, gpu=Gpu("A GPU", 80 * 2**30, 5))
    config = resolve(args(2, tensor_parallel_size=2, ops="reference"), cards).config
    assert config.device == "cuda"
    assert [part.first_gpu for part in replica_configs(config, range(2))] == [0, 2]
    assert [part.first_gpu for part in replica_configs(config, range(1))] == [0]
    many = args(3, tensor_parallel_size=2, ops="reference", num_threads=6)
    assert resolve(many, cards).config.device == "cpu"
    with pytest.raises(ConfigError, match="needs 2 of the GPUs, and the driver shows 5"):
        resolve(replace(many, device="cuda"), cards)


def test_replicas_for_prompts_and_for_answers() -> None:
    halves = args(1, prefill_replicas=1, decode_replicas=3)
    assert halves == args(4, prefill_replicas=1, decode_replicas=3)
    config = resolve(halves, MACHINE).config
    assert config.num_threads == 2
    assert (config.transfer.role, config.transfer.prefill_replicas) == ("kv_both", 1)
    assert config.transfer.shares_memory
    assert config.tiers.directory is None


@pytest.mark.parametrize(
    ("flags", "replicas"),
    [
        ("-dp 2", range(2)),
        ("-dp 2 --data-parallel-size-local 2 --data-parallel-address 10.0.0.1", range(2)),
        (HYBRID, range(2)),
        (f"{HYBRID} --data-parallel-start-rank 2", range(2, 4)),
        ("-dp 4 --data-parallel-size-local 2 --data-parallel-start-rank 2", range(2, 4)),
        ("-dp 4 --data-parallel-external-lb --data-parallel-rank 3", range(3, 4)),
        ("-dp 4 --data-parallel-rank 0 --data-parallel-rpc-port 13345", range(1)),
    ],
)
def test_a_server_has_some_of_the_replicas_behind_a_balancer(flags: str, replicas: range) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = EngineArgs.from_cli_args(parser.parse_args(flags.split()))
    events = '{"enable_kv_cache_events": true, "publisher": "zmq"}'
    given = replace(parsed, model="qwen3-0.6b", load_format="dummy", kv_events_config=events)
    config = resolve(given, MACHINE).config
    assert config.num_threads == 8 // len(replicas)
    parts = replica_configs(config, given.replicas)
    assert [part.kv_events.rank for part in parts if part.kv_events] == [*replicas]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"data_parallel_external_lb": True}, "needs data_parallel_rank"),
        ({"data_parallel_rank": 4}, "this server would have 4 to 4"),
        ({"data_parallel_rank": 1, "data_parallel_hybrid_lb": True}, "another mode"),
        (
            {
                "data_parallel_rank": 1,
                "data_parallel_hybrid_lb": True,
                "data_parallel_start_rank": 1,
                "data_parallel_size_local": 1,
            },
            "another mode",
        ),
        ({"data_parallel_size_local": 5}, "all machines together have 4"),
        ({"data_parallel_size_local": 2, "data_parallel_backend": "ray"}, "Ray chooses"),
        ({"data_parallel_size_local": 0, "data_parallel_hybrid_lb": True}, "has no replica"),
        ({"data_parallel_address": "10.0.0.1:80"}, "the port is --data-parallel-rpc-port"),
        ({"data_parallel_start_rank": 2}, "set data_parallel_size_local, too"),
        (
            {
                "data_parallel_rank": 1,
                "data_parallel_start_rank": 1,
                "data_parallel_size_local": 1,
            },
            "the replica is data_parallel_rank",
        ),
        (
            {
                "data_parallel_hybrid_lb": True,
                "data_parallel_size_local": 2,
                "data_parallel_start_rank": 3,
            },
            "this server would have 3 to 4",
        ),
        ({"data_parallel_rank": 1, "data_parallel_backend": "ray"}, "behind one server"),
        ({"data_parallel_rank": -1}, "must be at least 0"),
    ],
)
def test_numbers_of_replicas_that_do_not_fit(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve(args(4, **fields), MACHINE)


def test_replicas_on_ray_are_not_parts_of_this_machine() -> None:
    """Their machines get the arguments, without those of the front end."""
    whole, one = (resolve(args(count, data_parallel_backend="ray"), MACHINE) for count in (9, 1))
    assert (whole.config.num_threads, one.config.num_threads) == (8, 8)
    flags = EngineArgs(**json.loads(whole.config.cluster.flags))
    assert flags == EngineArgs("qwen3-0.6b", load_format="dummy", num_threads=8)
    assert one.config.cluster.flags == ""
    assert any("one replica needs no other machine" in note for note in one.notes)


@pytest.mark.parametrize(("local", "threads"), [(0, 8), (1, 8), (2, 4), (4, 2), (None, 2)])
def test_a_machine_is_divided_among_its_own_replicas(local: int | None, threads: int) -> None:
    """The others are on other machines, which know their CPUs."""
    given = args(4, data_parallel_size_local=local)
    config = resolve(given, MACHINE).config
    assert config.num_threads == threads
    assert [*given.far_replicas] == [*range(4 if local is None else local, 4)]
    one = replace(config, num_threads=1 if local == 1 else config.num_threads)
    parts = replica_configs(one, given.replicas, far=given.far_replicas)
    assert not any(part.cpus for part in parts[len(parts) if local is None else local :])
    assert {part.num_threads for part in parts} == {one.num_threads}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"device": "cuda"}, "--device cpu"),
        ({"kv_transfer_config": "{}"}, "blocks are handed over"),
        ({"nnodes": 2, "pipeline_parallel_size": 2}, "omit --nnodes"),
        ({"prefill_replicas": 1, "decode_replicas": 1}, "within a machine"),
    ],
)
def test_what_replicas_on_several_machines_cannot_do(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve(args(2, data_parallel_size_local=1, **fields), MACHINE)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"device": "cuda"}, "--device cpu"),
        ({"nnodes": 2, "pipeline_parallel_size": 2}, "omit --nnodes"),
        ({"distributed_executor_backend": "ray", "pipeline_parallel_size": 2}, "on one machine"),
        ({"prefill_replicas": 1, "decode_replicas": 1}, "within a machine"),
    ],
)
def test_what_replicas_on_ray_cannot_do(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve(args(2, data_parallel_backend="ray", **fields), MACHINE)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"count": 9}, "there are 8"),
        ({"count": 2, "num_threads": 1}, "num_threads is 1"),
        ({"count": 2, "device": "cuda"}, "needs 1 of the GPUs, and the driver shows 0"),
        ({"count": 2, "nnodes": 2, "pipeline_parallel_size": 2}, "omit --nnodes"),
        ({"count": 4, "tensor_parallel_size": 4}, "this machine has 2"),
        ({"count": 0}, "at least 1"),
        ({"count": 1, "prefill_replicas": 1}, "prefill_replicas needs decode_replicas"),
        ({"count": 2, "decode_replicas": 2}, "decode_replicas needs prefill_replicas"),
        ({"count": 4, "prefill_replicas": 1, "decode_replicas": 2}, "are 3, but this server has 4"),
        (
            {"count": 2, "prefill_replicas": 1, "decode_replicas": 1, "data_parallel_rank": 1},
            "are 2, but this server has 1",
        ),
    ],
)
def test_what_replicas_cannot_share(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve(args(**fields), MACHINE)
