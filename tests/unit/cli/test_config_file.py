"""`--config FILE`: what it takes, what it refuses, and who wins."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cli import complete, serve
from quire.cli.main import main
from quire.cli.parser import Parser
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.config_file import read_settings, write_settings
from tests.examples import examples


def parse(path: Path, text: str, *words: str, command: Any = serve) -> argparse.Namespace:
    path.write_text(text)
    parser = Parser(prog="quire try")
    command.add_arguments(parser)
    return parser.parse([*words, "--config", str(path)])


YAML = """\
# As for vLLM.
model: opt-125m
max_num_seqs: 4
dtype: "bfloat16"
no-enable-prefix-caching: true
async-scheduling: yes
kv-cache-memory-bytes: 2GiB
max-itl-stretch: .inf
revision: 0123456
tokenizer: null
served-model-name: [a, b]
api-key: k
port: 0
"""
TOML = """\
model = "opt-125m"
max_num_seqs = 4
dtype = "bfloat16"
enable-prefix-caching = false
async-scheduling = true
kv-cache-memory-bytes = "2GiB"
max-itl-stretch = inf
revision = "0123456"
served-model-name = ["a", "b"]
api-key = ["k"]
port = 0
"""


@pytest.mark.parametrize(("suffix", "text"), [(".yaml", YAML), (".yml", YAML), (".toml", TOML)])
def test_both_formats(tmp_path: Path, suffix: str, text: str) -> None:
    namespace = parse(tmp_path / f"c{suffix}", text)
    assert EngineArgs.from_cli_args(namespace) == EngineArgs(
        model="opt-125m",
        max_num_seqs=4,
        dtype="bfloat16",
        enable_prefix_caching=False,
        async_scheduling=True,
        kv_cache_memory_bytes=2 * 2**30,
        max_itl_stretch=math.inf,
        revision="0123456",
    )
    assert namespace.served_model_name == ["a", "b"]
    assert namespace.api_key == ["k"]
    assert namespace.port == 0
    assert namespace.given == {"config"}
    assert namespace.file_values["max_num_seqs"].where.endswith(f"c{suffix}:{3 - ('=' in text)}")


def test_the_command_line_wins(tmp_path: Path) -> None:
    words = ("there", "--max-num-seqs", "7", "--enable-prefix-caching", "--api-key", "mine")
    namespace = parse(tmp_path / "c.yaml", YAML, *words)
    args = EngineArgs.from_cli_args(namespace)
    assert (args.model, args.max_num_seqs, args.enable_prefix_caching) == ("there", 7, True)
    assert namespace.api_key == ["mine"]
    assert "max_num_seqs" not in namespace.file_values


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert EngineArgs.from_cli_args(parse(tmp_path / "c.yaml", "# nothing\n")) == EngineArgs()


def test_a_subcommand_reads_it(tmp_path: Path) -> None:
    from quire.bench import main as bench

    path = tmp_path / "c.toml"
    path.write_text("num-prompts = 3\nmax-num-seqs = 5\nignore-eos = false\n")
    parser = Parser(prog="quire bench")
    bench.add_arguments(parser)
    namespace = parser.parse(["serve", "--config", str(path), "--num-clients", "2"])
    assert (namespace.num_prompts, namespace.max_num_seqs, namespace.num_clients) == (3, 5, 2)
    assert namespace.ignore_eos is False


@pytest.mark.parametrize(
    ("name", "text", "line", "message"),
    [
        ("c.yaml", "\nmax-num-sqes: 4\n", 2, "unknown flag 'max-num-sqes'; did you mean max-num-s"),
        ("c.yaml", "config: x.yaml\n", 1, "unknown flag 'config'"),
        ("c.yaml", "max-num-seqs: many\n", 1, "max-num-seqs: invalid int value: 'many'"),
        ("c.yaml", "dtype: int9\n", 1, "invalid choice"),
        ("c.yaml", "max-num-seqs: [1, 2]\n", 1, "takes one value"),
        ("c.yaml", "served-model-name: []\n", 1, "list is empty"),
        ("c.yaml", "async-scheduling: 3\n", 1, "true or false, not '3'"),
        ("c.yaml", "max-num-seqs: null\n", 1, "leave the line out"),
        ("c.yaml", "max-num-seqs: 1\nmax_num_seqs: 2\n", 2, "is set at"),
        ("c.yaml", "enable-prefix-caching: 1\n", 1, "true or false"),
        ("c.yaml", "port: 1\n  x\n- a", 3, "is not YAML"),
        ("c.yaml", "- a\n- b\n", None, "lines of `flag: value`"),
        ("c.toml", "a = 1\nmax-num-sqes = 4\n", 1, "unknown flag 'a'"),
        ("c.toml", "# one\nmax-num-sqes = 4\n", 2, "did you mean max-num-seqs"),
        ("c.toml", "[engine]\nmax-num-seqs = 4\n", 1, "unknown flag 'engine'"),
        ("c.toml", "max-num-seqs == 4\n", None, "is not TOML"),
        ("c.toml", "max-num-seqs = 1\nmax_num_seqs = 2\n", 2, "is set at"),
        ("c.ini", "a=b", None, "ends in .toml, .yaml or .yml"),
    ],
)
def test_refusals(tmp_path: Path, name: str, text: str, line: int | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tmp_path / name, text)
    assert message in str(caught.value)
    assert f"{tmp_path / name}{'' if line is None else f':{line}'}" in str(caught.value)


def test_a_flag_of_another_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown flag 'port'"):
        parse(tmp_path / "c.yaml", "port: 1\n", command=complete)


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    assert main(["serve", "--config", str(tmp_path / "bytes.yaml")]) == 2
    assert "is not UTF-8" in capsys.readouterr().err


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.integers(1, 4096),
        "model": st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1),
        "gpu_memory_utilization": st.floats(0.01, 1.0),
        "max_itl_stretch": st.one_of(st.floats(1, 100), st.just(math.inf), st.none()),
        "async_scheduling": st.booleans(),
        "enable_prefix_caching": st.booleans(),
    },
)


@settings(max_examples=examples(100))
@given(VALUES, st.sampled_from(["c.toml", "c.yaml"]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], name: str
) -> None:
    path = tmp_path_factory.mktemp("written") / name
    write_settings(path, values, ["made by a test", ""])
    namespace = parse(path, path.read_text())
    assert EngineArgs.from_cli_args(namespace) == EngineArgs(**values)


@pytest.mark.parametrize(
    ("written", "read"),
    [("[a, b]", ["a", "b"]), ("[a]", ["a"]), ("a", ["a"]), ("""' ["a", "b"]'""", ["a", "b"])],
)
def test_a_list_of_names_in_any_form(tmp_path: Path, written: str, read: list[str]) -> None:
    found = parse(tmp_path / "quire.yaml", f"model: m\nallowed-origins: {written}\n")
    assert found.allowed_origins == read


def test_a_mapping_becomes_json(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("profiler-config: {delay: 1, dir: x}\n")
    (tmp_path / "c.toml").write_text('profiler-config = {delay = 1, dir = "x"}\n')
    for path in tmp_path.iterdir():
        [setting] = read_settings(path)
        assert [json.loads(word) for word in setting.words] == [{"delay": 1, "dir": "x"}]


def test_quire_config_tells_every_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("load-format: dummy\nmax-num-seqs: 4\nport: 1\n")
    monkeypatch.setenv("QUIRE_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "")  # restored at the end
    words = ["config", "opt-125m", "--config", str(path), "--dtype", "bfloat16"]
    words += ["--hf-token", "secret"]
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr().out
    assert "secret" not in printed
    values = {row["name"]: row for row in json.loads(printed)}
    sources = {
        "model": "flag",
        "dtype": "flag",
        "max_num_seqs": f"{path}:2",
        "port": f"{path}:3",
        "max_model_len": "model",
        "num_threads": "auto",
        "block_size": "default",
        "api_key": "environment",
        "hf_token": "flag",
        "QUIRE_API_KEY": "environment",
    }
    assert {name: values[name]["source"] for name in sources} == sources
    assert values["max_model_len"]["value"] == 2048
    assert values["num_threads"]["why"]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert f"{path}:2" in table
    assert "secret" not in table
