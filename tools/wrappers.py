"""Wrappers: programs that run another program given in their arguments, and how to find it there.

An option that is not listed makes the finding uncertain: misreading which argument is the inner program's name would
judge the wrong one.
"""

import re
from dataclasses import dataclass, field
from itertools import islice

from tools.shell import SimpleCommand, Word

MOST_GUESSES = 100
"""So many arguments are taken for the inner command's name where that is not certain; nothing uncertain is allowed."""


@dataclass(frozen=True)
class Unwrapped:
    """What a wrapper runs."""

    commands: tuple[SimpleCommand, ...]
    """The inner commands found; may be none."""
    is_certain: bool
    """Whether these are all, and the wrapper does nothing else."""


@dataclass(frozen=True)
class _Wrapper:
    flags: frozenset[str] = frozenset()
    """Options without a value."""
    with_value: frozenset[str] = frozenset()
    """Options whose value is the following argument."""
    attached: re.Pattern[str] | None = None
    """Options that bring their value along."""
    operand: re.Pattern[str] | None = None
    """The argument between the options and the inner command; None if there is none."""
    appended: tuple[Word, ...] = ()
    """What the wrapper adds to the inner command."""
    lookups: frozenset[str] = field(default_factory=frozenset)
    """Options with which it runs nothing and only tells where a program is."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ANYTHING = Word("", is_exact=False)
_XARGS = _Wrapper(
    _set("-0 --null -r --no-run-if-empty -t --verbose -x"),
    _set("-n -P -L -s -d"),
    re.compile(r"-[nPLs]\d+|-d.|--max-(?:args|procs|lines|chars)=\d+"),
    appended=(_ANYTHING,),
)
WRAPPERS = {
    "command": _Wrapper(_set("-p"), lookups=_set("-v -V")),
    "builtin": _Wrapper(),
    "exec": _Wrapper(_set("-c -l"), _set("-a")),
    "env": _Wrapper(_set("-i - --ignore-environment"), _set("-u")),
    "nohup": _Wrapper(),
    "nice": _Wrapper(with_value=_set("-n"), attached=re.compile(r"-n-?\d+|--adjustment=-?\d+")),
    "ionice": _Wrapper(_set("-t"), _set("-c -n"), re.compile(r"-[cn]\d")),
    "timeout": _Wrapper(
        _set("--foreground --preserve-status -v --verbose"),
        _set("-k -s"),
        re.compile(r"-[ks]\w+|--(?:kill-after|signal)=\w+"),
        operand=re.compile(r"\d+(?:\.\d+)?[smhd]?"),
    ),
    "time": _Wrapper(_set("-p")),
    "stdbuf": _Wrapper(with_value=_set("-i -o -e"), attached=re.compile(r"-[ioe]\w+|--(?:input|output|error)=\w+")),
    "setsid": _Wrapper(_set("-w --wait -f --fork -c --ctty")),
    "xargs": _XARGS,
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
}
"""By name; those that do nothing else."""
_RUNNERS = _set(
    "sudo doas pkexec runuser su chroot unshare nsenter setpriv capsh fakeroot strace ltrace gdb perf watch flock "
    "parallel script ssh systemd-run systemd-inhibit dbus-run-session xvfb-run taskset chrt numactl prlimit catchsegv "
    "rlwrap unbuffer daemonize start-stop-daemon screen tmux entr chpst setuidgid softlimit gosu tini dumb-init"
)
"""These do more, or run text: what they run is a guess, and never certain."""


def runs_others(program: str) -> bool:
    """Return whether a program is one that runs what its arguments name."""
    return program == "find" or program in WRAPPERS or program in _RUNNERS


def unwrap(program: str, command: SimpleCommand) -> Unwrapped | None:
    """Return what a wrapper runs, None if the program is no wrapper."""
    if program == "find":
        return _unwrap_find(command)
    words = command.arguments
    wrapper = WRAPPERS.get(program)
    if wrapper is None:
        return Unwrapped(_guesses(command, 0), is_certain=False) if program in _RUNNERS else None
    place, is_known = _after_options(wrapper, words)
    if place < len(words) and words[place].text in wrapper.lookups:
        return Unwrapped((), is_certain=all(word.is_exact for word in words))
    if program == "env" and place < len(words) and "=" in words[place].text:
        # An assignment may change what the inner command does.
        is_known = False
    if not is_known:
        return Unwrapped(_guesses(command, place), is_certain=False)
    if place >= len(words):
        # Alone, `env` prints and `xargs` echoes; the others do nothing.
        return Unwrapped((), is_certain=True)
    return Unwrapped((command.inner(place).followed_by(wrapper.appended),), is_certain=True)


def _guesses(command: SimpleCommand, place: int) -> tuple[SimpleCommand, ...]:
    """Return what is run if any argument from a place on may be the inner command's name."""
    words = command.arguments
    starts = (start for start in range(place, len(words)) if not words[start].may_be_option)
    return tuple(command.inner(start) for start in islice(starts, MOST_GUESSES))


def _after_options(wrapper: _Wrapper, words: tuple[Word, ...]) -> tuple[int, bool]:
    """Return where the inner command's name stands, and whether everything before it is known."""
    place = 0
    while place < len(words) and words[place].may_be_option:
        word = words[place]
        if not word.is_exact:
            return place, False
        if word.text == "--":
            place += 1
            break
        if word.text in wrapper.with_value:
            place += 2
        elif word.text in wrapper.flags or (wrapper.attached and wrapper.attached.fullmatch(word.text)):
            place += 1
        else:
            return place, False
    if wrapper.operand is not None:
        if place >= len(words) or not words[place].is_exact or not wrapper.operand.fullmatch(words[place].text):
            return place, False
        place += 1
    return place, True


_FIND_TESTS = _set(
    "-H -L -P -a -and -o -or -not ! ( ) , -amin -anewer -atime -cmin -cnewer -ctime -daystart -depth -empty "
    "-executable -false -follow -gid -group -iname -inum -ipath -iregex -links -ls -lname -ilname -maxdepth -mindepth "
    "-mmin -mount -mtime -name -newer -nogroup -nouser -path -perm -print -print0 -printf -prune -quit -readable "
    "-regex -regextype -samefile -size -true -type -uid -user -wholename -writable -xdev -xtype"
)
_FIND_NUMBER = re.compile(r"-\d+")


def _unwrap_find(command: SimpleCommand) -> Unwrapped:
    """Return what `find` runs for the files it finds; certain if it does nothing else but look."""
    inner: list[SimpleCommand] = []
    is_certain = True
    words = command.arguments
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word.text in {"-exec", "-execdir", "-ok", "-okdir"}:
            start = place
            while place < len(words) and not _ends_exec(words, place):
                place += 1
            inner.append(command.inner(start, place))
            is_certain = is_certain and place < len(words) and word.text in {"-exec", "-execdir"}
            place += 1
        elif word.may_be_option and word.text not in _FIND_TESTS and not _FIND_NUMBER.fullmatch(word.text):
            is_certain = False
    return Unwrapped(tuple(inner), is_certain)


def _ends_exec(words: tuple[Word, ...], place: int) -> bool:
    # A plus is an argument like any other unless the file names stand right before it.
    return words[place].text == ";" or (words[place].text == "+" and words[place - 1].text == "{}")
