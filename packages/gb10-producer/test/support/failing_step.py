"""The real worker, whose rank fails in the second step of prompts that begin with certain tokens, and quotes them."""

import sys


def patch():
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    errors = {101: RuntimeError, 102: torch.OutOfMemoryError}
    execute_model = GPUModelRunner.execute_model

    def execute_or_fail(self, *arguments, **named):
        for request in self.requests.values():
            tokens = request.prompt_token_ids
            if tokens[0] in errors and request.num_computed_tokens > 0:
                error = errors[tokens[0]](f"cannot compute {tokens}")
                # To standard error as well, as libraries do that have no logger.
                print(error, file=sys.stderr, flush=True)
                raise error
        return execute_model(self, *arguments, **named)

    GPUModelRunner.execute_model = execute_or_fail


# The engine and its ranks are children that import this file anew.
if __name__ == "__mp_main__":
    patch()
elif __name__ == "__main__":
    from muser_vllm.worker import main

    main()
