"""`sandhog config` and the settings file, through the real command."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from coordinator.commands.config_rows import bare_rows, example, markdown
from coordinator.embedded import _clean_environment
from coordinator.errors import ConfigError
from coordinator.service.serve_settings import read_serve_settings
from coordinator.settings import read_settings
from worker.contract.setting_rows import SettingRow
from worker.contract.settings_file import SettingsWrong, read, without_password
from worker.settings import NodeSettings

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file of all processes that are started now; it is empty."""
    path = tmp_path / "config.toml"
    path.touch()
    monkeypatch.setenv("SANDHOG_CONFIG", str(path))
    return path


@pytest.fixture(scope="module")
def bare() -> list[SettingRow]:
    return bare_rows()


def run_config(**variables: str) -> "subprocess.CompletedProcess[str]":
    argv = [str(Path(sys.executable).with_name("sandhog")), "config", "--json"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **variables})


class TestFile:
    def test_its_sections_reach_their_processes_and_variables_win(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file.write_text(
            '[cluster]\nredis_url = "redis://h"\nstate_dir = "/state"\ntools = ["/a", "/b"]\n'
            '[worker]\nplaces = 3\nlanes = 5\nprofiles = {big = {memory = "1GiB"}}\n'
            '[endpoint]\nendpoint_quirks = {max_tokens_name = "max_tokens"}\n'
            '[serve]\nroots = {one = "/one"}\n'
        )
        monkeypatch.setenv("SANDHOG_LANES", "7")
        monkeypatch.setenv("SANDHOG_ROOTS", '{"two": "/two"}')

        node, settings, serving = read(NodeSettings), read_settings(), read_serve_settings()

        assert (node.places, node.lanes, list(node.profiles)) == (3, 7, ["big"])
        assert settings.tool_paths == node.tool_paths == ["/a", "/b"]
        assert json.loads(settings.endpoint_quirks) == {"max_tokens_name": "max_tokens"}
        # A table is not mixed of both: what a variable names is all there is.
        assert serving.roots == {"two": Path("/two")}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[worker]\nplacse = 3", r"\[worker\] has no key placse \(did you mean places\?\)"),
            ("[wrker]\nplaces = 3", r"no section \[wrker\] \(did you mean worker\?\)"),
            ("[worker]\nplaces = 0", r"places in section \[worker\] of .*config\.toml: .* \(it is 0\)"),
            ("[worker]\nredis_url = 'redis://h'", r"it stands in \[cluster\]"),
            ("worker = 3", r"worker is a section"),
            ("[worker", r"is not TOML"),
        ],
    )
    def test_a_wrong_one_is_refused_by_name(self, file: Path, text: str, words: str) -> None:
        file.write_text(text)

        with pytest.raises(SettingsWrong, match=words):
            read(NodeSettings)

    def test_a_missing_one_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDHOG_CONFIG", "/nonexistent/config.toml")

        with pytest.raises(ConfigError, match="SANDHOG_CONFIG: there is no file /nonexistent"):
            read_settings()

    def test_an_empty_name_means_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        usual = tmp_path / "sandhog" / "config.toml"
        usual.parent.mkdir()
        usual.write_text("[session]\napproval_s = 5\n")
        monkeypatch.delenv("SANDHOG_CONFIG", raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert read_settings().approval_s == 5

        monkeypatch.setenv("SANDHOG_CONFIG", "")

        assert read_settings().approval_s == 600

    def test_no_message_tells_a_secret(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDHOG_API_TOKEN", "short-one")
        with pytest.raises(ConfigError, match="SANDHOG_API_TOKEN") as refusal:
            read_serve_settings()
        assert "short-one" not in str(refusal.value)

        file.write_text(
            '[cluster]\nredis_url="redis://h"\nstate_dir="/s"\n[worker]\nregistries={h={password="hush-1"}}'
        )
        with pytest.raises(SettingsWrong, match="username") as refused:
            read(NodeSettings)
        assert "hush-1" not in str(refused.value)


class TestCommand:
    def test_it_tells_value_and_origin_and_no_secret(self, file: Path) -> None:
        file.write_text('[worker]\nplaces = 3\n[worker.registries.forge]\nusername = "me"\npassword = "hush-1"\n')

        done = run_config(
            SANDHOG_REDIS_URL="rediss://me:hush-2@h:1/0",
            SANDHOG_API_TOKEN="hush-3-and-long-enough",
            OPENAI_API_KEY="hush-4",
            SANDHOG_PLACSE="9",
        )

        assert done.returncode == 0, done.stderr
        assert "SANDHOG_PLACSE is no setting (did you mean SANDHOG_PLACES?)" in done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        rows = {row["key"]: row for row in told["settings"]}
        assert told["file"] == str(file)
        assert (rows["places"]["value"], rows["places"]["origin"]) == (3, "file")
        assert rows["redis_url"]["value"] == "rediss://me:********@h:1/0"
        assert rows["redis_url"]["origin"] == "environment"
        assert rows["idle_s"]["origin"] == "default"
        assert "hush" not in done.stdout + done.stderr

    def test_a_wrong_setting_of_a_node_ends_it_with_2(self, file: Path) -> None:
        file.write_text("[worker]\nplaces = 0\n")

        done = run_config()

        assert done.returncode == 2
        assert "places in section [worker]" in done.stderr


class TestDocuments:
    def test_every_setting_is_explained(self, bare: list[SettingRow]) -> None:
        assert [row.key for row in bare if not row.about] == []

    def test_the_example_is_a_file_of_the_defaults(self, bare: list[SettingRow]) -> None:
        lines = [line[1:] if line[:1] == "#" and line[1:2] != " " else line for line in example(bare).splitlines()]
        tables = tomllib.loads("\n".join(line for line in lines if not line.endswith(" =")))

        assert {key: value for table in tables.values() for key, value in table.items()} == {
            row.key: row.default for row in bare if row.default is not None
        }

    def test_the_page_is_what_the_program_says(self, bare: list[SettingRow]) -> None:
        assert DOCS.read_text() == markdown(bare), "write it anew: sandhog config --markdown > docs/settings.md"


def test_a_worker_gets_settings_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"SANDHOG_PLACES": "3", "SANDHOG_GIT_PASSWORD_FORGE": "p", "SANDHOG_SECRETS_DIR": "/s"}
    kept = {"SANDHOG_API_TOKEN": "t", "SANDHOG_MCP_TOKEN": "t", "OPENAI_API_KEY": "k", "SANDHOG_ANY_KEY": "k"}
    for name, value in {**given, **kept}.items():
        monkeypatch.setenv(name, value)

    passed = _clean_environment()

    assert {name: passed.get(name) for name in given} == given
    assert not passed.keys() & kept.keys()


@pytest.mark.parametrize("url", ["redis://h/0", "unix:///a/b.sock", ""])
def test_an_address_without_password_is_shown_whole(url: str) -> None:
    assert without_password(url) == url
