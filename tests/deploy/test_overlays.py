"""All overlays of a stack for real, at once: TLS, monitoring, gVisor, and a further host that joins over TLS."""

import json
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import httpx2
import pytest
import yaml

from tests.conftest import Until
from tests.deploy.stacks import ROOT, Stack, directory, environment, leftovers, up
from tests.sandbox.gvisor import RUNTIME, missing_gvisor

pytestmark = [pytest.mark.long, pytest.mark.docker, pytest.mark.timeout(1200)]

FIRST, FURTHER, NAME = "sandhog-over", "sandhog-over-two", "first.example"
MONITORING = ROOT / "deploy" / "monitoring"
SCRIPT: list[dict[str, Any]] = [
    {
        "text": "I write.",
        "calls": [{"name": "Bash", "arguments": {"command": "echo x >> log; until test -e go; do sleep 0.1; done"}}],
    },
    {"text": "Done."},
]
"""Its command waits for a file of the test's."""


def used_metrics() -> set[str]:
    """Names in alert rules and on the dashboard, without the ends of a histogram's samples."""
    rules = (MONITORING / "rules.yaml").read_text()
    panels = json.loads((MONITORING / "dashboards" / "sandhog.json").read_text())["panels"]
    expressions = [rules, *(target["expr"] for panel in panels for target in panel["targets"])]
    names = {name for text in expressions for name in re.findall(r"sandhog_\w+", text)}
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names}


class Prometheus:
    """The stack's, asked over its API."""

    def __init__(self, stack: Stack) -> None:
        self._url = f"http://127.0.0.1:{stack.environment['SANDHOG_PROMETHEUS_PORT']}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        answer = httpx2.get(f"{self._url}/{path}", params=parameters, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def targets(self) -> dict[str, list[tuple[str, str]]]:
        """How each target is, and what is wrong with it, by job."""
        found: dict[str, list[tuple[str, str]]] = {}
        for target in self.ask("targets")["activeTargets"]:
            found.setdefault(target["labels"]["job"], []).append((target["health"], target["lastError"]))
        return found


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with directory() as home:
        yield home


@pytest.fixture(scope="module")
def first(home: Path, docker_engine_or_skip: None) -> Iterator[Stack]:
    """The first host's."""
    ports = ("SANDHOG_PORT", "SANDHOG_REDIS_PORT", "SANDHOG_PROMETHEUS_PORT", "SANDHOG_GRAFANA_PORT")
    variables = environment(FIRST, home, SCRIPT, *ports) | {"SANDHOG_TLS_NAME": NAME}
    gvisor = () if missing_gvisor() else ("--gvisor",)
    overlays = [
        word for name in ("test", "named") for word in ("--overlay", f"{ROOT}/tests/deploy/compose.{name}.yaml")
    ]
    flags = ("--tls", "--monitoring", *gvisor, *overlays)
    with up(Stack(FIRST, variables, flags, is_tls=True)) as stack:
        yield stack


@pytest.fixture(scope="module")
def further(home: Path, first: Stack) -> Iterator[Stack]:
    """Another host's: it has two secrets of the first one, and its volume."""
    secrets = home / "further-secrets"
    secrets.mkdir(mode=0o700)
    (secrets / "redis_ca").write_text((first.secrets / "redis_ca").read_text())
    url = (first.secrets / "worker_redis_url").read_text()
    address = f"{NAME}:6380/0?ssl_ca_certs=/run/secrets/redis_ca"
    (secrets / "worker_redis_url").write_text(url.replace("redis://", "rediss://").replace("redis:6379/0", address))
    own = {"SANDHOG_STACK": FURTHER, "SANDHOG_SECRETS": str(secrets), "SANDHOG_HOST": "two", "FIRST": FIRST}
    variables = first.environment | own
    gvisor = () if missing_gvisor() else ("--gvisor",)
    flags = ("--worker", *gvisor, "--overlay", str(ROOT / "tests/deploy/compose.further.yaml"))
    with up(Stack(FURTHER, variables, flags), builds=False) as stack:
        yield stack


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = docker.from_env(timeout=60)
    yield client
    client.close()


def box_of(client: docker.DockerClient, stack: Stack, session_id: str) -> Any:
    """The container that has a session's copy mounted."""
    copy = str(stack.state_dir / "sessions" / session_id / "work")
    (found,) = [
        one
        for one in client.containers.list(ignore_removed=True)
        if any(mount["Source"] == copy for mount in one.attrs["Mounts"])
    ]
    return found


def test_the_api_speaks_tls_with_the_stacks_certificate_alone(first: Stack) -> None:
    assert first.ask("GET", "/readyz").status_code == 200
    with pytest.raises(httpx2.ConnectError, match="certificate"):
        httpx2.get(first.url + "/readyz", trust_env=False)


def test_redis_is_published_with_tls_and_lets_nobody_in_without_a_password(first: Stack) -> None:
    context = ssl.create_default_context(cafile=first.secrets / "redis_ca")
    address = ("127.0.0.1", int(first.environment["SANDHOG_REDIS_PORT"]))
    with (
        socket.create_connection(address, timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as way,
    ):
        way.sendall(b"PING\r\nKEYS *\r\n")
        said = b""
        while said.count(b"\r\n") < 2:
            said += way.recv(4096)
    pong, refusal = said.splitlines()[:2]
    assert pong == b"+PONG"
    assert refusal.startswith(b"-NOPERM")


def test_prometheus_sees_all_and_has_all_that_rules_and_dashboard_ask_for(first: Stack, until: Until) -> None:
    prometheus = Prometheus(first)
    until(
        lambda: (
            {job: [health for health, _ in found] for job, found in prometheus.targets().items()}
            == {"coordinator": ["up"], "worker": ["up"]}
        ),
        f"all targets are up: {prometheus.targets()}",
        120,
    )
    # Also names of what has not happened yet are told.
    until(lambda: used_metrics() <= set(prometheus.ask("metadata")), "every metric that is used is told", 60)
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"][0]["rules"])
    until(
        lambda: {rule["health"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"]} == {"ok"},
        "every rule was evaluated without a fault",
        60,
    )
    panels = json.loads((MONITORING / "dashboards" / "sandhog.json").read_text())["panels"]
    for expression in (target["expr"] for panel in panels for target in panel["targets"]):
        prometheus.ask("query", query=expression)
    assert [
        alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"
    ] == []
    first.compose("exec", "-T", "prometheus", "/bin/promtool", "check", "rules", "/etc/prometheus/rules.yaml")
    first.compose("exec", "-T", "prometheus", "/bin/promtool", "check", "config", "/etc/prometheus/prometheus.yaml")


def test_boxes_have_a_kernel_of_their_own(first: Stack, client: docker.DockerClient, until: Until) -> None:
    if (reason := missing_gvisor()) is not None:
        pytest.skip(reason)
    session = first.started()
    until(lambda: first.runs_a_command(session), "the command has begun", 120)
    assert box_of(client, first, session).attrs["HostConfig"]["Runtime"] == RUNTIME
    go_on(first, session)
    assert first.ended(session)["status"] == "completed"


def test_a_further_host_joins_over_tls_and_runs_sessions(first: Stack, further: Stack, until: Until) -> None:
    until(lambda: len(alive(first)) == 2, f"both nodes are there: {alive(first)}", 120)
    (node,) = [name for name in alive(first) if name.startswith("two-")]
    answer = first.ask("POST", "/v1/sessions", json={"prompt": "write", "pins": {"host": "two"}})
    session = answer.json()["session_id"]
    until(lambda: first.runs_a_command(session), "the command has begun", 120)
    go_on(first, session)
    ended = first.ended(session)
    assert ended["status"] == "completed", ended
    transcript = next((first.state_dir / "sessions" / session).glob("*.jsonl")).read_text()
    assert f'"node":"{node}"' in transcript
    assert "+x" in first.ask("GET", f"/v1/sessions/{session}/patch").text


def test_a_worker_whose_volume_is_another_one_does_not_start(further: Stack, home: Path) -> None:
    other = home / "other"
    other.mkdir()
    mounted = f"{other}:{further.environment['SANDHOG_STATE_DIR']}"
    done = further.run("run", "--rm", "--no-deps", "-T", "--volume", mounted, "worker")
    assert done.returncode == 2, done.stderr
    assert f"does not see {further.environment['SANDHOG_STATE_DIR']} as this worker does" in done.stdout + done.stderr


def test_a_further_host_takes_no_overlay_of_the_first(further: Stack) -> None:
    for flag in ("--tls", "--monitoring"):
        done = Stack(FURTHER, further.environment, ("--worker", flag)).run("ps")
        assert done.returncode != 0
        assert "of the first host" in done.stderr


def test_nothing_is_left(first: Stack, further: Stack, client: docker.DockerClient) -> None:
    for stack in (further, first):
        stack.compose("down", "--volumes", "--timeout", "60")
        assert leftovers(client, stack.name) == []


def alive(stack: Stack) -> list[str]:
    return [node["node"] for node in stack.ask("GET", "/v1/nodes").json()["nodes"] if node["is_alive"]]


def go_on(stack: Stack, session_id: str) -> None:
    (stack.state_dir / "sessions" / session_id / "work" / "go").touch()
