"""`sandhog doctor`: what is broken is named, with what to do; a bundle holds no secret."""

import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import redis

from coordinator.commands import doctor_looks
from coordinator.commands.doctor_bundle import write_bundle
from coordinator.settings import Settings
from sandbox.engine_report import faults_of
from worker.contract import keys
from worker.contract.findings import Finding, State, ok
from worker.contract.orders import NodeLife
from worker.doctor import of_box, of_disk, of_limits
from worker.marking import Marking
from worker.settings import NodeSettings

SANDHOG = str(Path(sys.executable).with_name("sandhog"))
UNREADABLE = """
import os, sys
from worker.doctor import look
from worker.settings import NodeSettings
os.setuid(65534)
settings = NodeSettings(redis_url="unix:///x", state_dir="/tmp")
print(next(look(settings, "x")).model_dump_json())
"""


async def all_of(findings: AsyncIterator[Finding]) -> list[Finding]:
    return [finding async for finding in findings]


def worst(findings: list[Finding]) -> Finding:
    order = {State.OK: 0, State.WARNING: 1, State.FAILURE: 2}
    found = max(findings, key=lambda finding: order[finding.state])
    assert (found.state is State.OK) == (found.fix == ""), "a fault says what to do"
    return found


class TestRedis:
    async def test_one_that_evicts_is_a_failure(self, redis_url: str, redis_client: redis.Redis) -> None:
        redis_client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = await all_of(doctor_looks.of_redis(redis_url))
        finally:
            redis_client.config_set("maxmemory-policy", "noeviction")

        assert worst(found).said == "maxmemory-policy is allkeys-lru"
        assert "noeviction" in worst(found).fix

    async def test_one_without_a_log_is_a_warning(self, redis_url: str) -> None:
        found = await all_of(doctor_looks.of_redis(redis_url))

        assert (worst(found).state, worst(found).said) == (State.WARNING, "it keeps no append-only file")

    async def test_one_that_is_away_is_a_failure(self, state_dir: Path) -> None:
        found = await all_of(doctor_looks.of_redis(f"unix://me:hush-1@{state_dir}/none.sock"))

        assert [one.state for one in found] == [State.FAILURE]
        assert "does not answer" in found[0].said
        assert "hush-1" not in found[0].said

    @pytest.mark.parametrize(
        ("url", "states"),
        [
            ("redis://127.0.0.1/0", []),
            ("redis://redis.example/0", [State.FAILURE, State.WARNING]),
            ("redis://u:p@redis.example/0", [State.OK, State.WARNING]),
            ("rediss://u:p@redis.example/0", [State.OK]),
        ],
    )
    def test_who_else_may_use_it_is_judged_by_its_address(self, url: str, states: list[State]) -> None:
        assert [finding.state for finding in doctor_looks.of_address(url)] == states

    @pytest.mark.parametrize(("version", "state"), [("6.0.16", State.FAILURE), ("7.2", State.OK), ("", State.WARNING)])
    def test_old_versions_are_refused(self, version: str, state: State) -> None:
        assert doctor_looks._of_version(version, "x").state is state


class TestNodes:
    @pytest.fixture
    def life(self, redis_client: redis.Redis) -> NodeLife:
        life = NodeLife(node="n1", incarnation="i1", places=2, lanes=8)
        redis_client.sadd(keys.NODES, "n1")
        redis_client.set(keys.node("n1"), life.model_dump_json())
        redis_client.set(keys.lease("n1"), "i1")
        return life

    async def test_none_is_a_failure(self, redis_url: str, state_dir: Path) -> None:
        found = await all_of(doctor_looks.of_nodes(redis_url, state_dir))

        assert worst(found).said == "no worker has a lease"

    @pytest.mark.usefixtures("life")
    async def test_one_on_another_volume_is_a_failure(
        self, redis_url: str, redis_client: redis.Redis, state_dir: Path
    ) -> None:
        Marking(redis_client, state_dir / "elsewhere", "n1", "i1").write()
        found = await all_of(doctor_looks.of_nodes(redis_url, state_dir))
        assert "n1 has left no mark here" in worst(found).said

        Marking(redis_client, state_dir, "n1", "an earlier life").write()
        found = await all_of(doctor_looks.of_nodes(redis_url, state_dir))
        assert "the mark of n1 is an old one" in worst(found).said

    @pytest.mark.usefixtures("life")
    @pytest.mark.parametrize(("ahead_s", "state"), [(0.0, State.OK), (-60.0, State.WARNING)])
    async def test_one_whose_clock_goes_wrong_is_a_warning(
        self, redis_url: str, redis_client: redis.Redis, state_dir: Path, ahead_s: float, state: State
    ) -> None:
        seconds, micros = redis_client.time()
        Marking(redis_client, state_dir, "n1", "i1", lambda: seconds + micros / 1e6 + ahead_s).write()

        found = await all_of(doctor_looks.of_nodes(redis_url, state_dir))

        clocks = [one for one in found if one.area == "clock" and "n1" in one.said]
        # On a busy machine the two looks at the clock may lie a little apart.
        assert [one.state for one in clocks] == [state]
        assert (" behind Redis" in clocks[0].said) == (state is State.WARNING)


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == "Bearer hush-right"
        body = json.dumps({"data": [{"id": "m1", "object": "model"}, {"id": "m2", "object": "model"}]}).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class TestEndpoint:
    @pytest.fixture
    def url(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Models)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()
        server.server_close()

    @pytest.mark.parametrize(
        ("key", "model", "state", "words"),
        [
            ("hush-right", "m1", State.OK, "answers with 2 models"),
            ("hush-right", "m3", State.WARNING, "m3 is not among its models"),
            ("hush-wrong", "m1", State.FAILURE, "refuses the key"),
        ],
    )
    async def test_models_and_key_are_judged(
        self, url: str, monkeypatch: pytest.MonkeyPatch, key: str, model: str, state: State, words: str
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", key)

        found = await all_of(doctor_looks.of_endpoint(Settings(endpoint_url=url, model=model)))

        assert worst(found).state is state
        assert words in worst(found).said
        assert "hush" not in str(found)

    async def test_one_that_is_away_is_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")

        found = await all_of(doctor_looks.of_endpoint(Settings()))

        assert "does not answer" in worst(found).said


class TestMachine:
    def test_known_faults_are_found_by_version(self) -> None:
        def faulty(**parts: str) -> int:
            return len(faults_of(parts))

        assert faulty(runc="1.1.5+ds1") == 2
        assert faulty(runc="1.1.3") == 3
        assert faulty(runc="1.2.7") == faulty(runc="1.3.2") == 1
        assert faulty(runc="1.2.8") == faulty(runc="1.3.3") == faulty(runc="1.5.0") == 0
        assert faulty(containerd="v1.7.26") == 1
        assert faulty(containerd="v1.7.27") == faulty(containerd="2.1.0") == 0
        assert faulty(runc="unknown") == 0

    def test_a_full_disk_is_a_failure(self, tmp_path: Path) -> None:
        assert worst(list(of_disk("volume", tmp_path, 1))).state is State.OK
        assert worst(list(of_disk("volume", tmp_path, 1 << 60))).state is State.FAILURE
        assert worst(list(of_disk("volume", tmp_path / "none", 1))).state is State.WARNING

    def test_few_open_files_are_a_warning(self) -> None:
        assert worst(list(of_limits(10**7))).state is State.WARNING

    @pytest.mark.docker
    def test_an_image_that_is_not_there_is_a_failure(self, state_dir: Path) -> None:
        settings = NodeSettings(redis_url="unix:///x", state_dir=state_dir)

        found = list(of_box(settings, "sandhog-box:no-such-tag"))

        assert (worst(found).area, worst(found).state) == ("image", State.FAILURE)
        assert [path.name for path in state_dir.iterdir()] == ["guest"]

    @pytest.mark.docker
    def test_controls_are_tried_in_a_real_box(self, state_dir: Path) -> None:
        settings = NodeSettings(redis_url="unix:///x", state_dir=state_dir)

        found = list(of_box(settings, "sandhog-box:latest"))

        assert [one for one in found if one.state is not State.OK] == []
        assert [one.area for one in found] == ["image", "box", "controls"]
        assert "no_new_privileges" in found[-1].said
        assert [path.name for path in state_dir.iterdir()] == ["guest"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_a_socket_that_may_not_be_opened_is_told_apart(self, state_dir: Path) -> None:
        state_dir.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(state_dir / "s"))
            (state_dir / "s").chmod(0o600)
            done = subprocess.run(
                [sys.executable, "-c", UNREADABLE],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "DOCKER_HOST": f"unix://{state_dir}/s"},
            )

        found = Finding.model_validate_json(done.stdout)
        assert found.state is State.FAILURE
        assert "may not be opened by this user" in found.said


def test_the_command_says_the_worst_by_its_code(state_dir: Path) -> None:
    environment = {
        **os.environ,
        "SANDHOG_CONFIG": "",
        "SANDHOG_STATE_DIR": str(state_dir),
        "SANDHOG_REDIS_URL": f"unix://{state_dir}/none.sock",
        "DOCKER_HOST": f"unix://{state_dir}/none.sock",
    }

    done = subprocess.run([SANDHOG, "doctor", "--json"], capture_output=True, text=True, check=False, env=environment)

    assert done.returncode == 2, done.stderr
    told = json.loads(done.stdout)
    assert told["worst"] == "failure"
    failed = [one["area"] for one in told["findings"] if one["state"] == "failure"]
    assert failed == ["redis", "engine"]


def test_wrong_settings_are_a_failure_too(state_dir: Path) -> None:
    done = subprocess.run(
        [SANDHOG, "doctor"], capture_output=True, text=True, check=False, env={**os.environ, "SANDHOG_APPROVAL_S": "0"}
    )

    assert done.returncode == 2
    assert "✗ settings  A setting is wrong: SANDHOG_APPROVAL_S" in done.stdout


def test_a_bundle_holds_no_secret(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in variables, the file, own tools' secrets, logs and transcripts: none comes out."""
    own = tmp_path / "secrets" / "local"
    own.mkdir(parents=True)
    (own / "tool").write_text("hush-of-a-tool\n")
    file = tmp_path / "config.toml"
    file.write_text(
        f'[cluster]\nsecrets_dir = "{tmp_path}/secrets"\n[serve]\napi_token = "hush-token-of-the-file"\n'
        '[worker.registries.forge]\nusername = "me"\npassword = "hush-of-a-registry"\n'
        '[endpoint]\nendpoint_url = "https://me:hush-of-an-address@h/v1"\n'
    )
    secrets = {
        "OPENAI_API_KEY": "hush-of-the-endpoint",
        "SANDHOG_REDIS_URL": f"unix://me:hush-of-redis@{state_dir}/none.sock",
        "SANDHOG_MCP_TOKEN": "hush-of-mcp",
        "SANDHOG_GIT_PASSWORD_FORGE": "hush-of-git",
    }
    for name, value in {**secrets, "SANDHOG_CONFIG": str(file), "SANDHOG_STATE_DIR": str(state_dir)}.items():
        monkeypatch.setenv(name, value)
    everything = " ".join(
        ("hush-of-a-tool", "hush-token-of-the-file", "hush-of-a-registry", "hush-of-an-address", *secrets.values())
    )
    run, session = state_dir / "runs" / "1-a", state_dir / "sessions" / "s1"
    for directory in (run, session):
        directory.mkdir(parents=True)
    (run / "worker.log").write_text(f"began {everything} Authorization: Bearer hush-by-its-shape-1\n")
    (session / "1.jsonl").write_text(json.dumps({"type": "x", "text": everything, "password": "hush-by-name"}) + "\n")
    (session / "session.env").write_text("A=hush-in-a-file-that-is-left-out")
    bundle = tmp_path / "bundle.tar.gz"

    write_bundle(bundle, [ok("redis", everything)])

    with tarfile.open(bundle) as archive:
        parts = {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]
    assert {name.removeprefix("sandhog-doctor/") for name in parts} == {
        *("versions.json", "findings.json", "settings.json", "nodes.json"),
        *("logs/1-a-worker.log", "sessions/s1-1.jsonl"),
    }
    assert "began" in parts["sandhog-doctor/logs/1-a-worker.log"]
    assert [name for name, text in parts.items() if "hush" in text] == []
    assert bundle.stat().st_mode & 0o077 == 0
