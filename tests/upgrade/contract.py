"""What two releases share while a cluster is upgraded: messages, files, names in Redis, what guests are told.

Of each kind of message: its schema, and how the program reads and writes it.
"""

import inspect
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from coordinator.cluster.wishes import Told, Wish
from coordinator.endpoint.model import ModelSettings
from coordinator.service.records import RECORD, SessionRecord, read_record, write_record
from coordinator.session.budget import answered
from coordinator.session.events import Event, parse_event
from coordinator.session.model_table import ModelTable
from coordinator.session.plan import PlannedCall
from coordinator.session.redact import Redactor
from coordinator.session.request import SessionRequest
from coordinator.session.saved import NAME, SavedSession, read_saved, save_session
from coordinator.session.workspace_choice import Chosen
from sandbox import wire
from sandbox.record import BoxRecord, RecordStore
from tools.base import ToolResult
from worker.contract import approvals, channels, keys, marks, mcp, metadata, orders, replies, scripts

Schema = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of message."""

    schema: Schema
    read: Callable[[str], Any]
    """As whoever gets it does; raises where it cannot be read."""
    write: Callable[[Any], str]
    grows: tuple[str, ...] = ()
    """Places in it of which readers pass over forms that they do not know."""


def schema_of(shape: Any) -> Schema:
    return TypeAdapter(shape).json_schema()


def contract(model: type[orders.Contract]) -> Kind:
    return Kind(schema_of(model), model.from_text, lambda message: str(message.to_text()))


def plain(model: type[BaseModel], grows: tuple[str, ...] = (), **how: bool) -> Kind:
    return Kind(schema_of(model), model.model_validate_json, lambda message: str(message.model_dump_json(**how)), grows)


def read_event(text: str) -> Any:
    return parse_event(json.loads(text))


def read_tool_result(text: str) -> ToolResult:
    """Return the result of an outcome, as the coordinator takes it out."""
    key = orders.CallKey(session="s", generation=1, step=1, index=0)
    outcome = orders.CallOutcome(key=key, fate=orders.Fate.RAN, result=json.loads(text))
    result = answered(PlannedCall(0, "c0", "Read", ""), outcome, 0.0).result
    assert result.status == json.loads(text)["status"], result.error_message
    return result


def read_session(text: str) -> SavedSession:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / NAME).write_text(text)
        return read_saved(Path(name))


def read_session_request(text: str) -> SessionRequest:
    return SavedSession(session_id="s", request=json.loads(text), model={}).to_request(ModelTable())


def read_session_model(text: str) -> ModelSettings:
    return SavedSession(session_id="s", request={}, model=json.loads(text)).to_model(None)


def saved(request: SessionRequest, model: ModelSettings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        save_session(Path(name), "s", request, model, Redactor(()))
        found: dict[str, Any] = json.loads((Path(name) / NAME).read_text())
        return found


def read_session_record(text: str) -> SessionRecord:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / RECORD).write_text(text)
        record = read_record(Path(name))
    # What cannot be read is taken for a command line's session, which has none.
    assert record.session_id == json.loads(text)["session_id"], "the record cannot be read"
    return record


def write_session_record(record: SessionRecord) -> str:
    with tempfile.TemporaryDirectory() as name:
        write_record(Path(name), record)
        return (Path(name) / RECORD).read_text()


def read_box_record(text: str) -> BoxRecord:
    with tempfile.TemporaryDirectory() as name:
        store = RecordStore(Path(name))
        (Path(name) / "box.json").write_text(text)
        record = store.load("box")
    assert record is not None, "the record cannot be read"
    return record


def _dumped(message: BaseModel) -> str:
    return message.model_dump_json()


EVENTS = ("event", "event.event")
SCRIPTS = ("OPEN_SESSION", "ADOPT", "OWN", "BEGIN_STEP", "CLAIM", "FENCE", "CANCEL", "TAKE")
CHOSEN = Chosen(Path("/project"), orders.WorkspaceMode.BIND, "it was asked for", orders.Policy.BOXED, False)
REQUEST, MODEL = SessionRequest("do it", CHOSEN, "box:1"), ModelSettings("model")

KINDS: dict[str, Kind] = {
    "call_order": contract(orders.CallOrder),
    "call_outcome": contract(orders.CallOutcome),
    "tool_result": Kind(schema_of(ToolResult), read_tool_result, _dumped),
    "prepare_order": contract(orders.PrepareOrder),
    "prepare_outcome": contract(orders.PrepareOutcome),
    "finish_order": contract(orders.FinishOrder),
    "finish_outcome": contract(orders.FinishOutcome),
    "copy_order": contract(orders.CopyOrder),
    "copy_outcome": contract(orders.CopyOutcome),
    "node": plain(orders.NodeLife),
    "node_mark": plain(marks.NodeMark),
    "seen_file": plain(metadata.FileSeen, exclude_defaults=True),
    "mcp_servers": plain(mcp.McpServers),
    "channel_order": plain(channels.ChannelOrder),
    "channel_frame": plain(channels.ChannelFrame, exclude_none=True),
    "approval_request": plain(approvals.ApprovalRequest),
    "approval_answer": plain(approvals.ApprovalAnswer),
    "wish": plain(Wish, ("wish.kind",)),
    "told": plain(Told),
    "event": Kind(schema_of(Annotated[Event, Field(discriminator="type")]), read_event, _dumped, EVENTS),
    "session": Kind(schema_of(SavedSession), read_session, _dumped),
    "session_request": Kind(
        schema_of(SessionRequest), read_session_request, lambda request: json.dumps(saved(request, MODEL)["request"])
    ),
    "session_model": Kind(
        schema_of(ModelSettings), read_session_model, lambda model: json.dumps(saved(REQUEST, model)["model"])
    ),
    "session_record": Kind(schema_of(SessionRecord), read_session_record, write_session_record),
    "box_record": Kind(schema_of(BoxRecord), read_box_record, lambda record: json.dumps(asdict(record))),
}


def lua() -> dict[str, str]:
    """Return the scripts by which processes of both releases change the same keys."""
    return {name: getattr(scripts, name) for name in SCRIPTS}


def names() -> dict[str, Any]:
    """Return what is called by name: keys in Redis, tasks, and what worker and guest say to each other."""
    found: dict[str, Any] = {}
    for name, value in vars(keys).items():
        if inspect.isfunction(value) and value.__module__ == keys.__name__:
            found[f"key {name}"] = value(*[one for one in inspect.signature(value).parameters])
        elif isinstance(value, str) and name.isupper():
            found[f"key {name}"] = value
    for name in ("CALL", "JOIN", "PREPARE", "FINISH", "COPY"):
        found[f"task {name}"] = getattr(orders, f"{name}_TASK")
    found["task CANCEL"] = orders.CANCEL_COMMAND
    found["reply field"] = replies.REPLY_FIELD
    found["contract"] = orders.CONTRACT_VERSION
    found["guest protocol"] = wire.PROTOCOL
    for closed in (wire.Op, wire.StreamOp, wire.PipeOp, wire.RefusalCode):
        for one in closed:
            found[f"{closed.__name__} {one.name}"] = one.value
    return found
