"""Writes proto/vectors/bridge.json: frames that both languages must read and write alike, and frames both must refuse.

Run from packages/gb10-producer/python: python tools/make_bridge_vectors.py
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from muser_vllm.frames import encode, schema

TARGET = Path(__file__).parents[4] / "proto" / "vectors" / "bridge.json"

GEOMETRY = {
    "layers": ["window", "window", "window", "global"],
    "kvHeads": 2,
    "headDimension": 64,
    "windowTokens": 512,
    "ropeBase": 500000,
    "ropeLayers": "window",
    "vocabularySize": 4096,
}
VALID: list[tuple[str, str, str, dict[str, Any], bytes]] = [
    ("control", "worker", "hello", {"role": "control", "secret": "ab" * 32, "pid": 4711, "version": "0.1.0"}, b""),
    (
        "data",
        "worker",
        "hello",
        {"role": "data", "secret": "ab" * 32, "pid": 1, "rank": 1, "layers": [0, 4], "heads": [1, 2]},
        b"",
    ),
    ("control", "worker", "milestone", {"name": "environment", "ms": 5120}, b""),
    ("data", "worker", "milestone", {"name": "kv_cache", "ms": 9000}, b""),
    (
        "control",
        "worker",
        "ready",
        {
            "vllmVersion": "0.32.0",
            "backendName": "CPU_ATTN",
            "layout": "K transposed, V plain",
            "blockSizes": [128, 128],
            "geometry": GEOMETRY,
            "tokenizerSha256": "cd" * 32,
            "maxPromptTokens": 16384,
            "chunkTokens": 512,
            "wireTypes": ["bf16"],
            "kvBlocksBytes": 1073741824,
            "ranks": 1,
            "warnings": ["größer als 1 → geprüft"],
        },
        b"",
    ),
    ("control", "worker", "heartbeat", {"steps": 2**53 - 1, "runningRequests": 0, "freeMemoryBytes": 1}, b""),
    (
        "control",
        "worker",
        "finished",
        {"id": "a-B_9", "ok": True, "promptTokens": 300, "reusedTokens": 0, "preemptions": 1},
        b"",
    ),
    ("control", "worker", "finished", {"id": "b", "ok": False, "code": "CANCELLED", "message": ""}, b""),
    (
        "control",
        "node",
        "prefill",
        {"id": "b", "heldTokens": 0, "cacheScope": "ncnv2o3gsa64hci6rhpcofimwog"},
        struct.pack("<3I", 0, 4095, 7),
    ),
    ("control", "node", "abort", {"id": "b"}, b""),
    ("control", "node", "shutdown", {}, b""),
    ("data", "worker", "refused", {"code": "LAYOUT_UNKNOWN", "message": "no known form"}, b""),
    ("data", "worker", "chunk", {"id": "b", "index": 0, "start": 0, "end": 299, "windowStart": 0}, b""),
    ("data", "worker", "rows", {"read": 1}, bytes(range(16))),
    ("data", "worker", "failed", {"read": 2, "code": "RANGE"}, b""),
    ("data", "worker", "ended", {"id": "b", "reason": "DONE"}, b""),
    (
        "data",
        "node",
        "read",
        {"read": 1, "id": "b", "index": 0, "tokenStart": 0, "tokenCount": 299, "parts": [[0, 0], [0, 1]]},
        b"",
    ),
    ("data", "node", "release", {"id": "b", "index": 0}, b""),
    ("data", "node", "done", {"id": "b"}, b""),
]


def raw(
    kind: int,
    header: bytes,
    payload: bytes = b"",
    *,
    version: int = 1,
    reserved: int = 0,
    header_bytes: int | None = None,
) -> bytes:
    body = struct.pack("<BBHI", version, kind, reserved, len(header) if header_bytes is None else header_bytes)
    body += header + payload
    return struct.pack("<I", len(body)) + body


def invalid() -> list[tuple[str, str, str, bytes, str]]:
    limits = schema().limits
    abort, done, read = 7, 18, 16
    return [
        ("total one above the cap", "control", "node", struct.pack("<I", limits["frameBytes"] + 1), "FRAME_TOO_LARGE"),
        ("total is 2^32-1", "control", "node", b"\xff\xff\xff\xff", "FRAME_TOO_LARGE"),
        ("no room for the head", "control", "node", struct.pack("<I", 7) + bytes(7), "FRAME_TRUNCATED"),
        ("empty", "control", "node", struct.pack("<I", 0), "FRAME_TRUNCATED"),
        ("version 2", "control", "node", raw(abort, b'{"id":"b"}', version=2), "VERSION_UNKNOWN"),
        ("reserved bits", "control", "node", raw(abort, b'{"id":"b"}', reserved=1), "VERSION_UNKNOWN"),
        ("kind 0", "control", "node", raw(0, b"{}"), "KIND_UNKNOWN"),
        ("kind 255", "control", "node", raw(255, b"{}"), "KIND_UNKNOWN"),
        (
            "header longer than the frame",
            "control",
            "node",
            raw(abort, b'{"id":"b"}', header_bytes=11),
            "FRAME_TRUNCATED",
        ),
        ("header above its cap", "control", "node", raw(abort, b'{"id":"b"}', header_bytes=65537), "HEADER_TOO_LARGE"),
        ("header is no JSON", "control", "node", raw(abort, b"id=b"), "HEADER_INVALID"),
        ("header is empty", "control", "node", raw(abort, b""), "HEADER_INVALID"),
        ("header is a list", "control", "node", raw(abort, b"[]"), "HEADER_INVALID"),
        ("header is not UTF-8", "control", "node", raw(abort, b'{"id":"\xff"}'), "HEADER_INVALID"),
        ("not a number", "control", "node", raw(abort, b'{"id":NaN}'), "HEADER_INVALID"),
        ("id is missing", "control", "node", raw(abort, b"{}"), "FIELD_INVALID"),
        ("id is null", "control", "node", raw(abort, b'{"id":null}'), "FIELD_INVALID"),
        ("id is empty", "control", "node", raw(abort, b'{"id":""}'), "FIELD_INVALID"),
        ("id has a line end", "control", "node", raw(abort, b'{"id":"b\\n"}'), "FIELD_INVALID"),
        ("id of 65 characters", "control", "node", raw(abort, b'{"id":"' + b"b" * 65 + b'"}'), "FIELD_INVALID"),
        ("a field too many", "control", "node", raw(abort, b'{"id":"b","x":1}'), "FIELD_INVALID"),
        (
            "a field of the other form",
            "control",
            "worker",
            raw(5, b'{"id":"b","ok":true,"code":"CANCELLED","message":""}'),
            "FIELD_INVALID",
        ),
        ("integer is negative", "data", "node", raw(17, b'{"id":"b","index":-1}'), "FIELD_INVALID"),
        ("integer is a fraction", "data", "node", raw(17, b'{"id":"b","index":0.5}'), "FIELD_INVALID"),
        ("integer is a boolean", "data", "node", raw(17, b'{"id":"b","index":true}'), "FIELD_INVALID"),
        ("integer above its cap", "data", "node", raw(17, b'{"id":"b","index":131073}'), "FIELD_INVALID"),
        (
            "part of three",
            "data",
            "node",
            raw(read, b'{"read":1,"id":"b","index":0,"tokenStart":0,"tokenCount":1,"parts":[[0,0,0]]}'),
            "FIELD_INVALID",
        ),
        (
            "part is neither K nor V",
            "data",
            "node",
            raw(read, b'{"read":1,"id":"b","index":0,"tokenStart":0,"tokenCount":1,"parts":[[0,2]]}'),
            "FIELD_INVALID",
        ),
        (
            "no token read",
            "data",
            "node",
            raw(read, b'{"read":1,"id":"b","index":0,"tokenStart":0,"tokenCount":0,"parts":[[0,1]]}'),
            "FIELD_INVALID",
        ),
        ("payload where there is none", "data", "node", raw(done, b'{"id":"b"}', b"x"), "PAYLOAD_INVALID"),
        (
            "tokens of 5 bytes",
            "control",
            "node",
            raw(6, b'{"id":"b","heldTokens":0,"cacheScope":""}', bytes(5)),
            "PAYLOAD_INVALID",
        ),
        ("no tokens", "control", "node", raw(6, b'{"id":"b","heldTokens":0,"cacheScope":""}'), "PAYLOAD_INVALID"),
        ("a control frame on the data link", "data", "node", raw(abort, b'{"id":"b"}'), "KIND_UNEXPECTED"),
        ("a frame of the other side", "data", "node", raw(13, b'{"read":1}', b"xx"), "KIND_UNEXPECTED"),
    ]


def main() -> None:
    vectors = {
        "valid": [
            {
                "link": link,
                "from": side,
                "kind": kind,
                "header": header,
                "payload": payload.hex(),
                "frame": encode(kind, header, payload).hex(),
            }
            for link, side, kind, header, payload in VALID
        ],
        "invalid": [
            {"name": name, "link": link, "from": side, "frame": frame.hex(), "code": code}
            for name, link, side, frame, code in invalid()
        ],
    }
    TARGET.write_text(json.dumps(vectors, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
