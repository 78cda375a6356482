"""What a box's container is made of, as the engine is asked for it: spec → **creation** → container."""

from pathlib import Path

import docker
from docker.types import LogConfig, Mount, Ulimit

from sandbox import wire
from sandbox.guest_folder import command_line
from sandbox.record import BoxRecord
from sandbox.spec import BoxSpec

CAPABILITIES = ["SETUID", "SETGID", "KILL", "CHOWN"]
"""For the spawner and the guest: to become the agent, to end its processes, to give it its home."""
LABEL, NODE_LABEL, BOX_LABEL, BORN_LABEL, PROFILE_LABEL = (
    "sandhog", "sandhog.node", "sandhog.box", "sandhog.born", "sandhog.profile",
)  # fmt: skip
INSTALLATION_LABEL = "sandhog.installation"
"""Which records directory leads to the box: two installations may call their nodes alike on one engine."""
NAME_PREFIX = "sandhog-"


def create(
    client: docker.APIClient, spec: BoxSpec, record: BoxRecord, guest_folder: Path, image_env_names: list[str]
) -> None:
    """Make the container of a box, without starting it."""
    limits = spec.limits
    host_config = client.create_host_config(
        mounts=_mounts(spec, guest_folder),
        tmpfs={wire.SOCKET_DIR: "size=1m,mode=0700"},
        init=True,
        auto_remove=True,
        cap_drop=["ALL"],
        cap_add=CAPABILITIES,
        security_opt=["no-new-privileges:true"],
        network_mode="none",
        ipc_mode="private",
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.pids,
        shm_size=limits.shm_bytes,
        ulimits=[
            Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
            Ulimit(name="core", soft=0, hard=0),
        ],
        log_config=LogConfig(type="none"),
        runtime=spec.runtime,
    )
    guest = command_line("guest", str(spec.uid), str(spec.gid), str(spec.freeze_s))
    client.create_container(
        record.image,
        name=record.container,
        entrypoint=command_line("spawner", str(spec.uid), str(spec.gid), str(spec.dead_man_s), *guest),
        command=[],
        # A name without a value takes the image's variable away: nothing of the image reaches loader or guest.
        environment=image_env_names,
        user="0:0",
        working_dir="/",
        hostname="box",
        healthcheck={"test": ["NONE"]},
        labels={
            LABEL: "1",
            NODE_LABEL: record.node,
            INSTALLATION_LABEL: record.installation,
            BOX_LABEL: record.box_id,
            BORN_LABEL: str(int(record.born)),
            PROFILE_LABEL: record.profile,
        },
        host_config=host_config,
    )


def _mounts(spec: BoxSpec, guest_folder: Path) -> list[Mount]:
    """Bind mounts; a source that does not exist is an error, never made."""
    return [
        Mount(wire.GUEST_FOLDER, str(guest_folder), type="bind", read_only=True),
        Mount(wire.WORKSPACE, str(spec.workspace_dir.absolute()), type="bind"),
        Mount(wire.SPILL, str(spec.spill_dir.absolute()), type="bind", read_only=True),
    ]
