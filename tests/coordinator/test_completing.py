"""What the shell offers when somebody presses Tab: the protocol of each shell, and a real bash."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from coordinator.cli import COMMANDS, cli
from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.store import connect
from worker.contract import keys
from worker.contract.approvals import ApprovalRequest
from worker.contract.orders import NodeLife

ROOT = Path(__file__).parents[2]
OLD, NEW = "20300130-120000-aaaaaaaa", "20300131-120000-bbbbbbbb"
Offered = Callable[[str], list[str]]


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offered:
    """Returns what is offered behind a line, as fish asks for it."""
    for name in (OLD, NEW):
        (tmp_path / "sessions" / name).mkdir(parents=True)
    monkeypatch.setenv("SANDHOG_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("_SANDHOG_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        with pytest.raises(SystemExit):
            cli([], prog_name="sandhog")
        return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines() if line]

    return ask


def test_commands_and_options(offered: Offered) -> None:
    assert offered("sandhog ") == list(COMMANDS)
    assert offered("sandhog sh") == [name for name in COMMANDS if name.startswith("sh")]
    assert {"--install-completion", "--show-completion", "--help"} <= set(offered("sandhog --"))
    assert "--follow" in offered("sandhog logs --")
    assert offered("sandhog token ") == ["create", "list", "revoke"]
    assert offered("sandhog ps --status c") == ["completed", "cancelled"]


@pytest.mark.parametrize("command", ["show", "logs", "attach", "resume", "export", "cancel", "wait", "apply"])
def test_sessions_the_newest_first(offered: Offered, command: str) -> None:
    assert offered(f"sandhog {command} ") == [NEW, OLD, "last"]
    assert offered(f"sandhog {command} 20300130") == [OLD]


def test_nodes_and_calls_that_wait(
    offered: Offered, redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDHOG_REDIS_URL", redis_url)
    life = NodeLife(node="node-7", incarnation="i", places=1, lanes=4)
    redis_client.sadd(keys.NODES, life.node)
    redis_client.set(keys.node(life.node), life.model_dump_json())

    async def ask() -> None:
        client = connect(redis_url)
        for session, index in ((OLD, 0), (OLD, 1), (NEW, 5)):
            request = ApprovalRequest(
                session=session, step=3, index=index, tool="Bash", digest="d", text="make", reason="why"
            )
            await Requests(client).ask(request, 60)
        await client.aclose()

    asyncio.run(ask())
    assert offered("sandhog drain ") == ["node-7"]
    assert sorted(offered("sandhog approve ")) == [OLD, NEW]
    assert sorted(offered(f"sandhog approve {OLD} ")) == ["3.0", "3.1"]


def test_without_an_answer_nothing_is_offered_and_nothing_is_said(
    offered: Offered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDHOG_REDIS_URL", f"unix://{tmp_path}/nobody")
    assert offered("sandhog drain ") == []
    monkeypatch.setenv("SANDHOG_REDIS_URL", "no address")
    assert offered("sandhog drain ") == []
    monkeypatch.setenv("SANDHOG_STATE_DIR", str(tmp_path / "none"))
    assert offered("sandhog show ") == ["last"]
    assert capsys.readouterr().err == ""


@pytest.fixture
def command(tmp_path: Path) -> dict[str, str]:
    """An environment that has the `sandhog` command, and sessions."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "sandhog"
    script.write_text(f"#!{sys.executable}\nfrom coordinator.start import main\nmain()\n")
    script.chmod(0o755)
    (tmp_path / "state" / "sessions" / OLD).mkdir(parents=True)
    return {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "SANDHOG_STATE_DIR": str(tmp_path / "state"),
    }


def test_bash_completes_with_the_script_that_is_shown(command: dict[str, str]) -> None:
    script = """
        eval "$(_SANDHOG_COMPLETE=source_bash sandhog)"
        complete -p sandhog
        COMP_WORDS=(sandhog show 2030); COMP_CWORD=2
        $(complete -p sandhog | sed 's/.*-F \\([^ ]*\\).*/\\1/') sandhog
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], env=command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == OLD, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_told_in_its_own_words(command: dict[str, str], shell: str) -> None:
    asked = {
        "bash": {"COMP_WORDS": "sandhog show 2030", "COMP_CWORD": "2"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "sandhog show 2030"},
        "fish": {"_TYPER_COMPLETE_ARGS": "sandhog show 2030", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**command, **asked, "_SANDHOG_COMPLETE": f"complete_{shell}"}
    done = subprocess.run(["sandhog"], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == (f"_arguments '*: :((\"{OLD}\"))'" if shell == "zsh" else OLD)
    assert done.stderr == ""
