"""What a model's KV cache looks like and which tokens it knows, in the terms that the decoder's GGUF file gives too."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Any, Literal

from .refusals import Refused, has_windows, refuse_unsupported

LayerKind = Literal["global", "window"]


def geometry_of(text_config: Any, kv_heads: int, head_dimension: int) -> dict[str, Any]:
    """The schema's `geometry`.

    :param text_config: the Hugging Face configuration of the language model
    :raises Refused: MODEL_UNSUPPORTED
    """
    layers = layer_kinds(text_config)
    return {
        "layers": layers,
        "kvHeads": kv_heads,
        "headDimension": head_dimension,
        "windowTokens": int(text_config.sliding_window) if "window" in layers else 0,
        **_rope(text_config, layers),
        "vocabularySize": int(text_config.vocab_size),
    }


def checked_geometry(config: Any) -> dict[str, Any]:
    """The schema's `geometry` of what vLLM is set up for; loaded weights are not needed.

    :param config: vLLM's configuration
    :raises Refused: SETTINGS_INVALID, MODEL_UNSUPPORTED
    """
    refuse_unsupported(config)
    model = config.model_config
    return geometry_of(model.hf_text_config, model.get_total_num_kv_heads(), model.get_head_size())


def layer_kinds(text_config: Any) -> list[LayerKind]:
    """:raises Refused: MODEL_UNSUPPORTED"""
    count = int(text_config.num_hidden_layers)
    kinds = getattr(text_config, "layer_types", None)
    if kinds is None:
        return ["window" if has_windows(text_config) else "global"] * count
    names: dict[str, LayerKind] = {"full_attention": "global", "sliding_attention": "window"}
    unknown = sorted(set(kinds) - set(names))
    if unknown or len(kinds) != count:
        raise Refused("MODEL_UNSUPPORTED", f"layers of the kinds {unknown or kinds} cannot be handed over")
    return [names[kind] for kind in kinds]


def _rope(text_config: Any, layers: list[LayerKind]) -> dict[str, Any]:
    bases = _rope_bases(text_config, layers)
    used = set(bases) - {0.0}
    if len(used) != 1:
        raise Refused("MODEL_UNSUPPORTED", f"RoPE bases {sorted(used)}: one for all layers is needed")
    base = used.pop()
    number = int(base) if base.is_integer() else base
    if all(bases):
        return {"ropeBase": number, "ropeLayers": "all"}
    if all((base != 0) == (kind == "window") for base, kind in zip(bases, layers, strict=True)):
        return {"ropeBase": number, "ropeLayers": "window"}
    raise Refused("MODEL_UNSUPPORTED", "only all layers, or the window layers, may have RoPE")


def _rope_bases(text_config: Any, layers: list[LayerKind]) -> list[float]:
    """The base of each layer, 0 where K does not turn."""
    parameters = getattr(text_config, "rope_parameters", None) or {}
    names = {"global": "full_attention", "window": "sliding_attention"}
    # Some models have parameters for each kind of layer.
    own = [parameters.get(names[kind], parameters) for kind in layers]
    for each in own:
        _refuse_other_rope(text_config, each)
    common = [each.get("rope_theta", getattr(text_config, "rope_theta", None)) for each in own]
    bases = list(getattr(text_config, "layer_rope_theta", None) or common)
    # Despite its name, it has a 1 for every layer that does turn.
    turning = getattr(text_config, "no_rope_layers", None) or [1] * len(layers)
    if len(bases) != len(layers) or len(turning) != len(layers) or any(base is None for base in bases):
        raise Refused("MODEL_UNSUPPORTED", "the RoPE base of every layer cannot be told")
    return [float(base) if turns else 0.0 for base, turns in zip(bases, turning, strict=True)]


def _refuse_other_rope(text_config: Any, parameters: dict[str, Any]) -> None:
    """A hand-off compares the base alone, so everything else that changes K must be absent."""
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise Refused("MODEL_UNSUPPORTED", f"RoPE is scaled ({kind}): a hand-off compares the base alone")
    if parameters.get("mrope_section") is not None:
        raise Refused("MODEL_UNSUPPORTED", "RoPE has sections (M-RoPE)")
    part = parameters.get("partial_rotary_factor", getattr(text_config, "partial_rotary_factor", None))
    if part not in (None, 1):
        raise Refused("MODEL_UNSUPPORTED", f"RoPE turns {part} of each head only")


def own_heads(kv_heads: int, tensor_parallel: int, rank: int) -> tuple[int, int]:
    """KV heads [first, end) of a tensor-parallel rank. With more ranks than heads, several keep the same one."""
    if kv_heads >= tensor_parallel:
        each = kv_heads // tensor_parallel
        return rank * each, (rank + 1) * each
    first = rank // (tensor_parallel // kv_heads)
    return first, first + 1


def tokenizer_sha256(tokenizer: Any, vocabulary_size: int) -> str:
    """SHA-256 over u32 LE length and bytes of every token in id order, hexadecimal, as llama.cpp gives the pieces.

    Special and added tokens are their text, others are the bytes that byte-level BPE's letters stand for, and ids that
    the tokenizer does not use are empty.

    :raises Refused: MODEL_UNSUPPORTED, the tokenizer is not byte-level BPE
    """
    added = {int(id_): str(token) for id_, token in tokenizer.added_tokens_decoder.items()}
    letters = {letter: byte for byte, letter in _byte_letters()}
    digest = hashlib.sha256()
    for id_, text in enumerate(_tokens(tokenizer, vocabulary_size)):
        if text is None:
            piece = b""
        elif id_ in added:
            piece = added[id_].encode()
        elif all(letter in letters for letter in text):
            piece = bytes(letters[letter] for letter in text)
        else:
            raise Refused("MODEL_UNSUPPORTED", f"token {id_} is not byte-level BPE: the tokenizers cannot be compared")
        digest.update(struct.pack("<I", len(piece)) + piece)
    return digest.hexdigest()


def _tokens(tokenizer: Any, vocabulary_size: int) -> Iterable[str | None]:
    known: dict[int, str] = {int(id_): token for token, id_ in tokenizer.get_vocab().items()}
    return (known.get(id_) for id_ in range(vocabulary_size))


def _byte_letters() -> Iterable[tuple[int, str]]:
    """GPT-2's alphabet: printable bytes are themselves, the others are moved behind U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = 0
    for byte in range(256):
        if byte in printable:
            yield byte, chr(byte)
        else:
            yield byte, chr(0x100 + moved)
            moved += 1
