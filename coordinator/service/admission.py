"""May this principal have this session, and what is it then? wanted → **admission** → runner."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import ConfigError
from coordinator.service.archives import Archives
from coordinator.service.principals import Allowance, Principal
from coordinator.service.refusals import Code, Refused
from coordinator.service.wanted import NewSession, Webhook
from coordinator.session.box_options import BoxOptions, read_env, read_hosts
from coordinator.session.ceilings import Wants, within
from coordinator.session.limits import Limits
from coordinator.session.mcp_settings import NO_MCP, McpOptions
from coordinator.session.model_table import ModelTable
from coordinator.session.request import SessionRequest
from coordinator.session.runner import wants_of
from coordinator.session.workspace_choice import Chosen, Wanted, checked, choose
from coordinator.settings import Settings
from tools.loading import LoadedTools
from tools.rules import MCP_MARK, Rules
from worker.contract.extras import BoxExtras
from worker.contract.orders import Policy, WorkspaceMode
from worker.contract.sources import ArchiveSource, EmptySource, GitSource, ImageSource, Source

_IMAGE = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@+\[\]-]*")
"""What references are made of. Source: the grammar of github.com/distribution/reference."""
CALLER_STEPS = 10**9
NOWHERE = Path("/nonexistent")
"""The directory of a session whose workspace comes from elsewhere."""


OWN_HEADERS = frozenset(
    (
        "authorization",
        "proxy-authorization",
        "cookie",
        "host",
        "api-key",
        "x-api-key",
        "openai-organization",
        "openai-project",
    )
)
"""Headers by which an endpoint knows who asks: with the server's address they go with the server's key only."""


@dataclass(frozen=True)
class Admission:
    """Turns what is wanted into a request that a runner takes."""

    settings: Settings
    roots: Mapping[str, Path]
    tools: LoadedTools
    rules: Rules | None
    models: ModelTable
    archives: Archives
    environment: Mapping[str, str]
    """The server's own; only names that a principal's allowance has are taken from it."""
    mcp: McpOptions = NO_MCP
    """The server's MCP servers, whose tools all sessions get."""

    def admit(self, wanted: NewSession, principal: Principal) -> SessionRequest:
        """Return the request.

        Raises:
            Refused: it is above the principal's ceiling, or cannot be.
        """
        _admit_terms(wanted, principal)
        self.admit_webhook(wanted.webhook, principal)
        if wanted.loop == "model":
            self.admit_model(wanted.model, principal)
        try:
            return self._request(wanted, principal)
        except ConfigError as exc:
            raise Refused(_code(exc, principal), str(exc)) from exc

    def admit_again(self, wanted: NewSession, request: SessionRequest, model: str, principal: Principal) -> None:
        """Return if a principal may have now what it was given before: by that its session goes on.

        Args:
            wanted: What it was given.
            request: What came of that.
            model: Whom the session asks.
            principal: As it is now.

        Raises:
            Refused: it may not.
        """
        _admit_terms(wanted, principal)
        if wanted.workspace is not None:
            root = wanted.workspace.partition("/")[0]
            _refuse_unless_in((root,), principal.allowance.roots, principal, "workspace")
        if wanted.loop == "model":
            self.admit_model(model, principal)
        try:
            within(wants_of(request), principal.allowance.ceiling, principal.name)
        except ConfigError as exc:
            raise Refused(Code.FORBIDDEN, str(exc)) from exc

    def admit_model(self, name: str | None, principal: Principal) -> None:
        """Return if a principal may use a model; None is the server's.

        Raises:
            Refused: it may not.
        """
        model = name or self.settings.model or "the server's default model"
        _refuse_unless_in((model,), principal.allowance.models, principal, "model")

    def admit_webhook(self, webhook: Webhook | None, principal: Principal) -> None:
        """Return if a principal may have somebody told.

        Raises:
            Refused: it may not.
        """
        _refuse_unless(principal.allowance.webhooks or webhook is None, principal, "webhooks")

    def _request(self, wanted: NewSession, principal: Principal) -> SessionRequest:
        barred = sorted(name for name in wanted.parameters.headers if name.lower() in OWN_HEADERS)
        if barred:
            raise ConfigError(f"parameters: the header {barred[0]} is the server's own to set.")
        if wanted.image is not None and not _IMAGE.fullmatch(wanted.image):
            raise ConfigError(f"image: {wanted.image!r} is no reference of an image.")
        source = _source(wanted)
        workspace = self._workspace(wanted, principal.allowance)
        image, profile = wanted.image or self.settings.image, wanted.profile or self.settings.profile
        tools = self._known(wanted.tools)
        ceiling = principal.allowance.ceiling
        box = self._box(wanted, principal)
        wants = Wants(workspace.policy, image, _limits(wanted), profile, tools, box.extras.makes_image)
        granted = within(wants, ceiling, principal.name)
        return SessionRequest(
            prompt=wanted.prompt,
            workspace=workspace,
            image=image,
            limits=granted.limits,
            box=box,
            principal=principal.name,
            is_adoptable=True,
            ceiling=ceiling.model_copy(update={"tools": granted.tools}),
            rules=self.rules,
            is_read_only=wanted.read_only,
            approval_s=wanted.approval_s or self.settings.approval_s,
            attributes=principal.allowance.attributes,
            profile=profile,
            budgets=self.settings.budgets,
            task_depth=self.settings.task_depth if wanted.loop == "model" else 0,
            models=self.models,
            parameters=wanted.parameters,
            pins=wanted.pins,
            most_places=principal.allowance.quota.running,
            weight=principal.allowance.quota.weight,
            # Where nothing is, nothing is waited for.
            has_project_notes=wanted.project_notes and not isinstance(source, EmptySource),
            context_tokens=wanted.context_tokens,
            source=source,
            keep=wanted.keep,
        )

    def _known(self, names: frozenset[str] | None) -> frozenset[str] | None:
        known = self.tools.registry.names()
        # The tools of MCP servers are known once their servers run.
        unknown = sorted(name for name in names or () if name not in known and MCP_MARK not in name)
        if unknown:
            raise ConfigError(f"tools: there is no tool {unknown[0]!r}. There are {', '.join(known)}.")
        return names

    def _box(self, wanted: NewSession, principal: Principal) -> BoxOptions:
        asked = sorted(name for name, value in wanted.env.items() if value is None)
        barred = sorted(set(asked) - principal.allowance.env_names)
        if barred:
            raise ConfigError(f"env: {barred[0]} may not be taken from the server's environment; give its value.")
        given = [name if value is None else f"{name}={value}" for name, value in wanted.env.items()]
        values = read_env(given, (), self.environment)
        extras = BoxExtras(
            allow_hosts=read_hosts(wanted.allow_hosts, "allow_hosts"),
            env_names=tuple(values),
            setup=wanted.setup,
            setup_hosts=("*",) if wanted.setup else (),
        )
        archive = self.archives.path(wanted.archive, principal.name) if wanted.archive is not None else None
        return BoxOptions(extras, values, archive=archive).with_mcp(self.mcp)

    def _workspace(self, wanted: NewSession, allowance: Allowance) -> Chosen:
        if wanted.workspace is None:
            policy = wanted.policy or Policy.BOXED
            return Chosen(NOWHERE, WorkspaceMode.COPY, "each session has a copy of its own", policy, as_root=False)
        directory = below_root(wanted.workspace, self.roots, allowance.roots)
        choice = Wanted(directory, bind=wanted.bind, copy=not wanted.bind, policy=wanted.policy)
        return choose(choice, owner_uid=directory.stat().st_uid, own_uid=os.geteuid())


def _admit_terms(wanted: NewSession, principal: Principal) -> None:
    allowance = principal.allowance
    _refuse_unless(allowance.setup or not wanted.setup, principal, "setup commands")
    _refuse_unless(allowance.bind or not wanted.bind, principal, "bind: a session works on a copy")
    _refuse_unless_in(wanted.allow_hosts, allowance.allow_hosts, principal, "allow_hosts")
    _refuse_unless_in((wanted.credential,) if wanted.credential else (), allowance.credentials, principal, "credential")
    if wanted.repo is not None and allowance.repos is not None:
        _refuse_unless(wanted.repo.startswith(allowance.repos), principal, "this repo")


def _limits(wanted: NewSession) -> Limits:
    """Return the limits; a caller's loop is not counted in steps unless it asks for that."""
    if wanted.loop == "none" and "steps" not in wanted.limits.model_fields_set:
        return wanted.limits.model_copy(update={"steps": CALLER_STEPS})
    return wanted.limits


def _source(wanted: NewSession) -> Source | None:
    """Return what the node makes the copy of, where it is no directory of the server's.

    Raises:
        ConfigError: no node can ever give it.
    """
    if wanted.repo is not None:
        return checked(GitSource(url=wanted.repo, ref=wanted.ref, credential=wanted.credential), "ref")
    if wanted.archive is not None:
        return ArchiveSource(name=f"archive {wanted.archive}")
    if wanted.image_dir is not None:
        return checked(ImageSource(path=wanted.image_dir), "image_dir")
    return EmptySource() if wanted.workspace is None else None


def below_root(path: str, roots: Mapping[str, Path], allowed: frozenset[str] | None) -> Path:
    """Return the directory that `name` or `name/sub/directory` means.

    No part of it may be a link: one that a session left there could lead anywhere.

    Raises:
        Refused: there is none, or it is not one that may be used. Both read the same.
    """
    name, _, rest = path.partition("/")
    root = roots.get(name) if allowed is None or name in allowed else None
    names = ", ".join(sorted(one for one in roots if allowed is None or one in allowed)) or "none"
    fix = f"Name one of the server's directories, or a directory below one: {names}."
    refusal = Refused(Code.INVALID, f"workspace: there is no directory {path[:200]!r}.", fix)
    if root is None:
        raise refusal
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise refusal
    descriptor = -1
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
    except OSError:
        raise refusal from None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return root.joinpath(*parts)


def _refuse_unless(is_allowed: bool, principal: Principal, what: str) -> None:
    if not is_allowed:
        raise Refused(Code.FORBIDDEN, f"{principal.name} may not use {what}.")


def _refuse_unless_in(wanted: tuple[str, ...], allowed: frozenset[str] | None, principal: Principal, what: str) -> None:
    barred = [] if allowed is None else [one for one in wanted if one not in allowed]
    if barred and allowed is not None:
        names = ", ".join(sorted(allowed)) or "none"
        raise Refused(Code.FORBIDDEN, f"{principal.name} may not use {what} {barred[0]!r}; allowed: {names}.")


def _code(exc: ConfigError, principal: Principal) -> Code:
    """Return whether it was the ceiling that said no: its words begin with the principal."""
    return Code.FORBIDDEN if str(exc).startswith(f"{principal.name} may not use") else Code.INVALID
