"""The cache of packed weights: what was kept comes back, and nothing that fails fails a start."""

from __future__ import annotations

import os
import random
import shutil
import typing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import quire
from quire import LLM, SamplingParams
from quire.checkpoint.source import EMBEDDED
from quire.core.config import EngineConfig
from quire.core.layers import ShortConvConfig
from quire.models.weights import pack_cache
from quire.models.weights.pack_cache import PackCache, is_kept, model_key, packable_bytes
from quire.models.weights.shares import shared_config
from quire.ops.native.codes import CodeKind, GroupedCodes
from quire.ops.native.gemm import WeightKind
from quire.ops.native.kernels import native_kernels
from quire.ops.packed_file import StoredLinear
from quire.resolve.engine import engine_args, resolve
from quire.system.hardware import detect
from tests.native import PackedLinear, pool_of

GIB = 2**30


def packed(kind: WeightKind, *, n: int = 70, k: int = 97) -> PackedLinear:
    return PackedLinear(
        native_kernels(),
        pool_of(2),
        torch.randn(n, k),
        torch.randn(n),
        kind=kind,
        epilogue="silu_mul",
    )


def kept(kind: CodeKind) -> PackedLinear:
    """A weight that was quantized before; they have among them all that one can have."""
    n, k = 70, 97
    book = torch.randint(256, (16,)).to(torch.uint8) if kind == "u4_book" else None
    bits = int(kind[1])
    codes = GroupedCodes(
        torch.randint(1 << bits, (n, k)).to(torch.uint8),
        bits,
        32,
        torch.rand(n, -(-k // 32)),
        zero=3,
        offsets=torch.rand(n, -(-k // 32)) if bits == 5 else None,
        zeros=torch.rand(n, -(-k // 32)) if bits == 3 else None,
        codebook=book,
        permutation=torch.randperm(k).to(torch.int32) if bits == 6 else None,
        input_scale=0.25 if bits == 8 else 0.0,
    )
    return PackedLinear.from_codes(native_kernels(), pool_of(2), codes, epilogue="silu_mul")


def opened(folder: Path, key: str = "key", limit: int = GIB) -> PackCache:
    return PackCache(folder, key, limit, "float32")


def keep(folder: Path, linears: dict[str, StoredLinear], key: str = "key") -> Path:
    cache = opened(folder, key)
    cache.save(linears)
    cache.close()
    return cache.path


def read(folder: Path, key: str = "key") -> dict[str, StoredLinear]:
    cache = opened(folder, key)
    cache.start(2)
    return dict(cache.linears())


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    kinds: tuple[WeightKind, ...] = typing.get_args(WeightKind)
    made = {kind: packed(kind) for kind in kinds}
    made |= {f"kept {kind}": kept(kind) for kind in typing.get_args(CodeKind)}
    made["bf16 "] = packed("bf16", n=1500, k=1024)  # larger than a huge page
    keep(tmp_path, {name: linear.stored for name, linear in made.items()})
    got = read(tmp_path)
    assert list(got) == list(made)
    x = torch.randn(3, 97)
    for name, linear in made.items():
        same = PackedLinear.from_stored(
            native_kernels(), pool_of(2), got[name], epilogue="silu_mul"
        )
        assert (same.kind, same.shape, same.dtype) == (linear.kind, linear.shape, linear.dtype)
        assert same.nbytes == linear.nbytes
        assert torch.equal(same.unpack(), linear.unpack())
        if linear.shape[0] == 70:
            assert torch.equal(same.forward(x), linear.forward(x))
    with pytest.raises(ValueError, match="not packed for"):
        PackedLinear.from_stored(native_kernels(), pool_of(2), got["f32"])


def test_damage_is_noticed_and_removed(tmp_path: Path) -> None:
    linear = packed("s8")
    path = keep(tmp_path, {"w": linear.stored})
    whole = path.read_bytes()
    chosen = random.Random()
    damaged = [b"", whole[:40], whole[:200], whole[:-1], whole + b"x", bytes(len(whole))]
    for _ in range(200):
        at = chosen.choice((chosen.randrange(400), chosen.randrange(len(whole))))
        flipped = bytes([whole[at] ^ 1 << chosen.randrange(8)])
        damaged.append(whole[:at] + flipped + whole[at + 1 :])
    for content in damaged:
        path.write_bytes(content)
        got = read(tmp_path)
        assert path.exists() == bool(got)
        if got:  # the zeros between header and data mean nothing
            same = PackedLinear.from_stored(
                native_kernels(), pool_of(2), got["w"], epilogue="silu_mul"
            )
            assert torch.equal(same.unpack(), linear.unpack())


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    linears = {"w": packed("bf16").stored}
    paths = [keep(tmp_path, linears, key) for key in "abc"]
    for age, path in enumerate(paths):
        os.utime(path, (1000 + age, 1000 + age))
    assert read(tmp_path, "a")  # now b is the oldest
    size = paths[0].stat().st_size
    cache = opened(tmp_path, "d", limit=3 * size)
    cache.save(linears)
    cache.close()
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c", "d"]
    small = opened(tmp_path, "e", limit=size // 2)
    small.save(linears)
    small.close()
    assert not small.path.exists()


def test_a_folder_that_cannot_be_written_is_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    path = keep(tmp_path / "file", {"w": packed("bf16").stored})
    assert not path.exists()
    assert caplog.text.count("cannot be kept") == 1
    assert read(tmp_path / "file") == {}


def test_two_that_keep_the_same_leave_one(tmp_path: Path) -> None:
    linear = packed("s8")
    first, second = opened(tmp_path, "key"), opened(tmp_path, "key")
    for cache in (first, second):
        cache.save({"w": linear.stored})
    first.close()
    second.close()
    assert [path.name for path in tmp_path.iterdir()] == ["key.packed"]
    got = read(tmp_path)["w"]
    same = PackedLinear.from_stored(native_kernels(), pool_of(2), got, epilogue="silu_mul")
    assert torch.equal(same.unpack(), linear.unpack())


def test_unfinished_files_of_the_dead_are_removed(tmp_path: Path) -> None:
    for name, age in (("old", 10**6), ("new", 0)):
        (tmp_path / f".{name}").write_text("")
        when = (tmp_path / f".{name}").stat().st_mtime - age
        os.utime(tmp_path / f".{name}", (when, when))
    keep(tmp_path, {"w": packed("bf16").stored})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new", "key.packed"]


def test_weights_are_kept_if_somebody_has_written_them_or_does(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(model)
    assert packable_bytes(config) == 0  # too small
    monkeypatch.setattr(pack_cache, "SMALLEST_BYTES", 1)
    assert packable_bytes(config) > 0
    assert packable_bytes(replace(config, ops="reference")) == 0
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(model))
    pack_cache.packed_folder().mkdir()
    key = model_key(config)
    for name in (f"{key}.packed", f".{key}.7"):
        assert not is_kept(config)
        (pack_cache.packed_folder() / name).touch()
        assert is_kept(config)
        (pack_cache.packed_folder() / name).unlink()


def config_of(folder: Path, **fields: str) -> EngineConfig:
    return resolve(engine_args(str(folder), fields), detect()).config


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the embedded model that a test may change."""
    source = Path(quire.__file__).parent / "assets" / EMBEDDED["embedded"]
    return Path(shutil.copytree(source, tmp_path / "model"))


def test_the_key_is_the_content_and_not_the_place(model: Path) -> None:
    key = model_key(config_of(model))
    moved = model.rename(model.with_name("moved"))
    assert model_key(config_of(moved)) == key
    assert model_key(config_of(moved, quantization="int8")) != key
    assert model_key(config_of(moved, dtype="float32")) != model_key(
        config_of(moved, dtype="bfloat16")
    )
    plain = config_of(moved)
    convolutions = [ShortConvConfig(width, 16) for width in (3, 4)]
    recurrent = [replace(plain.model, recurrent=layer) for layer in convolutions]
    assert len({key, *(model_key(replace(plain, model=model)) for model in recurrent)}) == 3
    shared = replace(plain, tensor_parallel_size=2)
    assert len({key, *(model_key(shared_config(shared, rank)) for rank in range(2))}) == 3
    [weights] = moved.glob("*.safetensors")
    times = weights.stat().st_atime_ns, weights.stat().st_mtime_ns
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1  # where a sample begins
    weights.write_bytes(content)
    os.utime(weights, ns=times)
    assert model_key(config_of(moved)) != key


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_second_start_computes_the_same(
    quantization: str | None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_cache, "SMALLEST_BYTES", 0)
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    params = SamplingParams(temperature=0, max_tokens=20, logprobs=1)

    def start(**fields: object) -> object:
        with LLM(str(model), quantization=quantization, **fields) as llm:
            [output] = llm.generate("Once upon a time", params, use_tqdm=False)
        return output.outputs[0].token_ids, output.outputs[0].logprobs

    without = start(pack_cache_bytes=0)
    assert not (tmp_path / "cache").exists()
    assert start() == without
    [file] = (tmp_path / "cache" / "packed").iterdir()
    written = file.read_bytes()
    assert start() == without
    for damaged in (written[:-1], b"nothing", written[:50_000] + bytes(len(written) - 50_000)):
        file.write_bytes(damaged)
        assert start() == without
        assert file.read_bytes() == written  # packed again
