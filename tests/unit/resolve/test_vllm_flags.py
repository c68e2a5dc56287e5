"""vLLM's command lines and scripts: what they ask for is done, told to be so, or refused."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.core.errors import ConfigError
from quire.engine.arg_utils import AsyncEngineArgs
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import engine_args
from quire.resolve.vllm_flags import FOREIGN, foreign_notes
from quire.utils import FlexibleArgumentParser

GUIDE = Path(__file__).parents[3] / "docs" / "from-vllm.md"


def parse(*argv: str) -> EngineArgs:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("model_tag", nargs="?")
    EngineArgs.add_cli_args(parser)
    return EngineArgs.from_cli_args(parser.parse_args(argv))


def test_the_commands_of_vllms_complaints(capsys: pytest.CaptureFixture[str]) -> None:
    """As users wrote them (17568, 12266, 15809), their models apart."""
    args = parse(
        *["model", "--disable-log-requests", "--trust-remote-code", "--max-model-len", "36000"],
        *["--gpu_memory_utilization", "0.7", "--max-num-seqs", "128", "--enforce-eager"],
    )
    assert (args.max_model_len, args.gpu_memory_utilization) == (36000, 0.7)
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in told] == ["--disable-log-requests", "--trust-remote-code"]
    assert all(" has no effect: " in line for line in told)
    assert parse("--swap-space", "16", "--tensor-parallel-size=2").swap_space == 16


def test_a_switch_takes_no_word_from_the_model() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model_tag", nargs="?")
    EngineArgs.add_cli_args(parser)
    assert parser.parse_args(["--trust-remote-code", "model"]).model_tag == "model"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--enable-eplb", "no expert parallelism"),
        ("--response-role=x", "is assistant"),
        ("--speculative-model ngram", "--speculative-config, a JSON object with the field 'model'"),
        ("--spec-tokens 3", "field 'num_speculative_tokens'"),
        ("--ngram-prompt-lookup-max 4", "field 'prompt_lookup_max'"),
        ("--per-request-spec-decode-metrics summary", "accepted_prediction_tokens"),
        ("--guided-decoding-disable-any-whitespace", "in structured_outputs"),
        ("--guided-decoding-backend xgrammar:disable-any-whitespace", "llguidance"),
        ("--task reward", "--runner pooling"),
        ("--rope-scaling {", "rope-scaling"),
        ('--structured-outputs-config {"disable_any_whitespace":true}', "with disable_any_whites"),
        ('--structured-outputs-config {"backends":"x"}', "with backends"),
        ("--structured-outputs-config xgrammar", "no JSON object"),
    ],
)
def test_what_cannot_be_heeded_is_refused_with_a_way_out(words: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(*words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--api-server-count 4",
        "--no-enable-chunked-prefill",
        "--guided-decoding-backend xgrammar",
        '--structured-outputs-config {"backend":"xgrammar","disable_fallback":true}',
    ],
)
def test_what_is_so_in_any_case(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(*words.split()) == EngineArgs()
    assert "has no effect" in capsys.readouterr().err


def test_older_names_and_other_values(capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(
        *["--rope-scaling", '{"rope_type": "yarn"}', "--rope-theta", "1e6", "--task", "embed"],
        *["--hf-overrides", '{"a": 1}', "--override-pooler-config", '{"normalize": false}'],
    )
    assert args == EngineArgs(
        hf_overrides='{"a": 1, "rope_scaling": {"rope_type": "yarn"}, "rope_theta": 1000000.0}',
        pooler_config='{"normalize": false}',
        runner="pooling",
        convert="embed",
    )
    assert not capsys.readouterr().err
    flags = ["--load-format", "mistral", "--prefix-caching-hash-algo", "xxhash_cbor"]
    args = parse(*flags, "--max-logprobs", "-1")
    assert args == EngineArgs(max_logprobs=1024, prefix_caching_hash_algo="xxhash")
    notes = [line.split(":")[1] for line in capsys.readouterr().err.splitlines()]
    assert sorted(notes) == [
        " --load-format mistral means auto",
        " --max-logprobs -1 means 1024",
        " --prefix-caching-hash-algo xxhash_cbor means xxhash",
    ]
    given: dict[str, Any] = {"load_format": "bitsandbytes", "rope_theta": 5.0}
    assert EngineArgs(**given) == EngineArgs(hf_overrides='{"rope_theta": 5.0}')


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--cuda-graph-sizes 64", {"max_cudagraph_capture_size": 64}),
        ("--cuda-graph-sizes 1 2 24", {"cudagraph_capture_sizes": [1, 2, 24]}),
        ("--cudagraph-capture-sizes 8 -O 3", {"level": 3, "cudagraph_capture_sizes": [8]}),
        ("--max-cudagraph-capture-size 8", {"max_cudagraph_capture_size": 8}),
    ],
)
def test_sizes_of_graphs_are_fields(
    words: str, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(parse(*words.split()).compilation_config or "") == expected
    assert not capsys.readouterr().err
    with pytest.raises(ConfigError, match="--cuda-graph-sizes: many is no list"):
        parse("--cuda-graph-sizes", "many")
    from_python: dict[str, Any] = {"cuda_graph_sizes": [4, 8]}
    config = EngineArgs(**from_python).compilation_config
    assert config == '{"cudagraph_capture_sizes": [4, 8]}'


def test_the_help_shows_no_other_values() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    assert "--load-format {auto,safetensors,gguf,dummy}" in parser.format_help()


def test_a_token_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert parse("--hf-token") == EngineArgs()
    assert "HF_TOKEN" not in os.environ
    assert parse("model", "--hf-token", "hf_x") == EngineArgs()
    assert os.environ["HF_TOKEN"] == "hf_x"
    monkeypatch.setenv("HF_TOKEN", "")  # have the environment restored


def test_from_python(caplog: pytest.LogCaptureFixture) -> None:
    fields = {"trust_remote_code": True, "api_server_count": 1, "max_num_seqs": 7}
    with caplog.at_level("INFO", "quire"):
        args = engine_args("m", {**fields, "speculative_config": None})
    assert args == EngineArgs(model="m", max_num_seqs=7)
    assert [line.split()[0] for line in caplog.messages] == [
        "--trust-remote-code", "--api-server-count",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="speculative"):
        engine_args("m", {"num_speculative_tokens": 3})


def test_vllms_names_in_the_constructor() -> None:
    given: dict[str, Any] = {"trust_remote_code": True, "hf_overrides": {"rope_theta": 5.0}}
    args = AsyncEngineArgs(model="m", **given)
    assert args == EngineArgs(model="m", hf_overrides='{"rope_theta": 5.0}')
    assert replace(args, seed=3).seed == 3
    drafts: dict[str, Any] = {"speculative_config": {"method": "ngram"}}
    assert EngineArgs(**drafts).speculative_config == '{"method": "ngram"}'
    with pytest.raises(ConfigError, match=r"'max_model_length'; did you mean max_model_len"):
        EngineArgs(max_model_length=8)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("embed", {"runner": "pooling", "convert": "embed"}),
        ("classify", {"runner": "pooling", "convert": "classify"}),
        ("score", {"runner": "pooling"}),
        ("generate", {}),
    ],
)
def test_vllms_old_task(task: str, fields: dict[str, Any]) -> None:
    assert engine_args("m", {"task": task}) == EngineArgs(model="m", **fields)


def test_a_script_reads_its_flags_as_vllms_examples_do() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.set_defaults(model="m", enforce_eager=True, task="embed")
    flags = ["--max-num-seqs", "3", "--trust-remote-code"]
    wanted = EngineArgs("m", max_num_seqs=3, enforce_eager=True)
    assert EngineArgs.from_cli_args(parser.parse_args(flags)) == wanted
    fields = vars(parser.parse_args(flags))
    embedding = replace(wanted, runner="pooling", convert="embed")
    assert engine_args(fields.pop("model"), fields) == embedding


def test_none_is_a_flag_of_ours_and_all_are_in_the_guide() -> None:
    ours = {name for name in EngineArgs.__dataclass_fields__ if name in FOREIGN}
    assert not ours
    text = GUIDE.read_text()
    assert [name for name in FOREIGN if f"`--{name.replace('_', '-')}`" not in text] == []
    for name, foreign in FOREIGN.items():
        for value in foreign.same or ():
            assert list(foreign_notes({name: value}))
    tables = text[text.index("## Accepted flags without effect") :]
    listed = re.findall(r"`--([a-z0-9-]+)`", "".join(re.findall(r"(?m)^\| (`--[^|]*)\|", tables)))
    assert [flag for flag in listed if flag.replace("-", "_") not in FOREIGN] == []


def test_vllms_public_names() -> None:
    """What its scripts import."""
    for name in quire.__all__:
        assert getattr(quire, name) is not None
    assert quire.TokensPrompt(prompt_token_ids=[1]) == {"prompt_token_ids": [1]}
    assert quire.TextPrompt(prompt="a") == {"prompt": "a"}
    with pytest.raises(ImportError, match="ModelRegistry: architectures are Quire's own"):
        exec("from quire import ModelRegistry")
    with pytest.raises(ImportError, match="StructuredOutputsParams"):
        exec("from quire.sampling_params import GuidedDecodingParams")


PATHS = """
from quire.engine.arg_utils import AsyncEngineArgs, EngineArgs
from quire.inputs import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt
from quire.logprobs import Logprob
from quire.lora.request import LoRARequest
from quire.outputs import CompletionOutput, EmbeddingRequestOutput, RequestOutput
from quire.pooling_params import PoolingParams
from quire.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from quire.sampling_params import StructuredOutputsParams
from quire.utils import FlexibleArgumentParser, random_uuid
from quire.utils.argparse_utils import FlexibleArgumentParser
from quire.v1.engine.async_llm import AsyncLLM
from quire.engine.async_llm_engine import AsyncLLMEngine
import sys
assert "torch" not in sys.modules, "these need no torch"
from quire.entrypoints.llm import LLM
"""


def test_vllms_import_paths() -> None:
    """Each is there; in a process of its own, to see what they load."""
    done = subprocess.run(
        [sys.executable, "-c", PATHS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
