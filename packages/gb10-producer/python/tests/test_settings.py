from __future__ import annotations

import json
import os
from typing import Any

import pytest

from muser_vllm.refusals import Refused
from muser_vllm.settings import parse_settings, read_settings

VALID: dict[str, Any] = {
    "controlSocket": "/run/c.sock",
    "dataSocket": "/run/d.sock",
    "secret": "ab" * 32,
    "modelPath": "/models/m",
    "maxPromptTokens": 4096,
    "chunkTokens": 512,
    "maxConcurrent": 4,
    "kvCacheBytes": 1,
    "stagingBytes": None,
    "leaseMs": 30000,
    "tensorParallel": 1,
    "pipelineParallel": 1,
    "attentionBackend": None,
    "enforceEager": False,
    "gpuMemoryUtilization": 0.5,
    "threads": None,
}


def test_settings_are_read_up_to_the_line_end() -> None:
    receiver, sender = os.pipe()
    os.write(sender, json.dumps(VALID).encode() + b"\nrest")
    settings = read_settings(receiver)
    assert (settings.chunk_tokens, settings.staging_bytes, settings.gpu_memory_utilization) == (512, None, 0.5)
    assert os.read(receiver, 10) == b"rest"
    os.close(sender)
    with pytest.raises(Refused):
        read_settings(receiver)
    os.close(receiver)


@pytest.mark.parametrize(
    "changed",
    [
        {"chunkTokens": 15},
        {"chunkTokens": None},
        {"secret": 5},
        {"unknown": 1},
        {"maxConcurrent": 65},
        {"controlSocket": "x" * 108},
    ],
)
def test_wrong_settings_are_refused_without_their_values(changed: dict[str, Any]) -> None:
    with pytest.raises(Refused) as error:
        parse_settings(json.dumps({**VALID, **changed}).encode())
    assert error.value.code == "SETTINGS_INVALID"
    assert "ab" * 4 not in str(error.value)


def test_every_setting_is_needed() -> None:
    for name in VALID:
        with pytest.raises(Refused, match=name):
            parse_settings(json.dumps({k: v for k, v in VALID.items() if k != name}).encode())


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"null", b"\xff"])
def test_what_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(Refused):
        parse_settings(line)
