"""What a node's boxes need, built of its settings: part of the worker's one wiring place."""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network

import redis

from sandbox import guest_folder
from sandbox.egress.limits import EgressLimits
from sandbox.egress.rules import parse_rule
from sandbox.egress.settings import EgressSettings
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.errors import SandboxError
from sandbox.guest_versions import GuestFolders
from sandbox.images import ImageSettings, RegistryLogin
from sandbox.pool import PoolSettings
from sandbox.shared import check_shared
from sandbox.spec import MIB
from worker.boxes import Boxes
from worker.disk import DiskWatch
from worker.errors import NodeMisconfigured
from worker.facts import Facts
from worker.kept import KeptCopies
from worker.own_disk import IMAGE, OwnDisks
from worker.places import Places
from worker.progress import Progress
from worker.retention import Retention, bounds_of
from worker.settings import NodeSettings
from worker.setup import Setup
from worker.sources.held import Sources, SourceSettings
from worker.sources.jobs import Bounds
from worker.sources.remotes import Remotes, hosts_of
from worker.spill import Spills
from worker.standing import Owners
from worker.upkeep import Upkeep

UPKEEP_S = 15.0
DAY_S = 86_400.0


@dataclass(frozen=True)
class Machine:
    """A node's boxes and what looks after them."""

    boxes: Boxes
    upkeep: Upkeep
    on_lapse: Callable[[], None]
    """Lets all boxes stand still."""
    on_return: Callable[[], None]
    """Lets those go on that are still ours."""
    facts: Facts


def build(settings: NodeSettings, client: redis.Redis) -> Machine:
    """Return the node's boxes; none is started or adopted yet.

    Raises:
        NodeMisconfigured: the engine or the volume cannot be used; the message says what to do.
    """
    progress = Progress(client)
    try:
        settings.own_dir.mkdir(parents=True, exist_ok=True)
        # Boxes are given sessions' directories and guest folders of the one, proofs are made in the other.
        check_shared(settings.state_dir)
        if not settings.own_dir.is_relative_to(settings.state_dir):
            check_shared(settings.own_dir)
        folder = guest_folder.install(settings.state_dir / "guest")
        engine = DockerEngine(
            EngineSettings(
                node=settings.node,
                guest_folder=folder,
                records_dir=settings.own_dir / "boxes",
                proofs_dir=settings.proofs_dir or settings.state_dir / "proofs",
                min_free_bytes=settings.min_free_mib * MIB,
                images=_images(settings),
                egress=_egress(settings),
                on_pull=progress.of_image,
                standing=Owners(client, settings.node),
            )
        )
        folders = GuestFolders(folder.parent, folder, lambda: [record.guest_folder for record in engine.records()])
        folders.tend()
    except (SandboxError, OSError) as exc:
        raise NodeMisconfigured(str(exc)) from exc
    disks = OwnDisks(settings.state_dir / "disks", makes=settings.workspace_disks, has_spares=settings.owner_fd is None)
    # What a node that was killed left mounted; another one that lives holds its own.
    disks.sweep(image.parent for image in settings.state_dir.glob(f"sessions/*/{IMAGE}"))
    boxes = _boxes(settings, engine, client, disks, progress)
    kept = KeptCopies(client, disks, lambda session: boxes.running_box(session) is not None)
    retention = Retention(settings.state_dir, kept, bounds_of(settings))
    jobs: dict[str, Callable[[], object]] = {
        "disk": boxes.end_overfull,
        "idle": boxes.end_idle,
        "places": boxes.keep_places,
        "sweep": engine.sweep,
        "images": engine.images.trim,
        "made images": lambda: engine.maker.trim(settings.made_keep_days * DAY_S),
        "guest folders": folders.tend,
        "retention": retention.sweep,
    }
    facts = Facts(settings, boxes, engine.images.names, engine.machine)
    return Machine(boxes, Upkeep(jobs, UPKEEP_S), engine.freeze_all, engine.release_all, facts)


def _egress(settings: NodeSettings) -> EgressSettings:
    """What boxes with a way out may reach.

    Raises:
        NodeMisconfigured: a name or network cannot be read.
    """
    try:
        private = frozenset(parse_rule(name).name for name in settings.egress_private)
        deny = tuple(ip_network(text) for text in settings.egress_deny)
    except (SandboxError, ValueError) as exc:
        raise NodeMisconfigured(f"SANDHOG_EGRESS_PRIVATE or SANDHOG_EGRESS_DENY: {exc}") from exc
    limits = EgressLimits(bytes_per_s=settings.egress_mib_per_s * MIB, total_bytes=settings.egress_total_mib * MIB)
    return EgressSettings(private, deny, limits)


def _sources(settings: NodeSettings, engine: DockerEngine) -> Sources:
    try:
        deny = tuple(ip_network(text) for text in settings.egress_deny)
    except ValueError as exc:
        raise NodeMisconfigured(f"SANDHOG_EGRESS_DENY: {exc}") from exc
    bounds = Bounds(total_bytes=settings.source_mib * MIB, timeout_s=settings.source_timeout_s)
    source_settings = SourceSettings(
        directory=(settings.sources_dir / settings.node if settings.sources_dir else settings.scratch_dir / "sources"),
        remotes=Remotes(hosts_of(settings.git_hosts), settings.git_credentials, settings.git_ca_file, deny),
        roots=settings.workspace_roots,
        bounds=bounds,
        keep_bytes=settings.source_keep_mib * MIB,
    )
    sources = Sources(source_settings, engine.image_files)
    try:
        sources.sweep()
    except OSError as exc:
        raise NodeMisconfigured(f"{source_settings.directory} cannot be cleared: {exc}") from exc
    return sources


def _images(settings: NodeSettings) -> ImageSettings:
    budget_mib = settings.image_budget_mib
    return ImageSettings(
        may_pull=settings.pull,
        pull_timeout_s=settings.pull_timeout_s,
        logins={
            host: tuple(
                RegistryLogin(login.username, login.password.get_secret_value(), login.principals)
                for login in (logins if isinstance(logins, tuple) else (logins,))
            )
            for host, logins in settings.registries.items()
        },
        budget_bytes=None if budget_mib is None else budget_mib * MIB,
    )


def _boxes(
    settings: NodeSettings, engine: DockerEngine, client: redis.Redis, disks: OwnDisks, progress: Progress
) -> Boxes:
    most = max(settings.pool_min, settings.pool_max)
    return Boxes(
        engine,
        settings.dead_man_s,
        freeze_s=settings.freeze_s,
        setup=Setup(engine, tell=progress.tell),
        sources=_sources(settings, engine),
        pool=PoolSettings(min_idle=settings.pool_min, max_idle=most, total=settings.places) if most else None,
        nursery=settings.state_dir / "warm" / settings.node,
        idle_s=settings.idle_s,
        profiles=settings.profiles,
        allow_open_network=settings.allow_open_network,
        disks=disks,
        progress=progress,
        disk=DiskWatch(engine.layer_bytes, engine.machine.data_dir),
        places=Places(client, settings.node, settings.places),
        spills=Spills(settings.spill_bounds),
    )
