"""Show foreign text so that it can only be text: events → **visible** → timeline, approvals.

Everything that a model, a tool or a repository wrote may hold characters that move the cursor, hide text or
turn its direction. They come out as what they are.
"""

import re
import unicodedata

MOST_BLANKS = 40
"""A longer run of blanks in one line is shown as its length: it could push the rest out of sight."""

MOST_EMPTY_LINES = 5
"""A longer run of empty lines is shown as its number."""

_BLANKS = re.compile(rf"[^\S\n]{{{MOST_BLANKS + 1},}}")
_EMPTY_LINES = re.compile(rf"\n(?:[^\S\n]*\n){{{MOST_EMPTY_LINES + 1},}}")


def visible(text: str) -> str:
    """`text` with nothing in it that a terminal acts upon but newlines and tabs.

    Control characters become their pictures (`␛`), other invisible or direction-turning ones their code
    (`⟨U+202E⟩`); long runs of blanks and empty lines become their length.
    """
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _shown(char) for char in text)
    text = _BLANKS.sub(lambda run: f" ⟨{len(run[0])} blanks⟩ ", text)
    return _EMPTY_LINES.sub(lambda run: "\n⟨" + str(run[0].count("\n") - 1) + " empty lines⟩\n", text)


def visible_line(text: str, width: int) -> str:
    """`text` as one line of at most `width` characters; newlines become `⏎`, what was left out `…`."""
    # A line's beginning decides what is shown: the rest of a long text is not looked at.
    text = visible(text[: 8 * width]).replace("\n", "⏎").replace("\t", " ") + ("…" if len(text) > 8 * width else "")
    return text if len(text) <= width else text[: width - 1] + "…"


def _shown(char: str) -> str:
    code = ord(char)
    if char in "\n\t" or unicodedata.category(char) == "Zs":
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"⟨U+{code:04X}⟩"
