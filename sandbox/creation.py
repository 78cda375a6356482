"""What a box's container is made of, as the engine is asked for it: spec → **creation** → container."""

from pathlib import Path
from typing import Any

import docker
from docker.types import LogConfig, Mount, Ulimit

from sandbox import wire
from sandbox.deaths import RUNTIME_LABEL
from sandbox.guest_folder import command_line
from sandbox.record import BoxRecord
from sandbox.spec import BoxSpec, Network

CAPABILITIES = ["SETUID", "SETGID", "KILL", "CHOWN"]
"""For the spawner and the guest: to become the agent, to end its processes, to give it its home."""
INSTALL_CAPABILITIES = ("DAC_OVERRIDE", "FOWNER", "FSETID")
"""For package managers, which run as root and work on files of others."""
LABEL, NODE_LABEL, BOX_LABEL, BORN_LABEL, PROFILE_LABEL = (
    "sandhog", "sandhog.node", "sandhog.box", "sandhog.born", "sandhog.profile",
)  # fmt: skip
INSTALLATION_LABEL = "sandhog.installation"
"""Which records directory leads to the box: two installations may call their nodes alike on one engine."""
NAME_PREFIX = "sandhog-"
TASKS_OF_GVISOR = 4096
"""Threads of the sandbox process itself, which are charged to the box on the host."""
HOST_TASKS_PER_TASK = 8
"""gVisor keeps several tasks of the host for one of the box, for a while also for those that ended; it ends when it can
have no more."""


def create(
    client: docker.APIClient,
    spec: BoxSpec,
    record: BoxRecord,
    guest_folder: Path,
    image_env_names: list[str],
    host_cpus: float,
    door_folder: Path | None = None,
) -> None:
    """Make the container of a box, without starting it.

    `host_cpus`: how many the machine has; the engine refuses to give more. `door_folder`: where its guest comes to.
    """
    door = wire.DOOR_PATH if door_folder is not None else ""
    guest = command_line("guest", str(spec.uid), str(spec.gid), str(spec.freeze_s), door)
    client.create_container(
        record.image,
        name=record.container,
        entrypoint=command_line("spawner", str(spec.uid), str(spec.gid), str(spec.dead_man_s), *guest),
        command=[],
        # A name without a value takes the image's variable away: nothing of the image reaches loader or guest.
        environment=image_env_names,
        user="0:0",
        working_dir="/",
        # Process 1 takes no other signal.
        stop_signal="SIGKILL",
        hostname="box",
        healthcheck={"test": ["NONE"]},
        labels={
            LABEL: "1",
            NODE_LABEL: record.node,
            INSTALLATION_LABEL: record.installation,
            BOX_LABEL: record.box_id,
            BORN_LABEL: str(int(record.born)),
            PROFILE_LABEL: record.profile,
            RUNTIME_LABEL: spec.runtime or "",
        },
        host_config=_host_config(client, spec, _mounts(spec, guest_folder, door_folder), host_cpus),
    )


def _host_config(client: docker.APIClient, spec: BoxSpec, mounts: list[Mount], host_cpus: float) -> dict[str, Any]:
    """Limits, rights and file systems, as the engine takes them."""
    limits = spec.limits
    config: dict[str, Any] = client.create_host_config(
        mounts=mounts,
        tmpfs=_tmpfs(spec),
        # Our main process is process 1: nobody inside can end it, which it needs to start commands cheaply. In gVisor
        # somebody could, so there the engine's init is, and commands are forked.
        init=spec.is_gvisor,
        auto_remove=True,
        cap_drop=["ALL"],
        cap_add=[*CAPABILITIES, *(INSTALL_CAPABILITIES if spec.installs else ())],
        security_opt=["no-new-privileges:true"],
        network_mode="bridge" if spec.network is Network.OPEN else "none",
        ipc_mode="private",
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        nano_cpus=int(min(limits.cpus, host_cpus) * 1e9),
        pids_limit=limits.pids * HOST_TASKS_PER_TASK + TASKS_OF_GVISOR if spec.is_gvisor else limits.pids,
        shm_size=limits.shm_bytes,
        ulimits=_ulimits(spec),
        log_config=LogConfig(type="none"),
        runtime=spec.runtime,
    )
    return config


def _tmpfs(spec: BoxSpec) -> dict[str, str]:
    """What lies in memory. Programs may be run from /tmp and the home, as on any machine."""
    limits = spec.limits
    return {
        wire.SOCKET_DIR: "size=1m,mode=0700",
        "/tmp": f"exec,mode=1777,size={limits.tmp_size_bytes}",
        wire.HOME: f"exec,mode=0755,size={limits.home_size_bytes}",
    }


def _ulimits(spec: BoxSpec) -> list[Ulimit]:
    """Limits of each process; those of the whole box are the control group's, where the runtime heeds it."""
    limits = spec.limits
    wanted = {"nofile": limits.open_files, "core": 0}
    if spec.is_gvisor or ("pids" in spec.allow_weak and spec.uid != 0):
        # gVisor counts users of its own. The host counts all processes of a user, in other boxes too; a copy has
        # a user of its own.
        wanted["nproc"] = limits.pids
    if spec.is_gvisor and "memory" in spec.allow_weak:
        # On runc its own first process would not start under it, and control groups are there.
        wanted["as"] = limits.memory_bytes
    return [Ulimit(name=name, soft=value, hard=value) for name, value in wanted.items()]


def _mounts(spec: BoxSpec, guest_folder: Path, door_folder: Path | None) -> list[Mount]:
    """Bind mounts; a source that does not exist is an error, never made."""
    mounts = [
        Mount(wire.GUEST_FOLDER, str(guest_folder), type="bind", read_only=True),
        Mount(wire.WORKSPACE, str(spec.workspace_dir.absolute()), type="bind"),
        Mount(wire.SPILL, str(spec.spill_dir.absolute()), type="bind", read_only=True),
    ]
    if door_folder is not None:
        mounts.append(Mount(wire.DOOR_DIR, str(door_folder), type="bind", read_only=True))
    return mounts
