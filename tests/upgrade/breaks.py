"""What of a change of the contract an earlier release cannot live with: its schema, today's → **breaks** → words."""

from collections.abc import Collection
from typing import Any

from tests.upgrade.examples import Schema, constant, forms

WORDS = ("title", "description", "default", "examples", "deprecated", "$defs", "discriminator")
"""What of a schema says nothing of what may be written."""
SHAPES = ("properties", "required", "additionalProperties", "items", "prefixItems", "anyOf", "oneOf", "enum", "$ref")
"""What is looked into, part by part."""


class Comparison:
    """Two releases' schemas of one kind of message."""

    def __init__(self, old: Schema, new: Schema, grows: Collection[str]) -> None:
        self._old, self._new = old, new
        self._grows = grows
        self._seen: set[tuple[int, int]] = set()
        self.found: list[str] = []

    def look(self, place: str, old: Schema, new: Schema) -> None:
        """Find what breaks below a place."""
        before, now = self._by_label(self._old, old), self._by_label(self._new, new)
        for label in before.keys() - now.keys():
            self.found.append(f"{place}: {label} is not read any more, and an earlier release writes it")
        for label in () if place in self._grows else now.keys() - before.keys():
            self.found.append(f"{place}: {label} is new, and an earlier release does not know it")
        for label in before.keys() & now.keys():
            self._look_into(place, before[label], now[label])

    def _by_label(self, root: Schema, schema: Schema) -> dict[str, Schema]:
        """The forms that may stand here; values of a closed set each by themselves."""
        found: dict[str, Schema] = {}
        for form in forms(root, schema):
            if "enum" in form or "const" in form:
                found.update({repr(value): {} for value in form.get("enum", [form.get("const")])})
            else:
                found[" ".join(filter(None, (str(form.get("type", "anything")), constant(form))))] = form
        return found

    def _look_into(self, place: str, old: Schema, new: Schema) -> None:
        pair = (id(old), id(new))
        if pair in self._seen:
            # Messages may hold messages of their kind.
            return
        self._seen.add(pair)
        if _bounds(old) != _bounds(new):
            self.found.append(f"{place}: was {_bounds(old)}, is {_bounds(new)}")
        self._look_at_fields(place, old, new)
        for one in ("items", "additionalProperties"):
            if isinstance(old.get(one), dict) and isinstance(new.get(one), dict):
                self.look(f"{place}[]", old[one], new[one])
        before, now = old.get("prefixItems", []), new.get("prefixItems", [])
        if len(before) != len(now):
            self.found.append(f"{place}: had {len(before)} items, has {len(now)}")
        for at, (one, other) in enumerate(zip(before, now, strict=False)):
            self.look(f"{place}[{at}]", one, other)

    def _look_at_fields(self, place: str, old: Schema, new: Schema) -> None:
        before, now = old.get("properties", {}), new.get("properties", {})
        if not before:
            return
        needed = set(new.get("required", [])) - set(old.get("required", []))
        for name in sorted(needed):
            self.found.append(f"{place}.{name}: must be there, and an earlier release may leave it out")
        for name in before.keys() - now.keys():
            self.found.append(f"{place}.{name}: is gone, and an earlier release reads and writes it")
        for name in sorted(before.keys() & now.keys()):
            self.look(f"{place}.{name}", before[name], now[name])


def _bounds(schema: Schema) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in WORDS and name not in SHAPES}


def breaks(name: str, old: Schema, new: Schema, grows: Collection[str] = ()) -> list[str]:
    """Return a sentence for each change that an earlier release cannot live with; `grows` as in `contract.Kind`."""
    comparison = Comparison(old, new, grows)
    comparison.look(name, old, new)
    return sorted(set(comparison.found))
