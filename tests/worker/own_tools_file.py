"""Tools of a user's, good and bad, for the tests of how a node runs them."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Field

from tools.base import ErrorCode, Parameters, RunContext, Tool, ToolFailure, ToolResult
from tools.context import ToolContext
from tools.own import bare, tool


@tool(effect="reads", concurrency_safe=True)
def greet(name: str, times: int = 1) -> str:
    """Greet somebody.

    Args:
        name: Who.
        times: How often.
    """
    return "\n".join([f"hello {name}"] * times)


@tool(effect="reads", concurrency_safe=True, timeout_s=60)
def meet(place: str, count: int) -> str:
    """Wait until so many calls are at a place.

    Args:
        place: A directory that any user may write to.
        count: How many.
    """
    (Path(place) / f"here-{os.getpid()}").touch()
    while len(list(Path(place).glob("here-*"))) < count:
        time.sleep(0.01)
    return "met"


@tool
async def later(value: dict[str, int]) -> dict[str, int]:
    """Return the value, a little later.

    Args:
        value: What to return.
    """
    await asyncio.sleep(0.001)
    return value


@tool
def whoami(context: ToolContext) -> dict[str, Any]:
    """Tell what a call finds around it."""
    return {
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "pid": os.getpid(),
        "session": os.getsid(0),
        "environment": dict(os.environ),
        "cwd": str(Path.cwd()),
        "descriptors": [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()],
        "stdin": sys.stdin.read(),
        "principal": context.principal,
        "attributes": dict(context.attributes),
        "call_key": context.call_key,
        "secrets": dict(context.secrets),
    }


@tool(secrets=["TOKEN"], timeout_s=5)
def leaks(how: str, context: ToolContext) -> ToolResult:
    """Give a secret away.

    Args:
        how: By which way.
    """
    token = context.secrets["TOKEN"]
    print("printed:", token)
    if how == "raise":
        raise RuntimeError(f"401 with {token}")
    if how == "refuse":
        raise ToolFailure(ErrorCode.NOT_FOUND, f"nothing for {token}")
    if how == "flood":
        raise RuntimeError(token * 3_000)
    if how == "large":
        return ToolResult.failure(ErrorCode.NOT_FOUND, f"{token} " * 3_000, data={"large": token * 10_000})
    return ToolResult(status="success", text=f"got {token}", data={token: [token]})


@tool
def greedy(of: Literal["memory", "processes", "core"]) -> str:
    """Take more than there is.

    Args:
        of: What.
    """
    if of == "memory":
        return str(len(bytearray(1024 * 1024 * 1024)))
    if of == "core":
        return str(resource.getrlimit(resource.RLIMIT_CORE))
    children = []
    try:
        for _ in range(100):
            children.append(subprocess.Popen(["sleep", "300"]))
    except BlockingIOError:
        return f"refused after {len(children)}"
    return "never refused"


@tool(timeout_s=4)
def hang(marker: str) -> str:
    """Never return, and leave a process of another session behind.

    Args:
        marker: File that takes the ids of the processes.
    """
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    Path(marker).write_text(f"{os.getpid()} {child.pid}")
    while True:
        time.sleep(60)


@tool(timeout_s=60)
def wait(marker: str) -> str:
    """Wait for long.

    Args:
        marker: File that first gets a line.
    """
    with Path(marker).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(300)
    return "woke"


@tool
def end(how: str) -> str:
    """End in a bad way.

    Args:
        how: Which one.
    """
    match how:
        case "exit":
            sys.exit(3)
        case "os_exit":
            os._exit(4)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise KeyError("no such thing")
        case "surrogate":
            return "\ud800"
        case "close":
            os.closerange(3, 4096)
            return "closed"
        case "thread":
            threading.Thread(target=time.sleep, args=(300,)).start()
    return "ended"


@tool
def junk(kind: str) -> Any:
    """Return what is no result.

    Args:
        kind: What.
    """
    return {
        "set": {1, 2},
        "nan": {"x": float("nan")},
        "bytes": b"x",
        "none": None,
        "empty": "",
        "list": [1, "two", None],
        "object": object(),
        "unvalidated": ToolResult.model_construct(status="success", text="x", data={"a": cast(Any, {1, 2})}),
        "large": ToolResult(status="success", text="x", data={"small": 1, "large": "y" * 100_000}),
    }[kind]


@tool(mistakes=[ValueError])
def strict_number(text: str) -> int:
    """Return the number that a text is.

    Args:
        text: Digits.
    """
    return int(text)


@tool(runs_on="box", timeout_s=10)
def in_box(command: str, context: ToolContext) -> dict[str, Any]:
    """Run two commands in the box.

    Args:
        command: The second one.
    """
    first = context.box.run(["printf", "%s", "$HOME is not read"])
    second = context.box.run(command, timeout_s=1)
    return {
        "first": first.stdout,
        "second": second.stdout,
        "exit_code": second.exit_code,
        "timed_out": second.timed_out,
    }


@tool(runs_on="box", timeout_s=100)
def long_in_box(command: str, context: ToolContext) -> str:
    """Run a long command in the box.

    Args:
        command: The command.
    """
    return context.box.run(command, timeout_s=90).stdout


@tool
def wants_box(context: ToolContext) -> str:
    """Ask for a box that it does not have."""
    return context.box.run("true").stdout


shout = bare(str.upper, name="shout", description="Answer in capitals.")


class CountParameters(Parameters):
    """Arguments of Count."""

    text: str
    """What to count."""


class Count(Tool[CountParameters]):
    """A Tool class that runs on the worker."""

    name = "Count"
    description = "Count characters."
    parameters = CountParameters
    runs_on = "worker"

    def run(self, arguments: CountParameters, context: RunContext) -> ToolResult:
        return ToolResult(status="success", text=f"{len(arguments.text)} for {context.principal}")


class Point(BaseModel):
    """A place."""

    x: int
    y: int = 0


@tool
def far(points: list[Point], factor: float = 1.0) -> Point:
    """Return the farthest point.

    Args:
        points: Where from.
        factor: By what to multiply.
    """
    point = max(points, key=lambda one: abs(one.x) + abs(one.y))
    return Point(x=round(point.x * factor), y=round(point.y * factor))


class Kind(StrEnum):
    """Two of a kind."""

    ONE = "one"
    OTHER = "other"


class Cat(BaseModel):
    """A pet."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """Another one."""

    kind: Literal["dog"]
    tags: list[str] = []


@tool
def odd(
    kind: Kind,
    pet: Annotated[Cat | Dog, Field(discriminator="kind")],
    many: dict[str, Point],
    rest: list[list[int]],
    pair: tuple[int, str] = (1, "a"),
    one: Literal[1, 2] = 1,
    schema: float | None = None,
) -> str:
    """Take odd types.

    Args:
        kind: An enum.
        pet: One of two models.
        many: Models by name.
        rest: Lists of lists.
        pair: A tuple.
        one: Numbers to choose from.
        schema: A name that models have of their own.
    """
    return f"{kind} {pet} {many} {rest} {pair} {one} {schema}"
