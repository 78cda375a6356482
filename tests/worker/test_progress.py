"""What is said of a start that takes long reaches the sessions that wait for it, and no other."""

import redis

from worker.contract import keys
from worker.progress import Progress


def test_all_sessions_that_wait_for_an_image_hear_of_its_pull(redis_client: redis.Redis) -> None:
    progress = Progress(redis_client)
    progress.of_image("an:1", "nobody waits")
    with progress.waits("an:1", "a"), progress.waits("an:1", "b"), progress.waits("other:1", "c"):
        progress.of_image("an:1", "3 of 9 MiB")
    progress.of_image("an:1", "nobody waits any more")
    for session in "ab":
        assert redis_client.get(keys.progress(session)) == b"The image an:1 is being pulled: 3 of 9 MiB"
        assert 0 < int(str(redis_client.ttl(keys.progress(session)))) <= keys.PROGRESS_TTL_S
    assert redis_client.get(keys.progress("c")) is None


def test_words_are_bounded_and_a_redis_that_is_away_stops_nothing(redis_client: redis.Redis) -> None:
    Progress(redis_client).tell("a", "x" * 10_000)
    assert len(str(redis_client.get(keys.progress("a")))) < keys.PROGRESS_CHARS + 10
    Progress(redis.Redis(unix_socket_path="/nowhere")).tell("a", "words")
