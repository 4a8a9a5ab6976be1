"""For `npm run fuzz`: frames of the bridge on the worker's side give a value or an error of the schema's list.

Inputs come on standard input, answers go to descriptor 3: see packages/testing/src/fuzzing/target-process.ts.
"""

from __future__ import annotations

import os
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parents[1]
sys.path.insert(0, str(PACKAGE))

from muser_vllm.frames import PREFIX_BYTES, FrameError, Link, Side, body_length, decode_body, encode, schema  # noqa: E402
from muser_vllm.refusals import Refused  # noqa: E402
from muser_vllm.settings import parse_settings  # noqa: E402

ANSWERS = 3
KNOWN, NEW, FAILED = 0, 1, 2
LINKS: tuple[Link, ...] = ("control", "data")
SIDES: tuple[Side, ...] = ("worker", "node")

Tracer = Callable[[FrameType, str, Any], Any]


class Coverage:
    """Which ways from line to line of the package have been gone."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()
        self._last = 0
        self.is_new = False

    def run(self, call: Callable[[], None]) -> None:
        self._last = 0
        self.is_new = False
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        return self._line if frame.f_code.co_filename.startswith(str(PACKAGE / "muser_vllm")) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Tracer:
        place = hash(frame.f_code.co_filename) ^ frame.f_lineno
        way = (self._last, place)
        self._last = place
        if way not in self._seen:
            self._seen.add(way)
            self.is_new = True
        return self._line


def fuzz(data: bytes) -> None:
    """The first byte names the link, the second the side, as in frames.ts; the next two are for that side only."""
    if len(data) < 4:
        return
    link, side = LINKS[data[0] % 2], SIDES[data[1] % 2]
    stream = data[4:]
    at = 0
    while at + PREFIX_BYTES <= len(stream):
        try:
            end = at + PREFIX_BYTES + body_length(stream[at : at + PREFIX_BYTES])
            if end > len(stream):
                break
            check_frame(memoryview(stream)[at + PREFIX_BYTES : end], link, side)
        except FrameError as error:
            if error.code not in schema().errors:
                raise
            break
        at = end
    try:
        parse_settings(stream)
    except Refused as error:
        if error.code != "SETTINGS_INVALID":
            raise


def check_frame(body: memoryview, link: Link, side: Side) -> None:
    frame = decode_body(body, link, side)
    again = encode(frame.kind, frame.header, bytes(frame.payload))
    twice = decode_body(memoryview(again)[PREFIX_BYTES:], link, side)
    assert (twice.kind, twice.header, bytes(twice.payload)) == (frame.kind, frame.header, bytes(frame.payload))


def read_exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        block = os.read(0, count - len(data))
        if not block:
            sys.exit(0)
        data += block
    return data


def main() -> None:
    coverage = Coverage()
    os.write(ANSWERS, bytes([KNOWN]))
    while True:
        (length,) = struct.unpack("<I", read_exactly(4))
        data = read_exactly(length)
        try:
            coverage.run(lambda data=data: fuzz(data))  # type: ignore[misc]
        except Exception:
            # Whatever it is, it is a finding.
            text = traceback.format_exc().encode()
            os.write(ANSWERS, struct.pack("<BI", FAILED, len(text)) + text)
        else:
            os.write(ANSWERS, bytes([NEW if coverage.is_new else KNOWN]))


main()
