from __future__ import annotations

from collections.abc import Iterator

import pytest
from peer import Peer


class Spares:
    """Workers that start while other tests run, one ahead: vLLM takes long to start, most of the time on one core."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._ahead: Peer | None = None

    def take(self) -> Peer:
        """One that has been spawned; whoever takes it ends it."""
        taken = self._ahead or self._spawn()
        self._ahead = self._spawn() if self._wanted > 0 else None
        return taken

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cleanup()

    def _spawn(self) -> Peer:
        self._wanted -= 1
        peer = Peer()
        peer.spawn()
        return peer


@pytest.fixture(scope="session")
def spares(request: pytest.FixtureRequest) -> Iterator[Spares]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    shared = {item.path for item in items if "peer" in item.fixturenames}
    spares = Spares(len(shared) + sum("worker" in item.fixturenames for item in items))
    yield spares
    spares.close()


@pytest.fixture(scope="module")
def peer(spares: Spares) -> Iterator[Peer]:
    """A worker with room for everything; it ends by the end of its standard input."""
    peer = spares.take()
    try:
        peer.start()
        yield peer
        pids = peer.descendants()
        assert peer.stop() == 0
        peer.wait_gone(pids)
    finally:
        if peer.folder.exists():
            peer.cleanup()


@pytest.fixture
def worker(spares: Spares) -> Iterator[Peer]:
    """A worker of the test's own, which may do to it what it likes. Spawned, so `start` only waits for it."""
    peer = spares.take()
    yield peer
    peer.cleanup()
