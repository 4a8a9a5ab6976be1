from __future__ import annotations

from collections.abc import Iterator

import pytest
from peer import Peer


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """A worker with room for everything; it ends by the end of its standard input."""
    peer = Peer()
    try:
        peer.start()
        yield peer
        pids = peer.descendants()
        assert peer.stop() == 0
        peer.wait_gone(pids)
    finally:
        if peer.folder.exists():
            peer.cleanup()
