"""Ray without Ray: the process that talks to it fails, and says why."""

from __future__ import annotations

import dataclasses

import pytest

from quire.core.config import ClusterConfig
from quire.core.errors import ConfigError, EngineDeadError
from quire.core.extras import installed
from quire.executor.choice import make_executor
from tests.unit.executor.test_nodes import nodes_config


@pytest.mark.skipif(installed("ray"), reason="Ray is installed")
def test_without_ray_the_start_says_what_to_install() -> None:
    whole = nodes_config()
    cluster = dataclasses.replace(whole.cluster, flags="{}")
    executor = make_executor(dataclasses.replace(whole, cluster=cluster))
    with pytest.raises(ConfigError, match=r"pip install 'quire\[ray\]'"):
        executor.start()


def test_a_process_that_ends_at_once_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    whole = nodes_config()
    cluster = ClusterConfig(2, "127.0.0.1", whole.cluster.master_port, flags="{}")
    executor = make_executor(dataclasses.replace(whole, cluster=cluster))
    with pytest.raises(EngineDeadError, match="talks to Ray ended with status 1"):
        executor.start()
