"""Which tests run on gVisor as well, and which of them it cannot pass, with the reason."""

import functools

import docker
from docker.errors import DockerException

RUNTIME = "runsc"

FRESH_BOX_TESTS = frozenset(
    {
        "test_an_image_with_one_static_program_works",
        "test_commands_cannot_look_into_the_guest",
        "test_an_image_without_places_for_temporary_files_will_do",
        "test_rm_of_everything_by_the_agent_takes_only_its_own",
    }
)
"""Tests of boxes of their own that run on both; those of a shared box all do."""

_NO_STATX = "this release refuses statx, which the image's ls and stat use"
VOID: dict[str, str] = {
    "test_a_hundred_megabytes_are_read_in_bounded_memory": "its /proc shows no peak of a process's memory",
    "test_a_write_makes_parents_and_says_whether_the_file_is_new": _NO_STATX,
    "test_a_write_keeps_the_mode_and_compares_what_was_seen": _NO_STATX,
    "test_where_no_file_can_be_written_it_is_refused_and_nothing_is_left": _NO_STATX,
    "test_an_edit_keeps_bytes_newlines_and_mode": _NO_STATX,
    "test_no_device_but_the_harmless_ones": "it has fuse and tun of its own kernel; none leads to the host",
    "test_dangerous_system_calls_are_refused": "they end in its own kernel, which answers otherwise",
    "test_no_namespace_of_users_can_be_made": "its own kernel has such namespaces; none is the host's",
    "test_commands_cannot_look_into_the_guest": "every process may read the others' environment; the guest's is empty",
}
"""Name of a test (without its parameters) → what this gVisor lacks."""


@functools.cache
def missing_gvisor() -> str | None:
    """Return why nothing can run on gVisor here; None when it can."""
    try:
        client = docker.APIClient(version="auto")
    except DockerException as exc:
        return f"no Docker engine answers: {exc}"
    try:
        known = client.info().get("Runtimes") or {}
    finally:
        client.close()
    return None if RUNTIME in known else f"the engine has no runtime {RUNTIME}: deploy/setup.sh --dev adds it as root"
