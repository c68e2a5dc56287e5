"""deploy/: every metric, label and flag that dashboard and alerts name is one that a server has."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from quire.cli import main as cli
from quire.cli.parser import Parser
from quire.cli.serve import add_arguments
from quire.metrics.stats import EngineStats
from quire.profile.cpu_device import Cpu
from quire.profile.nvml import Gpu
from quire.server.monitoring.metrics import Metrics
from tests.e2e.promql import COUNTED, Expression, PromQLError, parse
from tests.e2e.serving import serving
from tests.unit.profile.fake_machine import GPU_ANSWERS, FakeNvml, machine

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/quire.json").read_text("utf-8"))
(GROUP,) = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text("utf-8"))["groups"]
ALERTS: list[dict[str, Any]] = GROUP["rules"]
SCRAPE: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text("utf-8"))
ADDED = {"job", "instance"}
"""Labels that Prometheus gives whatever it scrapes."""
VARIABLES = {"job", "model_name", "datasource", "__rate_interval"}

Labels = dict[str, set[str]]


@pytest.fixture(scope="module")
def exposed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Labels]:
    """Metric → label → values: of a server that has served, and of devices that can be read."""
    with serving(tiny_model, "--swap-space", "0.01", "--num-gpu-blocks-override", "256") as server:
        server.text()
        text = server.http.get("/metrics").text
    root = tmp_path_factory.mktemp("machine")
    machine(root)
    metrics = Metrics(EngineStats(), "m", [Cpu(root), Gpu(FakeNvml(1, GPU_ANSWERS), 0)])
    found: dict[str, Labels] = {}
    for family in [
        *text_string_to_metric_families(text),
        *text_string_to_metric_families(metrics.render().decode()),
    ]:
        for sample in family.samples:
            labels = found.setdefault(sample.name, defaultdict(set))
            for label, value in sample.labels.items():
                labels[label].add(value)
    return found


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def dashboard_expressions() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    queries = (v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query")
    return found + [query["query"] for query in queries]


def check(expression: Expression, exposed: dict[str, Labels], text: str) -> None:
    for selector in expression.selectors:
        if selector.metric == "up":  # Prometheus' own
            continue
        assert selector.metric in exposed, text
        labels = exposed[selector.metric]
        assert selector.matchers.keys() <= labels.keys() | ADDED, text
        for label in selector.matchers.keys() & {"part", "finished_reason"}:
            assert set(selector.matchers[label]) <= labels[label], text
        assert selector.is_range == selector.metric.endswith(COUNTED) or "avg_over_time" in text
    known = {label for s in expression.selectors for label in exposed.get(s.metric, {})}
    assert expression.grouped <= known | ADDED, text


def test_the_dashboard_names_what_there_is(exposed: dict[str, Labels]) -> None:
    expressions = dashboard_expressions()
    assert len(expressions) > 40
    for text in expressions:
        assert set(re.findall(r"\$(\w+)", text)) <= VARIABLES
        query = text.replace("$__rate_interval", "1m")
        if found := re.fullmatch(r"label_values\((.*), (\w+)\)", query):
            (selector,) = parse(found[1]).selectors
            assert selector.metric in exposed
            assert found[2] in exposed[selector.metric].keys() | ADDED
            continue
        check(parse(query), exposed, text)
        if "histogram_quantile" in text:
            assert "le" in parse(query).grouped


def test_the_dashboard_shows_what_matters() -> None:
    shown = " ".join(dashboard_expressions())
    for metric in (
        *("generation_tokens", "time_to_first_token", "inter_token_latency", "e2e_request_latency"),
        *("requests_running", "requests_waiting", "kv_cache_usage", "prefix_cache_hits"),
        *("preemptions", "time_seconds", "event_loop_lag", "requests_rejected", "power_watts"),
    ):
        assert metric in shown


def test_grafana_can_read_the_dashboard() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "model_name"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert "unit" in panel["fieldConfig"]["defaults"]


def test_the_time_split_is_stacked_and_whole(exposed: dict[str, Labels]) -> None:
    stacked = [p for p in panels() if "quire:time_seconds_total" in p["targets"][0]["expr"]]
    parts: list[str] = []
    for panel in stacked:
        assert panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] != "none"
        (selector,) = parse(panel["targets"][0]["expr"].replace("$__rate_interval", "1m")).selectors
        parts += selector.matchers["part"]
    # What waits in the queue is no part of a whole: every request counts.
    assert sorted([*parts, "queue"]) == sorted(exposed["quire:time_seconds_total"]["part"])


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts(alert: dict[str, Any], exposed: dict[str, Labels]) -> None:
    expression = parse(alert["expr"])
    check(expression, exposed, alert["expr"])
    jobs = {job["job_name"] for job in SCRAPE["scrape_configs"]}
    assert all(set(s.matchers["job"]) <= jobs for s in expression.selectors)
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert "for" in alert or "increase(" in alert["expr"]
    notes = alert["annotations"]
    assert notes.keys() == {"summary", "description", "runbook"}
    assert "quire explain --url http://{{ $labels.instance }}" in notes["runbook"]
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(notes.values())))
    assert used <= expression.grouped | ADDED


def test_runbooks_name_flags_that_there_are() -> None:
    parser = Parser()
    add_arguments(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    named = set(re.findall(r"--[a-z-]+", " ".join(a["annotations"]["runbook"] for a in ALERTS)))
    assert named - {"--url", "--slo"} <= flags
    assert "serve" in cli.COMMANDS


def test_prometheus_loads_the_alerts() -> None:
    for file in SCRAPE["rule_files"]:
        assert (DEPLOY / "prometheus" / file).is_file()
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("Quire") for name in names)


@pytest.mark.parametrize(
    "text",
    ["sum(a", "sum a)", "sort_by_colour(a)", "rate({x=1})", "a{b}", "[5m]", "a{b='c'}", "a ? b"],
)
def test_the_parser_of_these_tests_refuses(text: str) -> None:
    with pytest.raises(PromQLError):
        parse(text)
