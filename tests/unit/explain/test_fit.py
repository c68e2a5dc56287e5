"""`quire plan`: the engine's own arithmetic, without the engine."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from quire.cli.plan import render
from quire.core.cost import Link
from quire.core.errors import ConfigError
from quire.explain.fit import Fit, fit
from quire.explain.layouts import advice
from quire.explain.limits import Limits
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import field_value
from quire.system.gpu_facts import Gpu
from quire.system.hardware import Hardware

GIB = 2**30
LIMITS = Limits(
    cpu="a processor",
    cores=2,
    bandwidth={1: 15e9, 2: 30e9},
    flops={"float32": {1: 50e9, 2: 100e9}, "bfloat16": {1: 1e11, 2: 2e11}, "int8": {2: 4e11}},
)


def hardware(gigabytes: float) -> Hardware:
    return Hardware(
        cores=2, memory_bytes=int(gigabytes * GIB), available_bytes=int(gigabytes * GIB)
    )


def of(preset: str, gigabytes: float, **fields: object) -> Fit:
    args = EngineArgs(model=preset, load_format="dummy", **fields)  # type: ignore[arg-type]
    return fit(args, hardware(gigabytes), LIMITS)


def test_the_parts_are_the_whole() -> None:
    report = of("qwen3-0.6b", 16)
    assert report.fits
    assert not report.changes
    parts = report.weights + report.activations + report.runtime + report.kv_cache
    block = report.block_size * report.kv_bytes_per_token
    assert report.budget - block < parts <= report.budget
    assert report.kv_cache == report.num_blocks * block
    assert report.tokens == report.num_blocks * report.block_size
    assert report.sequences == report.tokens // report.max_model_len
    assert report.longest == report.max_model_len
    certain = report.weights + report.runtime + report.kv_cache
    assert certain < report.resident < certain + report.activations


def test_one_sequence_decodes_as_fast_as_its_bytes_are_read() -> None:
    report = of("qwen3-0.6b", 16)
    one = report.speed[0]
    read = report.weights + one.context * report.kv_bytes_per_token
    assert one.sequences == 1
    assert one.output_tok_s == pytest.approx(30e9 / read, rel=0.15)
    assert one.itl_ms == pytest.approx(1e3 / one.output_tok_s)
    assert [speed.sequences for speed in report.speed] == [1, 4, 16, 64]
    rates = [speed.output_tok_s for speed in report.speed]
    assert rates == sorted(rates)
    eight = of("qwen3-0.6b", 16, quantization="int8")
    assert eight.speed[0].output_tok_s > 1.5 * one.output_tok_s


def test_without_measured_limits_it_is_called_a_guess() -> None:
    args = EngineArgs(model="gpt2", load_format="dummy")
    report = fit(args, hardware(4), None)
    assert not report.measured
    assert report.speed[0].output_tok_s > 0


@pytest.mark.parametrize(
    ("preset", "gigabytes", "fields"),
    [
        ("qwen3-0.6b", 6, {"max_model_len": 40960}),
        ("qwen3-0.6b", 3, {"max_model_len": 8192}),
        ("gpt2", 1.2, {}),
        ("gpt2", 4, {"kv_cache_memory_bytes": 2**20}),
    ],
)
def test_every_change_makes_it_fit(
    preset: str, gigabytes: float, fields: dict[str, object]
) -> None:
    report = of(preset, gigabytes, **fields)
    assert not report.fits
    assert report.sequences == 0
    assert report.longest < report.max_model_len
    assert report.changes
    for change in report.changes:
        words = shlex.split(change.flags)
        values = {
            name.removeprefix("--").replace("-", "_"): word
            for name, word in zip(words[::2], words[1::2], strict=True)
        }
        changed = {name: field_value(name, word) for name, word in values.items()}
        again = of(preset, gigabytes, **fields | changed)
        assert again.fits, change
        assert (again.tokens, again.sequences) == (change.tokens, change.sequences)


def test_what_cannot_fit_has_no_changes() -> None:
    report = of("qwen3-0.6b", 0.2)
    assert not report.fits
    assert report.changes == []
    assert report.speed == []


def test_a_gpu_has_its_own_memory_and_no_predicted_speed() -> None:
    args = EngineArgs(model="qwen3-0.6b", load_format="dummy", cpu_offload_gb=0.5)
    machine = replace(hardware(16), gpu=Gpu("A GPU", 6 * GIB))
    report = fit(args, machine, LIMITS)
    assert (report.device, report.budget, report.speed) == ("cuda", int(0.9 * 6 * GIB), [])
    assert report.runtime == GIB
    assert 0.3 * GIB < report.offloaded <= 0.5 * GIB
    text = render(report, args)
    assert "on the GPU" in text
    assert "in host memory" in text
    assert "Speed" not in text


def test_offloaded_weights_leave_room() -> None:
    plain = of("qwen3-0.6b", 3, max_model_len=1024)
    moved = of("qwen3-0.6b", 3, max_model_len=1024, cpu_offload_gb=0.5)
    assert plain.offloaded == 0
    assert 0.4 * GIB < moved.offloaded <= 0.5 * GIB
    assert moved.weights + moved.offloaded == plain.weights
    assert moved.num_blocks > plain.num_blocks


def test_other_faults_are_not_a_matter_of_memory() -> None:
    args = EngineArgs(model="gpt2", load_format="dummy")
    with pytest.raises(ConfigError, match="block_size"):
        fit(replace(args, block_size=7), hardware(4), LIMITS)


def test_ranks_count_together() -> None:
    """Weights and KV cache take what one process's would, but for norms."""
    one, two = (of("qwen3-0.6b", 16, tensor_parallel_size=ranks) for ranks in (1, 2))
    assert two.fits
    assert two.offloaded == 0
    assert one.weights < two.weights < 1.001 * one.weights
    assert two.runtime == 2 * one.runtime
    assert two.kv_bytes_per_token == one.kv_bytes_per_token
    parts = two.weights + two.activations + two.runtime + two.kv_cache
    assert parts <= two.budget


def test_stages_pay_on_several_machines_and_for_many_sequences() -> None:
    """On one machine each token reads all weights on half of the cores."""
    here = of("qwen3-0.6b", 16, pipeline_parallel_size=2)
    assert here.speed[0].output_tok_s == pytest.approx(here.speed[0].alone_tok_s / 2, rel=0.1)
    assert any("--tensor-parallel-size 2 is faster" in note for note in here.notes)
    text = render(here, EngineArgs("qwen3-0.6b", pipeline_parallel_size=2))
    assert "one machine is faster: use one process, or --tensor-parallel-size" in text
    both = of("qwen3-0.6b", 16, pipeline_parallel_size=2, nnodes=2)
    assert [stage.node for stage in both.stages] == [0, 1]
    assert sum(stage.layers for stage in both.stages) == 28
    one, *_, many = both.speed
    assert one.output_tok_s < one.alone_tok_s
    assert many.output_tok_s > 1.5 * many.alone_tok_s
    args = EngineArgs("qwen3-0.6b", load_format="dummy", pipeline_parallel_size=2, nnodes=2)
    slow = fit(args, hardware(16), LIMITS, Link(1e9, 0.5)).speed[0]
    assert slow.itl_ms - one.itl_ms == pytest.approx(500, rel=0.01)


def test_replicas_share_the_machine() -> None:
    one, alike, halves = of("qwen3-0.6b", 16, max_num_batched_tokens=512).layouts
    assert (one.flags, one.sequences) == ("", 16)
    assert alike.prompt_s == halves.prompt_s == pytest.approx(2 * one.prompt_s, rel=1e-3)
    assert 0.5 * one.output_tok_s < alike.output_tok_s < one.output_tok_s
    assert halves.output_tok_s == pytest.approx(0.5 * one.output_tok_s, rel=1e-3)
    assert one.busy_itl_ms > 2 * one.itl_ms  # nothing limits it
    assert halves.busy_itl_ms == halves.itl_ms
    limited = of("qwen3-0.6b", 16, max_itl_stretch=1.5).layouts[0]
    assert limited.busy_itl_ms == pytest.approx(1.5 * limited.itl_ms)
    alone, node = advice([one, alike, halves], 1), advice([limited, alike, halves], 2)
    assert "One memory node" in alone[0]
    assert "pays if answers must not wait" in alone[1]
    assert "--data-parallel-size 2 pays" in node[0]
    assert "does not pay" in node[1]


def test_layouts_that_flags_have_chosen_are_not_compared() -> None:
    for chosen in ({"tensor_parallel_size": 2}, {"data_parallel_size": 2}, {"num_threads": 1}):
        assert of("qwen3-0.6b", 16, **chosen).layouts == []
