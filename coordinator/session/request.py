"""What is asked of a session: flags, batch rows, API bodies → **request** → runner."""

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.session.approvals import DEADLINE_S
from coordinator.session.bounds import BUDGETS, Budgets
from coordinator.session.box_options import BoxOptions
from coordinator.session.ceilings import NO_CEILING, Ceiling
from coordinator.session.checks import CheckOptions
from coordinator.session.keeping import Keep
from coordinator.session.limits import Limits
from coordinator.session.model_table import ModelTable
from coordinator.session.principal import LOCAL
from coordinator.session.prompt import NOTES_FILE
from coordinator.session.workspace_choice import Chosen
from tools.rules import Rules
from worker.contract.orders import DEFAULT_PROFILE
from worker.contract.sources import Source

DEPTH = 1
"""How deep sub-agents go by default: a session has some, these have none. 0 is none at all."""


@dataclass(frozen=True)
class SessionRequest:
    """What is asked of a session."""

    prompt: str
    workspace: Chosen
    image: str
    limits: Limits = field(default_factory=Limits)
    apply: bool = False
    """Put the changes of a private copy into the directory at the end, if the session completed."""
    box: BoxOptions = field(default_factory=BoxOptions)
    """What the box has beyond image and workspace."""
    principal: str = LOCAL
    is_adoptable: bool = False
    """Another coordinator goes on with the session by itself when this one dies."""
    ceiling: Ceiling = NO_CEILING
    """The most that the principal's sessions may have."""
    rules: Rules | None = None
    """The user's own rules; None if there are none."""
    is_read_only: bool = False
    """Only what certainly reads runs."""
    approval_s: float = DEADLINE_S
    """How long a human's answer is waited for."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What else is known of the principal; told to own tools."""
    profile: str = DEFAULT_PROFILE
    """Name of the box's limits and boundaries."""
    budgets: Budgets = BUDGETS
    models: ModelTable = field(default_factory=ModelTable)
    """What is known of models."""
    has_project_notes: bool = True
    """The model is given what the workspace's AGENTS.md says, if there is one."""
    context_tokens: int | None = None
    """The model's window; None takes it from `models`, or learns it."""
    parameters: ModelParameters = DEFAULT_PARAMETERS
    """How the model is asked."""
    tool_paths: tuple[str, ...] = ()
    """Files of own tools that a command line named for it."""
    source: Source | None = None
    """What the node makes the private copy of, in place of the workspace's directory."""
    task_depth: int = DEPTH
    """How deep sub-agents may go; 0 for none at all."""
    keep: Keep = "unfinished"
    """Whose private copy is left at the end: that of a session which did not complete can be gone on with."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Labels that its node must have."""
    most_places: int | None = None
    """Places that the principal may have at once, in the whole cluster."""
    weight: int = 1
    """The principal's share of the turns for places."""
    check: CheckOptions | None = None
    """Judges the workspace at the end, unless the session failed or was cancelled."""

    @property
    def may_have_project_notes(self) -> bool:
        """Whether there is anything to read, as far as can be told before a node has the workspace.

        The model waits for its box where there is: a session without them asks at once.
        """
        if not self.has_project_notes:
            return False
        given = any(file.path == NOTES_FILE for file in self.box.extras.files)
        directory = self.workspace.directory
        # Only whether the name is there: what it stands for is looked at in the box.
        return given or self.source is not None or not directory.is_dir() or os.path.lexists(directory / NOTES_FILE)

    @property
    def origin(self) -> str:
        """What the workspace was made from, for people."""
        return self.source.shown if self.source else os.fspath(self.workspace.directory)


def new_session_id() -> str:
    """Return an id that sorts by time: `20300131-120000-1a2b3c4d`; the 1a says which part of the second it was."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 256 // 1_000_000:02x}{uuid.uuid4().hex[:6]}"
