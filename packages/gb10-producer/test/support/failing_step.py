"""The real worker, whose engine fails in the second step of prompts that begin with certain tokens, and quotes them."""

import sys


def patch():
    import torch

    from muser_vllm.worker_half import WorkerHalf
    from vllm.v1.core.sched.scheduler import Scheduler

    errors = {7: RuntimeError, 8: torch.OutOfMemoryError}
    schedule, begin_step = Scheduler.schedule, WorkerHalf.begin_step
    failure = []

    def schedule_and_look(self, *arguments, **named):
        for request in self.running:
            tokens = request.prompt_token_ids
            if tokens[0] in errors and request.num_computed_tokens > 0:
                failure.append(errors[tokens[0]](f"cannot compute {tokens}"))
        return schedule(self, *arguments, **named)

    def begin_or_fail(self, metadata):
        if failure:
            # To standard error as well, as libraries do that have no logger.
            print(failure[0], file=sys.stderr, flush=True)
            raise failure[0]
        return begin_step(self, metadata)

    Scheduler.schedule, WorkerHalf.begin_step = schedule_and_look, begin_or_fail


if __name__ == "__mp_main__":
    patch()
elif __name__ == "__main__":
    from muser_vllm.worker import main

    main()
