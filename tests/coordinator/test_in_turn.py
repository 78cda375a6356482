"""Who is next, between principals."""

from coordinator.in_turn import InTurn


def test_principals_have_their_turns_one_after_the_other() -> None:
    line = InTurn[str]()
    for one in ("a1", "a2", "b1", "b2", "c1"):
        line.join(one, one[0])
    came = [line.next() for _ in range(5)]
    assert [found[1] for found in came if found] == ["a1", "b1", "c1", "a2", "b2"]
    assert line.next() is None


def test_who_comes_stands_before_the_principal_that_had_the_last_turn() -> None:
    line = InTurn[str]()
    line.had_turn("a")
    for one in ("a1", "a2", "b1"):
        line.join(one, one[0])
    assert line.next() == ("b", "b1")
    # Newcomers without end do not keep it from its turn.
    line.join("c1", "c")
    assert line.next() == ("a", "a1")


def test_a_principal_that_may_have_no_turn_keeps_its_place() -> None:
    line = InTurn[str]()
    for one in ("a1", "b1", "b2"):
        line.join(one, one[0])
    assert line.next(lambda principal: principal != "a") == ("b", "b1")
    assert line.next(lambda principal: False) is None
    assert line.next() == ("a", "a1")


def test_who_leaves_is_passed_over() -> None:
    line = InTurn[str]()
    for one in ("a1", "a2", "b1"):
        line.join(one, one[0])
    assert (line.position("a2"), line.waiting("a")) == (2, 2)
    assert line.leave("a1")
    assert not line.leave("a1")
    assert (line.position("a2"), line.position("a1"), line.waiting("a")) == (1, None, 1)
    assert line.leave("b1")
    assert line.next() == ("a", "a2")
    assert line.next() is None
