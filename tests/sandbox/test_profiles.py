"""Profiles: what they say, and what they refuse."""

import pytest
from pydantic import ValidationError

from sandbox.profiles import BUILT_IN, GUEST_BYTES, Profile, UnknownProfile, find_profile, shown_bytes
from sandbox.spec import GIB, MIB, Network


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_what_lies_in_memory_fits_into_it_beside_the_guest(name: str) -> None:
    limits = BUILT_IN[name].limits()
    in_memory = limits.shm_bytes + limits.tmp_size_bytes + limits.home_size_bytes
    assert in_memory + GUEST_BYTES <= limits.memory_bytes


def test_the_built_in_profiles_grow() -> None:
    small, medium, large = (BUILT_IN[name].limits() for name in ("small", "medium", "large"))
    for field in ("memory_bytes", "cpus", "pids", "open_files", "workspace_bytes"):
        assert getattr(small, field) < getattr(medium, field) < getattr(large, field)
    assert all(profile.network is Network.NONE for profile in BUILT_IN.values())


def test_a_profile_of_ones_own_goes_before_a_built_in_one() -> None:
    own = {"small": Profile.model_validate({"memory": "300MiB", "tmp": "1MiB"})}
    assert find_profile("small", own).limits().memory_bytes == 300 * MIB
    assert find_profile("small", own).limits().tmp_size_bytes == MIB
    assert find_profile("small", own).limits().home_size_bytes == 300 * MIB // 8
    assert find_profile("medium", own) is BUILT_IN["medium"]
    with pytest.raises(UnknownProfile, match="'huge'; known: large, medium, small"):
        find_profile("huge", own)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"memory": "512MiB", "shm": "400MiB"}, "more than the memory of 512 MiB"),
        ({"allow_weak": ["memmory"]}, "memmory"),
        ({"memmory": "1GiB"}, "memmory"),
        ({"runtime": "kata"}, "runtime"),
        ({"network": "some"}, "network"),
        ({"user": "nobody"}, "user"),
        ({"pids": 4}, "pids"),
    ],
)
def test_a_profile_that_cannot_hold_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Profile.model_validate(fields)


def test_the_digest_is_of_what_a_profile_says() -> None:
    assert Profile().digest == Profile.model_validate({"memory": "2GiB"}).digest
    assert Profile().digest != Profile(pids=100).digest


@pytest.mark.parametrize(
    ("size", "shown"), [(512 * MIB, "512 MiB"), (2 * GIB, "2 GiB"), (1536 * MIB, "1.5 GiB"), (100, "100 bytes")]
)
def test_sizes_are_shown_as_people_write_them(size: int, shown: str) -> None:
    assert shown_bytes(size) == shown
