"""Which repositories a node fetches from, and with what."""

import base64
import json
from pathlib import Path

import pytest

from worker.contract.repositories import check_ref, check_repository_url
from worker.errors import WorkspaceRefused
from worker.sources.remotes import Remotes, hosts_of

PUBLIC = "93.184.216.34"


def remotes(address: str = PUBLIC, **more: object) -> Remotes:
    return Remotes(resolver=lambda _: [address], **more)  # type: ignore[arg-type]


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text("a key")
    (tmp_path / "known").write_text("git.example.org ssh-ed25519 AAAA")
    path = tmp_path / "credentials.json"
    path.write_text(
        json.dumps(
            {
                "forge": {"hosts": ["git.example.org"], "username": "bot", "password": "pass-word-1"},
                "by-env": {"hosts": ["git.example.org"], "password_env": "FORGE_TOKEN"},
                "ssh": {
                    "hosts": ["git.example.org"],
                    "ssh_key": str(tmp_path / "key"),
                    "known_hosts": str(tmp_path / "known"),
                },
            }
        )
    )
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% /tmp/x",
        "file:///etc",
        "/etc",
        "git://git.example.org/r",
        "http://git.example.org/r",
        "https://user:secret@git.example.org/r",
        "https://token@git.example.org/r",
        "https://git.example.org/r?x=1",
        "https://git.example.org/r#x",
        "https://git.example.org/../r",
        "https://git.example.org/team/%2e%2E/other/r",
        "https://git.example.org/team/.%2e/other/r",
        "https://git.example.org/team/..%2fother/r",
        "https://git.example.org/team/..%5Cother/r",
        "https://git.example.org/team/%252e%252e/other/r",
        "https://git.example.org/-r",
        "https:///r",
        "https://git.example.org/",
        "https://git.example.org:99999/r",
        "https://-oProxyCommand=x/r",
        "ssh://-oProxyCommand=x/r",
        "ssh://git@-x/r",
        "-oProxyCommand=x@git.example.org:r",
        "git@git.example.org:-r",
        "https://git.example.org/r\nx",
        "https://git.example.org/a b",
        "",
    ],
)
def test_what_is_no_plain_url_of_a_public_repository_is_refused(url: str) -> None:
    with pytest.raises(WorkspaceRefused) as caught:
        remotes().remote(url, None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://bot:hunter2@git.example.org/r",
        "https://hunter2@git.example.org/r",
        "ssh://git:hunter2@git.example.org/r",
        "git://bot:hunter2@git.example.org/r",
        "https://bot:hunter2@git.example.org:99999/r",
        "https://bot:hunter2@git.example.org/a b",
        "https://bot:hun#hunter2@git.example.org/r",
        "https://bot:x://hunter2@git.example.org/r",
        "bot:hunter2@git.example.org:r",
        "https://git.example.org/r?token=hunter2",
        "https://[bot:hunter2@git.example.org/r",
        "ext::sh -c bot:hunter2@x",
    ],
)
def test_a_password_in_a_url_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"repositor|fetched from") as caught:
        check_repository_url(url)
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert "bot:" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://git.example.org/org/r", "http://h:8080/r.git", "ssh://git@h:2222/~x/r", "git@h:org/r.git"]
)
def test_plain_urls_of_repositories_are_taken(url: str) -> None:
    check_repository_url(url)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1"])
def test_names_that_lead_inside_are_refused_unless_the_settings_name_them(address: str) -> None:
    with pytest.raises(WorkspaceRefused, match="may not be fetched from"):
        remotes(address).remote("https://git.example.org/r", None)


def test_a_host_that_the_settings_name_may_be_inside_and_plain_but_no_metadata_service() -> None:
    allowed = remotes("127.0.0.1", private_hosts=hosts_of(["Git.Example.org"]))
    found = allowed.remote("http://git.example.org:8080/r", None)
    assert found.resolve == "git.example.org:8080:127.0.0.1"
    with pytest.raises(WorkspaceRefused, match="metadata"):
        remotes("169.254.169.254", private_hosts=hosts_of(["git.example.org"])).remote("http://git.example.org/r", None)


def test_a_connection_is_pinned_to_the_address_that_was_judged() -> None:
    assert remotes().remote("https://git.example.org/r", None).resolve == f"git.example.org:443:{PUBLIC}"
    six = remotes("2606:4700::1").remote("https://git.example.org/r", None)
    assert six.resolve == "git.example.org:443:[2606:4700::1]"


def test_a_credential_goes_to_its_own_hosts_only(credentials: Path) -> None:
    given = remotes(credentials_file=credentials)
    found = given.remote("https://git.example.org/r", "forge")
    assert found.header == "Authorization: Basic " + base64.b64encode(b"bot:pass-word-1").decode()
    assert "pass-word-1" not in repr(found)
    assert found.header not in repr(found)
    with pytest.raises(WorkspaceRefused, match="is not for the host evil"):
        given.remote("https://evil.example.org/r", "forge")
    assert given.credential_for("https://git.example.org/sub", "forge") == "forge"
    assert given.credential_for("https://other.example.org/sub", "forge") is None
    assert given.credential_for("https://git.example.org/sub", None) is None
    with pytest.raises(WorkspaceRefused, match="no credential 'other'"):
        given.remote("https://git.example.org/r", "other")
    by_env = remotes(credentials_file=credentials, environment=lambda: {"FORGE_TOKEN": "tok-2"})
    assert by_env.remote("https://git.example.org/r", "by-env").header.endswith(
        base64.b64encode(b"x-access-token:tok-2").decode()
    )
    with pytest.raises(WorkspaceRefused, match="has no password"):
        given.remote("https://git.example.org/r", "by-env")


def test_a_credentials_file_must_be_closed_to_others_and_is_never_quoted(credentials: Path) -> None:
    credentials.chmod(0o644)
    with pytest.raises(WorkspaceRefused, match="chmod 600"):
        remotes(credentials_file=credentials).remote("https://git.example.org/r", "forge")
    credentials.chmod(0o600)
    credentials.write_text('{"forge": {"hosts": ["x"], "pasword": "pass-word-1"}}')
    with pytest.raises(WorkspaceRefused, match="pasword") as caught:
        remotes(credentials_file=credentials).remote("https://git.example.org/r", "forge")
    assert "pass-word-1" not in str(caught.value)


def test_ssh_speaks_to_the_judged_address_under_the_hosts_own_name(credentials: Path) -> None:
    given = remotes(credentials_file=credentials)
    for url in ("git@git.example.org:org/r.git", "ssh://git.example.org/org/r.git"):
        found = given.remote(url, "ssh")
        assert found.url == "ssh://git@git.example.org:22/org/r.git"
        assert f"-oHostName={PUBLIC}" in found.ssh
        assert "-oHostKeyAlias=git.example.org" in found.ssh
        assert "-oStrictHostKeyChecking=yes" in found.ssh
    with pytest.raises(WorkspaceRefused, match="ssh needs a credential"):
        given.remote("git@git.example.org:org/r.git", None)


@pytest.mark.parametrize(
    "ref",
    [
        *("-x", "a b", "a:b", "+a", "a..b", "a~1", "a^", "a\n", "refs/*", "a.lock", "", "a" * 300),
        *("@", "@{-1}", "a@{1}", "a//b", "/a", ".a", "a/.b", "a.lock/b"),
    ],
)
def test_what_is_no_name_of_a_ref_is_refused(ref: str) -> None:
    with pytest.raises(ValueError, match="is no name of a branch"):
        check_ref(ref)


@pytest.mark.parametrize("ref", ["main", "release/1.2", "v1.0-rc+1", "deadbeef", "refs/pull/1/head", "@x"])
def test_names_of_refs_are_taken(ref: str) -> None:
    check_ref(ref)
