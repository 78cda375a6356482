"""Ids of sessions."""

import re
import time

from coordinator.session.request import new_session_id


def test_ids_sort_by_time_also_within_a_second() -> None:
    made = []
    for _ in range(30):
        made.append(new_session_id())
        time.sleep(0.01)
    assert made == sorted(made)
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", one) for one in made)


def test_no_two_of_a_moment_are_the_same() -> None:
    assert len({new_session_id() for _ in range(16)}) == 16
