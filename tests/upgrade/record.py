"""Keep what this release writes, for later ones to be held against: `python -m tests.upgrade.record 0.2.0`.

To be run when a release is made. A pre-release's directory may go once nobody upgrades from it any more; that of a
release stays until the next major version.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.upgrade.contract import KINDS, lua, names
from tests.upgrade.examples import examples
from tests.upgrade.releases import HERE


def without_words(schema: Any) -> Any:
    """Return a schema without what it says to people."""
    if isinstance(schema, list):
        return [without_words(one) for one in schema]
    if isinstance(schema, dict):
        return {name: without_words(value) for name, value in schema.items() if not _is_word(name, value)}
    return schema


def _is_word(name: str, value: Any) -> bool:
    # A field may have such a name, too.
    return name in ("title", "description", "examples") and not isinstance(value, dict)


def record(directory: Path) -> None:
    """Write schemas, messages, names and scripts."""
    schemas = {name: without_words(kind.schema) for name, kind in KINDS.items()}
    messages = {name: dict(examples(schema)) for name, schema in schemas.items()}
    directory.mkdir()
    for file, content in (("schemas", schemas), ("messages", messages), ("names", names()), ("scripts", lua())):
        (directory / f"{file}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record(HERE / sys.argv[1])
