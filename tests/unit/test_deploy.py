"""deploy/ and docs/deploy.md: their flags, paths and users are real. Nothing is started."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from quire.cli import route, serve
from quire.cli.parser import Parser

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
CONTAINER = ROOT / "deploy" / "container"


def check_flags(words: list[str]) -> None:
    """Parse the flags of `quire serve`; an unknown one ends the test."""
    parser = Parser(prog="quire serve")
    serve.add_arguments(parser)
    parser.parse(words)


def settings(path: Path) -> dict[str, list[str]]:
    """A unit's or an environment file's assignments, by name."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def stages() -> list[dict[str, list[str]]]:
    """The stages of the container file: instructions by name, each with its values."""
    text = (CONTAINER / "Containerfile").read_text().replace("\\\n", " ")
    found: list[dict[str, list[str]]] = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            if name == "FROM":
                found.append({})
            found[-1].setdefault(name, []).append(value.strip())
    return found


def instructions() -> dict[str, list[str]]:
    """The last stage's instructions of the container file."""
    return stages()[-1]


def test_the_example_of_an_environment() -> None:
    given = settings(SYSTEMD / "quire.env.example")
    check_flags(shlex.split(given["QUIRE_FLAGS"][0]))
    assert given["QUIRE_API_KEY"]


def test_the_unit_finds_an_installation_and_reads_the_environment_last() -> None:
    unit = settings(SYSTEMD / "quire.service")
    assert unit["ExecStart"] == ["/usr/bin/env quire serve $QUIRE_FLAGS"]
    [path] = [value for value in unit["Environment"] if value.startswith("PATH=")]
    assert path.startswith("PATH=/opt/quire/bin:")
    assert unit["EnvironmentFile"] == ["/etc/quire/quire.env"]
    cache = f"/var/cache/{unit['CacheDirectory'][0]}"
    assert f"QUIRE_CACHE_DIR={cache}" in unit["Environment"][1]
    assert unit["DynamicUser"] == unit["NoNewPrivileges"] == ["yes"]
    assert unit["ProtectSystem"] == ["strict"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_unit() -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(SYSTEMD / "quire.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "quire.service" in line]
    assert not [line for line in told if "Unknown" in line or "Failed to parse" in line]
    assert done.returncode == 0 or "system bus" in done.stderr, done.stderr


def test_the_container_is_no_root_and_serves() -> None:
    found = instructions()
    [user] = found["USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert "HEALTHCHECK" in found
    assert "/health'" in found["HEALTHCHECK"][0]
    entry, command = (yaml.safe_load(found[name][0]) for name in ("ENTRYPOINT", "CMD"))
    assert entry[:2] == ["quire", "serve"]
    check_flags([*entry[2:], *command])
    port = entry[entry.index("--port") + 1]
    assert found["EXPOSE"] == [port]
    assert f":{port}/health" in found["HEALTHCHECK"][0]
    assert f"--owner={user.partition(':')[0]}" in found["RUN"][-1]


def test_the_container_is_made_of_what_is_there() -> None:
    build, last = stages()
    assert {*build, *last} <= {
        "FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL",
        "ENTRYPOINT", "CMD",
    }  # fmt: skip
    image, _, stage = build["FROM"][0].partition(" AS ")
    assert last["FROM"] == [image], "what is compiled in one image runs in the other"
    python = tuple(map(int, re.findall(r"python:(\d+)\.(\d+)-", image)[0]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert python >= tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    [source] = build["COPY"]
    assert source == ". /source"
    assert all((ROOT / name).exists() for name in ("pyproject.toml", "CMakeLists.txt", "csrc"))
    [copied] = last["COPY"]
    origin, path, where = copied.split()
    assert (origin, path) == (f"--from={stage}", where), "a virtual environment does not move"
    made, installed = build["RUN"][1:]
    assert made == f"python -m venv {where}"
    assert installed.startswith(f"{where}/bin/pip install ")
    assert installed.endswith(" /source")
    assert not [name for name in project["dependencies"] if name.startswith("torch")]
    environment = dict(re.findall(r"(\w+)=(\S+)", last["ENV"][0]))
    assert environment["PATH"].startswith(f"{where}/bin:")
    [cache] = last["VOLUME"]
    assert environment["QUIRE_CACHE_DIR"] == cache
    assert environment["HF_HOME"].startswith(f"{cache}/")
    assert last["RUN"][0].endswith(f" {cache}")
    assert project["scripts"]["quire"], "the entry point's program"


def test_compose_keeps_the_root_read_only() -> None:
    service: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"][
        "quire"
    ]
    check_flags(service["command"])
    assert service["read_only"] is True
    assert "/tmp" in service["tmpfs"]
    assert service["cap_drop"] == ["ALL"]
    assert (CONTAINER / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    [volume] = service["volumes"]
    assert volume.partition(":")[2] == instructions()["VOLUME"][0]


def test_files_that_the_guide_names_are_there() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    named = set(re.findall(r"deploy/[\w./]+\w", text))
    assert len(named) > 3
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    flags = set(re.findall(r"`(--[a-z-]+)`", text))
    for flag in flags:
        assert flag in (ROOT / "src/quire/cli/serve.py").read_text(), flag


def test_the_routers_find_their_servers() -> None:
    """Compose and Kubernetes: real flags, and every --replica is a server of the same file."""
    text = (CONTAINER / "compose.replicas.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    words = services["router"]["entrypoint"] + services["router"]["command"]
    assert {urlsplit(url).hostname for url in routed_to(words)} == {"one", "two"}
    for name in ("one", "two"):
        check_flags(services[name]["command"])
    objects = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/quire.yaml").read_text()))
    named = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in objects}
    servers = named["StatefulSet", "quire"]
    [server] = servers["template"]["spec"]["containers"]
    check_flags(server["args"])
    [router] = named["Deployment", "quire-router"]["template"]["spec"]["containers"]
    hosts = [f"quire-{i}.{servers['serviceName']}" for i in range(servers["replicas"])]
    found = routed_to(router["command"] + router["args"])
    assert [urlsplit(url).hostname for url in found] == hosts
    for kind, name in named:
        if kind == "Service":
            labels = {
                str(spec["template"]["metadata"]["labels"]["app"])
                for (other, _), spec in named.items()
                if other != "Service"
            }
            assert named[kind, name]["selector"]["app"] in labels


def test_examples_for_kubernetes_share_no_name() -> None:
    """Both can run in one namespace."""
    made = []
    for name in ("quire", "nodes"):
        text = (ROOT / f"deploy/kubernetes/{name}.yaml").read_text()
        objects = yaml.safe_load_all(text)
        made.append({(each["kind"], each["metadata"]["name"]) for each in objects})
        [secret] = re.findall(r"create secret generic (\S+)", text)
        assert {*re.findall(r"secretKeyRef: {name: (\S+),", text)} == {secret}
        made[-1].add(("Secret", secret))
    assert not made[0] & made[1]


@pytest.mark.parametrize("node", [0, 1])
def test_the_pods_of_a_pipeline_find_each_other(node: int, tmp_path: Path) -> None:
    objects = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/nodes.yaml").read_text()))
    named = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in objects}
    pods = named["StatefulSet", "quire-node"]
    first = f"quire-node-0.{pods['serviceName']}"
    [pod] = pods["template"]["spec"]["containers"]
    quire = tmp_path / "quire"
    quire.write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n')
    quire.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin", "POD_NAME": f"quire-node-{node}"} | {
        "POD_IP": "::1"
    }
    run = [*pod["command"], *pod["args"]]
    words = subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert words[0] == "serve"
    parser = Parser(prog="quire serve")
    serve.add_arguments(parser)
    given = parser.parse(words[1:])
    assert (given.node_rank, given.headless) == (node, node > 0)
    assert given.nnodes == given.pipeline_parallel_size == pods["replicas"]
    assert given.master_addr == (first if node else "::1")
    assert {each["containerPort"] for each in pod["ports"]} == {given.master_port, 8000}
    start = pod["startupProbe"]  # the liveness probe waits for it, however long the model loads
    assert start["periodSeconds"] * start["failureThreshold"] >= 600
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):  # nobody listens here
        checked = subprocess.run(pod[probe]["exec"]["command"], env=env, check=False)
        assert (checked.returncode == 0) == (node > 0)
    assert named["Service", pods["serviceName"]]["publishNotReadyAddresses"]
    assert named["Service", "quire-pipeline"]["selector"] == {
        "statefulset.kubernetes.io/pod-name": "quire-node-0"
    }


def routed_to(words: list[str]) -> list[str]:
    """The servers of a command of `quire route`."""
    assert words[:2] == ["quire", "route"]
    parser = Parser(prog="quire route")
    route.add_arguments(parser)
    found: list[str] = parser.parse(words[2:]).replica
    return found
