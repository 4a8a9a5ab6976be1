"""A worker that speaks the frames of the bridge with rows that are a function of the prompt, and that fails as it is told to.

Rows are those of pattern-backend.ts. What it is told is in its settings beside the real ones: `ranks`, and `fault`,
"<what>:<when>". Moments, in order: start (connected), weights, kv_cache, warm_up, idle (nothing to do), queued (a second
prefill waits while one computes), prefill, chunk (the first one is announced), middle, last (computed, not said so), read,
sending (in the midst of an answer), done. With `faultOnce`, a file, only the first worker that gets so far fails. With
`family`, a file, every worker makes sure that nothing of those before it is alive. With `noise`, [seed, rate], that share of
its frames is damaged, or another one comes in their place that is in order as such.
"""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from random import Random

from muser_vllm import frames

GEOMETRY = {
    "layers": ["window", "window", "global"],
    "kvHeads": 2,
    "headDimension": 64,
    "windowTokens": 100,
    "ropeBase": 500000.0,
    "ropeLayers": "window",
    "vocabularySize": 1000,
}
HEAD_BYTES = 128
SHARES = {1: [((0, 3), (0, 2))], 4: [((0, 2), (0, 1)), ((0, 2), (1, 2)), ((2, 3), (0, 1)), ((2, 3), (1, 2))]}

settings = json.loads(sys.stdin.readline())
# vLLM's engine is a child that has the same standard error and outlives its parent for a while.
subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
fault, _, moment = settings.get("fault", "").partition(":")


def in_group(pid):
    """Processes of that group that still have memory."""
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, _, group = file.read().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if group == str(pid) and state not in "ZX":
            yield int(name)


if settings.get("family"):
    with open(settings["family"], "a+") as family:
        family.seek(0)
        if any(list(in_group(line.strip())) for line in family):
            print("ERROR something of an earlier worker is alive", file=sys.stderr, flush=True)
            family.write("overlap\n")
        family.write(f"{os.getpid()}\n")


def connect(path):
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    return link


def reach(now, *, prefill=b""):
    """:param prefill: what of a frame is to be sent before the fault, which then happens in its midst"""
    if now != moment or (fault != "late" and settings.get("faultOnce") and os.path.exists(settings["faultOnce"])):
        return
    if settings.get("faultOnce"):
        open(settings["faultOnce"], "w").close()
    if prefill:
        ranks[0].lock.acquire()
        ranks[0].socket.sendall(prefill)
    what, _, where = fault.partition("-")
    if what in SOCKET_FAULTS:
        link = ranks[0] if where == "data" else control
        with link.lock:
            SOCKET_FAULTS[what](link.socket)
    else:
        FAULTS[what]()


def say_and_exit(text, status):
    print(text, file=sys.stderr, flush=True)
    os._exit(status)


def refuse(code):
    for rank in globals().get("ranks", []):
        rank.lock.acquire()
    control.send("refused", {"code": code, "message": "not this one"})
    time.sleep(60)


def send_signal(number):
    os.kill(os.getpid(), number)
    # This thread may run on for a moment.
    time.sleep(60)


def cut(link):
    link.sendall(frames.encode("milestone", {"name": "ready", "ms": 1})[:20])
    link.shutdown(socket.SHUT_WR)


def engine_slow():
    """Its engine has died and with it the data link; the worker itself hears of it later."""
    ranks[0].socket.shutdown(socket.SHUT_RDWR)
    time.sleep(1.5)
    refuse("ENGINE_FAILED")


def starve():
    """Until the kernel kills: the cgroup of `starveIn` has little memory."""
    with open(f"{settings['starveIn']}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20)))


FAULTS = {
    "exit": lambda: say_and_exit("ERROR this is the end", 3),
    "oom": lambda: say_and_exit("torch.OutOfMemoryError: CUDA out of memory", 1),
    "kill": lambda: send_signal(signal.SIGKILL),
    "stop": lambda: send_signal(signal.SIGSTOP),
    "late": lambda: send_signal(signal.SIGSTOP),
    "refuse": lambda: refuse("MODEL_UNSUPPORTED"),
    # As the real one when its engine, a process of its own, is gone.
    "engine": lambda: refuse("ENGINE_FAILED"),
    "engineslow": lambda: engine_slow(),
    "engineoom": lambda: (print("torch.OutOfMemoryError: [1, 2]", file=sys.stderr, flush=True), refuse("ENGINE_FAILED")),
    "starve": starve,
    # Alive, and busy for ever: no abort gets through.
    "deaf": lambda: time.sleep(600),
}
SOCKET_FAULTS = {
    "garbage": lambda link: link.sendall(b"\xff" * 4 + os.urandom(4092)),
    # One direction only, which is what an end of the stream looks like.
    "cut": cut,
    "half": lambda link: link.shutdown(socket.SHUT_WR),
}

class Link:
    def __init__(self, name, path):
        self.name = name
        self.socket = connect(path)
        self.lock = threading.RLock()

    def send(self, kind, header, payload=b""):
        with self.lock:
            self.socket.sendall(noisy(self.name, frames.encode(kind, header, payload)))

    def frames(self):
        stream = self.socket.makefile("rb")
        while prefix := stream.read(4):
            yield frames.decode_body(memoryview(stream.read(frames.body_length(prefix))), self.name, "node")


noise = settings.get("noise")
chance = Random(f"{noise[0]}-{os.getpid()}") if noise else None


def noisy(link, frame):
    if noise is None or chance.random() >= noise[1]:
        return frame
    data = bytearray(frame)
    what = chance.randrange(4)
    if what == 0:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif what == 1:
        del data[chance.randrange(len(data)) :]
    elif what == 2:
        data[:0] = chance.randbytes(chance.randint(1, 40))
    else:
        data[:0] = babble(link)
    return bytes(data)


def babble(link):
    """A frame that is right as such: but nobody has asked for it, or it says another thing than others."""
    small, id_ = chance.randrange(64), chance.choice([*prompts, "nobody"])
    codes = ["UNKNOWN", "RANGE", "CANCELLED", "PREEMPTED", "STAGING_FULL", "LEASE_EXPIRED", "ENGINE_FAILED"]
    if link == "data":
        start = chance.randrange(700)
        chunk = {"id": id_, "index": small, "start": start, "end": start + small, "windowStart": start + small // 2}
        kind, header, payload = chance.choice(
            [
                ("chunk", chunk, b""),
                ("rows", {"read": small}, bytes(2 * chance.randint(1, 4096))),
                ("failed", {"read": small, "code": chance.choice(codes)}, b""),
                ("ended", {"id": id_, "reason": chance.choice([*codes[2:], "DONE"])}, b""),
                ("milestone", {"name": "weights", "ms": small}, b""),
            ]
        )
        return frames.encode(kind, header, payload)
    failed = {"ok": False, "code": chance.choice(["CANCELLED", "OUT_OF_MEMORY", "INVALID_REQUEST"]), "message": "no"}
    fine = {"ok": True, "promptTokens": small, "reusedTokens": 131072, "preemptions": 0}
    kind, header = chance.choice(
        [
            ("finished", {"id": id_, **failed}),
            ("finished", {"id": id_, **fine}),
            ("heartbeat", {"steps": 0, "runningRequests": 65536, "freeMemoryBytes": 2**53 - 1}),
            ("milestone", {"name": "ready", "ms": 86400000}),
            ("refused", {"code": "SELF_TEST_FAILED", "message": "no"}),
        ]
    )
    return frames.encode(kind, header)


class Prompt:
    def __init__(self, header, payload):
        self.id = header["id"]
        self.held = header["heldTokens"]
        tokens = array("I", bytes(payload))
        self.rows = len(tokens) - 1
        self.hashes = []
        value = 17
        for token in tokens:
            value = (value * 31 + token) & 0xFFFFFFFF
            self.hashes.append(value)
        self.aborted = False

    def row(self, token, layer, kind, heads):
        prefix, base = self.hashes[token], layer * 31 + 7 * kind
        return array(
            "H",
            [
                0x1C00 + ((((prefix ^ (base + at)) * 0x9E3779B1) & 0xFFFFFFFF) >> 16) % 0x4000
                for at in range(heads[0] * HEAD_BYTES, heads[1] * HEAD_BYTES, 2)
            ],
        ).tobytes()


class Rank(Link):
    def __init__(self, number, layers, heads):
        super().__init__("data", settings["dataSocket"])
        self.layers, self.heads = layers, heads
        hello = {"role": "data", "secret": settings["secret"], "pid": os.getpid(), "rank": number}
        self.send("hello", {**hello, "layers": list(layers), "heads": list(heads)})
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        for frame in self.frames():
            header = frame.header
            if frame.kind == "done":
                prompts.pop(header["id"], None)
                reach("done")
            if frame.kind != "read":
                continue
            reach("read")
            prompt = prompts.get(header["id"])
            if prompt is None:
                self.send("failed", {"read": header["read"], "code": "UNKNOWN"})
                continue
            tokens = range(header["tokenStart"], header["tokenStart"] + header["tokenCount"])
            rows = [prompt.row(t, layer, kind, self.heads) for layer, kind in header["parts"] for t in tokens]
            answer = frames.encode("rows", {"read": header["read"]}, b"".join(rows))
            reach("sending", prefill=answer[: len(answer) // 2])
            with self.lock:
                self.socket.sendall(answer)


def compute(prompt):
    reach("prefill")
    step = settings["chunkTokens"]
    index = 0
    for start in range(0, prompt.rows, step):
        time.sleep(0.002)
        if prompt.aborted:
            return control.send("finished", {"id": prompt.id, "ok": False, "code": "CANCELLED", "message": "aborted"})
        end = min(start + step, prompt.rows)
        if end <= prompt.held:
            continue
        first = max(start, prompt.held)
        window = max(first, end - GEOMETRY["windowTokens"])
        for rank in ranks:
            chunk = {"id": prompt.id, "index": index, "start": first, "end": end, "windowStart": window}
            rank.send("chunk", chunk)
        index += 1
        reach("chunk")
        if 2 * end > prompt.rows:
            reach("middle")
    reach("last")
    control.send("finished", {"id": prompt.id, "ok": True, "promptTokens": prompt.rows + 1, "reusedTokens": 0, "preemptions": 0})


def beat():
    for count in itertools.count():
        if count == 2:
            reach("idle")
        control.send("heartbeat", {"steps": int(time.monotonic() * 1000), "runningRequests": len(prompts), "freeMemoryBytes": 1 << 40})
        time.sleep(0.1)


def until_parent_is_gone():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=until_parent_is_gone, daemon=True).start()
prompts = {}
control = Link("control", settings["controlSocket"])
control.send("hello", {"role": "control", "secret": settings["secret"], "pid": os.getpid(), "version": "0"})
reach("start")
control.send("milestone", {"name": "weights", "ms": 5})
reach("weights")
ranks = [Rank(number, *share) for number, share in enumerate(SHARES[settings.get("ranks", 1)])]
reach("kv_cache")
reach("warm_up")
control.send(
    "ready",
    {
        "vllmVersion": "0.32.0",
        "backendName": "FAKE",
        "layout": "none",
        "blockSizes": [16],
        "geometry": GEOMETRY,
        "tokenizerSha256": "00" * 32,
        "maxPromptTokens": settings["maxPromptTokens"],
        "chunkTokens": settings["chunkTokens"],
        "wireTypes": ["bf16"],
        "kvBlocksBytes": 1,
        "ranks": len(ranks),
        "warnings": [],
    },
)
threading.Thread(target=beat, daemon=True).start()
for frame in control.frames():
    if frame.kind == "prefill":
        if prompts:
            reach("queued")
        prompts[frame.header["id"]] = prompt = Prompt(frame.header, frame.payload)
        threading.Thread(target=compute, args=[prompt], daemon=True).start()
    elif frame.kind == "abort" and (prompt := prompts.get(frame.header["id"])):
        prompt.aborted = True
    elif frame.kind == "shutdown":
        os._exit(0)
