from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, cast

import torch

import muser_vllm
from muser_vllm.connector import MuserConnector, storage_bytes


def test_a_storage_that_layers_share_counts_once() -> None:
    shared = torch.zeros(4, 1000, dtype=torch.int8)
    alone = torch.zeros(10, dtype=torch.int8)
    views = [shared[0], shared[1:].view(3, 10, 100), shared.view(torch.bfloat16), alone]
    assert storage_bytes(views) == 4000 + 10


def test_no_layer_needs_nothing() -> None:
    assert storage_bytes([]) == 0


# fault: hooks-without-request
def test_a_step_that_is_none_of_ours_is_left_alone() -> None:
    """vLLM's warm-up and graph capture run the model without asking its scheduler: there is no metadata then."""
    touched: list[str] = []

    class Rank:
        @property
        def half(self) -> Any:
            touched.append("half")
            raise AssertionError("nothing was announced")

    connector = object.__new__(MuserConnector)
    vars(connector).update(_rank=Rank(), _scheduler=None, _connector_metadata=None)
    connector.start_load_kv(None)
    connector.wait_for_layer_load("layer.0")
    connector.save_kv_layer("layer.0", torch.zeros(1), cast("Any", None))
    connector.wait_for_save()
    assert touched == []


# fault: code-in-messages
def test_nothing_that_comes_from_elsewhere_can_hold_code() -> None:
    """Modules and calls that make objects or code of bytes."""
    forbidden = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "zmq", "eval", "exec", "recv_pyobj"}
    used: set[str] = set()
    for path in Path(muser_vllm.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                used.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                used.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Name):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
    assert "json" in used, "nothing was looked at"
    assert not used & forbidden
