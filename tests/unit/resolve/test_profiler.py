"""Every way to write a profiler's configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from quire.core.config import ProfilerConfig
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import engine_flags_from
from quire.resolve.profiler import checked, from_environment, parse_profiler_config
from quire.system import env

TORCH = ProfilerConfig("torch", "/traces", max_iterations=5)


def parsed(*flags: str) -> EngineArgs:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    return EngineArgs.from_cli_args(parser.parse_args(flags))


@pytest.mark.parametrize(
    "flags",
    [
        ['--profiler-config={"profiler":"torch","torch_profiler_dir":"/traces","max_iterations":5}'],
        [
            "--profiler-config.profiler=torch",
            "--profiler-config.torch_profiler_dir=/traces",
            "--profiler-config.max-iterations=5",
        ],
        [
            '--profiler_config={"profiler": "torch", "torch_profiler_dir": "/elsewhere"}',
            "--profiler-config.torch-profiler-dir=/traces",
            "--profiler-config.max_iterations=5",
            "--profiler-config.torch_profiler_with_stack=false",
        ],
    ],
)  # fmt: skip
def test_flags(flags: list[str]) -> None:
    args = parsed(*flags)
    assert args.profiler_config == TORCH
    assert parsed(*engine_flags_from(args)) == args


def test_no_flag_is_no_profiler() -> None:
    assert parsed().profiler_config is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"profilr": "torch"}, "has a field 'profilr'; did you mean profiler"),
        ('{"profiler": "proton"}', "Invalid enum value 'proton'"),
        ({"max_iterations": "many"}, "Expected `int`"),
        ("torch", "is wrong"),
    ],
)
def test_what_is_no_configuration(given: str | dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_profiler_config(given)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ProfilerConfig("torch"), "needs a folder"),
        (ProfilerConfig("cuda", "/traces"), "is for torch's profiler"),
        (ProfilerConfig(delay_iterations=-1), "delay_iterations must not be negative"),
    ],
)
def test_what_does_not_go_together(config: ProfilerConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(config)


def test_the_folder_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = checked(ProfilerConfig("torch", "traces"))
    assert config.torch_profiler_dir == str(tmp_path / "traces")


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_environment(env.profiler_fields()).profiler is None
    monkeypatch.setenv("VLLM_TORCH_PROFILER_RECORD_SHAPES", "1")
    assert from_environment(env.profiler_fields()).profiler is None
    monkeypatch.setenv("VLLM_TORCH_PROFILER_DIR", "/traces")
    monkeypatch.setenv("VLLM_PROFILER_DELAY_ITERS", "2")
    monkeypatch.setenv("VLLM_PROFILER_MAX_ITERS", "3")
    monkeypatch.setenv("VLLM_TORCH_PROFILER_WITH_PROFILE_MEMORY", "true")
    monkeypatch.setenv("VLLM_TORCH_PROFILER_WITH_STACK", "0")
    assert from_environment(env.profiler_fields()) == ProfilerConfig(
        "torch",
        "/traces",
        torch_profiler_record_shapes=True,
        torch_profiler_with_memory=True,
        delay_iterations=2,
        max_iterations=3,
    )
