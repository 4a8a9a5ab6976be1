"""Frames of the bridge between the producer process and vLLM's processes.

`bridge_schema.json` is the contract: both languages read it, and `proto/vectors/bridge.json` pins the bytes. Nothing is
allocated for a length that has not been checked, and nothing unknown is let through.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

Link = Literal["control", "data"]
Side = Literal["worker", "node"]
Fields = Mapping[str, Any]

_PREFIX = struct.Struct("<I")
PREFIX_BYTES = _PREFIX.size
_HEAD = struct.Struct("<BBHI")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_MAX_INTEGER = 2**53 - 1


class FrameError(Exception):
    """What a peer sent is no frame of this bridge; the connection must be closed.

    `code` is one of the schema's `errors`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Frame:
    kind: str
    header: dict[str, Any]
    payload: memoryview


@dataclass(frozen=True)
class _Kind:
    index: int
    name: str
    links: tuple[str, ...]
    sender: str
    payload: str
    fields: Fields


class Schema:
    """The schema file, indexed."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.version: int = raw["version"]
        self.limits: dict[str, int] = raw["limits"]
        self.errors: list[str] = raw["errors"]
        self.settings: Fields = raw["settings"]["fields"]
        kinds = [
            _Kind(k["index"], k["name"], tuple(k["links"]), k["from"], k["payload"], k["fields"]) for k in raw["kinds"]
        ]
        self.by_name = {kind.name: kind for kind in kinds}
        self.by_index = {kind.index: kind for kind in kinds}


@cache
def schema() -> Schema:
    text = resources.files(__package__).joinpath("bridge_schema.json").read_text("utf-8")
    return Schema(json.loads(text))


def encode_head(kind: str, header: Fields, payload_bytes: int = 0) -> bytes:
    """All of a frame before its payload. Lets bulk bytes leave without being copied behind their header.

    :raises FrameError: a field or the payload's length does not fit the schema
    """
    known = schema().by_name[kind]
    check_fields(known.fields, header, kind)
    _check_payload(known, payload_bytes)
    text = json.dumps({name: header[name] for name in known.fields if name in header}, **_COMPACT).encode()
    limits = schema().limits
    if len(text) > limits["headerBytes"]:
        raise FrameError(
            "HEADER_TOO_LARGE", f"{kind}: header of {len(text)} bytes, allowed are {limits['headerBytes']}"
        )
    total = _HEAD.size + len(text) + payload_bytes
    if total > limits["frameBytes"]:
        raise FrameError("FRAME_TOO_LARGE", f"{kind}: frame of {total} bytes, allowed are {limits['frameBytes']}")
    return _PREFIX.pack(total) + _HEAD.pack(schema().version, known.index, 0, len(text)) + text


_COMPACT: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}


def encode(kind: str, header: Fields, payload: bytes = b"") -> bytes:
    """A whole frame. :raises FrameError: as `encode_head`"""
    return encode_head(kind, header, len(payload)) + payload


def body_length(prefix: bytes) -> int:
    """Length of what follows the four bytes of `prefix`. :raises FrameError: too long or too short"""
    length: int = _PREFIX.unpack(prefix)[0]
    limit = schema().limits["frameBytes"]
    if length > limit:
        raise FrameError("FRAME_TOO_LARGE", f"frame of {length} bytes, allowed are {limit}")
    if length < _HEAD.size:
        raise FrameError("FRAME_TRUNCATED", f"frame of {length} bytes has no room for its head")
    return length


def decode_body(body: memoryview, link: Link, sender: Side) -> Frame:
    """Reads what follows the length. The payload stays a view of `body`.

    :raises FrameError: anything that the schema does not allow on this link from this side
    """
    version, index, reserved, header_bytes = _HEAD.unpack_from(body)
    if version != schema().version or reserved != 0:
        raise FrameError("VERSION_UNKNOWN", f"frame of version {version} (reserved {reserved})")
    kind = schema().by_index.get(index)
    if kind is None:
        raise FrameError("KIND_UNKNOWN", f"frame of kind {index}")
    if header_bytes > schema().limits["headerBytes"]:
        raise FrameError("HEADER_TOO_LARGE", f"{kind.name}: header of {header_bytes} bytes")
    if _HEAD.size + header_bytes > len(body):
        raise FrameError("FRAME_TRUNCATED", f"{kind.name}: header of {header_bytes} bytes in a frame of {len(body)}")
    if link not in kind.links or kind.sender != sender:
        raise FrameError("KIND_UNEXPECTED", f"{kind.name} on the {link} link from the {sender}")
    header = _parse_header(bytes(body[_HEAD.size : _HEAD.size + header_bytes]), kind.name)
    check_fields(kind.fields, header, kind.name)
    payload = body[_HEAD.size + header_bytes :]
    _check_payload(kind, len(payload))
    return Frame(kind.name, header, payload)


def _parse_header(raw: bytes, where: str) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError("HEADER_INVALID", f"{where}: header is not JSON in UTF-8") from error
    if not isinstance(header, dict):
        raise FrameError("HEADER_INVALID", f"{where}: header is no object")
    return cast("dict[str, Any]", header)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_payload(kind: _Kind, length: int) -> None:
    limit = schema().limits["payloadBytes"]
    if length > limit:
        raise FrameError("PAYLOAD_INVALID", f"{kind.name}: payload of {length} bytes, allowed are {limit}")
    if kind.payload == "none" and length != 0:
        raise FrameError("PAYLOAD_INVALID", f"{kind.name}: {length} bytes of payload, it has none")
    if kind.payload != "none" and length == 0:
        raise FrameError("PAYLOAD_INVALID", f"{kind.name}: no payload")
    if kind.payload == "tokens" and length % 4 != 0:
        raise FrameError("PAYLOAD_INVALID", f"{kind.name}: {length} bytes are no list of u32")


def check_fields(fields: Fields, value: Mapping[str, Any], where: str) -> None:
    """:raises FrameError: FIELD_INVALID, naming the field but never its value"""
    expected = {
        name: spec for name, spec in fields.items() if all(value.get(k) == v for k, v in spec.get("when", {}).items())
    }
    for name in value:
        if name not in expected:
            raise FrameError("FIELD_INVALID", f"{where}: unexpected field {name[:64]!r}")
    for name, spec in expected.items():
        if name not in value:
            raise FrameError("FIELD_INVALID", f"{where}: field {name} is missing")
        if not _fits(spec, value[name], f"{where}.{name}"):
            raise FrameError("FIELD_INVALID", f"{where}: field {name} is not a valid {spec['type']}")


def _fits(spec: Fields, value: Any, where: str) -> bool:
    if value is None:
        return bool(spec.get("nullable", False))
    kind = spec["type"]
    if kind == "object":
        if isinstance(value, dict):
            check_fields(spec["fields"], value, where)
            return True
        return False
    if kind in _LISTS:
        if not isinstance(value, list) or len(value) > spec["maxItems"]:
            return False
        return all(_LISTS[kind](spec, item) for item in value)
    return _SCALARS[kind](spec, value)


def _is_integer(spec: Fields, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return bool(spec.get("min", 0) <= value <= spec.get("max", _MAX_INTEGER))


def _is_number(_: Fields, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) <= _MAX_INTEGER


def _is_string(spec: Fields, value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return bool(len(value.encode("utf-8")) <= spec["maxBytes"])
    except UnicodeEncodeError:
        return False


def _is_range(spec: Fields, value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not all(_is_integer(spec, v) for v in value):
        return False
    return bool(value[0] <= value[1])


def _is_part(_: Fields, value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return _is_integer({"max": 255}, value[0]) and _is_integer({"max": 1}, value[1])


_SCALARS: dict[str, Callable[[Fields, Any], bool]] = {
    "integer": _is_integer,
    "number": _is_number,
    "string": _is_string,
    "boolean": lambda _, value: isinstance(value, bool),
    "enum": lambda spec, value: isinstance(value, str) and bool(value in spec["values"]),
    "id": lambda _, value: isinstance(value, str) and _ID.fullmatch(value) is not None,
    "range": _is_range,
}
_LISTS: dict[str, Callable[[Fields, Any], bool]] = {
    "integers": _is_integer,
    "strings": _is_string,
    "enums": _SCALARS["enum"],
    "parts": _is_part,
}
