"""vLLM's half of the muser producer: a KV connector and the process that it runs in."""

__version__ = "0.1.0"
