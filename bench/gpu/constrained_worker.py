"""The worker with prefills that take turns within a step and are admitted although they do not fit together, so that
they outgrow a small cache and are preempted. vLLM otherwise finishes one before the next."""

from __future__ import annotations

from typing import Any

import changed_worker


def _take_turns(arguments: Any, settings: Any) -> None:
    arguments.long_prefill_token_threshold = settings.chunk_tokens // settings.max_concurrent
    arguments.scheduler_reserve_full_isl = False


if __name__ == "__main__":
    changed_worker.run(_take_turns)
