"""Ray Serve without Ray: a replica's flags, its load, and how many replicas a load needs."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from quire.cli.serve import add_arguments
from quire.core.errors import ConfigError
from quire.ray.replica import serve_flags
from quire.ray.scaling import load_in, replicas_wanted

DEPLOY = Path(__file__).parents[3] / "deploy" / "ray"


def metrics(running: int, waiting: int, usage: float) -> str:
    """A part of /metrics."""
    return (
        "# HELP vllm:num_requests_running Sequences in the batch.\n"
        f'vllm:num_requests_running{{model_name="m",engine="0"}} {running}\n'
        f'vllm:num_requests_waiting{{model_name="m",engine="0"}} {waiting}\n'
        f'vllm:kv_cache_usage_perc{{model_name="m",engine="0"}} {usage}\n'
        'vllm:num_requests_running_total{engine="0"} 77\n'
    )


@pytest.mark.parametrize(
    ("running", "waiting", "usage", "load"),
    [
        (0, 0, 0.0, 0.0),
        (9, 0, 2.5e-1, 0.25),
        (64, 0, 1.0, 1.0),
        (64, 64, 0.3, 2.0),
        (4, 1, 0.9, 1.25),
        (0, 3, 0.0, 4.0),
    ],
)
def test_the_load_is_that_of_the_kv_cache_or_of_the_queue(
    running: int, waiting: int, usage: float, load: float
) -> None:
    assert load_in(metrics(running, waiting, usage)) == {"load": load}


@pytest.mark.parametrize(
    ("loads", "unsent", "wanted"),
    [
        ([], 0, 0),
        ([0.0, 0.0], 0, 0),
        ([0.8], 0, 1),
        ([0.81], 0, 2),
        ([0.3, 0.3], 0, 1),
        ([2.0, 0.4], 0, 3),
        ([0.5], 5, 2),
        ([], 1, 2),
    ],
)
def test_replicas_follow_the_sum_of_loads(loads: list[float], unsent: int, wanted: int) -> None:
    """Requests that no replica has count as one more full replica."""
    found: dict[str, Any] = {"load": dict(enumerate(loads))} if loads else {}
    context = SimpleNamespace(aggregated_metrics=found, total_queued_requests=unsent)
    assert replicas_wanted(context) == (wanted, {})


def test_arguments_become_flags() -> None:
    args = {
        "model": "m", "num-threads": 2, "enable_lora": True, "async_scheduling": False,
        "speculative_config": {"method": "suffix"},
        "served_model_name": ["a", "b"],
    }  # fmt: skip
    assert serve_flags(args) == [
        "--model", "m", "--num-threads", "2", "--enable-lora", "--no-async-scheduling",
        "--speculative-config", '{"method": "suffix"}',
        "--served-model-name", "a", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"model": "m"}, "num_threads is None"),
        ({"num_threads": 2, "port": 1}, "port is set"),
        ({"num_threads": 2, "distributed_executor_backend": "ray"}, "backend is set"),
        ({"num_threads": 2, "nnodes": 2}, "nnodes is set"),
    ],
)
def test_arguments_that_a_replica_cannot_have(args: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        serve_flags(args)


def configs() -> list[dict[str, Any]]:
    """Both examples' configurations of Ray Serve."""
    own = yaml.safe_load((DEPLOY / "serve.yaml").read_text())
    service = yaml.safe_load((DEPLOY / "rayservice.yaml").read_text())
    return [own, yaml.safe_load(service["spec"]["serveConfigV2"])]


def test_the_examples_have_flags_and_functions_that_exist() -> None:
    own, service = (config["applications"] for config in configs())
    assert own == service
    [app] = own
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.parse_args(serve_flags(app["args"]))
    assert app["import_path"] == "quire.ray:build_app"
    policy = app["deployments"][0]["autoscaling_config"]["policy"]["policy_function"]
    assert policy == f"{replicas_wanted.__module__}:{replicas_wanted.__name__}"


def test_ray_accepts_the_examples() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="needs quire[ray]")
    for config in configs():
        [app] = schema.ServeDeploySchema.model_validate(config).applications
        [deployment] = app.deployments
        assert deployment.autoscaling_config["max_replicas"] == 4
