"""The process that runs vLLM for a producer: `python -m muser_vllm.worker`, settings on standard input."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import struct
import sys
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from . import __version__
from .control_link import ControlLink
from .failures import is_out_of_memory, kind_of
from .frames import Frame, FrameError, schema
from .memory import free_memory_bytes
from .refusals import Refused
from .settings import Settings, prepare_environment, read_settings

if TYPE_CHECKING:
    import psutil
    from vllm.v1.engine.async_llm import AsyncLLM

_log = logging.getLogger("muser_vllm.worker")

_HEARTBEAT_SECONDS = 0.5
_REMEMBERED_IDS = 4096
_END_SECONDS = 5
_STUCK_SECONDS = 15
_ENGINE_DIED = "the engine has died; the log of the producer has the lines that it wrote last"


class _InvalidPrefill(Exception):  # noqa: N818 - it reads as what happened
    pass


class Worker:
    """From connecting to the end. `run` returns the process's exit status."""

    def __init__(self, settings: Settings, started_at: float) -> None:
        self._settings = settings
        self._started_at = started_at
        self._stop = asyncio.Event()
        self._status = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._prefills: dict[str, asyncio.Task[None]] = {}
        self._recent_ids: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._placeholders: set[int] = set()
        self._vocabulary_size = 0
        self._engine: AsyncLLM | None = None

    async def run(self) -> int:
        self._watch_for_the_end()
        hello = {"role": "control", "secret": self._settings.secret, "pid": os.getpid(), "version": __version__}
        self._link = await ControlLink.connect(self._settings.control_socket, hello)
        serving = asyncio.create_task(self._serve())
        await self._stop.wait()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_SECONDS)
        await self._link.close()
        return self._status

    def _watch_for_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end, 0)
        loop.add_signal_handler(signal.SIGINT, self._end, 0)
        loop.add_reader(sys.stdin.fileno(), self._on_input)

    def _on_input(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._end(0)

    def _end(self, status: int) -> None:
        if not self._stop.is_set():
            self._status = status
            self._stop.set()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("muser: the worker ends: %s", kind_of(error))
            self._end(1)

    async def _serve(self) -> None:
        try:
            await self._start()
        except Refused as refused:
            await self._refuse(refused.code, str(refused))
        except Exception as error:  # the engine's start can fail in any way; the producer must hear of it
            _log.exception("muser: vLLM does not start")
            code = "OUT_OF_MEMORY" if is_out_of_memory(error) else "ENGINE_FAILED"
            await self._refuse(code, f"it does not start ({kind_of(error)}); the log of the producer says why")
        else:
            await self._receive()

    async def _refuse(self, code: str, message: str) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            await self._link.send("refused", {"code": code, "message": message[:2000]})
        self._end(1)

    async def _start(self) -> None:
        engine = await asyncio.to_thread(_import_engine)
        _warn_of_version()
        self._counter = engine.StepCounter()
        self._spawn(self._beat())
        await self._milestone("environment")
        arguments = engine.engine_arguments(self._settings, self._started_at)
        started = await asyncio.to_thread(engine.start_engine, arguments, self._counter)
        self._engine = started
        self._prefill = partial(engine.prefill, started)
        ready = await asyncio.to_thread(self._describe, started)
        rank = await self._self_test(ready["ranks"])
        await self._milestone("warm_up")
        ready |= {
            "backendName": rank["backend"],
            "layout": rank["layout"],
            "blockSizes": rank["block_sizes"],
            "kvBlocksBytes": rank["kv_bytes"],
        }
        await self._link.send("ready", ready)
        await self._milestone("ready")

    def _describe(self, engine: AsyncLLM) -> dict[str, Any]:
        """:raises Refused: the model cannot be handed over"""
        import vllm  # noqa: PLC0415 - takes seconds

        from .geometry import checked_geometry, tokenizer_sha256  # noqa: PLC0415
        from .refusals import version_warnings  # noqa: PLC0415

        config = engine.vllm_config
        model = config.model_config
        geometry = checked_geometry(config)
        self._vocabulary_size = geometry["vocabularySize"]
        found = (getattr(model.hf_config, name, None) for name in ("image_token_id", "video_token_id"))
        self._placeholders = {int(token) for token in found if token is not None}
        return {
            "vllmVersion": vllm.__version__,
            "geometry": geometry,
            "tokenizerSha256": tokenizer_sha256(engine.get_tokenizer(), self._vocabulary_size),
            "maxPromptTokens": model.max_model_len,
            "chunkTokens": config.scheduler_config.max_num_batched_tokens,
            "wireTypes": ["bf16"],
            "ranks": config.parallel_config.world_size,
            "warnings": version_warnings(vllm.__version__),
        }

    async def _self_test(self, expected: int) -> dict[str, Any]:
        """One chunk, twice: each rank checks its rows. Answers what the first rank found.

        :raises Refused: SELF_TEST_FAILED
        """
        from .metadata import PrefillSpec  # noqa: PLC0415 - takes seconds

        count = min(self._settings.chunk_tokens, self._settings.max_prompt_tokens - 1)
        usable = [token for token in range(self._vocabulary_size) if token not in self._placeholders]
        tokens = [usable[7919 * i % len(usable)] for i in range(1, count + 1)]
        for number in (1, 2):
            spec = PrefillSpec(f"self-test-{number}", 0, count, self_test=True)
            answer = await self._prefill(spec, tokens, "self-test")
        ranks: list[dict[str, Any]] = answer.get("ranks", [])
        if len(ranks) != expected or any(rank["self_tests"] < 1 for rank in ranks):
            raise Refused("SELF_TEST_FAILED", f"{len(ranks)} of {expected} ranks saw rows of a prefill")
        return ranks[0]

    async def _milestone(self, name: str) -> None:
        elapsed = time.monotonic() - self._started_at
        await self._link.send("milestone", {"name": name, "ms": int(1000 * elapsed)})

    async def _beat(self) -> None:
        while True:
            if self._engine is not None and self._engine.errored:
                # Without a prefill nobody else notices that the engine, or a rank of it, has died.
                return await self._refuse("ENGINE_FAILED", _ENGINE_DIED)
            header = {
                "steps": self._counter.steps,
                "runningRequests": len(self._prefills),
                "freeMemoryBytes": free_memory_bytes(),
            }
            await self._link.send("heartbeat", header)
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def _receive(self) -> None:
        while True:
            try:
                frame = await self._link.receive()
            except FrameError as error:
                _log.error("muser: the producer sent %s: %s", error.code, error)
                return self._end(1)
            if frame is None or frame.kind == "shutdown":
                return self._end(0)
            if frame.kind == "prefill":
                self._on_prefill(frame)
            elif (task := self._prefills.get(frame.header["id"])) is not None:
                task.cancel()

    def _on_prefill(self, frame: Frame) -> None:
        id_ = frame.header["id"]
        task = self._spawn(self._run_prefill(frame))
        if id_ not in self._prefills:
            self._prefills[id_] = task
            task.add_done_callback(lambda _: self._prefills.pop(id_))

    async def _run_prefill(self, frame: Frame) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415 - takes seconds

        id_ = frame.header["id"]
        try:
            header = await self._compute(frame)
        except asyncio.CancelledError:
            if self._stop.is_set():
                raise
            header = _failed(id_, "CANCELLED", "cancelled by the producer")
        except _InvalidPrefill as error:
            header = _failed(id_, "INVALID_REQUEST", str(error))
        except EngineDeadError:
            # Not this prefill has failed but the worker, and all that it computed are to blame.
            await self._refuse("ENGINE_FAILED", _ENGINE_DIED)
            return
        except Exception as error:  # a poisoned request must not end the others
            _log.exception("muser: a prefill failed")
            header = _failed(id_, _failure_of(error), f"vLLM refused the prefill ({kind_of(error)})")
        await self._link.send("finished", header)

    async def _compute(self, frame: Frame) -> dict[str, Any]:
        """:raises _InvalidPrefill:"""
        from .metadata import PrefillSpec  # noqa: PLC0415 - takes seconds

        id_, held = frame.header["id"], frame.header["heldTokens"]
        tokens = list(struct.unpack(f"<{len(frame.payload) // 4}I", frame.payload))
        self._check(id_, tokens, held)
        spec = PrefillSpec(id_, held, len(tokens) - 1)
        # The last token's row is not exported, and its logits are the decoder's business.
        answer = await self._prefill(spec, tokens[:-1], frame.header["cacheScope"])
        return {
            "id": id_,
            "ok": True,
            "promptTokens": len(tokens),
            "reusedTokens": answer["reused"],
            "preemptions": answer.get("preemptions", 0),
        }

    def _check(self, id_: str, tokens: list[int], held: int) -> None:
        if id_ in self._recent_ids or id_.startswith("self-test"):
            raise _InvalidPrefill("this id was used before")
        self._recent_ids.append(id_)
        if len(self._prefills) > schema().limits["pendingPrefills"]:
            raise _InvalidPrefill(f"{len(self._prefills)} prefills wait already")
        if not 2 <= len(tokens) <= self._settings.max_prompt_tokens:
            limit = self._settings.max_prompt_tokens
            raise _InvalidPrefill(f"a prompt of {len(tokens)} tokens, allowed are 2 to {limit}")
        if held >= len(tokens) - 1:
            raise _InvalidPrefill(f"{held} of {len(tokens) - 1} rows held leaves none to send")
        if max(tokens) >= self._vocabulary_size:
            raise _InvalidPrefill(f"token {tokens.index(max(tokens))} is not in the vocabulary")
        if not self._placeholders.isdisjoint(tokens):
            raise _InvalidPrefill("image and video input cannot be prefilled here")

    def shut_engine(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()


def _warn_of_version() -> None:
    import vllm  # noqa: PLC0415 - takes seconds

    from .refusals import untested  # noqa: PLC0415 - takes seconds

    if untested(vllm.__version__):
        _log.warning("muser: vLLM %s is not tested: it serves only if layout and self-test are right", vllm.__version__)


def _import_engine() -> Any:
    from . import engine  # noqa: PLC0415 - imports vLLM, which takes seconds

    return engine


def _failed(id_: str, code: str, message: str) -> dict[str, Any]:
    return {"id": id_, "ok": False, "code": code, "message": message[:1000]}


def _failure_of(error: Exception) -> str:
    if is_out_of_memory(error):
        return "OUT_OF_MEMORY"
    return "INVALID_REQUEST" if isinstance(error, ValueError) else "ENGINE_FAILED"


def _end_children() -> None:
    """An engine that is still starting, or hung, has not heard of the end."""
    import psutil  # noqa: PLC0415 - vLLM's dependency

    children = [child for child in psutil.Process().children(recursive=True) if not _ends_with_us(child)]
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs(children, timeout=_END_SECONDS)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _ends_with_us(process: psutil.Process) -> bool:
    """Whether it is multiprocessing's resource tracker, which ignores SIGTERM and ends when nobody uses it any more."""
    import psutil  # noqa: PLC0415 - vLLM's dependency

    try:
        return any("multiprocessing.resource_tracker" in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def main() -> None:
    started_at = time.monotonic()
    # vLLM and its libraries write to standard output; log lines belong on standard error.
    os.dup2(2, 1)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    try:
        settings = read_settings(sys.stdin.fileno())
    except Refused as refused:
        _log.error("muser: %s", refused)
        sys.exit(2)
    prepare_environment(settings)
    asyncio.run(_work(settings, started_at))


async def _work(settings: Settings, started_at: float) -> None:
    worker = Worker(settings, started_at)
    status = 1
    try:
        status = await worker.run()
    except OSError as error:
        _log.error("muser: the producer cannot be reached: %s", kind_of(error))
    finally:
        _leave(worker, status)


def _leave(worker: Worker, status: int) -> None:
    """Ends this process without waiting for anything that may hang: the producer waits until all memory is free.

    Returning would wait for the thread in which an engine is still starting.
    """
    stuck = threading.Timer(_STUCK_SECONDS, _end_all, [status])
    stuck.daemon = True
    stuck.start()
    with contextlib.suppress(Exception):  # a broken engine may refuse even this; its processes are ended next
        worker.shut_engine()
    _end_all(status)


def _end_all(status: int) -> None:
    _end_children()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
