"""A git server of the tests, with a credential, and what a node fetches from it."""

import base64
import os
import shutil
import ssl
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.sources.held import Sources, SourceSettings
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
