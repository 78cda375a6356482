"""The scripts of deploy/ as a user meets them: what they print, what they end with."""

import json
import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = sorted([*DEPLOY.rglob("*.sh"), ROOT / ".ci/run"])


def run_bash(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def run_part(name: str, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A few lines of bash after the parts of lib/ that the set-up reads."""
    parts = "".join(f'source "$DEPLOY/lib/{part}.sh"; ' for part in ("say", "packages", name))
    return run_bash("-c", f"set -euo pipefail; {parts}{script}", DEPLOY=str(DEPLOY), ROOT=str(ROOT), **environment)


def put_command(folder: Path, name: str, script: str) -> None:
    command = folder / name
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)


def pins() -> dict[str, str]:
    lines = (DEPLOY / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def packages_needed(requirement: Requirement) -> set[str]:
    """The names of a requirement and of everything it pulls in, as installed here."""
    needed: set[str] = set()
    waiting = [requirement]
    while waiting:
        current = waiting.pop()
        name = re.sub(r"[-_.]+", "-", current.name).lower()
        key = f"{name}[{','.join(sorted(current.extras))}]"
        if key in needed:
            continue
        needed.add(key)
        for text in distribution(current.name).requires or []:
            dependency = Requirement(text)
            extras = current.extras or {""}
            if dependency.marker is None or any(dependency.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(dependency)
    return {key.partition("[")[0] for key in needed}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_script_parses(script: Path) -> None:
    assert run_bash("-n", str(script)).stderr == ""


@pytest.mark.parametrize("script", ["setup.sh", "quickstart.sh"])
def test_help_explains_and_does_nothing(script: str) -> None:
    answer = run_bash(str(DEPLOY / script), "--help")

    assert answer.returncode == 0
    assert f"bash deploy/{script}" in answer.stdout
    assert answer.stderr == ""


def test_setup_names_the_arguments_it_allows() -> None:
    answer = run_bash(str(DEPLOY / "setup.sh"), "--speed")

    assert answer.returncode != 0
    assert "--speed" in answer.stderr
    assert "--dev" in answer.stderr


def test_constraints_pin_versions_and_hold_no_addresses() -> None:
    for line in (DEPLOY / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"#.*|[\w.-]+==[\w.+!]+", line), line
        assert "://" not in line


def test_constraints_pin_everything_the_package_pulls_in() -> None:
    try:
        needed = packages_needed(Requirement("sandhog[dev]"))
    except PackageNotFoundError as missing:
        pytest.skip(f"not installed with the development tools: {missing}")

    assert needed - {"sandhog"} <= pins().keys()


def test_a_python_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    put_command(tmp_path, "python3.13", "echo 'python3.13: command not found' >&2; exit 127")
    put_command(tmp_path, "python3.12", "exit 0")

    assert run_part("python", f"PATH={tmp_path}; find_python").stdout == "python3.12\n"


def test_a_python_that_cannot_make_environments_comes_last(tmp_path: Path) -> None:
    put_command(tmp_path, "python3.13", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    put_command(tmp_path, "python3.11", "exit 0")

    assert run_part("python", f"PATH={tmp_path}; find_python").stdout == "python3.11\n"


def test_a_python_compiled_with_its_optimisations_comes_first(tmp_path: Path) -> None:
    put_command(tmp_path, "python3.13", 'case "$2" in *enable-optimizations*) exit 1 ;; esac')
    put_command(tmp_path, "python3.11", "exit 0")
    pythons = "python3.13 python3.11"

    assert run_part("python", f"PATH={tmp_path}; find_python", SANDHOG_PYTHON=pythons).stdout == "python3.11\n"
    assert run_part("python", f"PATH={tmp_path}; find_python", SANDHOG_PYTHON="python3.13").stdout == "python3.13\n"


def test_the_distributions_python_is_seen_to_be_optimised() -> None:
    system = "/usr/bin/python3"
    if run_part("python", f"runs_python {system}").returncode != 0:
        pytest.skip(f"there is no {system} of 3.11 or later")

    assert run_part("python", f"is_optimised {system}").returncode == 0


def test_a_user_without_rights_hears_of_the_docker_group(tmp_path: Path) -> None:
    put_command(tmp_path, "docker", "echo 'permission denied while trying to connect' >&2; exit 1")

    answer = run_part("engine", "ensure_engine", PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert answer.returncode == 1
    assert "usermod -aG docker" in answer.stderr


def test_an_engine_elsewhere_that_is_silent_is_not_replaced() -> None:
    answer = run_part("engine", "ensure_engine", DOCKER_HOST="tcp://127.0.0.1:9")

    assert answer.returncode == 1
    assert "tcp://127.0.0.1:9" in answer.stderr


def test_a_pid_file_is_stale_when_its_number_belongs_to_another(tmp_path: Path) -> None:
    pid_file = tmp_path / "docker.pid"
    pid_file.write_text(str(os.getpid()))
    own_name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()

    assert run_part("engine", f"holds_pid '{own_name}' {pid_file}").returncode == 0
    assert run_part("engine", f"holds_pid dockerd {pid_file}").returncode == 1


@pytest.mark.docker
def test_setup_finds_nothing_left_to_do() -> None:
    if not (ROOT / ".venv/sandhog-stamp").exists():
        pytest.skip("this checkout was not set up by deploy/setup.sh")

    answer = run_bash(str(DEPLOY / "setup.sh"))

    assert answer.returncode == 0
    assert [line.rpartition("] ")[2] for line in answer.stderr.splitlines()] == ["ready"]


def test_gvisor_is_registered_beside_what_the_engine_has(tmp_path: Path) -> None:
    config, pid_file = tmp_path / "etc" / "daemon.json", tmp_path / "docker.pid"
    config.parent.mkdir()
    config.write_text('{"debug": false, "runtimes": {"other": {"path": "/bin/other"}}}')
    put_command(tmp_path, "runsc", "exit 0")
    put_command(tmp_path, "docker", "echo runc; echo runsc")
    with subprocess.Popen(["sh", "-c", "trap '' HUP; exec sleep 60"]) as engine:
        pid_file.write_text(str(engine.pid))
        answer = run_part(
            "gvisor", "register_gvisor --platform=ptrace", PATH=f"{tmp_path}:{os.environ['PATH']}",
            SANDHOG_ENGINE_CONFIG=str(config), SANDHOG_ENGINE_PID=str(pid_file),
        )  # fmt: skip
        engine.kill()

    assert answer.returncode == 0, answer.stderr
    assert json.loads(config.read_text()) == {
        "debug": False,
        "runtimes": {
            "other": {"path": "/bin/other"},
            "runsc": {"path": str(tmp_path / "runsc"), "runtimeArgs": ["--platform=ptrace"]},
        },
    }


def test_gvisor_is_left_out_where_the_engine_is_elsewhere(tmp_path: Path) -> None:
    put_command(tmp_path, "docker", "echo runc")

    answer = run_bash(
        "-c",
        'for part in say packages engine image gvisor; do source "$DEPLOY/lib/$part.sh"; done; set -eu; ensure_gvisor',
        DEPLOY=str(DEPLOY), PATH=f"{tmp_path}:{os.environ['PATH']}", DOCKER_HOST="tcp://127.0.0.1:9",
    )  # fmt: skip

    assert answer.returncode == 0
    assert "gVisor is left out" in answer.stderr
