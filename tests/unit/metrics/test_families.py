"""Prometheus' text format: the official parser reads back what was written."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.metrics.families import Family, exposition

LABELS = {"model_name": 'a"b\\n\n}, x="1', "engine": "0"}


@pytest.mark.parametrize("value", [0, 3, 0.1, 1e-9, 2**53, 1.7e9, 1e300, math.inf])
def test_values_and_labels_survive(value: float) -> None:
    gauge, counter = Family("vllm:a", "gauge", "One."), Family("vllm:b", "counter", "Two.")
    for family in (gauge, counter):
        family.add(LABELS, value)
    read = list(text_string_to_metric_families(exposition([gauge, counter]).decode()))
    assert [(f.name, f.type, f.documentation) for f in read] == [
        ("vllm:a", "gauge", "One."),
        ("vllm:b", "counter", "Two."),
    ]
    samples = [sample for family in read for sample in family.samples]
    assert [sample.name for sample in samples] == ["vllm:a", "vllm:b_total"]
    assert all((sample.labels, sample.value) == (LABELS, value) for sample in samples)


def test_buckets_are_cumulative() -> None:
    family = Family("h", "histogram", "Three.")
    family.add_histogram(LABELS, [0.5, 1.0], [2, 0, 5], 9.5)
    [read] = text_string_to_metric_families(exposition([family]).decode())
    found = {(s.name, s.labels.get("le")): s.value for s in read.samples}
    assert found == {
        ("h_bucket", "0.5"): 2,
        ("h_bucket", "1.0"): 2,
        ("h_bucket", "+Inf"): 7,
        ("h_count", None): 7,
        ("h_sum", None): 9.5,
    }
