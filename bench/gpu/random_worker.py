"""The worker with random weights: how fast a large model is does not depend on what it has learnt."""

from __future__ import annotations

from typing import Any

import changed_worker


def _make_weights_up(arguments: Any, settings: Any) -> None:
    arguments.load_format = "dummy"


if __name__ == "__main__":
    changed_worker.run(_make_weights_up)
