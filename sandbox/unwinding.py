"""Programs without their tables for unwinding, which nothing in a box uses: a tenth of the guest's folder.

The tables stay where they are, so that no address changes, and become holes of the file. C++ exceptions need them, and
what follows a Rust panic: the interpreter is plain C, and a panic ends `rg` anyway.
Source: the ELF-64 object file format, version 1.5.
"""

import struct
from pathlib import Path

SECTIONS = frozenset({b".eh_frame", b".eh_frame_hdr", b".gcc_except_table"})
BLOCK_BYTES = 4096
_HEADER = struct.Struct("<40xQ10xHHH")
"""Where the section headers begin; their size and number, and the one with their names."""
_SECTION = struct.Struct("<IIQQQQ24x")
"""Name's place, type, flags, address, place, size."""


def drop_unwinding(path: Path) -> None:
    """Write the program anew without the tables, zeros as holes; what is no 64-bit ELF file stays as it is.

    Raises:
        OSError: it cannot be read or written.
    """
    data = bytearray(path.read_bytes())
    if data[:6] != b"\x7fELF\x02\x01":
        return
    table, size, count, names_at = _HEADER.unpack_from(data)
    sections = [_SECTION.unpack_from(data, table + number * size) for number in range(count)]
    names = sections[names_at][4]
    for name, _, _, _, place, length in sections:
        start = names + name
        if bytes(data[start : data.index(b"\0", start)]) in SECTIONS:
            data[place : place + length] = bytes(length)
    with path.open("wb") as file:
        for place in range(0, len(data), BLOCK_BYTES):
            block = data[place : place + BLOCK_BYTES]
            if any(block):
                file.seek(place)
                file.write(block)
        file.truncate(len(data))
