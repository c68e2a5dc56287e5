"""`--kv-transfer-config`: what it sets, and what is refused."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.core.kv_sharing import TransferConfig
from quire.core.layers import ShortConvConfig
from quire.core.model_config import ModelConfig
from quire.resolve import transfer as module
from quire.resolve.arguments import EngineArgs
from quire.resolve.transfer import with_transfer

GIB = 2**30
MODEL = ModelConfig("llama", 50, 8, 8, 1, 1, 1, 8, 256)
PRODUCER = {"kv_connector": "ExampleConnector", "kv_role": "kv_producer"}


def resolved(config: dict[str, Any] | str, **flags: Any) -> tuple[EngineArgs, Any, list[str]]:
    notes: list[str] = []
    text = config if isinstance(config, str) else json.dumps(config)
    args = EngineArgs("m", kv_transfer_config=text, **flags)
    return *with_transfer(args, MODEL, notes), notes


def test_without_it_nothing_changes() -> None:
    args = EngineArgs("m")
    assert with_transfer(args, MODEL, []) == (args, None)


def test_a_folder_a_size_and_a_name() -> None:
    extra = {"shared_storage_path": "there", "backends": ["UCX"]}
    fields = {"kv_buffer_size": GIB, "engine_id": "p", "kv_load_failure_policy": "fail"}
    args, transfer, notes = resolved(
        PRODUCER | fields | {"kv_connector_extra_config": extra, "kv_rank": 0}
    )
    assert (args.kv_offloading_dir, args.kv_offloading_disk_size) == ("there", 1.0)
    assert transfer == TransferConfig("kv_producer", "p", "fail")
    assert any("kv_rank, backends has no effect" in note for note in notes)


def test_engines_of_a_user_meet_in_shared_memory() -> None:
    producer, _, _ = resolved(PRODUCER)
    consumer, transfer, _ = resolved({"kv_role": "kv_consumer"})
    assert producer.kv_offloading_dir == consumer.kv_offloading_dir
    assert str(producer.kv_offloading_dir).startswith("/dev/shm/quire-")
    assert not transfer.produces
    assert os.stat(producer.kv_offloading_dir).st_mode & 0o777 == 0o700
    there, _, _ = resolved(PRODUCER, kv_offloading_dir="d")
    assert there.kv_offloading_dir == "d"


@pytest.mark.parametrize("why", ["another user", "cannot be used"])
def test_a_folder_that_others_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    folder = tmp_path / f"quire-{os.getuid()}"
    if why == "another user":
        folder.symlink_to(tmp_path)
    else:
        folder.touch()
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path)
    with pytest.raises(ConfigError, match=why):
        resolved(PRODUCER)


@pytest.mark.parametrize(
    ("flags", "shares"),
    [
        ({}, sys.platform == "linux"),
        ({"speculative_config": {"method": "ngram"}}, False),
        ({"tensor_parallel_size": 2}, False),
        ({"pipeline_parallel_size": 2}, False),
        ({"ops": "reference"}, False),
    ],
)
def test_replicas_share_memory_or_a_folder(flags: dict[str, Any], shares: bool) -> None:
    args = EngineArgs("m", prefill_replicas=1, decode_replicas=1, **flags)
    found, transfer = with_transfer(args, MODEL, [])
    assert (transfer.shares_memory, found.kv_offloading_dir is None) == (shares, shares)
    recurrent = replace(MODEL, recurrent=ShortConvConfig(3, 8))
    _, transfer = with_transfer(args, recurrent, [])
    assert not transfer.shares_memory
    kept, _ = with_transfer(replace(args, kv_offloading_dir="d"), MODEL, [])
    assert kept.kv_offloading_dir == "d"


@pytest.mark.parametrize(
    ("config", "flags", "match"),
    [
        ("no json", {}, "is wrong"),
        ({"kv_connector": "ExampleConnector"}, {}, "kv_role"),
        (PRODUCER | {"kv_role": "kv_other"}, {}, "kv_other"),
        (PRODUCER | {"kv_connector": "NixlConector"}, {}, "NixlConnector"),
        (PRODUCER | {"kv_connector_module_path": "a.b"}, {}, "kv_connector_module_path"),
        (PRODUCER | {"kv_buffer_size": 0}, {}, "kv_buffer_size"),
        (PRODUCER | {"kv_load_failure_policy": "perhaps"}, {}, "perhaps"),
        (PRODUCER | {"kv_connector_extra_config": {"shared_storage_path": 1}}, {}, "no path"),
        (
            PRODUCER | {"kv_connector_extra_config": {"shared_storage_path": "a"}},
            {"kv_offloading_dir": "b"},
            "Name the folder once",
        ),
        (PRODUCER, {"enable_prefix_caching": False}, "without prefix caching"),
        (PRODUCER | {"kv_port": 70_000}, {}, "kv_port is 70000"),
        (PRODUCER | {"kv_port": 5}, {"tensor_parallel_size": 2}, "one process"),
        (PRODUCER | {"kv_port": 5}, {}, "needs a key"),
        (PRODUCER, {"prefill_replicas": 1, "decode_replicas": 1}, "prompts and answers"),
        (
            {"kv_role": "kv_both", "kv_port": 5},
            {"prefill_replicas": 1, "decode_replicas": 1},
            "omit kv_port",
        ),
    ],
)
def test_refusals(
    config: dict[str, Any] | str,
    flags: dict[str, Any],
    match: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QUIRE_CLUSTER_KEY", raising=False)
    with pytest.raises(ConfigError, match=match) as error:
        resolved(config, **flags)
    assert error.value.param == "kv_transfer_config"
