"""Prompts that every machine makes alike: needle questions for muse-nano, and tokens without meaning."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

EXPECTED_ANSWER = "amber-falcon-42"

_HEAD = "<|begin_of_text|><|start|>system<|message|>You are a helpful AI assistant.<|eot|><|start|>user<|message|>"
_TAIL = "\n\nWhat is the access code for Torvina?<|eot|><|start|>assistant to=user<|message|>"
_NAMES = ["Anna", "Bert", "Clara", "David", "Emil", "Frida", "Greta", "Hans", "Ida", "Jonas"]
_PLACES = ["Lisbon", "Oslo", "Kyoto", "Lima", "Prague", "Dublin", "Cairo", "Quito"]
_THINGS = ["tape", "lamp", "ledger", "kettle", "violin", "camera", "ladder", "basket"]
_SHORTEST_SENTENCE_TOKENS = 6
_FIRST_ORDINARY_TOKEN = 300


@dataclass(frozen=True)
class Prompt:
    """:ivar tokens: the whole prompt; rows of all but the last one are exported"""

    name: str
    tokens: list[int]


def needle_prompt(model: Path, length: int, seed: int) -> Prompt:
    """A document of `length` tokens with the question at its end. The same arguments give the same tokens."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - not needed by who only imports this module

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    generator = random.Random(seed)  # noqa: S311 - a document, no secret
    sentences = [
        f"{generator.choice(_NAMES)} keeps the {generator.choice(_THINGS)} number {generator.randint(1, 999)}"
        f" in {generator.choice(_PLACES)}."
        for _ in range(length // _SHORTEST_SENTENCE_TOKENS)
    ]
    sentences.insert(len(sentences) // 6, f"The access code for Torvina is {EXPECTED_ANSWER}.")
    head, body, tail = (
        tokenizer.encode(text, add_special_tokens=False).ids for text in (_HEAD, " ".join(sentences), _TAIL)
    )
    return Prompt(f"needle-{length}", head + body[: length - len(head) - len(tail)] + tail)


def ordinary_tokens(count: int, vocabulary_size: int, seed: int) -> list[int]:
    """No special ones. What they say does not matter to speed."""
    generator = random.Random(seed)  # noqa: S311 - as above
    return [generator.randrange(_FIRST_ORDINARY_TOKEN, vocabulary_size) for _ in range(count)]
