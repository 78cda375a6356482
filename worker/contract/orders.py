"""The types that pass between coordinator and worker: plan → **order** → worker → **outcome** → collect.

Every type carries the contract's version and ignores fields it does not know, so that two releases of one major
version can talk while a cluster is upgraded.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic_core import PydanticSerializationError

from worker.contract.checks import Check, CheckOutcome
from worker.contract.extras import BoxExtras
from worker.contract.mcp import McpListing
from worker.contract.sources import Source

CONTRACT_VERSION = 1

CALL_TASK = "sandhog.call"
JOIN_TASK = "sandhog.join"
PREPARE_TASK = "sandhog.prepare"
FINISH_TASK = "sandhog.finish"
COPY_TASK = "sandhog.copy"
CANCEL_COMMAND = "sandhog_cancel"


class Contract(BaseModel):
    """Base of all orders and outcomes: frozen, versioned, tolerant of fields of a later minor version."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, ser_json_inf_nan="constants")

    v: int = CONTRACT_VERSION
    """Version of the contract that the sender speaks."""

    def to_text(self) -> str:
        """Return the JSON that travels: text, so that Celery carries it as it is."""
        try:
            return self.model_dump_json()
        except PydanticSerializationError:
            # A lone surrogate of the model's is no UTF-8; escaped it travels.
            return json.dumps(self.model_dump(mode="json"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what `to_text` wrote.

        Raises:
            ValueError: the text is none of it.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            # The fast parser takes neither lone surrogates nor what is nested deeply.
            try:
                return cls.model_validate(json.loads(text))
            except RecursionError as exc:
                raise ValueError("nested too deeply") from exc


class CallKey(BaseModel):
    """What makes a call itself: the same key never runs twice."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    session: str
    """Session id; holds no colon."""
    generation: int
    """The session's fencing number: each coordinator that takes the session over counts it up."""
    step: int
    """Step of the session, from 1."""
    index: int
    """Place of the call in the model's reply, from 0."""
    attempt: int = 1
    """Counted up only when an earlier attempt certainly did not run."""

    def __str__(self) -> str:
        return f"{self.session}:{self.generation}:{self.step}:{self.index}:{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key that `str(key)` wrote.

        Raises:
            ValueError: the text is not five parts, the last four numbers.
        """
        session, generation, step, index, attempt = text.split(":")
        return cls(session=session, generation=int(generation), step=int(step), index=int(index), attempt=int(attempt))

    def next_attempt(self) -> Self:
        """Return the key for sending this call again after it certainly did not run."""
        return self.model_copy(update={"attempt": self.attempt + 1})


def call_digest(tool: str, arguments: Mapping[str, JsonValue]) -> str:
    """Return the SHA-256 (hex) of a tool's name and its arguments in canonical JSON.

    Grants and the guest's table of calls are bound to it: changed arguments are another call.
    """
    canonical = json.dumps([tool, dict(arguments)], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class WorkspaceMode(StrEnum):
    """How a session's workspace comes to be."""

    BIND = "bind"
    """The user's own directory, mounted into the box."""
    COPY = "copy"
    """A private copy below the session's directory; the result is a patch."""


DEFAULT_PROFILE = "medium"


class BoxOrder(Contract):
    """All a node must know to start a session's box, or to start a fresh one on the same workspace."""

    session: str
    """Session id."""
    generation: int
    """The session's current generation."""
    session_dir: str
    """The session's directory on the shared volume (absolute; the same path on coordinator and worker)."""
    image: str
    """Image reference."""
    workspace: str
    """The directory to bind, or to copy from (absolute)."""
    workspace_mode: WorkspaceMode
    as_root: bool = False
    """Commands run as root inside the box; only for a root-owned bind that the user asked for."""
    runtime: str | None = None
    """OCI runtime; None is the engine's default."""
    profile: str = DEFAULT_PROFILE
    """Name of the limits' profile."""
    principal: str = "local"
    """Who the session acts for: whose logins pull its image."""
    extras: BoxExtras = BoxExtras()
    """What the box has beyond that."""
    source: Source | None = None
    """What the node fetches and makes the private copy of, in place of `workspace`."""


class Policy(StrEnum):
    """Who decides about a call: see `tools.permission`."""

    GUARDED = "guarded"
    BOXED = "boxed"


class CallOrder(Contract):
    """One call on its way to a node."""

    key: CallKey
    call_id: str
    """The model's own id of the call, echoed in the answer."""
    node: str
    """Node that has the session's box."""
    incarnation: str
    """Life of that node the order is meant for; every other one refuses it."""
    tool: str
    arguments: dict[str, JsonValue]
    """Arguments, already validated by the coordinator; the worker validates again."""
    policy: Policy
    principal: str
    """Who the session acts for."""
    attributes: dict[str, str] = {}
    """What else is known of the principal; told to own tools."""
    sent_at: float
    """Wall clock of the sender in seconds, for the queue-wait metric only; never for correctness."""
    rules: str = ""
    """The user's own rules as `tools.rules` writes them, asked before the policy; "" if there are none."""
    is_read_only: bool = False
    """Only what certainly reads may run."""
    allowed_tools: list[str] | None = None
    """The tools that the principal may use; None is all."""
    result_bytes: int = 50_000
    """Bytes of `text` above which a result is cut to head and tail."""
    traceparent: str = ""
    """The coordinator's span of this call, as W3C Trace Context writes it; "" where nobody traces."""
    box: BoxOrder

    @property
    def digest(self) -> str:
        """Hash of tool and arguments."""
        return call_digest(self.tool, self.arguments)


class Fate(StrEnum):
    """What is known about a call's run."""

    RAN = "ran"
    """It ran, or was refused by a gate: the result is its one answer."""
    DID_NOT_RUN = "did_not_run"
    """It certainly did not run and never will under this key: it may be sent again as a new attempt."""
    UNKNOWN = "unknown"
    """It may have run, whole or in part."""


class CallOutcome(Contract):
    """What comes back of a call."""

    key: CallKey
    fate: Fate
    result: dict[str, JsonValue] | None = None
    """The ToolResult as JSON; None unless the fate is `ran` or `unknown`."""
    reason: str = ""
    """Why it did not run or is unknown, in words for the model."""
    cut: "CutNote | None" = None
    """Set when `text` was cut to head and tail."""
    spill_path: str = ""
    """Path inside the box where all of the text lies; "" for a short result, whose text is all here."""
    spill_hint: str = ""
    """Where the text lies and what is missing there, or why it lies nowhere, to end a sentence with; "" for a spill
    without a flaw."""
    box_note: str = ""
    """Said to the model before its next answer: the box was replaced, and what was lost with the old one."""
    mcp: str = ""
    """Digest of the tools that the session's MCP servers have now; "" for none."""
    queue_ms: float = 0.0
    """From sending to claim, by two wall clocks."""
    run_ms: float = 0.0
    """From claim to outcome."""


class CutNote(BaseModel):
    """How much of a result was left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    total_bytes: int
    shown_bytes: int
    total_lines: int


class ProjectNotes(BaseModel):
    """What a repository says to agents; untrusted text."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    text: str
    """The file's beginning."""
    total_bytes: int
    """Size of the whole file."""


class PrepareOrder(Contract):
    """Asks a node to have a session's box ready before the first call needs it."""

    box: BoxOrder
    node: str
    incarnation: str
    wants_notes: bool = False
    """Read the workspace's instructions for agents."""


class PrepareOutcome(Contract):
    """Whether the box stands."""

    session: str
    image_id: str = ""
    """Digest of the image that it runs on."""
    error: str | None = None
    """Why there can be no box, in words that say what to do; None when it stands."""
    is_passing: bool = False
    """The node or its engine failed, and nothing is wrong with the order: another try may have the box."""
    is_own_fault: bool = False
    """What the session wants to work on cannot be had, whoever tries."""
    ready_ms: float = 0.0
    bounds: dict[str, str] = {}
    """How each writable place of the box is bounded, and to what: `{"/tmp": "tmpfs, 512 MiB"}`."""
    notes: ProjectNotes | None = None
    """What the workspace has for agents, if that was asked for."""
    mcp: McpListing | None = None
    """The tools of the session's MCP servers, if it has any."""


class FinishOrder(Contract):
    """Ends a session's box on a node and asks for the workspace's result."""

    box: BoxOrder
    node: str
    incarnation: str
    apply: bool = False
    """Put the changes of a private copy into the directory it was copied from."""
    keep_workspace: bool = False
    """Leave the private copy on the volume."""
    check: Check | None = None
    """Run on the workspace once the patch is made, before the box goes."""


class FinishOutcome(Contract):
    """What was left of a session on its node."""

    session: str
    patch_path: str | None = None
    """The patch's file on the shared volume; None for a bind mount, an empty file where nothing changed."""
    changed: list[str] = []
    """Changed paths, relative to the workspace, sorted."""
    applied: bool = False
    """The changes are now in the directory that was copied."""
    conflicts: list[str] = []
    """Paths that changed in the directory since it was copied: with any, nothing was applied."""
    notes: list[str] = []
    """What a person should know: set-id bits stripped, files too large for the patch, …"""
    error: str | None = None
    """Why the result could not be had, in words; the box is gone all the same."""
    check: CheckOutcome | None = None
    """What the order's check said."""


class CopyOrder(Contract):
    """Asks a node for a copy of a session's workspace as it is now, for a fork of the session."""

    box: BoxOrder
    """The session's that is copied."""
    node: str
    incarnation: str
    target: str
    """Id of the session that gets the copy."""
    target_dir: str
    """Its directory (absolute)."""


class CopyOutcome(Contract):
    """Whether the copy was made."""

    session: str
    error: str | None = None
    """Why not, in words; nothing of it is left then."""


class NodeLife(Contract):
    """A node as its lease and its hash in Redis tell it."""

    node: str
    incarnation: str
    places: int
    """Room for boxes."""
    lanes: int
    """Worker threads for calls."""
    state: Literal["ready", "draining"] = "ready"
    pid: int = 0
    labels: dict[str, str] = {}
    """What operators call it by: sessions may be pinned to labels."""
    images: tuple[str, ...] = ()
    """References of images that are on its engine, as far as they are told."""
    warm: tuple[str, ...] = ()
    """Images of which it has boxes ready that nobody has used."""
    profiles: tuple[str, ...] = ()
    """Names of the profiles that boxes can have there; none from a node that does not say."""
    runtimes: tuple[str, ...] = ()
    """Names of its engine's OCI runtimes."""
    volume: str = ""
    """Id of the shared volume as it sees it, see `worker.contract.volume`; "" from a node that does not say."""
    host: str = ""
    """Tells its engine's machine from others, whichever nodes are there; "" where it is not known."""
    cpus: int = 0
    memory_bytes: int = 0
    """Of its machine."""
    disk_free_bytes: int = 0
    """On the shared volume, as it sees it."""
    freeze_s: float = 45.0
    """Without its lease for so long, it lets its boxes stand still; another node may have their sessions after that."""
    tools: str = ""
    """Digest of its own tools, see `tools.loading`; "" where it has none."""
    versions: dict[str, str] = {}
    """Of what calls run on, as this life found it: sandhog, python, kernel, and the engine's parts. None from a node
    that does not say."""
