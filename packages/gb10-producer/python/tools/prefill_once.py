"""One prefill through a worker of its own, on whichever vLLM runs this: prints what the worker says of itself.

python tools/prefill_once.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import reference
from peer import Peer
from test_vllm import check_rows, check_whole

TOKENS = 1500


def main() -> None:
    peer = Peer()
    try:
        ready = peer.start()
        for name in ("vllmVersion", "backendName", "layout", "blockSizes", "warnings"):
            print(f"{name}: {ready[name]}")  # noqa: T201 - a tool
        tokens = reference.prompt(TOKENS, seed=1)
        result = peer.run(tokens)
        check_whole(result, 0, TOKENS - 1)
        print(f"{TOKENS} tokens, worst row {check_rows(result, tokens[:-1]):.3f} from the reference")  # noqa: T201
        if peer.stop() != 0:
            raise SystemExit("the worker did not end well")
    finally:
        if peer.folder.exists():
            peer.cleanup()


if __name__ == "__main__":
    main()
