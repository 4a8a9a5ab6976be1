"""muser_vllm's worker with engine settings that the product does not have: for checks only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muser_vllm import worker

import measured_connector


def run(change: Callable[[Any, Any], None]) -> None:
    """The worker, whose connector tells how much it stages.

    :param change: gets vLLM's engine arguments, to change them, and the worker's settings
    """
    import_engine = worker._import_engine

    def import_changed_engine() -> Any:
        engine = import_engine()
        arguments_of = engine.engine_arguments

        def engine_arguments(settings: Any, started_at: float) -> Any:
            arguments = arguments_of(settings, started_at)
            arguments.kv_transfer_config.kv_connector = measured_connector.MeasuredConnector.__name__
            arguments.kv_transfer_config.kv_connector_module_path = measured_connector.__name__
            change(arguments, settings)
            return arguments

        engine.engine_arguments = engine_arguments
        return engine

    worker._import_engine = import_changed_engine
    worker.main()
