"""What is checked and measured of one configuration. Runs in a child of check_gpu.py, which it tells each result."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exported_rows import TOLERANCE, compare_with, relative_distance, write_export
from producer_peer import CheckFailed, PlainEngine, ProducerPeer, Transfer, first_window_row
from prompts import Prompt, needle_prompt, ordinary_tokens
from sizes import Sizes, sizes_for
from speed import SPEED_GOAL, Load, measure_speed

Figures = dict[str, Any]

NEEDLE_LENGTHS = (300, 2300, 8000)
_CONCURRENT = 4
_STAGING_FILE = "MUSER_CHECK_STAGING_FILE"
"""Environment variable that measured_connector.py reads; importing it would import vLLM."""
_MIB = 2**20
_PREEMPTION_ATTEMPTS = 3


@dataclass(frozen=True)
class Request:
    """What check_gpu.py wants: a configuration, where the model is and where files go.

    :ivar large: the model has random weights: only what does not depend on what it has learnt is checked
    :ivar chunk: None for the machine's usual one
    """

    name: str
    cpu: bool
    eager: bool
    backend: str | None
    model: Path
    out: Path
    logs: Path
    reference: Path | None
    large: bool
    chunk: int | None


@dataclass
class Run:
    """The three engines of a configuration, started at once where the machine is large enough."""

    request: Request
    sizes: Sizes
    pool: ThreadPoolExecutor
    ready: dict[str, Any] = field(default_factory=dict)
    exported: list[tuple[Prompt, Transfer]] = field(default_factory=list)
    stops: list[Callable[[], Any]] = field(default_factory=list)

    def start(self) -> None:
        script = "random_worker.py" if self.request.large else None
        self._main = self.pool.submit(self._start_peer, "worker", script, self._settings())
        self._plain = self.pool.submit(self._start_plain)
        self.engines: list[Future[Any]] = [self._main, self._plain]
        if not self.request.large:
            settings = self._small_settings()
            self._small = self.pool.submit(self._start_peer, "constrained", "constrained_worker.py", settings)
            self.engines.append(self._small)

    @property
    def main(self) -> ProducerPeer:
        return self._main.result()

    @property
    def small(self) -> ProducerPeer:
        return self._small.result()

    @property
    def plain(self) -> PlainEngine:
        return self._plain.result()

    @property
    def staging_file(self) -> Path:
        return self.request.logs / f"{self.request.name}-staging.json"

    def _settings(self) -> dict[str, Any]:
        sizes = self.sizes
        return {
            "modelPath": str(self.request.model),
            "maxPromptTokens": 16_384,
            "chunkTokens": sizes.chunk,
            "maxConcurrent": _CONCURRENT,
            "kvCacheBytes": sizes.kv_bytes,
            "attentionBackend": self.request.backend,
            "enforceEager": self.request.eager,
            # Several engines share the GPU; vLLM refuses to start when less than this part of it is free.
            "gpuMemoryUtilization": None if self.request.cpu else 0.1,
            "threads": sizes.threads,
        }

    def _small_settings(self) -> dict[str, Any]:
        """A cache for little more than one long prompt; a lease so long that leaked blocks stop what comes next."""
        longest = self.sizes.long + self.sizes.chunk
        # On a GPU vLLM schedules the next step while one runs, so two chunks may be in flight.
        window = 512 + 2 * self.sizes.chunk + 2 * self.sizes.block
        # muse-nano: groups of two layers, three of window layers and one of global ones, share a pool of blocks.
        tokens = longest + 3 * window
        bytes_a_token = 2 * 2 * 2 * 64 * 2
        return {
            **self._settings(),
            "maxPromptTokens": self.sizes.long + 96,
            "kvCacheBytes": tokens * bytes_a_token,
            "leaseMs": 600_000,
        }

    def _start_peer(self, name: str, script: str | None, settings: dict[str, Any]) -> ProducerPeer:
        path = None if script is None else Path(__file__).resolve().parent / script
        peer = ProducerPeer(self.request.logs, f"{self.request.name}-{name}", self.sizes.patience, path, **settings)
        self.stops.append(peer.stop)
        peer.start()
        return peer

    def _start_plain(self) -> PlainEngine:
        settings = {**self._settings(), "controlSocket": "-", "dataSocket": "-", "secret": "-", "stagingBytes": None}
        settings |= {"leaseMs": 30_000, "tensorParallel": 1, "pipelineParallel": 1}
        options = ["--random-weights"] * self.request.large
        plain = PlainEngine(self.request.logs, f"{self.request.name}-without-connector", settings, *options)
        self.stops.append(plain.stop)
        plain.wait_ready()
        return plain


def check_start(run: Run) -> Figures:
    """The layout probe and the self-test have passed, or the worker would have refused."""
    run.ready = run.main.ready
    names = ("vllmVersion", "backendName", "layout", "blockSizes", "chunkTokens", "kvBlocksBytes", "warnings")
    return {
        **{name: run.ready[name] for name in names},
        "milestonesMs": run.main.milestones,
        "startSeconds": run.main.start_seconds,
    }


def check_streaming(run: Run) -> Figures:
    """Every chunk comes in order, without gaps, with rows that are neither empty nor broken."""
    figures: Figures = {}
    for seed, length in enumerate(NEEDLE_LENGTHS):
        prompt = needle_prompt(run.request.model, length, seed)
        transfer = run.main.run(prompt.tokens, "streaming")
        _require_all_rows(run, transfer)
        run.exported.append((prompt, transfer))
        figures[str(length)] = {
            "chunks": [[chunk["start"], chunk["end"], chunk["windowStart"]] for chunk in transfer.chunks],
            "chunkEndToLastByteMs": [round(1000 * seconds, 2) for _, seconds in transfer.chunk_delays],
        }
    return figures


def check_export(run: Run) -> Figures:
    return {"bytes": write_export(run.request.out, run.request.name, run.ready, run.exported)}


def check_reference(run: Run) -> Figures:
    if run.request.reference is None:
        return {"skipped": "no reference was given"}
    figures = compare_with(run.request.reference, run.ready, run.exported)
    _require(figures["greatestDistance"] <= TOLERANCE, f"rows differ from the reference: {figures}")
    return figures


def check_held(run: Run) -> Figures:
    """Rows that the decoder has already are not sent; the others are the same."""
    prompt, whole = run.exported[1]
    held = 1000
    transfer = run.main.run(prompt.tokens, "held", held)
    _require(transfer.chunks[0]["start"] == held, f"the first chunk begins at {transfer.chunks[0]['start']}")
    _require_all_rows(run, transfer)
    return _require_close(run, transfer, whole, held)


def check_four_at_once(run: Run) -> Figures:
    prompts = [needle_prompt(run.request.model, 2300, 100 + i).tokens for i in range(_CONCURRENT)]
    together = run.main.read_all([run.main.prefill(tokens, f"together{i}") for i, tokens in enumerate(prompts)])
    alone = [run.main.run(tokens, f"alone{i}") for i, tokens in enumerate(prompts)]
    found = []
    for transfer, reference in zip(together, alone, strict=True):
        _require_all_rows(run, transfer)
        found.append(_require_close(run, transfer, reference, 0))
    return max(found, key=lambda figures: figures["greatestDistance"])


def check_prefix_cache(run: Run) -> Figures:
    """Cached rows byte for byte, later ones within tolerance; another scope gets nothing of them.

    A hit ends where an earlier prompt ended: vLLM has given away the blocks of windows before.
    """
    shared = run.exported[2][0].tokens[:6000]
    longer = shared + ordinary_tokens(1500, run.ready["geometry"]["vocabularySize"], 7)
    first = run.main.run(shared, "hit")
    again = run.main.run(shared, "hit")
    cold = run.main.run(longer, "another scope")
    hit = run.main.run(longer, "hit")
    _require(cold.finished["reusedTokens"] == 0, "another scope reused cached rows")
    _require(again.finished["reusedTokens"] > 0, "the same prompt again reused nothing")
    reused = hit.finished["reusedTokens"]
    _require(0 < reused < len(shared), f"{reused} tokens were reused of {len(shared)} that are the same")
    for layer in _layers(run, "global"):
        for which in (0, 1):
            same = torch.equal(hit.rows(layer, which, 0, reused), first.rows(layer, which, 0, reused))
            _require(same, f"layer {layer}: cached rows are others than those first computed")
    _require_all_rows(run, hit)
    _require_all_rows(run, again)
    window_rows = _require_same_window(run, again, first)
    return {"reused": reused, "sameWindowRows": window_rows, **_require_close(run, hit, cold, 0)}


def check_preemption(run: Run) -> Figures:
    """Several prefills outgrow a small cache; rows are those of a run without preemption."""
    for attempt in range(_PREEMPTION_ATTEMPTS):
        seeds = range(200 + attempt * _CONCURRENT, 200 + (attempt + 1) * _CONCURRENT)
        prompts = [needle_prompt(run.request.model, run.sizes.turns, seed).tokens for seed in seeds]
        transfers = [run.small.prefill(tokens, f"turn{seed}") for seed, tokens in zip(seeds, prompts, strict=True)]
        run.small.read_all(transfers)
        preemptions = sum(transfer.finished["preemptions"] for transfer in transfers)
        if preemptions > 0:
            break
    _require(preemptions > 0, "nothing was preempted: the cache is too large for this check")
    found = []
    for i, (tokens, transfer) in enumerate(zip(prompts, transfers, strict=True)):
        _require_all_rows(run, transfer)
        found.append(_require_close(run, transfer, run.main.run(tokens, f"untouched{i}"), 0))
    return {"preemptions": preemptions, **max(found, key=lambda figures: figures["greatestDistance"])}


def check_abort(run: Run) -> Figures:
    """Blocks of aborted prefills are free: the cache holds one, and the lease is longer than this check's patience."""
    vocabulary = run.small.ready["geometry"]["vocabularySize"]
    cancelled = 0
    delays = []
    for i in range(run.sizes.aborts):
        transfer = run.small.prefill(ordinary_tokens(run.sizes.long, vocabulary, 300 + i), f"abort{i}")
        run.small.next_chunk()
        started = time.perf_counter()
        run.small.control.send("abort", {"id": transfer.id})
        run.small.data.send("done", {"id": transfer.id})
        run.small.wait_finished(transfer)
        delays.append(time.perf_counter() - started)
        run.small.wait_ended(transfer)
        cancelled += not transfer.finished["ok"]
    after = run.small.run(ordinary_tokens(run.sizes.long, vocabulary, 400), "after the aborts")
    _require(cancelled > 0, "every prefill was faster than its abort")
    _require_all_rows(run, after)
    return {"aborts": run.sizes.aborts, "cancelled": cancelled, "slowestAbortMs": round(1000 * max(delays), 1)}


def check_staging(run: Run) -> Figures:
    """Of the engine with the small cache, which has had four prefills at once and their preemption; of the large
    model's engine, which has had four at once."""
    figures: Figures = json.loads(run.staging_file.read_text("utf-8"))
    geometry = run.ready["geometry"]
    row_bytes = 2 * geometry["kvHeads"] * geometry["headDimension"] * 2 * len(_layers(run, "window"))
    window_bytes = geometry["windowTokens"] * row_bytes
    goal = window_bytes + 32 * _MIB * _CONCURRENT
    _require(figures["stagedBytesPeak"] <= goal, f"{figures} is more than the goal, {goal}")
    return {**figures, "windowBytes": window_bytes, "goalBytes": goal}


def check_speed(run: Run) -> Figures:
    """With the connector as fast as the goal says, where the model is large enough for that to tell anything."""
    for engine in run.engines:  # what still starts would disturb; whether it failed is told by the checks that use it
        engine.exception()
    goal = SPEED_GOAL if run.request.large and not run.request.cpu else None
    load = Load(run.sizes.speed, run.ready["geometry"]["vocabularySize"], _CONCURRENT, run.sizes.rounds)
    measured = measure_speed(run.main, run.plain, load)
    ratios = {name: figures["ratio"] for name, figures in measured.items()}
    # The ratios come first: only the first line of an error is shown.
    missed = f"{ratios} of the speed without the connector, the goal is {goal}\n{json.dumps(measured)}"
    _require(goal is None or min(ratios.values()) >= goal, missed)
    return {"goal": goal, "tokens": run.sizes.speed, "chunk": run.sizes.chunk, **measured}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailed(message)


def _layers(run: Run, kind: str) -> list[int]:
    return [layer for layer, found in enumerate(run.ready["geometry"]["layers"]) if found == kind]


def _first_row(run: Run, layer: int, held: int, end: int) -> int:
    return first_window_row(run.ready, held, end) if layer in _layers(run, "window") else held


def _require_all_rows(run: Run, transfer: Transfer) -> None:
    at = transfer.held
    for chunk in transfer.chunks:
        _require(chunk["start"] == at, f"a chunk begins at {chunk['start']}, the one before ended at {at}")
        at = chunk["end"]
    _require(at == transfer.end, f"chunks end at {at}, not {transfer.end}")
    for layer in range(len(run.ready["geometry"]["layers"])):
        for which in (0, 1):
            start = _first_row(run, layer, transfer.held, transfer.end)
            rows = transfer.rows(layer, which, start, transfer.end)
            _require(bool(torch.isfinite(rows).all()), f"layer {layer}: rows that are not finite")
            _require(bool(rows.any(dim=-1).all()), f"layer {layer}: empty rows")


def _require_close(run: Run, transfer: Transfer, reference: Transfer, held: int) -> Figures:
    worst = 0.0
    for layer in range(len(run.ready["geometry"]["layers"])):
        start = _first_row(run, layer, held, transfer.end)
        for which in (0, 1):
            rows, expected = (found.rows(layer, which, start, transfer.end) for found in (transfer, reference))
            worst = max(worst, relative_distance(rows, expected))
    _require(worst <= TOLERANCE, f"rows differ by {worst:.4f}")
    return {"greatestDistance": round(worst, 5), "tolerance": TOLERANCE}


def _require_same_window(run: Run, transfer: Transfer, first: Transfer) -> int:
    """Window rows that both have from the cache. How many there are depends on where the hit ends."""
    cached = transfer.finished["reusedTokens"]
    start = next(chunk["windowStart"] for chunk in transfer.chunks if chunk["end"] >= cached)
    start = max(start, first_window_row(run.ready, 0, transfer.end))
    for layer in _layers(run, "window") if start < cached else []:
        for which in (0, 1):
            same = torch.equal(transfer.rows(layer, which, start, cached), first.rows(layer, which, start, cached))
            _require(same, f"layer {layer}: cached window rows are others than those first computed")
    return max(0, cached - start)


def check_random_rows(run: Run) -> Figures:
    """Every row of every layer comes, also where the model is large and the weights are random."""
    prompt = ordinary_tokens(run.sizes.speed, run.ready["geometry"]["vocabularySize"], 1)
    transfer = run.main.run(prompt, "rows")
    _require_all_rows(run, transfer)
    return {
        "chunks": [[chunk["start"], chunk["end"], chunk["windowStart"]] for chunk in transfer.chunks],
        "chunkEndToLastByteMs": [round(1000 * seconds, 2) for _, seconds in transfer.chunk_delays],
        "chunkBytes": [size for size, _ in transfer.chunk_delays],
    }


LARGE_CHECKS: list[tuple[str, Callable[[Run], Figures]]] = [
    ("start", check_start),
    ("rows", check_random_rows),
    ("speed", check_speed),
    ("staging", check_staging),
]
CHECKS: list[tuple[str, Callable[[Run], Figures]]] = [
    ("start", check_start),
    ("streaming", check_streaming),
    ("export", check_export),
    ("reference", check_reference),
    ("held", check_held),
    ("fourAtOnce", check_four_at_once),
    ("prefixCache", check_prefix_cache),
    ("speed", check_speed),
    ("preemption", check_preemption),
    ("abort", check_abort),
    ("staging", check_staging),
]


def run_checks(request: Request, tell: Callable[[dict[str, Any]], None]) -> None:
    """Tells the result of every check; one that fails does not stop the others, unless the worker does not start."""
    sizes = sizes_for(request.large, request.cpu, request.chunk)
    # Threads take times here while another one reads rows: none of them should wait for another for long.
    sys.setswitchinterval(0.0005)
    with ThreadPoolExecutor(sizes.starts_at_once) as pool:
        run = Run(request, sizes, pool)
        os.environ[_STAGING_FILE] = str(run.staging_file)
        run.start()
        try:
            for name, check in LARGE_CHECKS if request.large else CHECKS:
                passed = _run_check(name, check, run, tell)
                if name == "start" and not passed:
                    break
        finally:
            for engine in run.engines:
                engine.cancel()
            list(pool.map(_stop, run.stops))


def _run_check(name: str, check: Callable[[Run], Figures], run: Run, tell: Callable[[dict[str, Any]], None]) -> bool:
    started = time.monotonic()
    result: dict[str, Any] = {"check": name, "passed": True}
    try:
        result["figures"] = check(run)
    except Exception as error:  # whatever it is, the other checks go on
        result |= {"passed": False, "error": f"{type(error).__name__}: {error}"[:3000]}
        if not isinstance(error, CheckFailed):
            result["trace"] = traceback.format_exc()[-2000:]
    tell({**result, "seconds": round(time.monotonic() - started, 1)})
    return bool(result["passed"])


def _stop(stop: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):  # the results are told; the parent kills what is left
        stop()
