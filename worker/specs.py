"""What a session's box is made of on this node: order and profile → **spec** → engine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.profiles import Profile, UnknownProfile, User, find_profile, shown_bytes
from sandbox.spec import BoxSpec, Network
from sandbox.wire import HOME, WORKSPACE
from worker.box_env import box_environment
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.errors import BoxUnavailable
from worker.workspace import Workspace, own_size_bytes


@dataclass(frozen=True)
class Specs:
    """A node's own part of every box."""

    dead_man_s: int
    env: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """The node's own, beside the built-in ones."""
    allow_open_network: bool = False
    freeze_s: float = 45.0
    """Commands stand still when the node has been silent this long."""

    def profile_of(self, order: BoxOrder) -> Profile:
        """Return the profile of an order, if this node gives such boxes.

        Raises:
            BoxUnavailable: it does not; says what to do.
        """
        try:
            profile = find_profile(order.profile, self.profiles)
        except UnknownProfile as exc:
            raise BoxUnavailable(f"{exc}. Name another one, or define it for the node (SANDHOG_PROFILES)") from exc
        if profile.network is Network.OPEN and not self.allow_open_network:
            raise BoxUnavailable(
                f"profile {order.profile!r} opens the network, which this node does not allow: set "
                "SANDHOG_ALLOW_OPEN_NETWORK=true on it, or name a profile without"
            )
        if profile.user is User.ROOT and order.workspace_mode is WorkspaceMode.BIND and not order.as_root:
            raise BoxUnavailable(
                f"profile {order.profile!r} runs commands as root, and on a bound directory only --as-root allows "
                "that. Work on a private copy (--copy), or name another profile"
            )
        return profile

    def resolved(self, order: BoxOrder) -> BoxOrder:
        """Return the order with what its profile says of the user in it.

        Raises:
            BoxUnavailable: this node gives no such box.
        """
        is_root = self.profile_of(order).user is User.ROOT
        return order.model_copy(update={"as_root": True}) if is_root and not order.as_root else order

    def spec(self, order: BoxOrder, place: Workspace) -> BoxSpec:
        """Return the specification of the session's box on its workspace.

        Raises:
            BoxUnavailable: this node gives no such box.
        """
        profile = self.profile_of(order)
        hosts = (*(profile.hosts if profile.network is Network.ALLOWLIST else ()), *order.extras.allow_hosts)
        return BoxSpec(
            image=order.image,
            workspace_dir=Path(place.directory),
            workspace_size_bytes=place.size_bytes,
            spill_dir=place.spill_dir,
            uid=place.uid,
            gid=place.gid,
            limits=profile.limits(),
            env={**self.env, **box_environment(order)},
            runtime=order.runtime or profile.runtime,
            network=Network.ALLOWLIST if hosts and profile.network is Network.NONE else profile.network,
            egress=hosts,
            dead_man_s=self.dead_man_s,
            freeze_s=math.ceil(self.freeze_s),
            lifetime_s=profile.lifetime_s,
            profile=order.profile,
            principal=order.principal,
            allow_weak=profile.allow_weak,
        )

    def bounds(self, order: BoxOrder) -> dict[str, str]:
        """Return how each writable place of the order's box is bounded, and to what.

        Raises:
            BoxUnavailable: this node gives no such box.
        """
        limits = self.profile_of(order).limits()
        sizes = {"/tmp": limits.tmp_size_bytes, HOME: limits.home_size_bytes, "/dev/shm": limits.shm_bytes}
        bounds = {place: f"tmpfs, {shown_bytes(size)}" for place, size in sizes.items()}
        most, own = limits.workspace_bytes, own_size_bytes(order)
        bounds[WORKSPACE] = bounds["/"] = "not bounded" if most is None else f"watched, {shown_bytes(most)}"
        if own is not None:
            bounds[WORKSPACE] = f"a file system of its own, {shown_bytes(own)}"
        return bounds
