"""Controls: what is seen in a box, what is tried, and what is refused by name."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox import controls
from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.errors import ControlNotEnforced
from sandbox.machine import Machine, UnsupportedEngine, check_supported, parse_machine
from sandbox.proofs import Proofs
from sandbox.requests import GuestInfo
from sandbox.spec import MIB, BoxSpec, Limits, Network

SPEC = BoxSpec(image="i", workspace_dir=Path("/w"), spill_dir=Path("/s"), uid=7, gid=7, limits=Limits(128 * MIB))
PROBE = "Uid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
FACTS = {
    "kernel": "6.1.0",
    "pids_max": "4096",
    "memory_max": str(128 * MIB),
    "swap_max": "0",
    "host_swap": "0 kB",
    "cpu_quota": "200000",
    "cpu_period": "100000",
    "interfaces": "lo",
    "nofile": "16384",
    "nproc": "96000",
    "shm_bytes": str(64 * MIB),
    "tmp_bytes": str(32 * MIB),
    "home_bytes": str(16 * MIB),
    "guest_folder_mount": "ro",
    "spill_mount": "ro",
    "workspace_mount": "rw",
}
GVISOR = replace(SPEC, runtime="runsc")
GVISOR_FACTS = {**FACTS, "kernel": "4.4.0", "nproc": "4096", "memory_total": f"{128 * 1024} kB"}
TRIED: dict[str, float | str] = {
    "open_files": 16_384, "shm": 64 * MIB, "tmp": 32 * MIB, "home": 16 * MIB, "pids": 4000, "cpus": 2.1,
    "no_new_privileges": 0, "memory": 0,
}  # fmt: skip


def info(facts: dict[str, str]) -> GuestInfo:
    return GuestInfo(1, "3.11", "x86_64", "/bin/sh", 7, 7, False, 5, facts)


def test_a_box_whose_controls_hold_passes() -> None:
    controls.check(SPEC, info(FACTS), PROBE)
    controls.check(GVISOR, info(GVISOR_FACTS), PROBE.partition("NoNewPrivs")[0])
    controls.check_tries(SPEC, TRIED)


@pytest.mark.parametrize(
    ("fact", "value", "control"),
    [
        ("pids_max", "max", "pids"),
        ("pids_max", "5000", "pids"),
        ("memory_max", "9223372036854771712", "memory"),
        ("cpu_quota", "-1", "cpus"),
        ("cpu_quota", "max 100000", "cpus"),
        ("interfaces", "eth0 lo", "network"),
        ("nofile", "1048576", "open_files"),
        ("shm_bytes", str(65 * MIB), "shm"),
        ("tmp_bytes", None, "tmp"),
        ("home_bytes", None, "home"),
        ("guest_folder_mount", "rw", "guest_folder"),
        ("spill_mount", "rw", "spill"),
        ("workspace_mount", "ro", "workspace"),
    ],
)
def test_a_number_that_does_not_hold_is_refused_by_name(fact: str, value: str | None, control: str) -> None:
    facts = {**FACTS, fact: value} if value is not None else {name: FACTS[name] for name in FACTS if name != fact}
    with pytest.raises(ControlNotEnforced) as refused:
        controls.check(SPEC, info({name: text for name, text in facts.items() if text is not None}), PROBE)
    assert refused.value.control == control
    if control in controls.WEAKENABLE:
        weak = replace(SPEC, allow_weak=frozenset({control}))
        controls.check(weak, info({name: text for name, text in facts.items() if text is not None}), PROBE)


@pytest.mark.parametrize(
    ("line", "instead", "control"),
    [
        ("Uid:\t7", "Uid:\t0", "user"),
        ("Gid:\t7", "Gid:\t0", "user"),
        ("CapEff:\t0000000000000000", "CapEff:\t0000000000000001", "capabilities"),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "no_new_privileges"),
        ("Seccomp:\t2", "Seccomp:\t0", "seccomp"),
    ],
)
def test_what_commands_may_is_refused_by_name(line: str, instead: str, control: str) -> None:
    with pytest.raises(ControlNotEnforced) as refused:
        controls.check(SPEC, info(FACTS), PROBE.replace(line, instead, 1))
    assert refused.value.control == control


def test_a_gvisor_that_ignores_control_groups_is_refused_unless_that_is_allowed() -> None:
    void = info({**GVISOR_FACTS, "memory_total": "24684092 kB"})
    with pytest.raises(ControlNotEnforced, match="ignores control groups") as refused:
        controls.check(GVISOR, void, PROBE)
    assert refused.value.control == "memory"
    with pytest.raises(ControlNotEnforced) as refused:
        controls.check(replace(GVISOR, allow_weak=frozenset({"memory"})), void, PROBE)
    assert refused.value.control == "cpus"
    controls.check(replace(GVISOR, allow_weak=frozenset({"memory", "cpus"})), void, PROBE)


def test_a_kernel_that_is_not_gvisors_is_refused() -> None:
    with pytest.raises(ControlNotEnforced) as refused:
        controls.check(replace(GVISOR, allow_weak=controls.WEAKENABLE), info(FACTS), PROBE)
    assert refused.value.control == "runtime"


@pytest.mark.parametrize(
    ("control", "got"),
    [
        ("open_files", 16_385),
        ("shm", 65 * MIB),
        ("tmp", 64 * MIB),
        ("pids", 4097),
        ("cpus", 4.0),
        ("memory", 129 * MIB),
        ("no_new_privileges", 1),
        ("home", "No such file"),
    ],
)
def test_a_limit_that_can_be_passed_is_refused_by_name(control: str, got: float | str) -> None:
    with pytest.raises(ControlNotEnforced) as refused:
        controls.check_tries(SPEC, {**TRIED, control: got})
    assert refused.value.control == control


def test_a_try_that_was_not_made_proves_nothing() -> None:
    with pytest.raises(ControlNotEnforced, match="open_files"):
        controls.check_tries(SPEC, {})


MACHINE = Machine("id", "20.10", "6.1", "x86_64", 2, Path("/"), frozenset({"seccomp"}))


@pytest.mark.parametrize("option", ["name=userns", "name=rootless", "name=selinux"])
def test_an_engine_that_gives_other_boxes_is_named_unsupported(option: str) -> None:
    info = {"SecurityOptions": ["name=seccomp,profile=default", option], "Architecture": "x86_64", "NCPU": 2}
    with pytest.raises(UnsupportedEngine, match="cannot be used"):
        check_supported(parse_machine(info), Path("/guest/abc-x86_64"))


def test_a_guest_folder_of_another_architecture_is_named() -> None:
    machine = parse_machine({"Architecture": "arm64", "NCPU": 2})
    with pytest.raises(UnsupportedEngine, match=r"aarch64.*built for x86_64"):
        check_supported(machine, Path("/guest/abc-x86_64"))
    check_supported(machine, Path("/guest/abc-aarch64"))


def refuse_to_start(_: BoxSpec) -> Box:
    raise ControlNotEnforced("pids", "tried")


def test_a_proof_that_failed_is_tried_again_and_not_kept(tmp_path: Path) -> None:
    tries = []

    def start(spec: BoxSpec) -> Box:
        tries.append(spec)
        return refuse_to_start(spec)

    proofs = Proofs(tmp_path / "proofs", MACHINE, tmp_path, tmp_path, start)
    spec = replace(SPEC, uid=0, gid=0)
    for _ in range(2):
        with pytest.raises(ControlNotEnforced):
            proofs.begin(spec, "image").result(10)
    assert len(tries) == 2
    assert not (tmp_path / "proofs").exists()


@pytest.mark.docker
def test_a_proof_is_made_once_for_an_image_and_what_may_change_it(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], tmp_path: Path
) -> None:
    proofs_dir = tmp_path / "proofs"
    engine = make_engine("proofs", proofs_dir=proofs_dir)
    threads = [threading.Thread(target=lambda: engine.start(make_spec(), "s", 1).close()) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (path,) = proofs_dir.glob("*.json")
    proof = json.loads(path.read_text())
    assert 0 < proof["found"]["pids"] <= proof["limits"]["pids"]
    assert 0 < proof["found"]["shm"] <= proof["limits"]["shm_bytes"]
    assert proof["found"]["memory"] <= proof["limits"]["memory_bytes"]
    before = path.stat().st_mtime_ns
    other = make_engine("proofs-again", proofs_dir=proofs_dir)
    other.start(make_spec(limits=Limits(pids=100)), "s", 1).close()
    assert [path.stat().st_mtime_ns for path in proofs_dir.glob("*.json")] == [before]
    other.start(make_spec(0), "s", 1).close()
    assert len(list(proofs_dir.glob("*.json"))) == 2


@pytest.mark.docker
def test_a_limit_that_the_runtime_does_not_enforce_is_found_by_trying(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], monkeypatch: pytest.MonkeyPatch,
    containers_of: Callable[[str], int],
) -> None:  # fmt: skip
    """The engine gives the box one that reads well in the canary, then more than it says."""
    engine = make_engine("untried", proofs_dir=None)
    monkeypatch.setattr("sandbox.proofs.BEYOND", {"open_files": 0})
    with pytest.raises(ControlNotEnforced) as refused:
        engine.start(make_spec(), "s", 1)
    assert refused.value.control == "shm"
    assert containers_of("untried") == 0


@pytest.mark.docker
def test_the_open_network_is_there_only_where_it_is_asked_for(
    make_spec: Callable[..., BoxSpec], fresh_box: Callable[..., Box]
) -> None:
    assert fresh_box().info.facts["interfaces"] == "lo"
    assert fresh_box(network=Network.ALLOWLIST).info.facts["interfaces"] == "lo"
    assert fresh_box(network=Network.OPEN).info.facts["interfaces"].split() != ["lo"]
