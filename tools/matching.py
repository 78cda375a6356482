"""Matching: a pattern of words against a simple command's parsed words, never against its text.

A word of a pattern is literal, but `*` in it stands for any characters, and the word `...` for any words or none.
What the shell would still expand (a variable, a file pattern) is not certain: then a pattern may match.
"""

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache

from tools.commands import hides_what_it_runs
from tools.shell import SimpleCommand, Word

REST = "..."
MOST_WORDS = 1_000
"""A longer command is not matched word by word."""
_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/")


class Match(IntEnum):
    """Whether a pattern is meant."""

    NO = 0
    MAYBE = 1
    """It depends on what the shell makes of the words."""
    YES = 2


def match_for_allowing(pattern: tuple[str, ...], command: SimpleCommand) -> bool:
    """Return whether a pattern certainly means this command and a wildcard in it covers nothing surprising.

    A lone `*` covers no option, no wildcard covers a `..` of a path, only `...` covers words that are not certain, and
    a program that runs a text (a shell, `eval`) must be spelled word by word. The program must be the system's, unless
    the pattern says where it lies.
    """
    name = command.name
    if name is None or len(command.words) > MOST_WORDS:
        return False
    program = name.rpartition("/")[2]
    if "/" not in pattern[0]:
        if name != program and name.removesuffix(program) not in _SYSTEM_FOLDERS:
            return False
        name = program
    if hides_what_it_runs(program) and any("*" in word or word == REST for word in pattern):
        return False
    return _is_meant(pattern, (Word(name, is_exact=True), *command.arguments), _covers_plainly)


def match_for_refusing(pattern: tuple[str, ...], command: SimpleCommand) -> Match:
    """Return whether a pattern means this command, or may mean it; wildcards cover whatever they can."""
    name = command.name
    if name is None:
        return Match.MAYBE
    program = name.rpartition("/")[2]
    is_same = _covers(pattern[0], name) or _covers(pattern[0], program)
    if not is_same and not ("/" in pattern[0] and pattern[0].rpartition("/")[2] == program):
        return Match.NO
    if len(command.words) > MOST_WORDS:
        return Match.MAYBE
    rest, arguments = pattern[1:], command.arguments
    if is_same and _is_meant(rest, arguments, _covers):
        return Match.YES
    places = _after_rest(rest, {0})
    for word in arguments:
        places = _after_rest(rest, _steps(rest, places, word))
    return Match.MAYBE if len(rest) in places else Match.NO


def _is_meant(pattern: tuple[str, ...], words: Sequence[Word], covers: Callable[[str, str], bool]) -> bool:
    """Return whether a pattern certainly covers all the words; only `...` covers one that is not certain."""
    places = _after_rest(pattern, {0})
    for word in words:
        if not places or (pattern[-1:] == (REST,) and len(pattern) in places):
            break
        stayed = {place for place in places if place < len(pattern) and pattern[place] == REST}
        went = {
            place + 1
            for place in places - stayed
            if place < len(pattern) and word.is_exact and covers(pattern[place], word.text)
        }
        places = _after_rest(pattern, stayed | went)
    return len(pattern) in places


def _steps(pattern: tuple[str, ...], places: set[int], word: Word) -> set[int]:
    """Return where in the pattern one can stand behind a word; one that is not certain may be any number of words."""
    reached = set[int]()
    for place in places:
        if place < len(pattern) and pattern[place] == REST:
            reached.add(place)
        elif word.is_exact:
            if place < len(pattern) and _covers(pattern[place], word.text):
                reached.add(place + 1)
        else:
            reached.add(place)
            while place < len(pattern) and (pattern[place] == REST or _may_become(word.text, pattern[place])):
                place += 1
                reached.add(place)
    return reached


def _after_rest(pattern: tuple[str, ...], places: set[int]) -> set[int]:
    """Return the places, and those behind each `...` that stands for nothing."""
    reached = set(places)
    for place in places:
        while place < len(pattern) and pattern[place] == REST:
            place += 1
            reached.add(place)
    return reached


def _covers(pattern: str, text: str) -> bool:
    return _compiled(pattern).fullmatch(text) is not None


def _covers_plainly(pattern: str, text: str) -> bool:
    if "*" in pattern and (".." in text.split("/") or (pattern == "*" and text.startswith("-"))):
        return False
    return _covers(pattern, text)


def _may_become(beginning: str, pattern: str) -> bool:
    """Return whether a word of which only the beginning is certain may be one that the pattern covers."""
    if beginning == "~":
        return pattern.startswith(("/", "*", "~"))
    literal = pattern.partition("*")[0]
    return literal.startswith(beginning) or ("*" in pattern and beginning.startswith(literal))


@lru_cache(maxsize=1_024)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Runs of stars are one: else matching them against each other would take for ever.
    return re.compile(".*".join(re.escape(part) for part in re.split(r"\*+", pattern)), re.DOTALL)
