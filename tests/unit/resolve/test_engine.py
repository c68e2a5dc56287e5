"""What a user wrote becomes what the engine runs on, with a reason for each choice."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError, ModelNotFoundError
from quire.core.layers import LatentConfig
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import engine_args, load_tokenizer, resolve
from quire.resolve.quantization import resolve_kv_dtype
from quire.system.hardware import Hardware

GIB = 2**30
MACHINE = Hardware(cores=4, memory_bytes=16 * GIB, available_bytes=12 * GIB)
PRESET = EngineArgs(model="qwen3-0.6b", load_format="dummy")


def test_a_preset() -> None:
    resolved = resolve(PRESET, MACHINE)
    config = resolved.config
    assert (config.model_path, config.load_format) == ("qwen3-0.6b", "dummy")
    assert (config.dtype, config.block_size) == ("bfloat16", 16)
    assert config.memory_budget_bytes == 8 * GIB
    assert config.scheduler.max_model_len == config.model.max_position_embeddings
    assert load_tokenizer(resolved).vocab_size == config.model.vocab_size


@pytest.mark.parametrize("choice", ["dtype", "max_model_len", "memory budget", "num_threads"])
def test_each_choice_has_a_note(choice: str) -> None:
    assert any(note.startswith(choice) for note in resolve(PRESET, MACHINE).notes)


@pytest.mark.parametrize(
    ("quantization", "ops", "told"),
    [
        ("int8", "auto", True), ("int4", "cpu", True), ("gptq", "auto", True),
        ("nf4", "auto", True), ("q8_0", "auto", True),
        ("int8_w8a16", "auto", False), ("fp8", "auto", False), (None, "auto", False),
        ("int4", "reference", False),
    ],
)  # fmt: skip
def test_activations_of_8_bits_are_told(quantization: str | None, ops: Any, told: bool) -> None:
    resolved = resolve(replace(PRESET, quantization=quantization, ops=ops), MACHINE)
    notes = [note for note in resolved.notes if note.startswith("activations:")]
    assert bool(notes) == told
    assert all("8 bits" in note and "int8_w8a16" in note for note in notes)


def test_what_the_user_says_is_taken() -> None:
    args = replace(
        PRESET, dtype="float16", max_model_len=99, num_threads=3, gpu_memory_utilization=0.25
    )
    resolved = resolve(args, MACHINE)
    config = resolved.config
    assert (config.dtype, config.num_threads) == ("float16", 3)
    assert (config.scheduler.max_model_len, config.memory_budget_bytes) == (99, 4 * GIB)
    assert not any(note.startswith(("dtype", "max_model", "num_thr")) for note in resolved.notes)


SMALL = Hardware(cores=4, memory_bytes=4 * GIB, available_bytes=4 * GIB)
"""Of whose half, qwen3-0.6b's 40,960 tokens of KV cache would take 4.4 GiB."""


def test_more_threads_than_cores_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    for threads, reported in ((MACHINE.cores, False), (MACHINE.cores + 1, True)):
        args = replace(PRESET, num_threads=threads)
        assert resolve(args, MACHINE).config.num_threads == threads
        assert (f"num_threads is {threads}" in caplog.text) is reported


def test_the_context_is_what_fits() -> None:
    for asked in (None, -1):
        resolved = resolve(replace(PRESET, max_model_len=asked), SMALL)
        length = resolved.config.scheduler.max_model_len
        assert 1024 < length < resolved.config.model.max_position_embeddings
        assert length % 16 == 0
        (note,) = (note for note in resolved.notes if note.startswith("max_model_len"))
        assert f"{length} of the model's 40960" in note
    longer = resolve(replace(PRESET, kv_cache_dtype="int8"), SMALL).config.scheduler.max_model_len
    assert 1.9 < longer / length < 2.0
    longest = resolve(replace(PRESET, kv_cache_dtype="int4"), SMALL).config.scheduler.max_model_len
    assert 3.4 < longest / length < 3.6
    assert resolve(replace(PRESET, max_model_len=40960), SMALL).config.scheduler.max_model_len == (
        40960
    )


def test_a_context_that_is_too_short_to_be_chosen_stays_whole() -> None:
    """So that the start fails, with a table of the memory."""
    resolved = resolve(replace(PRESET, kv_cache_memory_bytes=2**20), SMALL)
    assert resolved.config.scheduler.max_model_len == 40960


def test_an_int8_kv_cache() -> None:
    assert resolve(PRESET, MACHINE).config.kv_cache_dtype == "bfloat16"
    assert resolve(replace(PRESET, dtype="float32"), MACHINE).config.kv_cache_dtype == "float32"
    args = replace(PRESET, kv_cache_dtype="int8")
    assert resolve(args, MACHINE).config.kv_cache_dtype == "int8"
    with pytest.raises(ConfigError, match="kv_cache_dtype is 'int2'"):
        resolve(replace(PRESET, kv_cache_dtype="int2"), MACHINE)


def test_an_int4_kv_cache() -> None:
    """It holds neither latents nor heads that 8 does not divide."""
    args = replace(PRESET, kv_cache_dtype="int4")
    config = resolve(args, MACHINE).config
    assert config.kv_cache_dtype == "int4"
    with pytest.raises(ConfigError, match="a head_dim that 8 divides; the model's is 36"):
        resolve_kv_dtype(args, replace(config.model, head_dim=36), "bfloat16")
    latent = LatentConfig(rank=64, rope_dim=16, nope_dim=32, value_dim=32, q_rank=None)
    with pytest.raises(ConfigError, match="latent attention has no int4 cache"):
        resolve_kv_dtype(args, replace(config.model, latent=latent), "bfloat16")


def test_a_kv_cache_of_8_bit_floats() -> None:
    for name, kept in (("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2"), ("bf16", "bfloat16")):
        args = replace(PRESET, dtype="float32", kv_cache_dtype=name)
        assert resolve(args, MACHINE).config.kv_cache_dtype == kept
    args = replace(PRESET, kv_cache_dtype="fp8", calculate_kv_scales=True)
    assert resolve(args, MACHINE).config.calculate_kv_scales
    with pytest.raises(ConfigError, match=r"calculate_kv_scales.*only an fp8 KV cache"):
        resolve(replace(args, kv_cache_dtype="int8"), MACHINE)


def test_int8_holds_no_huge_heads(hf_folder: Callable[..., Path]) -> None:
    folder = hf_folder(head_dim=4104)
    with pytest.raises(ConfigError, match="head_dim of at most 4096"):
        resolve(EngineArgs(model=str(folder), kv_cache_dtype="int8"), MACHINE)


def test_float16_checkpoints_stay_so_where_there_are_kernels(
    hf_folder: Callable[..., Path],
) -> None:
    folder = str(hf_folder(torch_dtype="float16"))
    resolved = resolve(EngineArgs(model=folder), MACHINE)
    assert resolved.config.dtype == "float16"
    assert any("--dtype bfloat16 is faster" in note for note in resolved.notes)
    assert resolve(EngineArgs(model=folder, ops="reference"), MACHINE).config.dtype == "float32"


def test_a_folder(hf_folder: Callable[..., Path]) -> None:
    folder = hf_folder(torch_dtype="float32")
    resolved = resolve(EngineArgs(model=str(folder)), MACHINE)
    assert resolved.config.model_path == str(folder)
    assert resolved.config.load_format == "safetensors"
    assert resolved.tokenizer_path == folder


def test_another_tokenizer(tmp_path: Path) -> None:
    resolved = resolve(replace(PRESET, tokenizer=str(tmp_path)), MACHINE)
    assert resolved.tokenizer_path == tmp_path
    with pytest.raises(ConfigError, match="has no tokenizer"):
        resolve(replace(PRESET, tokenizer="gpt2"), MACHINE)
    with pytest.raises(ConfigError, match="no revisions") as caught:
        resolve(replace(PRESET, tokenizer=str(tmp_path), tokenizer_revision="v1"), MACHINE)
    assert caught.value.param == "tokenizer_revision"


def test_memory_that_is_not_free_is_not_promised() -> None:
    resolved = resolve(PRESET, replace(MACHINE, available_bytes=4 * GIB))
    assert resolved.config.memory_budget_bytes == int(0.9 * 4 * GIB)
    assert any("of the free" in note for note in resolved.notes)


def test_the_configuration_survives_the_wire() -> None:
    config = resolve(PRESET, MACHINE).config
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("block_size", 12, r"block_size is 12; it must be one of \(8, 16, 32\)"),
        ("gpu_memory_utilization", 0.0, r"must be in \(0, 1\]"),
        ("gpu_memory_utilization", 1.5, r"must be in \(0, 1\]"),
        ("gpu_memory_utilization", float("nan"), r"must be in \(0, 1\]"),
        ("max_num_batched_tokens", 0, "at least 1"),
        ("max_num_batched_tokens", 63, "at least max_num_seqs, 64"),
        ("max_num_seqs", 0, "at least 1"),
        ("num_threads", 0, "at least 1"),
        ("kv_cache_memory_bytes", -1, "at least 1"),
        ("max_model_len", 0, "at least 1"),
        ("max_model_len", -2, "at least 1"),
        ("max_model_len", 10**6, "max_model_len is 1000000; the model's positions end at 40960"),
        ("dtype", "bfloat61", "did you mean bfloat16"),
        ("scheduling_policy", "priorty", "did you mean priority"),
        ("quantization", "awk", r"did you mean awq"),
        ("block_size", "16", "Expected `int`, got `str`"),
        ("seed", "x", "Expected `int`"),
    ],
)
def test_bad_values_name_the_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(replace(PRESET, **{field: value}), MACHINE)
    assert field in str(caught.value)


def test_an_unknown_model() -> None:
    with pytest.raises(ModelNotFoundError, match="embeded"):
        resolve(EngineArgs(model="./embeded"), MACHINE)


def test_engine_args_of_keywords() -> None:
    assert engine_args("m", {"seed": 3}) == EngineArgs(model="m", seed=3)
    with pytest.raises(ConfigError, match="'blocksize'; did you mean block_size"):
        engine_args("m", {"blocksize": 8})


@pytest.fixture
def hf_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder with the config.json of a small Llama."""

    def make(**changes: Any) -> Path:
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": 300,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            **changes,
        }
        (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
        return tmp_path

    return make
