"""muser_vllm's worker with two engine settings of its own: several prefills take turns within a step, so that together
they can outgrow a small cache and be preempted (vLLM otherwise finishes one prefill before the next), and the connector
tells how much it stages."""

from __future__ import annotations

from typing import Any

from muser_vllm import worker

import measured_connector


def main() -> None:
    import_engine = worker._import_engine

    def import_constrained_engine() -> Any:
        engine = import_engine()
        arguments_of = engine.engine_arguments

        def engine_arguments(settings: Any, started_at: float) -> Any:
            arguments = arguments_of(settings, started_at)
            arguments.long_prefill_token_threshold = settings.chunk_tokens // settings.max_concurrent
            arguments.kv_transfer_config.kv_connector = measured_connector.MeasuredConnector.__name__
            arguments.kv_transfer_config.kv_connector_module_path = measured_connector.__name__
            return arguments

        engine.engine_arguments = engine_arguments
        return engine

    worker._import_engine = import_constrained_engine
    worker.main()


if __name__ == "__main__":
    main()
