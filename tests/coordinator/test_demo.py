"""The demo: its project is really broken, its model really mends it, and its last words are true."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.commands.demo import DEMO_PROMPT, copy_demo_project, demo_script, report
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.reply import RawCall
from coordinator.endpoint.scripted import ScriptedEndpoint
from coordinator.session.history import History

Run = Callable[[str, dict[str, Any]], dict[str, Any]]


def answer(status: str, text: str, **fields: Any) -> str:
    return json.dumps({"status": status, "text": text, "data": {}, "stats": {}, "context": {}, **fields})


class HostTools:
    """The demo's four tools, done by plain Python on a copy of its project."""

    def __init__(self, project: Path) -> None:
        self.project = project

    def __call__(self, call: RawCall) -> str:
        assert isinstance(call.arguments, str)
        arguments = json.loads(call.arguments)
        match call.name:
            case "Grep":
                found = [
                    path for path in self.project.rglob("*.py") if re.search(arguments["pattern"], path.read_text())
                ]
                return answer("success", "\n".join(sorted(str(path.relative_to(self.project)) for path in found)))
            case "Read":
                return answer("success", (self.project / arguments["path"]).read_text())
            case "Edit":
                path = self.project / arguments["path"]
                assert path.read_text().count(arguments["old_string"]) == 1
                path.write_text(path.read_text().replace(arguments["old_string"], arguments["new_string"]))
                return answer("success", "1 replacement")
            case "Bash":
                exit_code, output = bash(self.project, arguments["command"])
                return answer("partial" if exit_code else "success", output)
        raise AssertionError(call.name)


def bash(directory: Path, command: str) -> tuple[int, str]:
    python = Path(sys.executable)
    environment = {"PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(directory)}
    done = subprocess.run(
        command, shell=True, cwd=directory, env=environment, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_the_project_is_broken_in_one_place(tmp_path: Path) -> None:
    project = copy_demo_project(tmp_path / "demo")
    exit_code, output = bash(project, "python3 -m pytest -q")
    assert exit_code == 1
    assert "2 failed, 12 passed" in output


def test_a_copy_holds_no_leftovers(tmp_path: Path) -> None:
    project = copy_demo_project(tmp_path / "demo")
    bash(project, "python3 -m pytest -q")
    second = copy_demo_project(tmp_path / "again")
    names = {path.name for path in second.rglob("*")}
    assert ".gitignore" in names
    assert not names & {"__pycache__", ".pytest_cache"}
    with pytest.raises(FileExistsError):
        copy_demo_project(second)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_scripted_model_mends_it_by_real_calls(tmp_path: Path, stream: bool) -> None:
    tools = HostTools(copy_demo_project(tmp_path / "demo"))
    history = History("system")
    history.add_user(DEMO_PROMPT)
    with ScriptedEndpoint(demo_script()) as endpoint:
        client = ModelClient(ModelSettings("demo", base_url=endpoint.base_url, stream=stream))
        asked: list[list[str]] = []
        while True:
            reply = await client.ask(history.messages, None, lambda _: None)
            history.add_reply(reply)
            if reply.finish_reason != "tool_calls":
                break
            asked.append([call.name for call in reply.calls])
            history.add_answers([tools(call) for call in reply.calls])
        await client.close()
    assert asked == [["Grep", "Read", "Read"], ["Edit"], ["Bash"]]
    assert re.search(r"the tests pass\. pytest closed with: 14 passed in [\d.]+s", reply.text)
    assert "scripted" in reply.text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (answer("success", "....\n14 passed in 0.03s\n"), "the tests pass. pytest closed with: 14 passed in 0.03s"),
        (answer("success", "==== 14 passed, 1 warning in 61.00s (0:01:01) ====\n"), "14 passed, 1 warning in 61.00s"),
        (
            answer("partial", "F\n1 failed, 13 passed in 0.05s\n"),
            "do not pass. pytest closed with: 1 failed, 13 passed",
        ),
        (answer("partial", "1 error in 0.05s\n"), "do not pass"),
        (
            answer("partial", "No module named pytest"),
            "did not run to their end. The answer said: No module named pytest",
        ),
        (answer("error", "", error={"code": "BOX_LOST", "message": "the box is gone"}), "the box is gone"),
        (answer("error", "", error={"code": "PERMISSION_DENIED", "message": "denied"}), "did not run to their end"),
        ("", "nothing"),
        (None, "nothing"),
        ("not JSON", "not JSON"),
    ],
)
def test_the_last_words_say_what_the_tests_said(content: Any, says: str) -> None:
    words = report(content)
    assert says in words
    assert ("the tests pass." in words) == ("14 passed" in str(content))
