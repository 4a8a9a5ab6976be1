#!/usr/bin/env python3
"""Checks muser_vllm with real vLLM on a GPU (or, with --cpu, on the CPU), configuration by configuration.

usage: PYTHONPATH=site:packages/gb10-producer/python python3 bench/gpu/check_gpu.py --model DIR --out DIR
       [--cpu] [--only NAME] [--reference DIR] [--total SECONDS] [--scale [--layers N]]

See README.md beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import text_of

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "packages" / "gb10-producer" / "python"
_LOG_BYTES = 200_000
_SPARE_SECONDS = 8
_LEAST_SECONDS = 20


@dataclass(frozen=True)
class Configuration:
    """:ivar backend: None for vLLM's choice; :ivar share: of the total time, against the others' shares
    :ivar chunk: for the large model: tokens of a step"""

    name: str
    eager: bool
    backend: str | None
    share: float
    chunk: int | None = None


ON_GPU = [
    Configuration("compiled", False, None, 2.6),
    Configuration("eager-triton", True, "TRITON_ATTN", 1.1),
    Configuration("eager-flash", True, "FLASH_ATTN", 1.1),
]
ON_CPU = [Configuration("cpu", True, None, 1)]
LARGE_ON_GPU = [Configuration("large-2048", True, None, 1, 2048), Configuration("large-1024", True, None, 1, 1024)]
LARGE_ON_CPU = [Configuration("large-cpu", True, None, 1, 256)]
_LAYERS_ON_GPU = 52
_LAYERS_ON_CPU = 8


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.child is not None:
        _run_child(arguments)
        return 0
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # Sockets lie in here: their paths must be short.
    work = Path(tempfile.mkdtemp(prefix="muser-gpu-"))
    ends_at = time.monotonic() + arguments.total
    if arguments.scale:
        configurations = LARGE_ON_CPU if arguments.cpu else LARGE_ON_GPU
        arguments.model = _large_model(arguments, work)
    else:
        configurations = ON_CPU if arguments.cpu else ON_GPU
    chosen = [c for c in configurations if arguments.only in (None, c.name)]
    result: dict[str, Any] = {"machine": _machine(), "totalSeconds": arguments.total, "configurations": []}
    try:
        for number, configuration in enumerate(chosen):
            left = ends_at - time.monotonic() - _SPARE_SECONDS
            limit = left * configuration.share / sum(c.share for c in chosen[number:])
            entry = {"name": configuration.name, "status": "skipped", "checks": []}
            result["configurations"].append(entry)
            if limit >= _LEAST_SECONDS:
                _run_configuration(configuration, arguments, work, limit, entry, lambda: _write(out, result))
            _write(out, result)
    finally:
        _write(out, result)
        _keep_logs(work, out)
        shutil.rmtree(work, ignore_errors=True)
    print("\n" + text_of(result))
    return 0 if all(entry["status"] == "passed" for entry in result["configurations"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Checks muser_vllm with real vLLM on a GPU.")
    parser.add_argument("--model", type=Path, required=True, help="folder of muse-nano for vLLM (models/muse-nano/hf)")
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json, exported rows and the log")
    parser.add_argument("--cpu", action="store_true", help="one configuration on the CPU, with smaller sizes")
    parser.add_argument("--only", metavar="NAME", help="one configuration")
    parser.add_argument("--reference", type=Path, help="folder with the export of a CPU run, to compare with")
    parser.add_argument("--scale", action="store_true", help="speed with a large model of random weights instead")
    parser.add_argument("--layers", type=int, help=f"of the large model, a multiple of 4 (default {_LAYERS_ON_GPU})")
    parser.add_argument("--total", type=float, default=480, help="seconds for everything (default 480)")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--logs", type=Path, help=argparse.SUPPRESS)
    return parser


def _run_child(arguments: argparse.Namespace) -> None:
    from checks import Request, run_checks  # noqa: PLC0415 - imports PyTorch

    every = ON_CPU + ON_GPU + LARGE_ON_CPU + LARGE_ON_GPU
    configuration = next(c for c in every if c.name == arguments.child)
    request = Request(
        name=configuration.name,
        cpu=arguments.cpu,
        eager=configuration.eager,
        backend=configuration.backend,
        model=arguments.model.resolve(),
        out=arguments.out.resolve(),
        logs=arguments.logs,
        reference=arguments.reference,
        large=configuration.chunk is not None,
        chunk=configuration.chunk,
    )
    run_checks(request, lambda result: print(json.dumps(result), flush=True))


def _large_model(arguments: argparse.Namespace, work: Path) -> Path:
    from large_model import LARGE, SMALL, write_model  # noqa: PLC0415 - beside this file

    target = work / "model"
    layers = arguments.layers or (_LAYERS_ON_CPU if arguments.cpu else _LAYERS_ON_GPU)
    write_model(arguments.model, target, SMALL if arguments.cpu else LARGE, layers)
    return target


def _run_configuration(
    configuration: Configuration,
    arguments: argparse.Namespace,
    work: Path,
    limit: float,
    entry: dict[str, Any],
    save: Callable[[], None],
) -> None:
    print(f"\n{configuration.name}: at most {limit:.0f} s", flush=True)
    started = time.monotonic()
    options = ["--child", configuration.name, "--logs", str(work), "--model", str(arguments.model)]
    options += ["--out", str(arguments.out)] + ["--cpu"] * arguments.cpu
    options += ["--reference", str(arguments.reference)] if arguments.reference else []
    with (work / f"{configuration.name}-checks.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, str(HERE / "check_gpu.py"), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(work),
        )
    reader = threading.Thread(target=_take_results, args=(child, entry, save), daemon=True)
    reader.start()
    try:
        child.wait(limit)
        reader.join(5)
        passed = child.returncode == 0 and entry["checks"] and all(check["passed"] for check in entry["checks"])
        entry["status"] = "passed" if passed else "failed"
    except subprocess.TimeoutExpired:
        entry["status"] = "timed out"
    finally:
        _kill_tree(child.pid)
        child.wait()
        for noted in work.glob("*.pid"):
            _kill_tree(int(noted.read_text("ascii")))
            noted.unlink()
    entry["seconds"] = round(time.monotonic() - started, 1)


def _take_results(child: subprocess.Popen[bytes], entry: dict[str, Any], save: Callable[[], None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        with contextlib.suppress(ValueError):  # a library that prints
            check = json.loads(line)
            entry["checks"].append(check)
            save()
            what = json.dumps(check.get("figures", {})) if check["passed"] else check["error"]
            print(f"  {'ok  ' if check['passed'] else 'FAIL'} {check['check']} {check['seconds']} s {what}", flush=True)


def _environment(work: Path) -> dict[str, str]:
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_LOGGING_LEVEL": "INFO",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
    }
    return {**environment, "PYTHONPATH": os.pathsep.join([*paths, str(PACKAGE), str(HERE)]), "TMPDIR": str(work)}


def _kill_tree(pid: int) -> None:
    """Workers lead process groups of their own; whatever still runs keeps the GPU's memory from the next one."""
    import psutil  # noqa: PLC0415 - vLLM's dependency

    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for found in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.kill()


def _machine() -> dict[str, Any]:
    import torch  # noqa: PLC0415 - only the parent of all needs it here

    gpu = torch.cuda.is_available()
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(0) if gpu else None,
        "cores": os.cpu_count(),
    }


def _write(out: Path, result: dict[str, Any]) -> None:
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def _keep_logs(work: Path, out: Path) -> None:
    with (out / "log.txt").open("w", encoding="utf-8") as kept:
        for path in sorted(work.glob("*.log")):
            text = path.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
            kept.write(f"==== {path.stem}\n{text}\n")


if __name__ == "__main__":
    sys.exit(main())
