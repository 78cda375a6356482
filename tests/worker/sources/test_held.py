"""What a node fetches for its sessions: real git against a real server, archives, directories of the node."""

import base64
import io
import os
import shutil
import ssl
import subprocess
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Until
from worker.changes import changes_between
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.contract.sources import ARCHIVE_FILE, ArchiveSource, EmptySource, GitSource, ImageSource, LocalSource
from worker.errors import SourceUnfit, WorkspaceRefused
from worker.patch import render
from worker.sources.held import Sources, SourceSettings
from worker.sources.jobs import Bounds
from worker.sources.remotes import Remotes, hosts_of

PASSWORD = "pass-word-of-the-forge"
BASIC = "Basic " + base64.b64encode(f"bot:{PASSWORD}".encode()).decode()
HOST = "git.test"


class Forge(BaseHTTPRequestHandler):
    """Serves repositories by git's own program, to those who prove themselves."""

    server: "ForgeServer"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path.startswith("/hang"):
            self.server.closing.wait(30)
            return
        if self.path.startswith("/moved"):
            self._answer(302, {"Location": self.path.replace("/moved", "/org")}, b"")
            return
        if self.path.startswith("/said"):
            self._answer(
                403, {"Content-Type": "text/plain"}, f"bot:{PASSWORD} may not, nor {PASSWORD}, {BASIC}".encode()
            )
            return
        if self.headers.get("Authorization") != BASIC:
            self._answer(401, {"WWW-Authenticate": "Basic"}, b"")
            return
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._answer(int(fields.pop("Status", "200").split()[0]), fields, content)

    do_POST = do_GET

    def _answer(self, status: int, fields: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class ForgeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, root: Path, certificate: Path) -> None:
        super().__init__(("127.0.0.1", 0), Forge)
        self.root = root
        self.asked: list[str] = []
        self.closing = threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was broken off is no error."""


def git(directory: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *settings, *arguments], cwd=directory, stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForgeServer]:
    """Two repositories: `part`, and `whole`, which has it as a submodule and tries to have things run."""
    base = tmp_path_factory.mktemp("forge")
    certificate = base / "server.pem"
    subject = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"]
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run([*new, *subject, "-keyout", base / "key", "-out", base / "cert"], check=True, capture_output=True)
    certificate.write_text((base / "key").read_text() + (base / "cert").read_text())
    for name in ("part", "whole"):
        work = base / name
        work.mkdir()
        git(work, "init", "-q", "-b", "main")
        (work / "a.txt").write_text(f"{name}\n")
        (work / ".gitattributes").write_text("*.txt filter=evil\n")
        (work / "run.sh").write_text("#!/bin/sh\n")
        (work / "run.sh").chmod(0o755)
        (work / "link").symlink_to("/etc/passwd")
        git(work, "add", ".")
        git(work, "commit", "-qm", "first")
    _make_converted(base / "converted")
    whole = base / "whole"
    git(whole, "tag", "v1")
    (whole / "a.txt").write_text("second\n")
    git(whole, "submodule", "--quiet", "add", str(base / "part"), "deps/part")
    git(whole, "config", "-f", ".gitmodules", "submodule.deps/part.url", "../part.git")
    git(whole, "add", ".")
    git(whole, "commit", "-qm", "second")
    git(whole, "branch", "feature/x")
    _make_odd(base / "odd")
    for name in ("part", "whole", "converted", "odd"):
        git(base, "clone", "-q", "--bare", name, f"org/{name}.git")
    server = ForgeServer(base, certificate)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


CONVERTED = {
    "a.id": "above\n$Id$\nbelow\n",
    "a.bat": "@echo off\ngoto end\n:end\n",
    "a.u16": "grüße\nand more\n",
}
"""Files that git keeps otherwise than it checks them out, as it keeps them."""
ENCODINGS = {"a.u16": "UTF-16LE"}


def _make_converted(work: Path) -> None:
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    attributes = "*.id ident\n*.bat text eol=crlf\n*.u16 text eol=lf working-tree-encoding=UTF-16LE\n"
    (work / ".gitattributes").write_text(f"{attributes}*.id filter=evil\n")
    for name, text in CONVERTED.items():
        (work / name).write_text(text, encoding=ENCODINGS.get(name, "utf-8"))
    git(work, "add", ".")
    git(work, "commit", "-qm", "first")


def _make_odd(work: Path) -> None:
    """A repository whose submodules nobody can read: their file is broken, and one's name is no UTF-8."""
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    (work / ".gitmodules").write_text("[submodule\n")
    git(work, "add", ".")
    for name in (b"deps/part", b"deps/\xff"):
        git(work, "update-index", "--add", "--cacheinfo", "160000", "1" * 40, os.fsdecode(name))
    git(work, "commit", "-qm", "first")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user gets to."""
    path = Path(f"/tmp/sandhog-sources-{uuid.uuid4().hex[:8]}")
    path.mkdir(mode=0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make(forge: ForgeServer, place: Path, tmp_path: Path) -> Callable[..., Sources]:
    credentials = tmp_path / "credentials.json"
    credentials.write_text(f'{{"forge": {{"hosts": ["{HOST}"], "username": "bot", "password": "{PASSWORD}"}}}}')
    credentials.chmod(0o600)

    def build(**changes: Any) -> Sources:
        remotes = Remotes(hosts_of([HOST]), credentials, forge.root / "cert", resolver=lambda _: ["127.0.0.1"])
        return Sources(SourceSettings(place / "sources", **{"remotes": remotes, **changes}))

    return build


def order(base: Path, source: Any, session: str = "s") -> BoxOrder:
    session_dir = base / "sessions" / session
    session_dir.mkdir(parents=True, exist_ok=True)
    return BoxOrder(
        session=session,
        generation=1,
        session_dir=str(session_dir),
        image="i",
        workspace="/nonexistent",
        workspace_mode=WorkspaceMode.COPY,
        source=source,
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_branch_a_tag_and_a_commit_are_fetched_with_a_credential_that_stays_out_of_them(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path, place: Path
) -> None:
    sources, url = make(), f"{forge.url}/org/whole.git"
    commit = git(forge.root / "whole", "rev-parse", "v1")
    for ref, content in ((None, "second"), ("feature/x", "second"), ("v1", "whole"), (commit[:10], "whole")):
        with sources.held(order(tmp_path, GitSource(url=url, ref=ref, credential="forge"))) as held:
            tree = Path(held.workspace)
            assert (tree / "a.txt").read_text() == f"{content}\n"
            assert (tree / "link").is_symlink()
            assert os.access(tree / "run.sh", os.X_OK)
            assert git_config(tree)["remote.origin.url"] == url
            for path in tree.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    kept = path.read_bytes()
                    assert PASSWORD.encode() not in kept
                    assert BASIC.encode() not in kept
            if os.geteuid() == 0:
                assert (tree / "a.txt").stat().st_uid != 0
    assert names(place / "sources") == [], "what a branch names is not kept"
    asked = []
    for _ in range(2):
        with sources.held(order(tmp_path, GitSource(url=url, ref=commit, credential="forge"))) as held:
            assert (Path(held.workspace) / "a.txt").read_text() == "whole\n"
        asked.append(len(forge.asked))
    assert asked[0] == asked[1], "a commit is fetched once"


def git_config(tree: Path) -> dict[str, str]:
    said = subprocess.run(["git", "config", "-f", tree / ".git" / "config", "-l"], stdout=subprocess.PIPE, check=True)
    return dict(line.split("=", 1) for line in said.stdout.decode().splitlines())


def test_submodules_are_fetched_when_asked_for_by_the_same_rules(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path
) -> None:
    url = f"{forge.url}/org/whole.git"
    with make().held(order(tmp_path, GitSource(url=url, credential="forge"))) as held:
        assert names(Path(held.workspace) / "deps" / "part") == []
    with make().held(order(tmp_path, GitSource(url=url, credential="forge", submodules=True))) as held:
        part = Path(held.workspace) / "deps" / "part"
        assert (part / "a.txt").read_text() == "part\n"
        assert not (part / ".git").exists()


def test_submodules_that_nobody_can_read_are_in_the_way_of_those_only_who_want_them(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path
) -> None:
    source = GitSource(url=f"{forge.url}/org/odd.git", credential="forge")
    with make().held(order(tmp_path, source)) as held:
        assert names(Path(held.workspace)) == [".git", ".gitmodules", "deps"]
    wanted = order(tmp_path, source.model_copy(update={"submodules": True}))
    with pytest.raises(SourceUnfit, match="has no address"), make().held(wanted):
        pass


def test_files_are_as_the_commit_has_them_and_the_patch_fits_a_clone_that_converts_them(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path
) -> None:
    source = GitSource(url=f"{forge.url}/org/converted.git", credential="forge")
    base, work, clone = (tmp_path / name for name in ("base", "copy", "clone"))
    with make().held(order(tmp_path, source)) as held:
        shutil.copytree(held.workspace, base)
    assert {name: (base / name).read_bytes() for name in CONVERTED} == {
        name: text.encode() for name, text in CONVERTED.items()
    }
    safe = ["-c", f"safe.directory={base}"]
    for path in base.rglob("*"):
        path.touch()
    assert git(base, *safe, "status", "--porcelain") == "", "git in the box takes nothing for changed"
    shutil.copytree(base, work)
    for name, text in CONVERTED.items():
        (work / name).write_text(f"{text}added ü\n")
    patch = render(changes_between(base, work), base, work)

    git(tmp_path, "clone", "-q", str(forge.root / "org" / "converted.git"), "clone")
    assert b"\r\n" in (clone / "a.bat").read_bytes(), "a clone converts them"
    subprocess.run(["git", "apply", "--index", "-"], cwd=clone, input=patch, check=True)

    for name, text in CONVERTED.items():
        assert git(clone, "show", f":{name}") == f"{text}added ü".strip()
    assert (clone / "a.u16").read_bytes().endswith("added ü\n".encode("utf-16-le"))


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        ("org/whole.git", {"credential": None}, "cannot be fetched"),
        ("org/none.git", {}, "cannot be fetched"),
        ("org/whole.git", {"ref": "no-such"}, "cannot be fetched"),
        ("moved/whole.git", {}, "cannot be fetched"),
        ("said/whole.git", {}, r"\[redacted\] may not, nor \[redacted\]"),
        ("org/whole.git", {"lfs": True}, "lfs"),
    ],
)
def test_what_cannot_be_fetched_is_told_without_secrets(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path, path: str, more: dict[str, Any], words: str
) -> None:
    fields = {"url": f"{forge.url}/{path}", "credential": "forge", **more}
    sources = make()
    with pytest.raises(WorkspaceRefused, match=words) as caught, sources.held(order(tmp_path, GitSource(**fields))):
        pass
    assert isinstance(caught.value, SourceUnfit), str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert BASIC not in str(caught.value)


def test_a_server_that_is_away_is_no_fault_of_the_source(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path
) -> None:
    url = f"{forge.url.rpartition(':')[0]}:9/org/whole.git"
    with (
        pytest.raises(WorkspaceRefused, match="cannot be fetched") as caught,
        make().held(order(tmp_path, GitSource(url=url))),
    ):
        pass
    assert not isinstance(caught.value, SourceUnfit)


def test_a_commit_beyond_the_bounds_is_not_checked_out(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path, place: Path
) -> None:
    sources = make(bounds=Bounds(total_bytes=200_000, entries=3))
    source = GitSource(url=f"{forge.url}/org/whole.git", credential="forge")
    with pytest.raises(WorkspaceRefused, match="at most 3"), sources.held(order(tmp_path, source)):
        pass
    assert names(place / "sources") == []


def test_a_fetch_is_broken_off_with_its_session_and_leaves_no_process(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path, until: Until, place: Path
) -> None:
    sources, failures = make(), list[str]()

    def fetch() -> None:
        try:
            with sources.held(order(tmp_path, GitSource(url=f"{forge.url}/hang/r.git", credential="forge"))):
                pass
        except WorkspaceRefused as exc:
            failures.append(str(exc))

    thread = threading.Thread(target=fetch)
    thread.start()
    until(lambda: any(path.startswith("/hang") for path in forge.asked), "the fetch is under way", 60)
    assert running(place), "it is alive"
    sources.cancel("s")
    thread.join(60)
    assert failures == ["The session ended while its workspace was being fetched."]
    assert not running(place)
    assert names(place / "sources") == []


def running(place: Path) -> list[str]:
    """Processes that work below a directory."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if str(process.joinpath("cwd").readlink()).startswith(str(place)):
                    found.append(process.name)
            except OSError:
                continue
    return found


def test_an_archive_is_unpacked_by_a_child_without_rights(make: Callable[..., Sources], tmp_path: Path) -> None:
    one = order(tmp_path, ArchiveSource(name="work.tar.gz"))
    archive = Path(one.session_dir) / ARCHIVE_FILE
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("d/a.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"alpha"))
    archive.chmod(0o600)
    sources = make()
    with sources.held(one) as held:
        assert (Path(held.workspace) / "d" / "a.txt").read_text() == "alpha"
        if os.geteuid() == 0:
            assert (Path(held.workspace) / "d" / "a.txt").stat().st_uid != 0
    packed = archive.read_bytes()
    archive.write_bytes(b"broken")
    with pytest.raises(WorkspaceRefused, match=r"work\.tar\.gz is not unpacked"), sources.held(one):
        pass
    archive.write_bytes(packed)
    with sources.held(one):
        for name in ("base", "work"):
            (archive.parent / name).mkdir()
    assert not archive.exists(), "it takes no room once the copy is made"
    with sources.held(one) as held:
        assert held.workspace == str(archive.parent / "base")
    (archive.parent / "base").rmdir()
    with pytest.raises(WorkspaceRefused, match="is not there"), sources.held(one):
        pass


def test_directories_of_the_node_are_taken_below_its_roots_only(make: Callable[..., Sources], tmp_path: Path) -> None:
    inside, outside = tmp_path / "roots" / "project", tmp_path / "outside"
    inside.mkdir(parents=True)
    outside.mkdir()
    (inside.parent / "link").symlink_to(outside)
    sources = make(roots=(tmp_path / "roots",))
    with sources.held(order(tmp_path, LocalSource(path=str(inside)))) as held:
        assert held.workspace == str(inside)
    for path in (outside, inside.parent / "link", inside.parent / ".." / "outside", tmp_path / "none", Path("/")):
        with pytest.raises(WorkspaceRefused), sources.held(order(tmp_path, LocalSource(path=str(path)))):
            pass


def test_an_empty_workspace_is_empty_and_an_old_session_fetches_nothing_again(
    make: Callable[..., Sources], tmp_path: Path, place: Path
) -> None:
    sources = make()
    one = order(tmp_path, EmptySource())
    with sources.held(one) as held:
        assert names(Path(held.workspace)) == []
    assert names(place / "sources") == []
    for name in ("base", "work"):
        (Path(one.session_dir) / name).mkdir()
    gone = one.model_copy(update={"source": GitSource(url="https://git.test/none")})
    with sources.held(gone) as held:
        assert held.workspace == f"{one.session_dir}/base"


def test_what_an_earlier_life_was_fetching_is_removed_and_its_commits_stay(
    make: Callable[..., Sources], place: Path
) -> None:
    make().sweep()
    for name in ("new-0123", "old-0123", "a" * 32):
        (place / "sources" / name / "tree").mkdir(parents=True)
    make().sweep()
    assert names(place / "sources") == ["a" * 32]


def test_what_is_fetched_is_never_bound(make: Callable[..., Sources], tmp_path: Path) -> None:
    bound = order(tmp_path, EmptySource()).model_copy(update={"workspace_mode": WorkspaceMode.BIND})
    with pytest.raises(WorkspaceRefused, match="cannot be bound"), make().held(bound):
        pass


@pytest.mark.parametrize("path", ["testbed", "/", "/a/../b", ""])
def test_a_path_in_an_image_is_absolute_and_plain(make: Callable[..., Sources], tmp_path: Path, path: str) -> None:
    class Nothing:
        def copy_out(self, image: str, path: str, target: Path, most_bytes: int, principal: str = "") -> None:
            raise AssertionError("the engine must not be asked")

    sources = Sources(make()._settings, Nothing())
    with (
        pytest.raises(WorkspaceRefused, match="no absolute path"),
        sources.held(order(tmp_path, ImageSource(path=path))),
    ):
        pass
