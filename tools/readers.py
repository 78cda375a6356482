"""Readers: programs that only read, and with which arguments.

For a program with arguments that write or run, every word that could be an option must be one of a known set, wherever
it stands: so it does not matter which option takes which word for its value. Long options must be spelled out.
"""

import re
from collections.abc import Callable, Sequence

from tools.shell import Word

Check = Callable[[Sequence[Word]], bool]


def _options(pattern: str, operands: int | None = None) -> Check:
    """Return a check: all that could be options match the pattern, and there are at most so many other words."""
    known = re.compile(pattern)

    def check(words: Sequence[Word]) -> bool:
        options = [word for word in words if word.may_be_option]
        if any(not word.is_exact or not known.fullmatch(word.text) for word in options):
            return False
        others = [word for word in words if not word.may_be_option]
        return operands is None or (len(others) <= operands and all(word.is_exact for word in others))

    return check


def _anything(_words: Sequence[Word]) -> bool:
    return True


def _nothing(words: Sequence[Word]) -> bool:
    return not words


_PRINTF_OPTIONS = _options(r"--|(?!-v).*")
# Stores a number in the variable that an argument names: PATH, for one.
_PRINTF_STORES = re.compile(r"%[^%a-zA-Z]*[hljztL]*n")


def _printf(words: Sequence[Word]) -> bool:
    operands = [word for word in words if word.text != "--"]
    if not operands:
        return True
    pattern = operands[0]
    return pattern.is_exact and not _PRINTF_STORES.search(pattern.text.replace("%%", "")) and _PRINTF_OPTIONS(words)


_DATE_OPTIONS = _options(r"-u|-R|-I\w*|-d.*|-r|--(?:utc|iso-8601(?:=\w+)?|rfc-3339=\w+|date=.*)")


def _date(words: Sequence[Word]) -> bool:
    # Any other operand than a format is the time to set.
    before = [None, *words]
    operands = [
        word for last, word in zip(before, words, strict=False) if last is None or last.text not in {"-d", "-r"}
    ]
    others = [word for word in operands if not word.may_be_option]
    return _DATE_OPTIONS(words) and all(word.text.startswith("+") for word in others)


# GNU sed. Addresses are numbers, $ or a plain regular expression; commands print, delete, quit or substitute.
_ADDRESS = r"(?:\d+|\$|/[^/\\\n]*/I?)"
_SED_COMMAND = rf"\s*(?:{_ADDRESS}(?:\s*,\s*[+~]?{_ADDRESS})?)?\s*!?\s*(?:[pdq=]|s/[^/\\\n;]*/[^/\\\n;]*/[gpI\d]*)\s*"
_SED_SCRIPT = re.compile(rf"{_SED_COMMAND}(?:[;\n]{_SED_COMMAND})*;?\s*")
_SED_FLAGS = frozenset({"-n", "--quiet", "--silent", "-E", "-r", "--regexp-extended", "-s", "-u", "-z"})


def _sed(words: Sequence[Word]) -> bool:
    scripts: list[Word] = []
    operands: list[Word] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word.is_exact and word.text == "-e":
            scripts.extend(words[place : place + 1])
            place += 1
        elif word.may_be_option:
            if not word.is_exact or word.text not in _SED_FLAGS:
                return False
        else:
            operands.append(word)
    if not scripts:
        scripts = operands[:1]
    return bool(scripts) and all(word.is_exact and _SED_SCRIPT.fullmatch(word.text) for word in scripts)


_GIT_DIFF = (
    r"-p|-u|-s|-[wbzaRM]|-M\d*%?|-C|-\d+|-n\d*|-U\d+|-[SG].*|--|--(?:patch|no-patch|stat|shortstat|numstat|name-only|"
    r"name-status|summary|raw|cached|staged|merge-base|no-color|color=never|word-diff|minimal|patience|histogram|"
    r"ignore-all-space|ignore-space-change|ignore-blank-lines|find-renames|no-renames|full-index|abbrev|text|"
    r"exit-code|quiet|check|no-prefix|unified=\d+|diff-filter=\w+|relative|no-ext-diff|no-textconv)"
)
_GIT_LOG = (
    rf"{_GIT_DIFF}|-i|-E|-F|-L.*|-g|--(?:oneline|graph|all|branches|tags|remotes|decorate|no-decorate|follow|reverse|"
    r"no-merges|merges|first-parent|abbrev-commit|topo-order|date-order|author-date-order|left-right|cherry-pick|"
    # A format with %G has gpg, or what the configuration names for it, look at signatures.
    r"(?:since|until|after|before|author|committer|grep|date|max-count|skip|decorate)=.*|pretty|"
    r"(?:format|pretty)=(?!.*%[-+ ]?G).*)"
)
_LIST_ONLY = r"--(?:no-color|color=never|sort=.*|format=.*)"
_GIT: dict[str, Check] = {
    "status": _options(
        r"-s|-b|-sb|-uno|-unormal|-uall|-z|--|--(?:short|branch|porcelain(?:=v[12])?|long|ignored|no-color)"
    ),
    "diff": _options(_GIT_DIFF),
    "log": _options(_GIT_LOG),
    "show": _options(_GIT_LOG),
    "shortlog": _options(r"-[sne]+|--|--(?:summary|numbered|email|all|since=.*|until=.*|no-merges)"),
    "blame": _options(r"-[wsefnlt]|-[LMC].*|--|--(?:porcelain|line-porcelain|show-email|date=.*)"),
    "ls-files": _options(r"-[comdstuz]+|--|--(?:cached|others|modified|deleted|stage|exclude-standard|ignored)"),
    "ls-tree": _options(r"-[rdtlz]+|--|--(?:name-only|name-status|full-tree|long)"),
    "rev-parse": _options(
        r"--|--(?:show-toplevel|abbrev-ref|short|verify|git-dir|is-inside-work-tree|show-prefix|quiet)"
    ),
    "rev-list": _options(_GIT_LOG + "|--count"),
    "describe": _options(r"--(?:tags|all|always|long|dirty|abbrev=\d+)"),
    "merge-base": _options(r"--(?:is-ancestor|all|fork-point)"),
    "show-ref": _options(r"--(?:heads|tags|head|hash)"),
    "cat-file": _options(r"-[pte]"),
    "count-objects": _options(r"-v|-vH|-H"),
    "branch": _options(rf"-[arv]+|-vv|--(?:all|remotes|verbose|show-current)|{_LIST_ONLY}", operands=0),
    "remote": _options(r"-v|--verbose", operands=0),
}


def _git(words: Sequence[Word]) -> bool:
    rest = list(words)
    while rest and rest[0] == Word("--no-pager", is_exact=True):
        rest.pop(0)
    if not rest or not rest[0].is_exact:
        return False
    subcommand, arguments = rest[0].text, rest[1:]
    if subcommand == "tag":
        return _git_tag(arguments)
    check = _GIT.get(subcommand)
    return check is not None and check(arguments)


def _git_tag(words: Sequence[Word]) -> bool:
    # Without -l an operand is a tag to make.
    lists = any(word.is_exact and word.text in {"-l", "--list"} for word in words)
    return _options(rf"-l|--list|-n\d*|{_LIST_ONLY}", operands=None if lists else 0)(words)


_SAFE_WITH_ANYTHING = (
    "cat head tail wc ls pwd cd echo true false : basename dirname realpath readlink stat du df nl tac rev cut tr comm "
    "cmp diff paste fold fmt expand unexpand column join od hexdump strings md5sum sha1sum sha256sum sha512sum b2sum "
    "cksum sum base64 grep egrep fgrep which type whoami id groups uname nproc seq sleep expr jq printenv "
    "uptime free ps tty arch getconf locale numfmt tsort pathchk dircolors factor"
)
READERS: dict[str, Check] = {
    **dict.fromkeys(_SAFE_WITH_ANYTHING.split(), _anything),
    "sed": _sed,
    "git": _git,
    "hostname": _nothing,
    "printf": _printf,
    "date": _date,
    "sort": _options(
        r"-[bdfghiMnRrVcCmsuz]+|-[bdfghiMnRrVcCmsuz]*[kt].*|--(?:reverse|unique|numeric-sort|version-sort)"
    ),
    "uniq": _options(r"-[cdDuiz]+|-[fsw]\d+|--(?:count|repeated|unique|ignore-case)", operands=1),
    "tree": _options(r"-[adfhLIPCFsDipug]+|--(?:noreport|dirsfirst|gitignore|prune|filelimit)", operands=None),
    "file": _options(r"-[bihLkr0]+|--(?:brief|mime|mime-type|mime-encoding|dereference)"),
    "rg": _options(
        r"-[nNilLcwvoFUPSsHhIuxaq0.]+|-[nNilcwvoFUSsHhuxaq0]*[ABCegtTmMr].*|--|--(?:hidden|files|json|stats|count|"
        r"count-matches|files-with-matches|files-without-match|no-ignore|no-ignore-vcs|no-heading|heading|line-number|"
        r"no-line-number|ignore-case|smart-case|case-sensitive|fixed-strings|word-regexp|line-regexp|invert-match|"
        r"multiline|only-matching|pcre2|follow|trim|vimgrep|with-filename|no-filename|type-list|no-config|null|"
        r"(?:glob|iglob|type|type-not|max-count|max-depth|context|after-context|before-context|regexp|sort|sortr|color|"
        r"max-columns|encoding)=.*)"
    ),
    "test": _options(r"-[a-uw-zA-QS-Z]|-(?:eq|ne|lt|le|gt|ge|nt|ot|ef)"),
}
"""By name. Not here, because arguments or input make them write or run: awk, perl, python, less, man, xxd, tee, vi."""


def reads_only(program: str, arguments: Sequence[Word]) -> bool:
    """Return whether a program with these arguments is known to only read."""
    check = READERS.get(program)
    return check is not None and check(arguments)
