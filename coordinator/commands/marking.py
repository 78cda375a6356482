"""Marking: a foreign text shown whole, with the part that matters marked below it: wording → **marking**.

Every line of the text stands behind a bar and every mark behind a dot, so that no text can draw a mark of its own.
"""

from rich.cells import cell_len

from coordinator.visible import visible

BAR = "  │ "
DOT = "  · "


def marked_lines(text: str, part: tuple[int, int] | None, width: int) -> list[str]:
    """Return the whole text in lines of at most `width` cells, with carets under the part.

    Args:
        text: Foreign text; what a terminal would act upon is made visible.
        part: From and behind which character to mark; None marks nothing.
        width: Cells of a line with its bar.
    """
    start, end = part or (0, 0)
    pieces = [(text[:start], False), (text[start:end], True), (text[end:], False)]
    cells = [(char, is_marked) for piece, is_marked in pieces for char in _shown(piece)]
    lines: list[str] = []
    for row in _rows(cells, max(width - len(BAR), 10)):
        lines.append(BAR + "".join(char for char, _ in row))
        carets = "".join(("^" if is_marked else " ") * cell_len(char) for char, is_marked in row).rstrip()
        if carets:
            lines.append(DOT + carets)
    return lines


def _shown(text: str) -> str:
    return visible(text).replace("\t", "    ")


def _rows(cells: list[tuple[str, bool]], width: int) -> list[list[tuple[str, bool]]]:
    rows: list[list[tuple[str, bool]]] = [[]]
    used = 0
    for char, is_marked in cells:
        if char == "\n":
            rows.append([])
            used = 0
            continue
        size = cell_len(char)
        if used + size > width:
            rows.append([])
            used = 0
        rows[-1].append((char, is_marked))
        used += size
    return rows
