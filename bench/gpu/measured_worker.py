"""The worker, whose connector tells how much it stages."""

import changed_worker

if __name__ == "__main__":
    changed_worker.run(lambda _arguments, _settings: None)
