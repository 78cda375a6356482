"""Images from a real registry of one test's own into the real engine, and out again."""

import gzip
import hashlib
import io
import json
import logging
import os
import tarfile
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox.engine import DockerEngine
from sandbox.errors import ImageMissing
from sandbox.images import Images, ImageSettings, PullClient, RegistryLogin
from tests.sandbox.conftest import IMAGE

pytestmark = pytest.mark.docker

NAMED = "sandhog-test-named"
PASSWORD = "correct horse"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
Make = Callable[..., Images]


class Registry:
    """A registry with images of one layer; it can ask for a login and hold layers back."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.login = ""
        self.may_send = threading.Event()
        self.may_send.set()
        self.is_asked_for_layer = threading.Event()
        self._layers: set[str] = set()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def add(self, name: str, size: int = 1000) -> str:
        """An image with a file of so many bytes; its reference."""
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            info = tarfile.TarInfo(f"{name}-{os.getpid()}")
            info.size = size
            archive.addfile(info, io.BytesIO(os.urandom(size)))
        layer = gzip.compress(tar.getvalue())
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["FROM_REGISTRY=yes"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(tar.getvalue())]},
        }
        described = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._blob(described, "application/vnd.docker.container.image.v1+json"),
            "layers": [self._blob(layer, "application/vnd.docker.image.rootfs.diff.tar.gzip")],
        }
        self._layers.add(_digest(layer))
        data = json.dumps(manifest).encode()
        self.manifests[f"{name}/manifests/1"] = self.manifests[f"{name}/manifests/{_digest(data)}"] = data
        return f"{self.host}/{name}:1"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        if self.login and request.headers.get("Authorization") != "Basic " + b64encode(self.login.encode()).decode():
            self._send(request, 401, b"{}", "application/json", {"WWW-Authenticate": 'Basic realm="test"'})
            return
        name = request.path.removeprefix("/v2/")
        if not name:
            self._send(request, 200, b"{}", "application/json")
        elif name in self.manifests:
            self._send(request, 200, self.manifests[name], MANIFEST)
        elif (digest := name.rpartition("/")[2]) in self.blobs:
            if digest in self._layers:
                self.is_asked_for_layer.set()
                self.may_send.wait(60)
            self._send(request, 200, self.blobs[digest], "application/octet-stream")
        else:
            self._send(request, 404, b"{}", "application/json")

    def layer_requests(self) -> int:
        return sum(path.rpartition("/")[2] in self._layers for path in self.asked)

    def close(self) -> None:
        self.may_send.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _blob(self, data: bytes, kind: str) -> dict[str, Any]:
        self.blobs[_digest(data)] = data
        return {"mediaType": kind, "size": len(data), "digest": _digest(data)}

    def _send(
        self, request: BaseHTTPRequestHandler, code: int, body: bytes, kind: str, extra: dict[str, str] | None = None
    ) -> None:
        try:
            request.send_response(code)
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Docker-Content-Digest": _digest(body)}
            for name, value in {**headers, **(extra or {})}.items():
                request.send_header(name, value)
            request.end_headers()
            if request.command == "GET":
                request.wfile.write(body)
        except OSError:
            # The engine gave the pull up.
            request.close_connection = True


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture
def registry(docker_client: docker.APIClient) -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.close()
    for image in docker_client.images():
        for tag in image.get("RepoTags") or ():
            if tag.startswith(registry.host):
                docker_client.remove_image(tag, force=True)


@pytest.fixture
def make_images(docker_client: docker.APIClient, tmp_path: Path) -> Make:
    def make(on_progress: Callable[[str, str], None] = lambda ref, words: None, **settings: Any) -> Images:
        return Images(
            docker_client,
            lambda timeout_s: PullClient(version="auto", timeout=int(timeout_s)),
            ImageSettings(**settings),
            tmp_path / "book",
            on_progress,
        )

    return make


def pull(images: Images, ref: str) -> None:
    with images.held(ref) as image:
        assert image.env == {"FROM_REGISTRY": "yes"}


def test_a_missing_image_is_pulled_once_for_all_who_want_it(registry: Registry, make_images: Make) -> None:
    ref = registry.add("wanted")
    progress: list[tuple[str, str]] = []
    images = make_images(lambda ref, words: progress.append((ref, words)))
    assert images.find(ref) is None
    registry.may_send.clear()
    threads = [threading.Thread(target=pull, args=(images, ref)) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert registry.is_asked_for_layer.wait(60)
    registry.may_send.set()
    for thread in threads:
        thread.join(60)
    assert registry.layer_requests() == 1
    assert images.find(ref) is not None
    assert progress[0][0] == ref


def test_an_image_that_is_there_asks_no_registry(registry: Registry, make_images: Make) -> None:
    ref = registry.add("there")
    images = make_images()
    pull(images, ref)
    registry.asked.clear()
    pull(images, ref)
    assert registry.asked == []


def test_pulls_that_are_not_wanted_or_not_possible_are_refused(registry: Registry, make_images: Make) -> None:
    ref = registry.add("unwanted")
    with pytest.raises(ImageMissing, match="not on this engine"):
        pull(make_images(may_pull=False), ref)
    assert registry.asked == []
    with pytest.raises(ImageMissing, match="could not be pulled"):
        pull(make_images(), f"{registry.host}/nothing:1")
    with pytest.raises(ImageMissing):
        pull(make_images(), "sha256:" + "0" * 64)


def test_a_registry_gets_its_own_login_and_nobody_else_sees_it(
    registry: Registry, make_images: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ref = registry.add("private")
    registry.login = f"me:{PASSWORD}"
    caplog.set_level(logging.DEBUG, "sandbox")
    mine, wrong = RegistryLogin("me", PASSWORD), RegistryLogin("me", "wrong")
    for logins in ({}, {registry.host: (wrong,)}, {"other.example": (mine,)}):
        with pytest.raises(ImageMissing) as missing:
            pull(make_images(logins=logins), ref)
        assert PASSWORD not in str(missing.value)
    right = {registry.host: (mine,)}
    pull(make_images(logins=right), ref)
    assert PASSWORD not in caplog.text + repr(ImageSettings(logins=right)) + repr(right)


def test_an_image_is_for_those_whose_login_pulled_it(registry: Registry, make_images: Make) -> None:
    ref, public = registry.add("anns"), registry.add("public")
    registry.login = f"ann:{PASSWORD}"
    ann, bob = (RegistryLogin(name, PASSWORD, frozenset({name})) for name in ("ann", "bob"))
    images = make_images(logins={registry.host: (bob, ann)})
    with images.held(ref, "ann") as image:
        assert images.may_use(image, "ann")
        assert not images.may_use(image, "bob")
    for other in ("bob", "carl"):
        with pytest.raises(ImageMissing, match="could not be pulled"), images.held(ref, other):
            pass
    # It is for everybody who shows that they may have it.
    registry.login = f"bob:{PASSWORD}"
    with images.held(ref, "bob"), images.held(ref, "ann"):
        pass
    registry.login = ""
    pull(images, public)
    with images.held(public, "anybody"):
        pass


def test_a_pull_that_says_nothing_is_given_up(registry: Registry, make_images: Make) -> None:
    ref = registry.add("silent")
    registry.may_send.clear()
    images = make_images(silence_s=1)
    with pytest.raises(ImageMissing, match="could not be pulled"):
        pull(images, ref)
    registry.may_send.set()
    pull(images, ref)


def test_the_longest_unused_go_when_there_are_too_many(
    registry: Registry, make_images: Make, docker_client: docker.APIClient
) -> None:
    refs = [registry.add(name, 1_000_000) for name in ("oldest", "used", "held", "newest")]
    images = make_images(budget_bytes=2_500_000)
    for ref in refs:
        pull(images, ref)
    container = docker_client.create_container(refs[1], ["/none"])
    try:
        with images.held(refs[2]):
            pull(images, refs[0])
            pull(images, refs[3])
            assert images.trim() == [refs[0], refs[3]]
        assert [images.find(ref) is not None for ref in refs] == [False, True, True, False]
        assert images.trim() == []
        assert make_images(budget_bytes=0).trim() == [refs[2]]
    finally:
        docker_client.remove_container(container["Id"])


def test_an_image_that_nobody_pulled_here_is_never_removed(busybox_image: str, make_images: Make) -> None:
    images = make_images(budget_bytes=0)
    with images.held(busybox_image):
        pass
    assert images.trim() == []
    assert images.find(busybox_image) is not None


def test_a_name_that_the_engine_tells_of_is_asked_for_once(
    docker_client: docker.APIClient, busybox_image: str, make_images: Make
) -> None:
    name = f"{NAMED}:{os.getpid()}"
    images = make_images()
    images.hear(True)
    docker_client.tag(busybox_image, NAMED, str(os.getpid()), force=True)
    before = images.seen_lately(name)
    assert before is not None
    docker_client.tag(IMAGE, NAMED, str(os.getpid()), force=True)
    assert images.seen_lately(name) == before
    images.heard()
    after = images.seen_lately(name)
    assert after is not None
    assert after.id != before.id
    docker_client.remove_image(name)
    images.hear(False)
    assert images.seen_lately(name) is None


def test_the_engine_tells_that_a_name_means_another_image(
    docker_client: docker.APIClient, busybox_image: str, make_engine: Callable[..., DockerEngine],
    until: Callable[..., None],
) -> None:  # fmt: skip
    name = f"{NAMED}:{os.getpid()}"
    images = make_engine("images").images
    docker_client.tag(busybox_image, NAMED, str(os.getpid()), force=True)
    until(lambda: images._is_told, "the engine's events are heard")
    before = images.seen_lately(name)
    docker_client.tag(IMAGE, NAMED, str(os.getpid()), force=True)
    until(lambda: images.seen_lately(name) != before, "the name means the other image")
    docker_client.remove_image(name)
    until(lambda: images.seen_lately(name) is None, "the name is gone")
