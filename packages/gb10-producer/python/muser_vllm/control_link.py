"""The AsyncLLM process's connection to the producer process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from .frames import Frame, body_length, decode_body, encode, schema

_SEND_SECONDS = 10
"""Frames are small: a producer that takes none for so long is hung or gone."""


class ControlLink:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()

    @staticmethod
    async def connect(path: str, hello: dict[str, Any]) -> ControlLink:
        """Connects and greets. :raises OSError: nobody listens; :raises TimeoutError: nor answers"""
        async with asyncio.timeout(schema().limits["helloTimeoutMs"] / 1000):
            link = ControlLink(*await asyncio.open_unix_connection(path))
        await link.send("hello", hello)
        return link

    async def send(self, kind: str, header: dict[str, Any]) -> None:
        """:raises OSError: the producer is gone; :raises TimeoutError: it takes nothing"""
        frame = encode(kind, header)
        async with self._sending, asyncio.timeout(_SEND_SECONDS):
            self._writer.write(frame)
            await self._writer.drain()

    async def receive(self) -> Frame | None:
        """The next frame, None at the end of the stream. :raises FrameError: it is no frame of this bridge"""
        try:
            length = body_length(await self._reader.readexactly(4))
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return decode_body(memoryview(body), "control", "node")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()
