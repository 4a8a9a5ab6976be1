"""vLLM with the worker's settings but no connector: what a prefill costs when nobody takes its rows out.

usage: engine_without_connector.py [--random-weights]

Standard input: the worker's line of settings, then batches: u32 LE prompts, and for each u32 LE tokens and the tokens.
Standard output: a line of JSON when ready, and one a batch when all its prompts are computed.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from typing import Any, BinaryIO

from muser_vllm.settings import prepare_environment, read_settings


def read_batch(stream: BinaryIO) -> list[list[int]]:
    """Empty at the end of the stream."""
    prefix = stream.read(4)
    return [_read_tokens(stream) for _ in range(struct.unpack("<I", prefix)[0])] if prefix else []


def write_batch(stream: BinaryIO, prompts: list[list[int]]) -> None:
    parts = [struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens) for tokens in prompts]
    stream.write(b"".join([struct.pack("<I", len(prompts)), *parts]))
    stream.flush()


def _read_tokens(stream: BinaryIO) -> list[int]:
    count = struct.unpack("<I", stream.read(4))[0]
    return list(struct.unpack(f"<{count}I", stream.read(4 * count)))


async def _prefill(engine: Any, tokens: list[int], request: str) -> None:
    from vllm import SamplingParams  # noqa: PLC0415 - takes seconds

    parameters = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    # As the worker does: the last token's row is not wanted, and no two prompts share a cached prefix.
    prompt = {"prompt_token_ids": tokens[:-1], "cache_salt": request}
    async for _ in engine.generate(prompt, parameters, request_id=request):
        pass


async def _serve(engine: Any, answers: BinaryIO) -> None:
    count = 0
    while batch := await asyncio.to_thread(read_batch, sys.stdin.buffer):
        await asyncio.gather(*(_prefill(engine, tokens, f"r{count + i}") for i, tokens in enumerate(batch)))
        count += len(batch)
        _answer(answers, {"prefilled": len(batch)})


def _answer(answers: BinaryIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    answers.flush()


def main() -> None:
    started_at = time.monotonic()
    # Standard output carries answers only; what libraries print goes where log lines go.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    settings = read_settings(sys.stdin.fileno())
    prepare_environment(settings)
    from muser_vllm.engine import StepCounter, engine_arguments, start_engine  # noqa: PLC0415 - reads the environment

    arguments = engine_arguments(settings, started_at)
    arguments.kv_transfer_config = None
    if "--random-weights" in sys.argv[1:]:
        arguments.load_format = "dummy"

    async def work() -> None:
        engine = await asyncio.to_thread(start_engine, arguments, StepCounter())
        try:
            _answer(answers, {"ready": True, "seconds": round(time.monotonic() - started_at, 1)})
            await _serve(engine, answers)
        finally:
            engine.shutdown()

    asyncio.run(work())


if __name__ == "__main__":
    main()
