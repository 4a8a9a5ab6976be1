#!/usr/bin/env python3
r"""Real vLLM with two ranks, tensor-parallel and then pipeline-parallel: each sends its own heads or layers.

Every row that a rank sends is compared with the export of a run of one rank (`check_gpu.py`).

usage: PYTHONPATH=site:packages/gb10-producer/python python3 bench/gpu/check_ranks.py --model HF --reference DIR \
    --out OUT
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from exported_rows import TOLERANCE, relative_distance
from producer_peer import CheckFailed, ProducerPeer, Transfer

from peer import Link  # isort: skip - found by producer_peer

_RANKS = 2
_PATIENCE_SECONDS = 120.0
_PROMPT = "needle-2300"
_CONFIGURATIONS = {"tensor-parallel": {"tensorParallel": _RANKS}, "pipeline-parallel": {"pipelineParallel": _RANKS}}

Rows = dict[tuple[int, int], torch.Tensor]


class RanksPeer(ProducerPeer):
    """The producer's part with one data link for each rank.

    :ivar links: by rank, with what it said of itself in its `hello`
    """

    def start_ranks(self) -> None:
        self.spawn()
        self.control, _ = self.accept("control")
        found = [self.accept("data") for _ in range(_RANKS)]
        self.links: list[tuple[Link, dict[str, Any]]] = sorted(found, key=lambda link: int(link[1]["rank"]))
        self.ready = self.next_control("ready").header

    def rows_of_rank(self, rank: int, transfer: Transfer, first_rows: dict[tuple[int, int], int]) -> Rows:
        """What one rank sends of a transfer, from each part's first row on."""
        self.data, self.hello = self.links[rank]
        asked: dict[int, tuple[int, int, list[list[int]]]] = {}
        announced = 0
        while announced < transfer.end or asked:
            frame = self._next_frame()
            if frame.kind == "chunk":
                announced = frame.header["end"]
                asked |= self._ask(transfer.id, frame.header)
            elif frame.kind == "rows":
                start, count, parts = asked.pop(frame.header["read"])
                for part, rows in zip(parts, self.rows_of(frame.payload, len(parts), count), strict=True):
                    transfer.add(part[0], part[1], start, rows)
            elif frame.kind != "milestone":
                raise CheckFailed(f"rank {rank} said {frame.kind} {frame.header}")
        self.data.send("done", {"id": transfer.id})
        first, end = self.hello["layers"]
        own = {part: row for part, row in first_rows.items() if first <= part[0] < end}
        return {part: transfer.rows(*part, row, transfer.end) for part, row in own.items()}

    def _ask(self, id_: str, chunk: dict[str, int]) -> dict[int, tuple[int, int, list[list[int]]]]:
        return {
            self.read(id_, chunk["index"], start, count, parts): (start, count, parts)
            for start, count, parts in self.shards(chunk)
            if parts
        }


def _reference(folder: Path) -> tuple[list[int], dict[tuple[int, int], int], Rows]:
    """(tokens, first row of each part, rows)"""
    (path,) = folder.glob("kv-*.json")
    description = json.loads(path.read_text("utf-8"))
    data = path.with_suffix(".bin").read_bytes()
    shape = (-1, description["geometry"]["kvHeads"], description["geometry"]["headDimension"])
    prompt = next(prompt for prompt in description["prompts"] if prompt["name"] == _PROMPT)
    first_rows, rows = {}, {}
    for part in prompt["parts"]:
        key = (part["layer"], "kv".index(part["kind"]))
        size = part["count"] * shape[1] * shape[2]
        values = torch.frombuffer(bytearray(data[part["offset"] : part["offset"] + 2 * size]), dtype=torch.bfloat16)
        first_rows[key], rows[key] = part["start"], values.view(shape)
    return prompt["tokens"], first_rows, rows


def _check(peer: RanksPeer, folder: Path) -> dict[str, Any]:
    tokens, first_rows, wanted = _reference(folder)
    peer.start_ranks()
    if peer.ready["ranks"] != _RANKS:
        raise CheckFailed(f"{peer.ready['ranks']} ranks")
    id_ = peer.prefill(tokens, "ranks").id
    distances: dict[str, float] = {}
    seen: set[tuple[int, int, int]] = set()
    for rank, (_, hello) in enumerate(peer.links):
        found = peer.rows_of_rank(rank, Transfer(id_, 0, len(tokens) - 1), first_rows)
        first, end = hello["heads"]
        for (layer, which), rows in found.items():
            name = f"rank {rank} layer {layer} {'KV'[which]}"
            distances[name] = relative_distance(rows, wanted[layer, which][:, first:end])
            seen |= {(layer, which, head) for head in range(first, end)}
    heads = peer.ready["geometry"]["kvHeads"]
    missing = {(*part, head) for part in wanted for head in range(heads)} - seen
    if missing:
        raise CheckFailed(f"no rank sends {sorted(missing)[:4]} and {len(missing)} in all")
    finished = peer.next_control("finished").header
    worst = max(distances, key=lambda name: distances[name])
    if not finished["ok"] or distances[worst] > TOLERANCE:
        raise CheckFailed(f"{finished}, {worst} {distances[worst]}")
    shares = [{"layers": hello["layers"], "heads": hello["heads"]} for _, hello in peer.links]
    figures = {"greatestDistance": round(distances[worst], 5), "greatestAt": worst, "tolerance": TOLERANCE}
    return {"backendName": peer.ready["backendName"], "layout": peer.ready["layout"], "ranks": shares, **figures}


def _run(name: str, arguments: argparse.Namespace, logs: Path) -> dict[str, Any]:
    started = time.monotonic()
    settings = {
        "modelPath": str(arguments.model.resolve()),
        "maxPromptTokens": 4096,
        "chunkTokens": 512 if arguments.cpu else 1024,
        "gpuMemoryUtilization": None if arguments.cpu else 0.1,
        "threads": 1 if arguments.cpu else None,
        **_CONFIGURATIONS[name],
    }
    peer = RanksPeer(logs, name, _PATIENCE_SECONDS, **settings)
    try:
        entry: dict[str, Any] = {"check": name, "passed": True, "figures": _check(peer, arguments.reference)}
    except Exception as error:
        traceback.print_exc()
        entry = {"check": name, "passed": False, "error": f"{type(error).__name__}: {error}"}
    finally:
        peer.stop()
    print(json.dumps(entry), flush=True)
    return {**entry, "seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of muse-nano for vLLM")
    parser.add_argument("--reference", type=Path, required=True, help="folder with an export of check_gpu.py")
    parser.add_argument("--out", type=Path, required=True, help="folder for ranks.json and the logs")
    parser.add_argument("--only", choices=list(_CONFIGURATIONS), help="one configuration")
    parser.add_argument("--cpu", action="store_true", help="on the CPU")
    arguments = parser.parse_args()
    # An absolute path, because the worker's folder is another one.
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="muser-ranks-") as work:
        names = [name for name in _CONFIGURATIONS if arguments.only in (None, name)]
        entries = [_run(name, arguments, Path(work)) for name in names]
        for log in Path(work).glob("*.log"):
            (arguments.out / log.name).write_bytes(log.read_bytes()[-100_000:])
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    result = {"torch": torch.__version__, "gpus": gpus, "checks": entries}
    (arguments.out / "ranks.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0 if all(entry["passed"] for entry in entries) else 1


if __name__ == "__main__":
    sys.exit(main())
