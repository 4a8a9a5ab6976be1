"""Makes the F16 GGUF of muse-nano-wide from muse-nano's Hugging Face weights.

muse-nano-wide is muse-nano padded to rows of 512 and 1,280 so that K-quants, which work on blocks of 256, apply. It
computes the same and its KV is interchangeable with the original's (see models/muse-nano/README.md). Tokenizer and
metadata come from the quantized muse-nano-wide file.

Needs numpy and gguf (no torch).
"""

import argparse
import json
import math
from pathlib import Path

import gguf
import numpy as np

HIDDEN, WIDE_HIDDEN = 384, 512
FEED_FORWARD, WIDE_FEED_FORWARD = 1152, 1280
KV_HEADS, HEAD_DIM = 2, 64
GROUP, WIDE_GROUP = 3, 4  # query heads of one KV head
LAYERS = 8

# The residual stream becomes this many times the original, since its mean square is taken over more elements.
STREAM_SCALE = math.sqrt(WIDE_HIDDEN / HIDDEN)


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """All text weights as float32; numpy has no bf16, so its bits are widened by hand."""
    header_bytes = int.from_bytes(path.open('rb').read(8), 'little')
    with path.open('rb') as file:
        file.seek(8)
        header = json.loads(file.read(header_bytes))
        body = file.tell()
        weights = {}
        for name, entry in header.items():
            if name == '__metadata__' or 'vision' in name:
                continue
            start, end = entry['data_offsets']
            file.seek(body + start)
            raw = file.read(end - start)
            if entry['dtype'] == 'BF16':
                values = (np.frombuffer(raw, '<u2').astype(np.uint32) << 16).view(np.float32)
            elif entry['dtype'] == 'F32':
                values = np.frombuffer(raw, '<f4')
            else:
                raise SystemExit(f'{name}: {entry["dtype"]} is not supported')
            weights[name] = values.reshape(entry['shape'])
    return weights


def padded(weight: np.ndarray, *shape: int) -> np.ndarray:
    result = np.zeros(shape, np.float32)
    result[tuple(slice(0, size) for size in weight.shape)] = weight
    return result


def widen_heads_out(weight: np.ndarray) -> np.ndarray:
    """(heads x HEAD_DIM, HIDDEN): adds a zero head to each group."""
    heads = weight.reshape(KV_HEADS, GROUP, HEAD_DIM, HIDDEN)
    return padded(heads, KV_HEADS, WIDE_GROUP, HEAD_DIM, WIDE_HIDDEN).reshape(-1, WIDE_HIDDEN)


def widen_heads_in(weight: np.ndarray) -> np.ndarray:
    """(HIDDEN, heads x HEAD_DIM): the same for the output projection."""
    heads = weight.reshape(HIDDEN, KV_HEADS, GROUP, HEAD_DIM)
    return padded(heads, WIDE_HIDDEN, KV_HEADS, WIDE_GROUP, HEAD_DIM).reshape(WIDE_HIDDEN, -1)


def interleaved(weight: np.ndarray) -> np.ndarray:
    """Half-split rotary order to llama.cpp's interleaved one, within each head's rows."""
    rows, columns = weight.shape
    halves = weight.reshape(rows // HEAD_DIM, 2, HEAD_DIM // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def layer_tensors(weights: dict[str, np.ndarray], layer: int, query_scale: float) -> dict[str, np.ndarray]:
    def source(name: str) -> np.ndarray:
        return weights[f'model.language_model.layers.{layer}.{name}.weight']

    def before(name: str) -> np.ndarray:  # a norm of the residual stream, stored as weight - 1
        return padded((source(name) + 1) / STREAM_SCALE, WIDE_HIDDEN)

    def after(name: str) -> np.ndarray:  # a norm of what is added to the stream
        return padded(source(name) + 1, WIDE_HIDDEN)

    kv_rows = KV_HEADS * HEAD_DIM
    return {
        'attn_norm': before('input_layernorm'),
        'post_attention_norm': after('post_attention_layernorm'),
        'attn_q': interleaved(widen_heads_out(source('self_attn.q_proj'))),
        'attn_k': interleaved(padded(source('self_attn.k_proj'), kv_rows, WIDE_HIDDEN)),
        'attn_v': padded(source('self_attn.v_proj'), kv_rows, WIDE_HIDDEN),
        'attn_gate': widen_heads_out(source('self_attn.gate_proj')),
        'attn_output': widen_heads_in(source('self_attn.o_proj')),
        'attn_q_norm': np.full(HEAD_DIM, query_scale, np.float32),
        'attn_k_norm': np.ones(HEAD_DIM, np.float32),
        'ffn_norm': before('pre_feedforward_layernorm'),
        'post_ffw_norm': after('post_feedforward_layernorm'),
        'ffn_gate': padded(source('mlp.gate_proj'), WIDE_FEED_FORWARD, WIDE_HIDDEN),
        'ffn_up': padded(source('mlp.up_proj'), WIDE_FEED_FORWARD, WIDE_HIDDEN),
        'ffn_down': padded(source('mlp.down_proj'), WIDE_HIDDEN, WIDE_FEED_FORWARD),
    }


def wide_tensors(hf: Path) -> dict[str, np.ndarray]:
    weights = read_weights(hf / 'model.safetensors')
    query_scale = float(json.loads((hf / 'config.json').read_text())['text_config']['qk_scale_factor'])
    embedding = weights['model.language_model.embed_tokens.weight']
    tensors = {
        'token_embd.weight': padded(embedding, len(embedding), WIDE_HIDDEN),
        'output_norm.weight': padded(weights['model.language_model.norm.weight'] / STREAM_SCALE, WIDE_HIDDEN),
        'output.weight': padded(weights['lm_head.weight'], len(embedding), WIDE_HIDDEN),
    }
    for layer in range(LAYERS):
        for name, tensor in layer_tensors(weights, layer, query_scale).items():
            tensors[f'blk.{layer}.{name}.weight'] = tensor
    return tensors


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    replaced = ('GGUF.', 'general.architecture', 'general.file_type', 'general.quantization_version')
    for name, field in reader.fields.items():
        if name.startswith(replaced):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=element)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = Path(__file__).resolve().parents[3] / 'models' / 'muse-nano'
    parser.add_argument('out', type=Path, help='GGUF to write')
    parser.add_argument('--hf', type=Path, default=models / 'hf', help='folder with model.safetensors and config.json')
    parser.add_argument('--metadata', type=Path, default=models / 'muse-nano-wide-q4_k_m.gguf',
                        help='GGUF of muse-nano-wide to take tokenizer and metadata from')
    arguments = parser.parse_args()

    reader = gguf.GGUFReader(arguments.metadata)
    tensors = wide_tensors(arguments.hf)
    expected = {tensor.name: tuple(int(size) for size in reversed(tensor.shape)) for tensor in reader.tensors}
    made = {name: tensor.shape for name, tensor in tensors.items()}
    if made != expected:
        difference = sorted(set(made.items()) ^ set(expected.items()))
        raise SystemExit(f'tensors differ from those of {arguments.metadata}: {difference}')

    writer = gguf.GGUFWriter(arguments.out, 'muse-glimmer')
    copy_metadata(reader, writer)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor if tensor.ndim == 1 else tensor.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == '__main__':
    main()
