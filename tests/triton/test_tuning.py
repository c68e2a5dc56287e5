"""`quire tune kernels` on a GPU: its values change no bit; the fake device times them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from msgspec import structs

from quire.bench.kernels import case
from quire.bench.kernels.case import Variant
from quire.cli.main import main
from quire.core.layers import DeltaConfig, LatentConfig, MoEConfig, RouteSpec
from quire.core.model_config import ModelConfig
from quire.ops.graphs import Graph
from quire.ops.metadata import AttentionRules, KVCache
from quire.ops.triton import attention, latent, linear, recurrent, tuning
from quire.ops.triton.provider import TritonOps
from quire.ops.triton.tuning import (
    Chosen,
    HeadTuning,
    StateTuning,
    TileTuning,
    TunedHeads,
    TunedStates,
    TunedTile,
)
from quire.ops.triton.weights import device_weight
from quire.ops.tuning import save_tuning
from quire.system.gpu_facts import Gpu
from quire.tune.kernels import card, command
from quire.tune.kernels.search import Found
from tests.fake_device import FakeDevice
from tests.kernels.fused_common import assert_same_bits
from tests.kernels.recurrent_common import Case, one
from tests.triton.on_fake_device import Launches, launching
from tests.triton.test_attention import filled, metadata
from tests.triton.test_products import quantized, rows

if TYPE_CHECKING:
    from quire.ops.torch_ops.devices import TorchAccelerator

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    yield
    tuning.chosen.cache_clear()


TILES = [
    {"columns": 64}, {"columns": 256}, {"warps": 4}, {"stages": 5}, {"early": -1}, {"early": 1},
    {"waves": -1}, {"rows": 64}, {"rows": 256},
    {"columns": 64, "rows": 64, "waves": -1, "early": 3, "warps": 4, "stages": 2},
]  # fmt: skip
SOON = (("dense", 0), ("zeros", 6), ("int8", 9))
"""Forms and values that `make test` has time for: the interpreter is slow."""


@pytest.mark.parametrize(
    ("form", "values"),
    [
        pytest.param(form, values, marks=() if (form, i) in SOON else pytest.mark.slow)
        for form in ("dense", "zeros", "int8")
        for i, values in enumerate(TILES)
    ],
    ids=str,
)
def test_values_of_products_change_no_bit(
    form: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "segment", lambda columns, width: 256)
    ops, differs = TritonOps(), False
    weight = rows(200, 512, 8).numpy() if form == "dense" else quantized(form, 200, 512, seed=8)
    packed = ops.pack_linear(weight, epilogue="silu_mul")
    for count in (3, 70):
        x = rows(count, 512, seed=10).half()
        own = ops.linear(x, packed)
        _, kind, n, k, group = linear.tuned_shape(device_weight(packed), x.dtype, count)
        entry = TunedTile(kind, n, k, group, (1, 99), TileTuning(**values), 0.0)
        chosen = tuning.chosen(CPU)
        chosen.use(structs.replace(tuning.untuned(CPU), gemm=[entry]))
        used = seen(monkeypatch, "product", lambda x=x: ops.linear(x, packed))
        assert torch.equal(used.result, own)
        differs = differs or used.differs
        chosen.use(tuning.untuned(CPU))
    assert differs, "the values reach a launch"


@pytest.mark.parametrize("form", ["dense", "zeros"])
def test_values_of_experts_change_no_bit(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a tile stay those in which rows were sorted by expert."""
    count, hidden, width = 4, 32, 48
    sizes = (count * 2 * width, hidden), (count * hidden, width)
    weights: list[Any] = [
        rows(n, k, 3).numpy() if form == "dense" else quantized(form, n, k, seed=3)
        for n, k in sizes
    ]
    ops = TritonOps()
    gate_up = ops.pack_linear(weights[0], epilogue="silu_mul", experts=count)
    down = ops.pack_linear(weights[1], experts=count)
    x = rows(9, hidden, seed=4).half()
    experts, shares = ops.route(rows(9, count, seed=5), None, RouteSpec(2))
    own = ops.moe(x, experts, shares, gate_up, down)
    entries = []
    for packed in (gate_up, down):
        shape: Any = linear.tuned_shape(device_weight(packed), x.dtype, 16, experts=True)
        assert shape[1].startswith("experts.")
        values = TileTuning(columns=64, rows=256, warps=4, early=4, waves=8)
        entries.append(TunedTile(*shape[1:], (1, 16), values, 0.0))
    tuning.chosen(CPU).use(structs.replace(tuning.untuned(CPU), gemm=entries))
    used = seen(monkeypatch, "product", lambda: ops.moe(x, experts, shares, gate_up, down))
    assert torch.equal(used.result, own)
    assert used.differs


def test_experts_are_tasks_by_size_of_tiles() -> None:
    """Their calls have such tiles, and the values of a task reach its product alone."""
    ops = TritonOps()
    model = ModelConfig("mixtral", 50, 32, 64, 1, 4, 2, 8, 256, moe=MoEConfig(8, 32, RouteSpec(2)))
    chosen, device = tuning.chosen(CPU), cast("TorchAccelerator", None)
    bench = card.Bench(ops, device, chosen, tuning.untuned(CPU), ())
    args = SimpleNamespace(rows=None, context=[32], seed=0)
    setting = card.setting_of(bench, model, Variant(0, "float16", "triton"), cast("Any", args))
    tasks = [*card.experts(bench, setting)]
    assert [(task.shape[2:4], len(task.subject.calls)) for task in tasks] == [
        (shape, count) for shape in ((64, 32), (32, 32)) for count in (2, 1, 1, 1)
    ]
    entries = [task.entry(Found({"warps": 4}, 0.1)) for task in tasks[:4]]
    assert [entry.rows for entry in entries] == [(1, 16), (17, 32), (33, 64), (65, 128)]
    asked: list[tuple[Any, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chosen, "tile", lambda self, *key: asked.append(key) or TileTuning())
        for task in tasks[:2]:
            task.subject.apply({"warps": 4})
            asked.clear()
            task.subject.calls[-1](0)
            assert asked[0] == (task.shape, task.entry(Found({}, 0.0)).rows[1])
    tasks[0].subject.apply({"warps": 4})
    assert chosen.tile(tasks[0].shape, 16).warps == 4
    assert chosen.tile(tasks[4].shape, 16).warps == 0


class Seen:
    """The result of a call, and whether its launch differs from the one before."""

    def __init__(self, result: torch.Tensor, *, differs: bool) -> None:
        self.result, self.differs = result, differs


def seen(monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[], torch.Tensor]) -> Seen:
    """Call with the sizes in force, and compare the launches with those of the kernel's own."""
    from triton.runtime.interpreter import InterpretedFunction

    launches: list[Any] = []
    run = InterpretedFunction.run

    def recorded(self: Any, *args: Any, grid: Any, **given: Any) -> Any:
        if self.fn.__name__ == name:
            launches.append((grid, {k: v for k, v in given.items() if k != "warmup"}))
        return run(self, *args, grid=grid, **given)

    with monkeypatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", recorded)
        result = call()
        patch.setattr(tuning.Chosen, "has_tiles", False)
        patch.setattr(tuning.Chosen, "heads", lambda *_: HeadTuning())
        patch.setattr(tuning.Chosen, "states", lambda *_: StateTuning())
        call()
    return Seen(result, differs=launches[0] != launches[1])


@pytest.mark.parametrize(
    "values",
    [{"stages": 1}, {"waves": -1}, {"waves": 1}, {"prompt_rows": 64, "prompt_stages": 2}],
    ids=str,
)
def test_values_of_attention_change_no_bit(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SEGMENT", 64)
    new = [40, 3] if "prompt_rows" in values else [1, 1]
    meta = metadata([100, 70], new, 16)
    cache = filled("float16", meta, 4, 2, 16, torch.float16)
    q = torch.randn(sum(new), 4, 16, generator=torch.Generator().manual_seed(5)).half()
    rules = AttentionRules(0.2)
    own = attention.paged_attention(q, cache, meta, rules)
    entry = TunedHeads(4, 2, 16, "float16", HeadTuning(**values), 0.0)
    tuning.chosen(CPU).use(structs.replace(tuning.untuned(CPU), attention=[entry]))
    used = seen(monkeypatch, "attention", lambda: attention.paged_attention(q, cache, meta, rules))
    assert torch.equal(used.result, own)
    assert used.differs


@pytest.mark.parametrize("values", [{"stages": 1}, {"waves": -1}], ids=str)
def test_values_of_latent_attention_change_no_bit(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SEGMENT", 64)
    meta = metadata([150, 70], [1, 1], 16)
    rows_of = torch.Generator().manual_seed(6)
    shape = int(meta.block_tables.max()) + 1, 1, 16, 24
    cache: Any = KVCache(torch.randn(shape, generator=rows_of).half(), None)
    q, turned = (torch.randn(2, 4, n, generator=rows_of).half() for n in (16, 8))
    own = latent.latent_attention(q, turned, cache, meta, 0.2)
    entry = TunedHeads(4, 1, 24, "float16", HeadTuning(**values), 0.0)
    tuning.chosen(CPU).use(structs.replace(tuning.untuned(CPU), attention=[entry]))
    call = partial(latent.latent_attention, q, turned, cache, meta, 0.2)
    used = seen(monkeypatch, "attention", call)
    assert torch.equal(used.result, own)
    assert used.differs


@pytest.mark.parametrize(
    ("op", "shape", "values"),
    [
        ("causal_conv1d", (300, 4, "silu"), {"channels": 128}),
        ("gated_delta_rule", (1, 2, 16, 24), {"stages": 1}),
        ("mamba2_scan", (1, 2, 16, 24), {"stages": 4}),
    ],
)
def test_values_of_recurrent_ops_change_no_bit(
    op: str, shape: tuple[Any, ...], values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, results = Case(op, 5, shape, torch.float32), []
    before = case.state(2)
    sizes = {"causal_conv1d": (3, 300)}.get(op, (16, 24))
    entry = TunedStates(op, *sizes, StateTuning(**values), 0.0)

    def call() -> torch.Tensor:
        state = before.clone()
        found = getattr(recurrent, op)(*case.rows, case.rules, state, one(5, 1, 0))
        results.append((found, state))
        return found

    call()
    tuning.chosen(CPU).use(structs.replace(tuning.untuned(CPU), recurrent=(entry,)))
    assert seen(monkeypatch, op, call).differs
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            assert_same_bits(a, b)


class TimedGraph:
    def __init__(self, device: TimedDevice, cost: float) -> None:
        self._device, self._cost = device, cost

    def replay(self) -> None:
        self._device.now += self._cost


class TimedDevice(FakeDevice):
    """Its graphs take as long as `cost` says of their launches."""

    def __init__(self, cost: Callable[[tuple[Any, ...]], float]) -> None:
        super().__init__(zeros=True)
        self.now, self.launches = 0.0, Launches(run=False)
        self._cost = cost

    def capture(self, work: Callable[[], object], reserve: int = 0) -> Graph:
        begin = len(self.launches.seen)
        super().capture(work)
        return TimedGraph(self, sum(map(self._cost, self.launches.seen[begin:])))

    def seconds(self, work: Callable[[], object]) -> float:
        begin = self.now
        work()
        return self.now - begin


def tune(
    monkeypatch: pytest.MonkeyPatch, cost: Callable[[tuple[Any, ...]], float], *flags: str
) -> int:
    device = TimedDevice(cost)
    monkeypatch.setattr("quire.system.hardware.detect_gpu", lambda: Gpu("fake", 2**34))
    monkeypatch.setattr("quire.ops.providers.open_device", lambda name, card=0: device)
    monkeypatch.setattr(card, "UNCACHED", 1)
    monkeypatch.setattr(case, "_MAX_COPIES", 2)
    monkeypatch.setattr(card, "load", lambda empty, read: empty)
    given = ["--model", "embedded", "--repetitions", "3", "--seconds", "1e-6", "--context", "32"]
    with (
        launching(device, monkeypatch, run=False) as device.launches,
        device.watching(),
        torch.inference_mode(),
    ):
        return main(["tune", "kernels", *given, *flags])


def test_the_card_s_clock_chooses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Products like five stages, prompts' attention two: the file says so, and nothing else."""

    def cost(launch: tuple[Any, ...]) -> float:
        name, options = launch[0], launch[-40:]
        if name == "product":
            return 1e-3 * (0.8 if "('num_stages', 5)" in options else 1.0)
        return 1e-3 * (0.5 if "('num_stages', 1)" in options and name == "attention" else 1.0)

    flags = "--rows", "1", "70", "--output", str(tmp_path / "found")
    assert tune(monkeypatch, cost, *flags) == 0
    (file,) = (tmp_path / "found").iterdir()
    assert file.name == "lazy_interpreter.json"
    found = tuning.read(file.read_bytes())
    assert {entry.rows for entry in found.gemm} == {(1, 1), (2, 70)}
    assert {entry.tuning for entry in found.gemm} == {TileTuning(stages=5)}
    assert all(entry.gain == pytest.approx(0.25) for entry in found.gemm)
    assert [entry.tuning for entry in found.attention] == [HeadTuning(stages=1, prompt_stages=1)]
    out = capsys.readouterr().out
    assert "25.0% faster with stages 5" in out
    assert "left out" not in out


KINDS: dict[str, dict[str, Any]] = {
    "latent": {"latent": LatentConfig(16, 8, 8, 8, None), "num_key_value_heads": 1, "head_dim": 24},
    "recurrent": {"recurrent": DeltaConfig(2, 4, 8, 16, 4)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_each_kind_are_tuned(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Latent attention and recurrent layers have entries of their own."""
    model = replace(ModelConfig("mixtral", 50, 32, 64, 1, 4, 2, 8, 256), **KINDS[kind])
    variant = Variant(0, "float16", "triton")
    monkeypatch.setattr(command, "variants", lambda *given: [(variant, model)])

    def cost(launch: tuple[Any, ...]) -> float:
        fast = {"attention": "('num_stages', 1)", "gated_delta_rule": "('stages', 2)"}
        return 0.5e-3 if fast.get(launch[0], "no") in launch[-40:] else 1e-3

    op = "attention" if kind == "latent" else "recurrent"
    assert tune(monkeypatch, cost, "--op", op, "--rows", "1", "20", "--output", str(tmp_path)) == 0
    (file,) = tmp_path.glob("*.json")
    found = tuning.read(file.read_bytes())
    if kind == "latent":
        expected: Any = TunedHeads(4, 1, 24, "float16", HeadTuning(stages=1), 1.0)
        assert found.attention == [expected]
    else:
        expected = TunedStates("gated_delta_rule", 8, 16, StateTuning(stages=2), 1.0)
        assert found.recurrent == (expected,)


def test_dense_products_of_coded_weights_are_tuned_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 256 rows on a coded weight is dequantized; a file must not hold a range twice."""
    flags = "--op", "gemm", "--quantization", "none", "int4", "--rows", "300"
    folder = tmp_path / "found"

    def cost(launch: tuple[Any, ...]) -> float:
        return 0.8e-3 if "('num_stages', 5)" in launch[-40:] else 1e-3

    assert tune(monkeypatch, cost, *flags, "--output", str(folder)) == 0
    (file,) = folder.iterdir()
    found = tuning.read(file.read_bytes())
    kinds = {(entry.kind.split(".")[0], entry.rows) for entry in found.gemm}
    assert kinds == {("dense", (1, 255)), ("dense", (256, 300)), ("offsets", (1, 255))}
    lines = [line for line in capsys.readouterr().out.splitlines() if "rows 256 to 300" in line]
    assert len(lines) == sum(entry.rows == (256, 300) for entry in found.gemm)


def test_flags_of_cpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (("--isa", "avx2"), ("--num-threads", "1"), ("--jobs", "2")):
        assert tune(monkeypatch, lambda launch: 1.0, *flags) == 2
        assert f"{flags[0]} is for the kernels of CPUs" in capsys.readouterr().err


def test_without_a_card_the_reason_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "kernels", "--device", "cuda"]) == 2
    assert "torch sees no GPU" in capsys.readouterr().err


def test_an_engine_on_a_card_loads_its_file(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    gpu = torch.device("cuda", 0)
    entry = TunedTile("dense.bfloat16", 64, 32, 1, (2, 8), TileTuning(warps=4), 0.1)
    file = save_tuning(structs.replace(tuning.untuned(gpu), gemm=[entry]))
    assert file.name.startswith("nvidia-h200_sm90_triton-")
    with caplog.at_level(logging.INFO):
        chosen = tuning.chosen(gpu)
    assert str(file) in caplog.text
    assert chosen.tile(entry.shape, 2) == entry.tuning
    assert chosen.tile(entry.shape, 9) == TileTuning()
    assert chosen.tile((*entry.shape[:-1], 128), 2) == TileTuning()
    file.write_bytes(file.read_bytes().replace(b'"warps": 4', b'"warps": 3'))
    tuning.chosen.cache_clear()
    assert tuning.chosen(gpu).tile(entry.shape, 2) == TileTuning()
    assert "is not used" in caplog.text
