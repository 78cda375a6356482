"""What a task asks of a session: row → **request** → attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coordinator.batch.rows import CheckRow, TaskRow
from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.errors import ConfigError
from coordinator.session.box_options import BoxOptions, inside, read_env, read_hosts
from coordinator.session.ceilings import Ceiling
from coordinator.session.checks import CheckOptions
from coordinator.session.limits import Limits
from coordinator.session.mcp_settings import NO_MCP, McpOptions
from coordinator.session.model_table import ModelTable
from coordinator.session.request import SessionRequest
from coordinator.session.workspace_choice import Chosen, checked
from coordinator.settings import Settings
from tools.registry import Registry
from tools.rules import Rules
from worker.contract.checks import Check
from worker.contract.extras import BoxExtras, FileIn
from worker.contract.orders import Policy, WorkspaceMode
from worker.contract.sources import ArchiveSource, EmptySource, GitSource, ImageSource, Source

ARCHIVE_ENDS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
IMAGE_START = "image:"
NOWHERE = Path("/nonexistent")
"""In place of the directory of a workspace that is fetched."""


@dataclass(frozen=True)
class Defaults:
    """What holds for a task whose row does not say it."""

    image: str
    profile: str
    policy: Policy = Policy.BOXED
    limits: Limits = field(default_factory=Limits)
    params: ModelParameters = DEFAULT_PARAMETERS
    setup: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    env: Sequence[str] = ()
    """`NAME` or `NAME=VALUE`."""
    env_files: Sequence[Path] = ()


@dataclass(frozen=True)
class Requests:
    """Makes the requests of one batch."""

    base: Path
    """The tasks file's directory: what relative paths begin at."""
    defaults: Defaults
    settings: Settings
    registry: Registry
    rules: Rules | None
    models: ModelTable
    environment: Mapping[str, str]
    tool_paths: tuple[str, ...] = ()
    """Files of own tools that the command line named."""
    mcp: McpOptions = NO_MCP
    keeps_copies: bool = False
    """The private copies stay in the state directory."""

    def request(self, row: TaskRow, sample: int = 1, of: int = 1) -> SessionRequest:
        """Return what one run of a task asks for.

        Args:
            row: The task.
            sample: Which run, from 1.
            of: How many runs the task has.

        Raises:
            ConfigError: it cannot be had, as far as can be told here.
        """
        directory, source, archive = self._workspace(row)
        reason = "each task works on a copy of its own"
        policy = row.policy or self.defaults.policy
        options = self._box(row)
        return SessionRequest(
            prompt=row.prompt,
            workspace=Chosen(directory, WorkspaceMode.COPY, reason, policy, as_root=False),
            image=row.image or self.defaults.image,
            limits=self._limits(row),
            box=replace(options, archive=archive).with_mcp(self.mcp),
            ceiling=Ceiling(tools=self._tools(row)),
            rules=self.rules,
            approval_s=self.settings.approval_s,
            profile=row.profile or self.defaults.profile,
            budgets=self.settings.budgets,
            task_depth=self.settings.task_depth,
            models=self.models,
            tool_paths=self.tool_paths,
            parameters=self._parameters(row, sample, of),
            source=source,
            keep="always" if self.keeps_copies else "never",
            check=self._check(row),
        )

    def _workspace(self, row: TaskRow) -> tuple[Path, Source | None, Path | None]:
        """Return the directory, or the source in place of one, and the source's archive."""
        if row.repo is not None:
            source = GitSource(
                url=row.repo, ref=row.ref, credential=row.credential, submodules=row.submodules, lfs=row.lfs
            )
            return NOWHERE, checked(source, "repo"), None
        if row.workspace is None:
            return NOWHERE, EmptySource(), None
        if row.workspace.startswith(IMAGE_START):
            return NOWHERE, checked(ImageSource(path=row.workspace.removeprefix(IMAGE_START)), "workspace"), None
        path = self._path(row.workspace)
        if path.is_dir():
            return path, None, None
        if path.is_file() and path.name.lower().endswith(ARCHIVE_ENDS):
            return NOWHERE, ArchiveSource(name=path.name), path
        raise ConfigError(f"workspace: {path} is no directory and no archive ({', '.join(ARCHIVE_ENDS)})")

    def _limits(self, row: TaskRow) -> Limits:
        said = {} if row.limits is None else {name: getattr(row.limits, name) for name in row.limits.model_fields_set}
        if row.timeout is not None:
            said["time_s"] = row.timeout
        return self.defaults.limits.model_copy(update=said)

    def _parameters(self, row: TaskRow, sample: int, of: int) -> ModelParameters:
        """Return how the model is asked; samples differ in their seed where there is more than one."""
        said = {name: getattr(row.params, name) for name in row.params.model_fields_set}
        if row.system:
            said["system"] = row.system
        parameters = self.defaults.params.model_copy(update=said)
        if of == 1:
            return parameters
        return parameters.model_copy(update={"seed": (parameters.seed or 0) + sample})

    def _tools(self, row: TaskRow) -> frozenset[str] | None:
        if row.tools is None:
            return None
        unknown = sorted(set(row.tools) - set(self.registry.names()))
        if unknown:
            raise ConfigError(f"tools: there is no {', '.join(unknown)}; there are {', '.join(self.registry.names())}")
        return frozenset(row.tools)

    def _box(self, row: TaskRow) -> BoxOptions:
        given = [f"{name}={value}" for name, value in row.env.items()] if isinstance(row.env, dict) else row.env
        values = read_env([*self.defaults.env, *given], self.defaults.env_files, self.environment)
        files, sources = self._files(row.files)
        hosts = self.defaults.allow_hosts + row.allow_hosts
        setup = row.setup or self.defaults.setup
        extras = BoxExtras(
            allow_hosts=read_hosts(hosts, "allow_hosts"),
            env_names=tuple(values),
            files=files,
            setup=setup,
            setup_hosts=("*",) if row.setup_hosts is None else read_hosts(row.setup_hosts, "setup_hosts"),
            setup_files=tuple(inside(text, "setup_files") for text in row.setup_files),
            setup_timeout_s=row.setup_timeout,
        )
        return BoxOptions(extras, values, sources)

    def _check(self, row: TaskRow) -> CheckOptions | None:
        if row.check is None:
            return None
        check: CheckRow = row.check
        files, sources = self._files({**check.files, **row.check_files})
        order = Check(
            command=check.command,
            files=files,
            timeout_s=check.timeout,
            hosts=read_hosts(check.allow_hosts, "check.allow_hosts"),
            is_fresh=check.fresh,
        )
        return CheckOptions(order, sources)

    def _files(self, places: Mapping[str, str]) -> tuple[tuple[FileIn, ...], tuple[Path, ...]]:
        files, sources = [], []
        for place, given in places.items():
            source = self._path(given)
            if not source.is_file():
                raise ConfigError(f"files: {source} is no file")
            files.append(FileIn(path=inside(place, "files"), is_executable=bool(source.stat().st_mode & 0o111)))
            sources.append(source)
        return tuple(files), tuple(sources)

    def _path(self, given: str) -> Path:
        try:
            return (self.base / Path(given).expanduser()).resolve()
        except (OSError, RuntimeError, ValueError) as exc:
            raise ConfigError(f"{given!r} is no path that can be used: {exc}") from exc
