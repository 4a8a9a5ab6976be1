from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from muser_vllm.frames import FrameError, body_length, decode_body, encode, encode_head, schema

VECTORS = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "bridge.json").read_text("utf-8"))


def decode(frame: bytes, link: Any, side: Any) -> Any:
    length = body_length(frame[:4])
    assert length == len(frame) - 4
    return decode_body(memoryview(frame)[4:], link, side)


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda v: f"{v['kind']}-{v['link']}")
def test_golden_frames(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame"])
    payload = bytes.fromhex(vector["payload"])
    read = decode(frame, vector["link"], vector["from"])
    assert (read.kind, read.header, bytes(read.payload)) == (vector["kind"], vector["header"], payload)
    assert encode(vector["kind"], vector["header"], payload) == frame
    assert encode_head(vector["kind"], vector["header"], len(payload)) + payload == frame


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda v: v["name"].replace(" ", "_"))
def test_refused_frames(vector: dict[str, Any]) -> None:
    with pytest.raises(FrameError) as error:
        decode(bytes.fromhex(vector["frame"]), vector["link"], vector["from"])
    assert error.value.code == vector["code"]
    assert error.value.code in schema().errors


def test_every_kind_and_every_error_has_a_vector() -> None:
    assert {v["kind"] for v in VECTORS["valid"]} == set(schema().by_name)
    assert {v["code"] for v in VECTORS["invalid"]} == set(schema().errors)


def test_a_field_is_never_named_with_its_value() -> None:
    with pytest.raises(FrameError) as error:
        encode("prefill", {"id": "secret prompt", "heldTokens": 0, "cacheScope": ""}, b"abcd")
    assert "secret" not in str(error.value)


def test_too_much_payload_is_refused_before_it_is_written() -> None:
    with pytest.raises(FrameError) as error:
        encode_head("rows", {"read": 1}, schema().limits["payloadBytes"] + 1)
    assert error.value.code == "PAYLOAD_INVALID"


@pytest.mark.parametrize("seed", range(20))
def test_damaged_frames_are_refused_or_valid_but_never_crash(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(300):
        vector = generator.choice(VECTORS["valid"])
        frame = bytearray.fromhex(vector["frame"])
        for _ in range(generator.randint(1, 4)):
            frame[generator.randrange(4, len(frame))] = generator.randrange(256)
        if generator.random() < 0.3:
            del frame[generator.randrange(12, len(frame) + 1) :]
            frame[:4] = struct.pack("<I", len(frame) - 4)
        try:
            read = decode(bytes(frame), vector["link"], vector["from"])
        except FrameError as error:
            assert error.code in schema().errors  # noqa: PT017 - either outcome is right, seed is in the test's name
        else:
            assert encode(read.kind, read.header, bytes(read.payload))


def test_deep_nesting_is_refused() -> None:
    header = b'{"id":' + b"[" * 30000 + b"]" * 30000 + b"}"
    body = struct.pack("<BBHI", 1, 7, 0, len(header)) + header
    with pytest.raises(FrameError):
        decode_body(memoryview(body), "control", "node")
