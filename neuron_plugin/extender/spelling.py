"""Go's names for keys that come in another case.

The Go types carry no JSON tags, so today's scheduler sends their capitalised names and older callers lower-case ones
(staging/src/k8s.io/kube-scheduler/extender/v1/types.go). A body is rewritten only when it could not be decoded as it
came, level by level, with what no spelling explains left out; of two spellings of one key the later wins, as in Go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Raw

NULL = b"null"

Rewrite: TypeAlias = Callable[[bytes | Raw], bytes]
"""From one JSON value to the same with Go's keys; fails with a WireError where it is not what was expected."""

_Message = TypeVar("_Message")
_list_decoder = msgspec.json.Decoder(list[Raw])
_object_decoder = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode


class WireError(ValueError):
    """A body that is not the message the verb takes; the text says what was expected."""


def decoded(decoder: msgspec.json.Decoder[_Message], body: bytes | Raw, expected: str) -> _Message:
    """Decode one message.

    Raises:
        WireError: it is not what was ``expected``.
    """
    try:
        return decoder.decode(body)
    except RecursionError:
        raise WireError(f"the body is nested too deeply, expected {expected} as JSON") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"{error}, expected {expected} as JSON") from None


def keys_of(expected: str, *keys: str, nested: Mapping[str, Rewrite] | None = None) -> Rewrite:
    """Rewrite an object's keys; ``nested`` rewrites the values of some, unless they are null."""
    spelling = {key.lower(): key for key in keys}

    def rewrite(body: bytes | Raw) -> bytes:
        members = decoded(_object_decoder, body, expected).items()
        found = {spelling[key.lower()]: value for key, value in members if key.lower() in spelling}
        for key, rewrite_value in (nested or {}).items():
            if key in found and bytes(found[key]) != NULL:
                found[key] = Raw(rewrite_value(found[key]))
        return _encode(found)

    return rewrite


def each_value(expected: str, rewrite: Rewrite) -> Rewrite:
    """Rewrite every value of an object whose keys are names."""
    return lambda body: _encode(
        {name: Raw(rewrite(value)) for name, value in decoded(_object_decoder, body, expected).items()}
    )


def each_item(expected: str, rewrite: Rewrite) -> Rewrite:
    """Rewrite every item of a list."""
    return lambda body: _encode([Raw(rewrite(item)) for item in decoded(_list_decoder, body, expected)])
