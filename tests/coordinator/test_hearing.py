"""Wishes are heard, each once, also where Redis was away when it was said that there are some."""

from redis.exceptions import ConnectionError as RedisAway

from coordinator.cluster.hearing import Hearing
from coordinator.cluster.store import connect
from coordinator.cluster.wishes import Told, Wish, Wishes


async def test_what_is_wanted_is_asked_for_again_until_redis_says_it(redis_url: str) -> None:
    client = connect(redis_url)
    wishes, heard, outages = Wishes(client, "ours"), list[str](), [2]

    async def is_coming(session: str) -> bool:
        if outages[0]:
            outages[0] -= 1
            raise RedisAway("as while Redis is restarted")
        return False

    def grant(session: str, wish: Wish) -> Told:
        heard.append(wish.text)
        return Told(message=session)

    hearing, wish = Hearing(wishes, grant, is_coming), Wish(kind="message", text="hello")
    await wishes.send("s", wish, None)
    # Said once, and never again.
    hearing.look("s")
    told = await wishes.answer(wish, 20)
    assert (told, heard) == (Told(message="s"), ["hello"])
    await hearing.close()
    await client.aclose()
