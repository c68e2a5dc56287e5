"""Recording and replaying: what is native, what falls back, what cannot be recorded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.ops.interface import Ops
from quire.ops.plan import Plan, record
from quire.ops.providers import load_ops
from quire.ops.torch_ops.provider import TorchOps

WIDTH = 32
MAX_ROWS = 50


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def ops() -> Ops:
    return load_ops("cpu", num_threads=2)


@pytest.fixture
def chain(ops: Ops) -> Callable[[Ops, Tensor], Tensor]:
    """Ten ops, three of them on one result."""
    weight = torch.randn(WIDTH)
    packed = ops.pack_linear(torch.randn(WIDTH, WIDTH), torch.randn(WIDTH))

    def function(table: Ops, x: Tensor) -> Tensor:
        residual = x
        for _ in range(3):
            x = table.linear(x, packed)
            x, residual = table.add_rms_norm(x, residual, weight, 1e-6)
            x = table.activation(x, "gelu")
        return table.add(x, residual)

    return function


def recorded(ops: Ops, function: Callable[[Ops, Tensor], Tensor]) -> Plan:
    x = torch.randn(1, WIDTH)
    return record(ops, lambda table: function(table, x), (x,), MAX_ROWS)


@pytest.mark.parametrize("rows", [1, 2, 7, 33, MAX_ROWS])
def test_a_replay_has_the_bits_of_a_call(
    ops: Ops, chain: Callable[[Ops, Tensor], Tensor], rows: int
) -> None:
    plan = recorded(ops, chain)
    assert (plan.num_ops, plan.num_segments) == (10, 1)
    assert plan.torch_ops == {}
    for _ in range(3):
        x = torch.randn(rows, WIDTH)
        assert torch.equal(plan.run((x,)), chain(ops, x))


def test_inputs_that_stay_in_their_place_are_read_anew(
    ops: Ops, chain: Callable[[Ops, Tensor], Tensor]
) -> None:
    plan, x = recorded(ops, chain), torch.empty(9, WIDTH)
    for rows in (9, 9, 4, 4, 9):
        x.normal_()
        assert torch.equal(plan.run((x[:rows],)), chain(ops, x[:rows]))


def test_plans_that_follow_each_other_have_the_bits_of_calls(
    ops: Ops, chain: Callable[[Ops, Tensor], Tensor]
) -> None:
    """What the threads fetch between two plans changes nothing, whenever the next one comes."""
    first, second = recorded(ops, chain), recorded(ops, chain)
    first.precede(second)
    second.precede(first)
    for turn in range(60):
        plan = (first, second)[turn % 2]
        x = torch.randn(1 + turn % 12, WIDTH)
        assert torch.equal(plan.run((x,)), chain(ops, x))
        time.sleep(turn % 3 * 1e-4)
    del second, plan  # the other still names its weights
    x = torch.randn(1, WIDTH)
    assert torch.equal(first.run((x,)), chain(ops, x))


def test_what_torch_computes_stands_between_segments(
    ops: Ops, chain: Callable[[Ops, Tensor], Tensor]
) -> None:
    """An op that no kernel knows, one that returns a view, and one with two results."""

    def halves(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return (x + residual) * weight, residual

    mixed = ops.using(activation=lambda x, kind: torch.nn.functional.elu(x), add_rms_norm=halves)
    plan = recorded(mixed, chain)
    assert (plan.num_ops, plan.num_segments) == (10, 4)
    assert plan.torch_ops == dict.fromkeys(("activation", "add_rms_norm"), "no native kernel")
    for rows in (1, 5, MAX_ROWS):
        x = torch.randn(rows, WIDTH)
        assert torch.equal(plan.run((x,)), chain(mixed, x))


def test_a_result_may_be_seen_in_another_shape(ops: Ops) -> None:
    weight = torch.randn(8)

    def function(table: Ops, x: Tensor) -> Tensor:
        heads = table.rms_norm(table.activation(x, "relu").view(-1, WIDTH // 8, 8), weight, 1e-6)
        return table.activation(heads.flatten(1), "relu")

    plan = recorded(ops, function)
    x = torch.randn(6, WIDTH)
    assert torch.equal(plan.run((x,)), function(ops, x))


def test_rows_are_picked_from_a_result_and_from_an_input(ops: Ops) -> None:
    """What follows has as many rows as were picked, none included."""
    x, other, one = torch.randn(1, WIDTH), torch.randn(1, WIDTH), torch.zeros(1, dtype=torch.int64)

    def function(table: Ops, x: Tensor, other: Tensor, rows: Tensor) -> Tensor:
        inner = table.embedding(rows, table.activation(table.activation(x, "relu"), "relu"))
        return table.activation(table.add(inner, table.embedding(rows, other)), "gelu")

    plan = record(ops, lambda table: function(table, x, other, one), (x, other, one), MAX_ROWS)
    x, other = torch.randn(9, WIDTH), torch.randn(12, WIDTH)
    for picked in ([8, 0, 8], [3], [], list(range(9))):
        rows = torch.tensor(picked, dtype=torch.int64)
        assert torch.equal(plan.run((x, other, rows)), function(ops, x, other, rows))
    rows = torch.tensor([0, 8])
    assert torch.equal(plan.run((x, other, rows)), function(ops, x, other, rows))
    rows[1] = 9
    with pytest.raises(IndexError, match=r"token id 9 of row 1 is not in \[0, 9\)"):
        plan.run((x, other, rows))


def test_indices_are_checked_against_the_least_table(ops: Ops) -> None:
    large, small = torch.randn(20, WIDTH), torch.randn(10, WIDTH)
    ids = torch.zeros(1, dtype=torch.int64)

    def function(table: Ops) -> Tensor:
        return table.add(table.embedding(ids, large), table.embedding(ids, small))

    plan = record(ops, function, (ids,), MAX_ROWS)
    assert plan.run((torch.tensor([9, 0]),)).shape == (2, WIDTH)
    for bad in (-1, 10):
        with pytest.raises(IndexError, match=r"is not in \[0, 10\)"):
            plan.run((torch.tensor([0, bad]),))


def test_more_rows_than_the_plan_is_for(ops: Ops, chain: Callable[[Ops, Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="a step of 51 rows; the plan is for 50"):
        recorded(ops, chain).run((torch.randn(MAX_ROWS + 1, WIDTH),))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda table, x: table.activation(x * 2, "relu"), "which is no op"),
        (
            lambda table, x: table.activation(table.activation(x, "relu")[:, :8], "relu"),
            "takes a part of a result",
        ),
        (lambda table, x: x, "not computed by an op"),
    ],
)
def test_what_cannot_be_recorded(
    ops: Ops, function: Callable[[Ops, Tensor], Tensor], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        recorded(ops, function)
    assert "--enforce-eager" in str(error.value)
    x = torch.randn(3, WIDTH)
    assert torch.equal(ops.activation(x, "relu"), torch.relu(x))  # nothing is recorded any more


def test_reference_ops_cannot_be_recorded() -> None:
    with pytest.raises(ConfigError, match="only native ops"):
        recorded(TorchOps(), lambda table, x: table.activation(x, "relu"))


def test_an_op_that_fails_ends_the_recording(ops: Ops) -> None:
    short = torch.ones(3)
    with pytest.raises(ValueError, match="weight is"):
        recorded(ops, lambda table, x: table.rms_norm(x, short, 1e-6))
    x = torch.randn(3, WIDTH)
    assert torch.equal(ops.activation(x, "relu"), torch.relu(x))


def test_ops_are_counted_and_traced(ops: Ops, chain: Callable[[Ops, Tensor], Tensor]) -> None:
    mixed = ops.using(activation=lambda x, kind: torch.nn.functional.elu(x))
    plan = recorded(mixed, chain)
    meter = plan.meter
    plan.run((torch.randn(5, WIDTH),))
    assert meter.op_times() == []
    meter.count_ops(True)
    meter.trace_ops(13)
    begin = time.monotonic_ns()
    for rows in (5, 7):
        plan.run((torch.randn(rows, WIDTH),))
    end = time.monotonic_ns()

    counted = {op.name: op for op in meter.op_times()}
    assert list(counted) == ["linear", "add_rms_norm", "activation", "add"]
    assert [op.calls for op in counted.values()] == [6, 6, 6, 2]
    assert all(op.rows == 6 * op.calls and op.seconds > 0 for op in counted.values())
    assert counted["linear"].flops == 3 * 2 * (5 + 7) * WIDTH * WIDTH
    assert counted["activation"].isa == "torch"
    assert counted["linear"].isa == ops.sources["linear"].removeprefix("native ")

    labels, runs = meter.op_runs()
    names = [labels[row[0]].name for row in runs.tolist()]
    assert names[:10] == [*(["linear", "add_rms_norm", "activation"] * 3), "add"]
    # The first so many are kept, of native ops and of the others.
    assert (len(names), names.count("activation")) == (13 + 6, 6)
    begins, ends = runs[:, 1], runs[:, 1] + runs[:, 2]
    assert begins[0] >= begin
    assert ends[-1] <= end
    assert (begins[1:] >= ends[:-1]).all()

    meter.count_ops(False)
    meter.trace_ops(0)
    plan.run((torch.randn(5, WIDTH),))
    assert meter.op_times() == []
    assert len(meter.op_runs().runs) == 0


def test_a_replay_takes_few_python_calls(ops: Ops, chain: Callable[[Ops, Tensor], Tensor]) -> None:
    plan, x = recorded(ops, chain), torch.randn(4, WIDTH)
    assert 2 * _python_calls(lambda: plan.run((x,))) <= _python_calls(lambda: chain(ops, x))


def _python_calls(function: Callable[[], object]) -> int:
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls
