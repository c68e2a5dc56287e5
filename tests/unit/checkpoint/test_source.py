"""source.py and presets.py: from what the user writes to a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from quire.checkpoint.presets import preset_config, preset_names
from quire.checkpoint.source import resolve
from quire.core.errors import CheckpointError, ConfigError, ModelNotFoundError, QuireError
from tests.unit.checkpoint.make_files import llama_config, write_folder, write_gguf

PARAMETERS = {
    "bge-small-en-v1.5": 33_360_000,
    "command-r7b": 8_028_033_024,
    "gemma-2b": 2_506_172_416,
    "gemma-3-1b": 999_885_952,
    "granite-3.3-2b": 2_533_539_840,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "llama-3.1-8b": 8_030_261_248,
    "deepseek-v2-lite": 15_706_484_224,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-125m": 125_239_296,
    "phi-3-mini": 3_821_079_552,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen3-0.6b": 596_049_920,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-next-4l": 333_958_208,
    "smollm3-3b": 3_075_098_624,
    "tinyllama-1.1b": 1_100_048_384,
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    source = resolve(str(tmp_path))
    assert (source.kind, source.path, source.name) == ("hf", tmp_path, str(tmp_path))
    assert source.config == llama_config()
    assert source.generation_config == {"temperature": 0.6}
    assert source.tokenizer_path == tmp_path


def test_gguf_file_and_folder_with_one(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    for written in (path, tmp_path):
        source = resolve(str(written))
        assert (source.kind, source.path, source.tokenizer_path) == ("gguf", path, path)
    write_gguf(tmp_path / "n.gguf")
    with pytest.raises(ConfigError, match=r"holds 2 .gguf files: m.gguf, n.gguf"):
        resolve(str(tmp_path))


def test_dummy_takes_the_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config()))
    source = resolve(str(tmp_path), load_format="dummy")
    assert (source.kind, source.path, source.tokenizer_path) == ("dummy", tmp_path, None)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert resolve(str(tmp_path), load_format="dummy").tokenizer_path == tmp_path


@pytest.mark.parametrize("name", preset_names())
def test_presets_describe_the_published_models(name: str) -> None:
    source = resolve(name.upper(), load_format="dummy")
    assert (source.kind, source.path, source.tokenizer_path) == ("dummy", None, None)
    config = dict(source.config)
    found = AutoConfig.for_model(config.pop("model_type"), **config)
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    kind = AutoModel if found.model_type == "bert" else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(found)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


def test_presets_are_copies() -> None:
    config = preset_config("gpt2")
    config.clear()
    assert preset_config("gpt2") != {}
    assert preset_config("no-such") is None


def test_a_preset_without_dummy_says_how(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="--load-format dummy"):
        resolve("qwen3-0.6b", download_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("written", "error", "said"),
    [
        ("no such/path/at/all", ModelNotFoundError, "no model at"),
        ("./nowhere", ModelNotFoundError, "."),
        ("embeded!", ModelNotFoundError, "did you mean embedded"),
        ("owner/name", ModelNotFoundError, "HF_HUB_OFFLINE"),
        ("model.bin", CheckpointError, "pickled"),
        ("model.safetensors", ConfigError, "Name a .gguf file, or the folder"),
        ("empty", ModelNotFoundError, "neither config.json nor a .gguf"),
        ("broken", CheckpointError, "config.json cannot be read"),
        ("list", CheckpointError, "it is not a JSON object"),
    ],
)
def test_what_is_no_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
    error: type[QuireError],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.bin", "model.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    for name, content in (("empty", None), ("broken", "{"), ("list", "[]")):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "config.json").write_text(content)
    with pytest.raises(error, match=said) as caught:
        resolve(written, download_dir=str(tmp_path / "cache"))
    assert str(tmp_path) not in str(caught.value)


def test_only_the_hub_has_revisions(tmp_path: Path) -> None:
    write_folder(tmp_path)
    for model, load_format in ((str(tmp_path), "auto"), ("embedded", "auto"), ("gpt2", "dummy")):
        with pytest.raises(ConfigError, match="has no revisions"):
            resolve(model, load_format=load_format, revision="main")  # type: ignore[arg-type]


def test_load_format_must_fit(tmp_path: Path) -> None:
    write_folder(tmp_path)
    assert resolve(str(tmp_path), load_format="safetensors").kind == "hf"
    with pytest.raises(ConfigError, match="is safetensors, not gguf"):
        resolve(str(tmp_path), load_format="gguf")


@pytest.mark.parametrize("name", ["embedded", "embedded-draft"])
def test_embedded(name: str) -> None:
    try:
        source = resolve(name)
    except ModelNotFoundError:
        pytest.skip("the embedded models are not built in this checkout")
    assert source.kind == "hf"
    assert source.tokenizer_path == source.path
