"""Directories of images, taken out without running anything of them."""

import tarfile
from pathlib import Path

import docker
import pytest

from sandbox.creation import NAME_PREFIX
from sandbox.engine import DockerEngine
from sandbox.image_files import ImageFilesMissing

pytestmark = pytest.mark.docker

IMAGE = "sandhog-box:latest"


def test_a_directory_comes_as_an_archive_and_no_container_is_left(
    engine: DockerEngine, docker_client: docker.APIClient, tmp_path: Path
) -> None:
    engine.image_files.copy_out(IMAGE, "/etc/apt/", tmp_path / "out.tar", 10_000_000)
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert "apt/sources.list.d" in tar.getnames()
    for path, most_bytes, words in (("/none", 10_000_000, "has nothing at"), ("/usr", -60_000_000, "is larger")):
        with pytest.raises(ImageFilesMissing, match=words):
            engine.image_files.copy_out(IMAGE, path, tmp_path / f"{most_bytes}.tar", most_bytes)
    left = docker_client.containers(all=True, filters={"name": f"{NAME_PREFIX}files-"})
    assert not left
