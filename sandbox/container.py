"""One container of the Docker engine as its box needs it, and the engine's errors turned into ours."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import docker
import requests.exceptions
import urllib3.exceptions
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from sandbox.deaths import Deaths
from sandbox.door import Door, DoorStream
from sandbox.engine_stream import ExecStream
from sandbox.errors import EngineAway, EngineFailing, EngineUnavailable, ImageMissing, LossReason
from sandbox.guest_folder import command_line
from sandbox.link import Stream

FOREIGN = (DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError)
"""What the engine's client raises; the last but one while a stream of events is read."""
LOOK_S = 0.2
"""Between looks at what became of a request that was not answered."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the engine's errors into ours."""
    try:
        yield
    except ImageNotFound as error:
        raise ImageMissing(f"{what}: {error.explanation}") from error
    except requests.exceptions.ConnectionError as error:
        raise EngineAway(f"{what}: {error}") from error
    except FOREIGN as error:
        if isinstance(error, APIError) and error.is_server_error():
            raise EngineFailing(f"{what}: {error}") from error
        is_refusal = isinstance(error, APIError) and error.status_code == HTTPStatus.BAD_REQUEST
        raise EngineUnavailable(f"{what}: {error}", is_refusal=is_refusal) from error


def state_of(client: docker.APIClient, name: str) -> str | None:
    """The state of a container by its name (`created`, `running`, …); None when there is none.

    Raises:
        DockerException, requests.exceptions.RequestException: the engine's own errors.
    """
    try:
        return str(client.inspect_container(name)["State"]["Status"])
    except NotFound:
        return None


def settled(ask: Callable[[], object], is_done: Callable[[], bool], patience_s: float) -> None:
    """Ask the engine; when its answer stays away, look until what was asked for is done, or raise what was raised.

    Raises:
        DockerException, requests.exceptions.RequestException, OSError: it was refused, or is not done in time.
    """
    try:
        ask()
    except (requests.exceptions.Timeout, requests.exceptions.ConnectionError):
        deadline = time.monotonic() + patience_s
        while not _is_seen(is_done):
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)


def _is_seen(is_done: Callable[[], bool]) -> bool:
    try:
        return is_done()
    except (DockerException, requests.exceptions.RequestException):
        return False


class DockerContainer:
    """One container as its box needs it."""

    def __init__(self, client: docker.APIClient, name: str, deaths: Deaths, door: Door | None = None) -> None:
        """`door`: where its guest comes to, closed with it; None where it cannot."""
        self._client = client
        self._name = name
        self._deaths = deaths
        self._door = door
        self._came: DoorStream | None = None
        self.is_executed = False
        """Whether the last link was made by a relay."""

    def connect(self) -> Stream:
        """A new stream to the guest: the one that it comes with, or else through a relay executed in the container."""
        came = self._let_in()
        self.is_executed = came is None
        return came or self._execute()

    def _let_in(self) -> DoorStream | None:
        """Return the connection of the guest, unless the last one said nothing: it may be somebody else's."""
        is_silent = self._came is not None and not self._came.is_heard
        self._came = None
        if self._door is not None and not is_silent:
            self._came = self._door.wait(lambda: self._deaths.is_known(self._name))
        return self._came

    def _execute(self) -> ExecStream:
        with translated(f"link to {self._name}"):
            created = self._client.exec_create(self._name, command_line("relay"), stdin=True, user="0:0", workdir="/")
            return ExecStream(self._client.exec_start(created["Id"], socket=True))

    def fate(self) -> tuple[LossReason, str] | None:
        """Why the container is gone; None while it runs."""
        try:
            with translated(f"state of {self._name}"):
                state = self._client.inspect_container(self._name)["State"]
        except EngineUnavailable as error:
            if isinstance(error.__cause__, NotFound):
                return self._deaths.reason(self._name)
            raise
        if state["Running"]:
            return None
        return self._deaths.reason(
            self._name, had_oom=bool(state.get("OOMKilled")), exit_code=int(state.get("ExitCode", 0))
        )

    def let_go(self) -> None:
        """Let its guest come here no more: it lives on, and whoever takes it over opens the door anew."""
        if self._door is not None:
            self._door.close()

    def remove(self) -> None:
        """End and remove the container."""
        self.let_go()
        remove_container(self._client, self._name)


def remove_container(client: docker.APIClient, name: str) -> None:
    """End and remove a container; it may be gone, or going, already."""
    try:
        with translated(f"removal of {name}"):
            client.remove_container(name, force=True, v=True)
    except EngineUnavailable as error:
        cause = error.__cause__
        if isinstance(cause, NotFound) or (isinstance(cause, APIError) and cause.status_code == 409):
            return
        raise
