"""Recording and replaying, and what cannot be recorded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from quire.core.dtypes import HostArray
from quire.core.errors import ConfigError
from quire.ops.interface import Ops
from quire.ops.plans.plan import Plan
from quire.ops.plans.recorder import record
from quire.ops.providers import load_ops
from quire.ops.torch_ops.provider import TorchOps

WIDTH = 32
MAX_ROWS = 50


def floats(*shape: int) -> HostArray:
    return np.random.default_rng().standard_normal(shape, np.float32)


@pytest.fixture
def ops() -> Ops:
    return load_ops("cpu", num_threads=2)


@pytest.fixture
def chain(ops: Ops) -> Callable[[Ops, HostArray], HostArray]:
    """Ten ops, three of them on one result."""
    weight = floats(WIDTH)
    packed = ops.pack_linear(floats(WIDTH, WIDTH), floats(WIDTH))

    def function(table: Ops, x: HostArray) -> HostArray:
        residual = x
        for _ in range(3):
            x = table.linear(x, packed)
            x, residual = table.add_rms_norm(x, residual, weight, 1e-6)
            x = table.activation(x, "gelu")
        return table.add(x, residual)

    return function


def recorded(ops: Ops, function: Callable[[Ops, HostArray], HostArray]) -> Plan:
    x = floats(1, WIDTH)
    return record(ops, function, (x,), MAX_ROWS)


@pytest.mark.parametrize("rows", [1, 2, 7, 33, MAX_ROWS])
def test_a_replay_has_the_bits_of_a_call(
    ops: Ops, chain: Callable[[Ops, HostArray], HostArray], rows: int
) -> None:
    plan = recorded(ops, chain)
    assert plan.num_ops == 10
    for _ in range(3):
        x = floats(rows, WIDTH)
        assert np.array_equal(plan.run((x,)), chain(ops, x))


def test_inputs_that_stay_in_their_place_are_read_anew(
    ops: Ops, chain: Callable[[Ops, HostArray], HostArray]
) -> None:
    plan, x = recorded(ops, chain), floats(9, WIDTH)
    for rows in (9, 9, 4, 4, 9):
        x[:] = floats(9, WIDTH)
        assert np.array_equal(plan.run((x[:rows],)), chain(ops, x[:rows]))


def test_plans_that_follow_each_other_have_the_bits_of_calls(
    ops: Ops, chain: Callable[[Ops, HostArray], HostArray]
) -> None:
    """What the threads fetch between two plans changes nothing, whenever the next one comes."""
    first, second = recorded(ops, chain), recorded(ops, chain)
    first.precede(second)
    second.precede(first)
    for turn in range(60):
        plan = (first, second)[turn % 2]
        x = floats(1 + turn % 12, WIDTH)
        assert np.array_equal(plan.run((x,)), chain(ops, x))
        time.sleep(turn % 3 * 1e-4)
    del second, plan  # the other still names its weights
    x = floats(1, WIDTH)
    assert np.array_equal(first.run((x,)), chain(ops, x))


def test_an_op_without_a_kernel_cannot_be_recorded(
    ops: Ops, chain: Callable[[Ops, HostArray], HostArray]
) -> None:
    mixed = ops.using(activation=lambda x, kind: np.tanh(x))
    with pytest.raises(ConfigError, match="activation has no native kernel"):
        recorded(mixed, chain)


def test_a_result_may_be_seen_in_another_shape(ops: Ops) -> None:
    weight = floats(8)

    def function(table: Ops, x: HostArray) -> HostArray:
        heads = table.rms_norm(table.activation(x, "relu").reshape(-1, WIDTH // 8, 8), weight, 1e-6)
        return table.activation(heads.reshape(-1, WIDTH), "relu")

    plan = recorded(ops, function)
    x = floats(6, WIDTH)
    assert np.array_equal(plan.run((x,)), function(ops, x))


def test_rows_are_picked_from_a_result_and_from_an_input(ops: Ops) -> None:
    """What follows has as many rows as were picked, none included."""
    x, other, one = floats(1, WIDTH), floats(1, WIDTH), np.zeros(1, np.int64)

    def function(table: Ops, x: HostArray, other: HostArray, rows: HostArray) -> HostArray:
        inner = table.embedding(rows, table.activation(table.activation(x, "relu"), "relu"))
        return table.activation(table.add(inner, table.embedding(rows, other)), "gelu")

    plan = record(ops, function, (x, other, one), MAX_ROWS)
    x, other = floats(9, WIDTH), floats(12, WIDTH)
    for picked in ([8, 0, 8], [3], [], list(range(9))):
        rows = np.array(picked, np.int64)
        assert np.array_equal(plan.run((x, other, rows)), function(ops, x, other, rows))
    rows = np.array([0, 8])
    assert np.array_equal(plan.run((x, other, rows)), function(ops, x, other, rows))
    rows[1] = 9
    with pytest.raises(IndexError, match=r"token id 9 of row 1 is not in \[0, 9\)"):
        plan.run((x, other, rows))


def test_indices_are_checked_against_the_least_table(ops: Ops) -> None:
    large, small = floats(20, WIDTH), floats(10, WIDTH)
    ids = np.zeros(1, np.int64)

    def function(table: Ops, ids: HostArray) -> HostArray:
        return table.add(table.embedding(ids, large), table.embedding(ids, small))

    plan = record(ops, function, (ids,), MAX_ROWS)
    assert plan.run((np.array([9, 0]),)).shape == (2, WIDTH)
    for bad in (-1, 10):
        with pytest.raises(IndexError, match=r"is not in \[0, 10\)"):
            plan.run((np.array([0, bad]),))


def test_more_rows_than_the_plan_is_for(
    ops: Ops, chain: Callable[[Ops, HostArray], HostArray]
) -> None:
    with pytest.raises(ValueError, match="a step of 51 rows; the plan is for 50"):
        recorded(ops, chain).run((floats(MAX_ROWS + 1, WIDTH),))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda table, x: table.activation(x * 2, "relu"), "calls numpy.multiply, which is no op"),
        (lambda table, x: table.activation(np.flip(x), "relu"), "calls numpy.flip, which is no op"),
        (lambda table, x: table.activation(x.astype(x.dtype), "relu"), "copies an array"),
        (lambda table, x: table.activation(x, "relu").copy(), "copies an array"),
        (
            lambda table, x: table.activation(table.activation(x, "relu")[:, :8], "relu"),
            "takes a part of a result",
        ),
        (lambda table, x: x, "not computed by an op"),
    ],
)
def test_what_cannot_be_recorded(
    ops: Ops, function: Callable[[Ops, HostArray], HostArray], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        recorded(ops, function)
    assert "--enforce-eager" in str(error.value)
    x = floats(3, WIDTH)
    assert np.array_equal(
        ops.activation(x, "relu"), np.maximum(x, 0)
    )  # nothing is recorded any more


def test_reference_ops_cannot_be_recorded() -> None:
    with pytest.raises(ConfigError, match="only native ops"):
        recorded(TorchOps(), lambda table, x: table.activation(x, "relu"))


def test_an_op_that_fails_ends_the_recording(ops: Ops) -> None:
    short = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="weight is"):
        recorded(ops, lambda table, x: table.rms_norm(x, short, 1e-6))
    x = floats(3, WIDTH)
    assert np.array_equal(ops.activation(x, "relu"), np.maximum(x, 0))


def test_ops_are_counted_and_traced(ops: Ops, chain: Callable[[Ops, HostArray], HostArray]) -> None:
    plan = recorded(ops, chain)
    meter = plan.meter
    plan.run((floats(5, WIDTH),))
    assert meter.op_times() == []
    meter.count_ops(True)
    meter.trace_ops(13)
    begin = time.monotonic_ns()
    for rows in (5, 7):
        plan.run((floats(rows, WIDTH),))
    end = time.monotonic_ns()

    counted = {op.name: op for op in meter.op_times()}
    assert list(counted) == ["linear", "add_rms_norm", "activation", "add"]
    assert [op.calls for op in counted.values()] == [6, 6, 6, 2]
    assert all(op.rows == 6 * op.calls and op.seconds > 0 for op in counted.values())
    assert counted["linear"].flops == 3 * 2 * (5 + 7) * WIDTH * WIDTH
    assert counted["linear"].isa == ops.sources["linear"].removeprefix("native ")

    labels, runs = meter.op_runs()
    names = [labels[row[0]].name for row in runs.tolist()]
    assert names[:10] == [*(["linear", "add_rms_norm", "activation"] * 3), "add"]
    assert len(names) == 13  # the first so many
    begins, ends = runs[:, 1], runs[:, 1] + runs[:, 2]
    assert begins[0] >= begin
    assert ends[-1] <= end
    assert (begins[1:] >= ends[:-1]).all()

    meter.count_ops(False)
    meter.trace_ops(0)
    plan.run((floats(5, WIDTH),))
    assert meter.op_times() == []
    assert len(meter.op_runs().runs) == 0


def test_a_replay_takes_few_python_calls(
    ops: Ops, chain: Callable[[Ops, HostArray], HostArray]
) -> None:
    plan, x = recorded(ops, chain), floats(4, WIDTH)
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
