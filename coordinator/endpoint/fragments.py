"""One tool call, and one unknown field, grown from fragments: sse → **fragments**, deltas → reply."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_REPLACED = frozenset({"role", "id", "type", "name", "index", "object", "model", "format", "signature"})
"""String fields that are repeated, not continued, from delta to delta."""


@dataclass
class CallFragments:
    """A call under construction."""

    index: int | None
    """The endpoint's index; None when it gives none."""
    id: str | None = None
    name: str = ""
    _text: list[str] = field(default_factory=list)
    _whole: dict[str, Any] | None = None
    _seen_arguments: bool = False
    _unknown: dict[str, Any] = field(default_factory=dict)

    def add(self, fragment: Mapping[str, Any]) -> None:
        """Goes on with one fragment, `{function: {name, arguments}}` or flat `{name, arguments}`."""
        inner = _function(fragment)
        self.id = self.id or fragment_id(fragment)
        name = fragment_name(fragment)
        if name != self.name:
            self.name += name
        self._add_arguments(inner.get("arguments"))
        known = ("index", "id", "function", "name", "arguments")
        merge_fields(self._unknown, {k: v for k, v in fragment.items() if k not in known})
        if inner is not fragment:
            extra = {k: v for k, v in inner.items() if k not in ("name", "arguments")}
            merge_fields(self._unknown, {"function": extra} if extra else {})

    def arguments(self) -> str | dict[str, Any] | None:
        """As the endpoint wrote them; None when it wrote none at all."""
        if self._whole is not None:
            return self._whole
        return mend("".join(self._text)) if self._seen_arguments else None

    def is_empty(self) -> bool:
        """Whether no fragment said anything."""
        return not (self.name or self.id or self._seen_arguments)

    def is_whole(self) -> bool:
        """Whether nothing can be missing: there are no arguments, or they are a JSON object."""
        return self._is_complete() or not "".join(self._text).strip()

    def is_left_by(self, fragment: Mapping[str, Any]) -> bool:
        """Whether `fragment` cannot go on with this call, though it claims its place.

        Only a fragment with a name opens a call: some endpoints make up a new id for every delta.
        """
        call_id, name = fragment_id(fragment), fragment_name(fragment)
        if not name or not self.name:
            return False
        if call_id is not None and self.id is not None and call_id != self.id:
            return True
        without_place = call_id is None and fragment_index(fragment) is None
        return self._is_complete() or (without_place and name != self.name)

    def raw(self) -> dict[str, Any]:
        """The call as an unstreamed message holds it."""
        unknown = settled(self._unknown)
        function = {"name": self.name, "arguments": self.arguments(), **unknown.pop("function", {})}
        return {"id": self.id, "type": "function", **unknown, "function": function}

    def _add_arguments(self, arguments: Any) -> None:
        if arguments is None:
            return
        self._seen_arguments = True
        if isinstance(arguments, str):
            self._text.append(arguments)
        elif isinstance(arguments, dict):
            self._whole = arguments if self._whole is None else {**self._whole, **arguments}
        else:
            self._text.append(json.dumps(arguments))

    def _is_complete(self) -> bool:
        """Whether the arguments so far are a whole JSON object, so that nothing can follow."""
        if self._whole is not None:
            return True
        if not self._text or not self._text[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads("".join(self._text)), dict)
        except (ValueError, RecursionError):
            return False


def fragment_id(fragment: Mapping[str, Any]) -> str | None:
    """The call id a fragment carries; None for none or an empty one."""
    value = fragment.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def fragment_index(fragment: Mapping[str, Any]) -> int | None:
    """The index a fragment carries; None for none."""
    value = fragment.get("index")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def fragment_name(fragment: Mapping[str, Any]) -> str:
    """The tool's name a fragment carries; "" for none."""
    name = _function(fragment).get("name")
    return name if isinstance(name, str) else ""


class _Growing(list[str]):
    """Text in pieces: joined once at its end, because a model may reason for a hundred thousand deltas."""


def merge_fields(into: dict[str, Any], added: Mapping[str, Any]) -> None:
    """Continues unknown fields the way deltas do: text and lists grow, objects merge, anything else is replaced.

    `into` belongs to this function until `settled` has been called on it.
    """
    for name, value in added.items():
        old = into.get(name)
        if value is None and old is not None:
            continue
        if isinstance(value, str) and isinstance(old, _Growing):
            old.append(value)
        elif isinstance(value, str) and isinstance(old, str) and name not in _REPLACED:
            into[name] = _Growing([old, value])
        elif isinstance(value, list) and type(old) is list:
            old.extend(value)
        elif isinstance(value, dict) and isinstance(old, dict):
            merge_fields(old, value)
        elif isinstance(value, dict):
            into[name] = {}
            merge_fields(into[name], value)
        else:
            into[name] = list(value) if isinstance(value, list) else value


def settled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What `merge_fields` gathered, as plain values."""
    return {name: _settled(value) for name, value in fields.items()}


def _settled(value: Any) -> Any:
    if isinstance(value, _Growing):
        return "".join(value)
    return settled(value) if isinstance(value, dict) else value


def mend(text: str) -> str:
    """`text` with surrogate pairs joined and lone halves replaced, so that it can be encoded."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _function(fragment: Mapping[str, Any]) -> Mapping[str, Any]:
    function = fragment.get("function")
    return function if isinstance(function, dict) else fragment
