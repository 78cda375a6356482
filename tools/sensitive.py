"""Sensitive: files whose change has effects beyond their content, said to the human who is asked."""

from collections.abc import Mapping
from typing import Any

_GIT_FILES = frozenset({".gitattributes", ".gitmodules", ".gitconfig"})


def change_of_git(arguments: Mapping[str, Any]) -> str:
    """Return what a change of one of git's own files means, in words; "" if the arguments name none.

    Looks at the spelling only; a link or a mount may lead there too.
    """
    path = arguments.get("path")
    pieces = path.casefold().split("/") if isinstance(path, str) else []
    if ".git" in pieces or (pieces and pieces[-1] in _GIT_FILES):
        return "git may later run programs that this file names, also outside the box"
    return ""
