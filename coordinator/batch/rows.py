"""One task as a line of the tasks file has it: line → **row** → request."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints, model_validator

from coordinator.endpoint.parameters import ModelParameters
from coordinator.session.limits import Limits
from worker.contract.orders import Policy

MAX_SAMPLES = 1_000
MAX_CHECK_S = 6 * 3_600.0

PROMPT = """\
Solve the following issue in the repository in /workspace. Change the code so that the issue is resolved; do not \
change tests that exist. When you are done, say in a few words what you changed.

<issue>
{statement}
</issue>
"""

Text = Annotated[str, StringConstraints(min_length=1)]


def _places(given: Any) -> Any:
    """Return `{place: source}` for that or for a list of `SRC:DST`."""
    if not isinstance(given, list):
        return given
    found = {}
    for text in given:
        source, colon, place = str(text).rpartition(":")
        if not colon:
            raise ValueError(f"{text!r} is not SRC:DST")
        found[place] = source
    return found


def _one_or_more(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


Places = Annotated[dict[Text, Text], BeforeValidator(_places)]
"""Files to put into the workspace: place in it → source, relative to the tasks file."""
Commands = Annotated[tuple[Text, ...], BeforeValidator(_one_or_more)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class CheckRow(_Row):
    """What judges the workspace in the end; the model sees nothing of it."""

    command: Text
    files: Places = {}
    timeout: float = Field(default=600.0, gt=0, le=MAX_CHECK_S)
    """Seconds."""
    fresh: bool = True
    """In a new box from the same image; else in the session's, once nothing of it runs any more, with all that the
    model did there beside the workspace."""
    allow_hosts: tuple[Text, ...] = ()
    """What a fresh box may reach."""


def _check(given: Any) -> Any:
    return {"command": given} if isinstance(given, str) else given


class TaskRow(_Row):
    """One task. All paths are relative to the tasks file."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    prompt: Text
    workspace: Text | None = None
    """A directory, an archive (`.tar…`, `.zip`), or `image:/path` in the box's image; none is an empty directory."""
    repo: Text | None = None
    """URL of a repository, in place of `workspace`."""
    ref: Text | None = None
    """Its branch, tag or commit."""
    credential: Text | None = None
    """Name of one of the nodes' credentials for it."""
    submodules: bool = False
    lfs: bool = False
    image: Text | None = None
    profile: Text | None = None
    model: Text | None = None
    policy: Policy | None = None
    limits: Limits | None = None
    timeout: float | None = Field(default=None, gt=0, le=10**9)
    """Seconds, as `limits.time_s`."""
    check: Annotated[CheckRow | None, BeforeValidator(_check)] = None
    check_files: Places = {}
    """Files of the check."""
    samples: int | None = Field(default=None, ge=1, le=MAX_SAMPLES)
    """How often the task is run, each time on a copy of its own."""
    params: ModelParameters = ModelParameters()
    """How the model is asked: temperature, max_tokens, seed, …"""
    system: str = ""
    """Text behind the system prompt."""
    setup: Commands = ()
    """Commands that make the image ready."""
    setup_hosts: tuple[Text, ...] | None = None
    """What they reach; None is everything public."""
    setup_files: tuple[Text, ...] = ()
    setup_timeout: float = Field(default=900.0, ge=1, le=7_200)
    tools: tuple[Text, ...] | None = None
    """Names of the tools that the model has; none is all."""
    files: Places = {}
    """Files put into the workspace first."""
    env: dict[str, str] | tuple[str, ...] = {}
    """Variables in the box: values by name, or names from this environment."""
    allow_hosts: tuple[Text, ...] = ()
    """What commands in the box may reach."""
    meta: dict[str, JsonValue] = {}
    """Yours: it is only carried along to the result."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.workspace is not None and self.repo is not None:
            raise ValueError("workspace and repo exclude each other")
        if self.repo is None and (self.ref or self.credential or self.submodules or self.lfs):
            raise ValueError("ref, credential, submodules and lfs go with repo")
        if self.check is None and self.check_files:
            raise ValueError("check_files go with check")
        if self.params.system and self.system:
            raise ValueError("system and params.system exclude each other")
        if self.timeout is not None and self.limits is not None and self.limits.time_s is not None:
            raise ValueError("timeout and limits.time_s exclude each other")
        return self


_SHORT_REPO = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_OURS = frozenset(TaskRow.model_fields) - {"id", "prompt", "repo", "ref", "image", "meta"}


def is_instance(fields: Mapping[str, Any]) -> bool:
    """Whether a line is a row of a data set of the SWE-bench kind."""
    return "instance_id" in fields and "id" not in fields


def from_instance(fields: Mapping[str, Any], repo_base: str) -> dict[str, Any]:
    """Return the row that such a line stands for. Its other columns, the solution among them, are left out.

    Args:
        fields: The line's.
        repo_base: Before an `owner/name`.
    """
    row: dict[str, Any] = {name: value for name, value in fields.items() if name in _OURS}
    row["id"] = fields["instance_id"]
    row["prompt"] = fields.get("prompt") or PROMPT.format(statement=fields.get("problem_statement") or "")
    if not fields.get("prompt") and not fields.get("problem_statement"):
        row["prompt"] = ""
    image = fields.get("image") or fields.get("image_name")
    if image:
        row["image"] = image
    if "workspace" not in row and fields.get("repo"):
        repo = fields["repo"]
        is_short = isinstance(repo, str) and _SHORT_REPO.fullmatch(repo) is not None
        row["repo"] = f"{repo_base.rstrip('/')}/{repo}" if is_short else repo
        row["ref"] = fields.get("base_commit")
    return row
