import json
import os
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from coordinator.commands.token import app
from coordinator.errors import ConfigError
from coordinator.service.principals import Allowance, Quota
from coordinator.service.tokens import FIRST_ALLOWANCE, Tokens


def test_a_token_is_known_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    assert tokens.is_empty
    token = tokens.create("team", Allowance(quota=Quota(running=2)))
    principal = Tokens(tmp_path).authenticate(token)
    assert principal is not None
    assert (principal.name, principal.allowance.quota.running) == ("team", 2)
    assert token.rpartition("_")[2] not in tokens.path.read_text()
    assert tokens.path.stat().st_mode & 0o777 == 0o600
    for wrong in ("", "x", token[:-1], token + "x", token.swapcase(), "\udcff"):
        assert tokens.authenticate(wrong) is None


def test_revoked_tokens_are_refused_at_once_also_by_another_process(tmp_path: Path) -> None:
    server, commands = Tokens(tmp_path, "the first token here"), Tokens(tmp_path)
    one, two, other = (commands.create(name) for name in ("a", "a", "b"))
    assert all(server.authenticate(token) for token in (one, two, other))
    assert commands.revoke(one.split("_")[1]) == 1
    assert server.authenticate(one) is None
    assert server.authenticate(two) is not None
    assert commands.revoke("a") == 1
    assert server.authenticate(two) is None
    assert server.authenticate(other) is not None
    assert commands.revoke("nobody") == 0
    assert server.authenticate("the first token here") is not None


def test_a_principals_allowance_stays_when_it_gets_a_further_token(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path, "the first token here")
    tokens.create("team", Allowance(setup=False))
    second = tokens.create("team")
    principal = tokens.authenticate(second)
    assert principal is not None
    assert principal.allowance == Allowance(setup=False)
    first = tokens.authenticate("the first token here")
    assert first is not None
    assert first.allowance == FIRST_ALLOWANCE
    tokens.create("local", Allowance(bind=False))
    first = tokens.authenticate("the first token here")
    assert first is not None
    assert not first.allowance.bind, "what was written down counts for the first token too"


def test_tokens_made_at_once_are_all_there(tmp_path: Path) -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(Tokens(tmp_path).create("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tokens = Tokens(tmp_path)
    assert [token for token in made if tokens.authenticate(token) is None] == []


def test_a_file_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    token = tokens.create("a")
    tokens.path.write_text("{")
    with pytest.raises(ConfigError):
        tokens.authenticate(token)


@pytest.mark.parametrize("name", ["", "A", "a/b", "../a", "a b", "a" * 64, "-a", "a\n"])
def test_odd_names_are_no_principals(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        Tokens(tmp_path).create(name)


def test_the_command_makes_lists_and_revokes(tmp_path: Path) -> None:
    runner = CliRunner(env={**os.environ, "SANDHOG_STATE_DIR": str(tmp_path)})
    ceiling = tmp_path / "ceiling.toml"
    ceiling.write_text('setup = false\n[ceiling]\ntools = ["Read"]\nmax_steps = 5\n[quota]\nrunning = 1\n')
    token = runner.invoke(app, ["create", "team", "--ceiling-file", str(ceiling)]).stdout.strip()
    principal = Tokens(tmp_path).authenticate(token)
    assert principal is not None
    assert principal.allowance.ceiling.tools == frozenset({"Read"})
    listed = runner.invoke(app, ["list"]).stdout
    assert "team: " in listed
    assert token not in listed
    assert json.loads(listed.split("; ", 1)[1])["quota"] == {"running": 1}
    assert runner.invoke(app, ["revoke", "team"]).stdout == "1 revoked\n"
    assert isinstance(runner.invoke(app, ["revoke", "team"]).exception, ConfigError)
    ceiling.write_text("setpu = false")
    refused = runner.invoke(app, ["create", "team", "--ceiling-file", str(ceiling)])
    assert "setpu" in str(refused.exception)


def test_an_allowance_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValidationError):
        Allowance.model_validate({"celing": {}})
