"""What a request may ask of a session: HTTP, client → **wanted** → admission.

These models are the documented bodies: unknown fields are refused, so that a misspelt limit is not silently none.
"""

import hashlib
import json
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.session.keeping import Keep
from coordinator.session.limits import Limits
from worker.contract.orders import Policy
from worker.contract.repositories import check_repository_url

MAX_PROMPT_CHARS = 1_000_000
MAX_LABELS = 32


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise ValueError("half a surrogate pair is no text") from exc
    if "\0" in text:
        raise ValueError("a NUL is no text")
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Name = Annotated[Text, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
LabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,62}$")]
LabelValue = Annotated[Text, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def digest(self, salt: str) -> str:
        """Return what tells this body from another one; says nothing about it without trying."""
        fields: dict[str, Any] = self.model_dump(mode="json", exclude={"idempotency_key"}, exclude_defaults=True)
        if "tools" in fields and fields["tools"] is not None:
            fields["tools"] = sorted(fields["tools"])
        canonical = json.dumps([salt, fields], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class Webhook(Body):
    """Who is told when a session has ended."""

    url: Annotated[Text, Field(max_length=2_000, pattern=r"^https?://[^\s\x00-\x1f\x7f]+$")]
    """Gets a POST with the session as its body."""
    secret: Annotated[Text, Field(min_length=16, max_length=200)] | None = None
    """Signs what is sent; one is made and answered once where none is given."""

    @field_validator("url")
    @classmethod
    def _has_a_host(cls, value: str) -> str:
        parts = urlsplit(value)
        if not parts.hostname or parts.username is not None or parts.port == 0:
            raise ValueError("it needs a host, and takes neither user nor password")
        return value


NEW_SESSION_EXAMPLES: list[JsonValue] = [
    {
        "prompt": "Make the failing test pass.",
        "repo": "https://example.org/team/project.git",
        "ref": "main",
        "limits": {"steps": 40, "cost_usd": 2.5, "time_s": 1800},
        "labels": {"team": "a", "ticket": "1234"},
        "idempotency_key": "ticket-1234-1",
    },
    {"loop": "none", "image_dir": "/srv", "policy": "boxed", "tools": ["Read", "Bash"]},
    {"prompt": "Say what you can do.", "stay_open": True, "read_only": True, "approve": "never"},
]


class NewSession(Body):
    """A session to be run."""

    model_config = ConfigDict(json_schema_extra={"examples": NEW_SESSION_EXAMPLES})

    prompt: Annotated[Text, Field(max_length=MAX_PROMPT_CHARS)] = ""
    """What the agent is to do; not with `loop: none`."""
    loop: Literal["model", "none"] = "model"
    """`none`: no model is asked; the session runs the calls that are posted to it."""
    workspace: Annotated[Text, Field(min_length=1, max_length=4_000)] | None = None
    """One of the server's directories by its name, or a directory below one: `name/sub/directory`."""
    repo: Annotated[Text, Field(min_length=1, max_length=2_000)] | None = None
    """A git repository to clone, `https://…` or `ssh://…`, without a password in it."""
    ref: Annotated[Text, Field(min_length=1, max_length=400)] | None = None
    """Its branch, tag or commit; None is its default branch."""
    credential: Name | None = None
    """Name of one of the nodes' git credentials, if you may use it."""
    archive: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    """What `PUT /v1/archives` answered."""
    image_dir: Annotated[Text, Field(pattern=r"^/", max_length=4_000)] | None = None
    """A directory of the image to work on a copy of."""
    bind: bool = False
    """Work on that directory itself, not on a copy whose result is a patch."""
    image: Name | None = None
    """Image of the box; None is the server's."""
    pins: Labels = {}
    """Labels that the node must have, as `{"zone": "a"}`; see `GET /v1/nodes`."""
    profile: Name | None = None
    """Name of the box's limits; None is the server's."""
    model: Name | None = None
    """None is the server's."""
    policy: Policy | None = None
    """None: boxed on a copy, guarded on a directory itself."""
    approve: Literal["wait", "never"] = "wait"
    """Whether a human's answer is waited for where the policy asks."""
    approval_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """How long; None is the server's."""
    read_only: bool = False
    """Only what certainly reads may run."""
    tools: frozenset[Name] | None = None
    """Names of the tools that the session may use; None is all."""
    limits: Limits = Limits()
    parameters: ModelParameters = DEFAULT_PARAMETERS
    """How the model is asked."""
    context_tokens: Annotated[int, Field(ge=1_000, le=100_000_000)] | None = None
    """The model's window; null takes it from the server's model table, or learns it."""
    project_notes: bool = True
    """The model is given what the workspace's AGENTS.md says, if there is one."""
    stay_open: bool = False
    """Once the model has answered, wait for your next message, until you finish or cancel the session."""
    keep: Keep = "unfinished"
    """Whether the private copy is left at the end, for going on with it and for forks: always, never, or where the
    session did not complete."""
    labels: Labels = {}
    """Your own names for it; `GET /v1/sessions?label=key=value` finds it by them."""
    env: Annotated[dict[EnvName, Text | None], Field(max_length=100)] = {}
    """Variables for commands in the box; null takes the value from the server's environment, if you may."""
    allow_hosts: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    """Hosts that commands may reach."""
    setup: Annotated[tuple[Text, ...], Field(max_length=50)] = ()
    """Commands that make the image ready, as root and with network; the result is kept."""
    webhook: Webhook | None = None
    idempotency_key: IdempotencyKey | None = None
    """The same key with the same body is the same session, however often it is sent. Also as a header."""

    @field_validator("repo")
    @classmethod
    def _can_be_fetched(cls, value: str | None) -> str | None:
        if value is not None:
            check_repository_url(value)
        return value

    @field_validator("image_dir")
    @classmethod
    def _leads_down(cls, value: str | None) -> str | None:
        if value is not None and ".." in value.split("/"):
            raise ValueError("it must not hold `..`")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.loop == "model" and not self.prompt.strip():
            raise ValueError("prompt is missing")
        if self.loop == "none" and (self.prompt or self.model):
            raise ValueError("a session without a model takes neither prompt nor model")
        if self.loop == "none" and self.stay_open:
            raise ValueError("a session without a model is open as it is, until it is finished")
        if self.bind and self.workspace is None:
            raise ValueError("bind needs a workspace")
        origins = [name for name in ("workspace", "repo", "archive", "image_dir") if getattr(self, name) is not None]
        if len(origins) > 1:
            raise ValueError(f"{' and '.join(origins)} exclude each other; with none of them it begins empty")
        if self.repo is None and (self.ref or self.credential):
            raise ValueError("ref and credential need a repo")
        return self


class NewFork(Body):
    """A session that goes on from another one's step, in a copy of its workspace."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "Try it with the standard library alone.", "labels": {"attempt": "b"}},
                {"prompt": "Now fix the test instead.", "at_step": 7, "model": "small-one", "limits": {"steps": 20}},
            ]
        }
    )

    prompt: Annotated[Text, Field(min_length=1, max_length=MAX_PROMPT_CHARS, pattern=r"\S")]
    """What you say to the fork."""
    at_step: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The last step that it knows; only the last one that made calls, or a later one. null: the last one."""
    model: Name | None = None
    """null: the session's."""
    parameters: ModelParameters | None = None
    """How the model is asked; null: as the session's was."""
    limits: Limits | None = None
    """What the fork may use; null: as much as the session might. What the session used is not counted."""
    labels: Labels = {}
    approve: Literal["wait", "never"] | None = None
    """null: as in the session."""
    stay_open: bool = False
    """Once the model has answered, wait for your next message, until you finish or cancel the fork."""
    keep: Keep = "unfinished"
    """As in `POST /v1/sessions`."""
    webhook: Webhook | None = None
    idempotency_key: IdempotencyKey | None = None
    """The same key with the same body is the same fork, however often it is sent. Also as a header."""
