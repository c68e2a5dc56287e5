"""Weights in mapped files: the same numbers, no more bytes than asked for, and pages given back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.core.quantization import QUANTIZATIONS
from quire.models.weights import pack_cache
from quire.models.weights.offload import WeightOffload, last_weights
from quire.ops.native.kernels import native_kernels
from quire.ops.packed_file import LinearFile, stream_linears
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import Hardware, detect
from tests.native import PackedLinear, pool_of

GIB = 2**30
SHARE = 0.004
"""GiB: about half of the embedded model's layers, in bfloat16."""


def test_the_last_weights_that_fit_are_chosen() -> None:
    weights = {"a": 5, "b": 3, "c": 2, "d": 4}
    assert last_weights(weights, 6) == {"c": 2, "d": 4}
    assert last_weights(weights, 8) == {"c": 2, "d": 4}  # nothing before what does not fit
    assert last_weights(weights, 100) == weights
    assert last_weights(weights, 3) == {}


def until(holds: Callable[[], bool]) -> None:
    for _ in range(12_000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it never comes")


def linears(count: int) -> list[PackedLinear]:
    torch.manual_seed(7)
    return [
        PackedLinear(
            native_kernels(), pool_of(2), torch.randn(600, 512), torch.randn(600), kind="bf16"
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("give_back", [False, True])
def test_moved_weights_compute_the_same_bits(give_back: bool, tmp_path: Path) -> None:
    made = linears(6)
    x = torch.randn(3, 512)
    before = [linear.forward(x) for linear in made]
    file = LinearFile(tmp_path, 2)
    for linear in made:
        file.move(linear.stored)
        assert 0 < linear.stored.streamed_bytes <= linear.nbytes
    assert file.nbytes == sum(linear.nbytes for linear in made)
    file.close()
    assert list(tmp_path.iterdir()) == []
    one = made[0].nbytes
    stream = stream_linears([linear.stored for linear in made], 2 * one, give_back=give_back)
    for _ in range(3):
        for linear, wanted in zip(made, before, strict=True):
            assert torch.equal(linear.forward(x), wanted)
    made[3].forward(x)
    until(lambda: stream.read_bytes >= one)
    if give_back:
        until(lambda: stream.given_back_bytes >= one)
    else:
        assert stream.given_back_bytes == 0
    assert torch.equal(made[3].unpack(), linears(4)[3].unpack())
    del made[2]  # its pages are unmapped while the others are read
    for at in (0, 2, 4, 1):
        made[at].forward(x)


def test_a_weight_in_memory_cannot_be_streamed() -> None:
    with pytest.raises(ValueError, match="in a file"):
        stream_linears([linears(1)[0].stored], 1, give_back=True)


def resolved(**fields: object) -> None:
    resolve(EngineArgs(**fields), detect())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cpu_offload_gb": -1.0}, "a size in GiB"),
        ({"cpu_offload_gb": float("nan")}, "a size in GiB"),
        ({"cpu_offload_gb": float("inf")}, "a size in GiB"),
        ({"cpu_offload_gb": 50.0}, "the layers' weights take 0.0"),
        ({"cpu_offload_gb": 1e-6}, "the last layer's last weight takes 0.0"),
        ({"cpu_offload_gb": SHARE, "ops": "reference"}, "reference ops"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        resolved(**fields)
    assert caught.value.param == "cpu_offload_gb"


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be kept in .*file/offload") as caught:
        LLM("embedded", cpu_offload_gb=SHARE)
    assert "QUIRE_CACHE_DIR" in str(caught.value)


def asked(llm: LLM) -> object:
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=1)
    outputs = llm.generate(["Once upon a time", "The little dog"], params, use_tqdm=False)
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs]


def answers(**fields: object) -> tuple[object, LLM]:
    with LLM("embedded", **fields) as llm:  # type: ignore[arg-type]
        return asked(llm), llm


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("quantization", [None, *QUANTIZATIONS])
def test_the_engine_answers_the_same(
    quantization: str | None, eager: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if eager and quantization is not None:
        pytest.skip("plans and eager ops differ in nothing that depends on the quantization")
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    fields = {"quantization": quantization, "enforce_eager": eager, "num_gpu_blocks_override": 64}
    share = SHARE if quantization is None else SHARE / 4
    plain, _ = answers(**fields)
    moved, llm = answers(**fields, cpu_offload_gb=share)
    assert moved == plain
    held = llm.facts["offloaded_weight_bytes"]
    assert isinstance(held, int)
    assert 0.5 * share * GIB <= held <= share * GIB


def test_the_pack_cache_is_mapped_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_cache, "SMALLEST_BYTES", 0)
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    without, _ = answers(num_gpu_blocks_override=64)
    moves: list[str] = []
    monkeypatch.setattr(WeightOffload, "_move", lambda self, linear: moves.append("moved"))
    found, llm = answers(num_gpu_blocks_override=64, cpu_offload_gb=SHARE)
    assert found == without
    assert llm.facts["offloaded_weight_bytes"]
    assert not moves
    [file] = (tmp_path / "packed").iterdir()
    written = bytearray(file.read_bytes())
    written[-10] ^= 1  # in what is mapped
    file.write_bytes(written)
    monkeypatch.undo()
    monkeypatch.setattr(pack_cache, "SMALLEST_BYTES", 0)
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    assert answers(num_gpu_blocks_override=64, cpu_offload_gb=SHARE)[0] == without


def test_pages_are_given_back_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    plain, _ = answers(num_gpu_blocks_override=64)
    real = detect()
    monkeypatch.setattr(
        "quire.executor.worker.detect", lambda: Hardware(real.cores, real.memory_bytes, 0)
    )
    found: list[WeightOffload] = []
    start = WeightOffload.start

    def note(self: WeightOffload, *args: object) -> None:
        found.append(self)
        start(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(WeightOffload, "start", note)
    with LLM("embedded", num_gpu_blocks_override=64, cpu_offload_gb=SHARE) as llm:
        assert asked(llm) == plain
        [offload] = found
        until(lambda: offload.given_back_bytes > 0)
        assert asked(llm) == plain
