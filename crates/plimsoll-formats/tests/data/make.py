#!/usr/bin/env python3
"""Writes the files in this folder with the formats' own libraries.

Needs: pip install torch safetensors gguf numpy. Run from this folder: python make.py
The files hold no real weights, only small patterns; each is below 20 kB.
"""

import collections
import json
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent


def safetensors_file():
    tensors = {
        "model.embed.weight": torch.zeros(16, 8, dtype=torch.bfloat16),
        "model.norm.weight": torch.ones(8, dtype=torch.float32),
        "model.scale": torch.tensor(1.0, dtype=torch.float64),
        "model.fp8": torch.zeros(4, 4, dtype=torch.float8_e4m3fn),
        "model.ids": torch.arange(5, dtype=torch.int64),
        "model.flags": torch.tensor([True, False, True]),
        "model.empty": torch.zeros(0, 3, dtype=torch.float16),
    }
    save_file(tensors, HERE / "small.safetensors", metadata={"format": "pt", "note": "naïve"})


def gguf_file(name, quantized=True, split=None):
    writer = gguf.GGUFWriter(HERE / name, "llama")
    writer.add_block_count(2)
    writer.add_context_length(4096)
    writer.add_embedding_length(256)
    writer.add_head_count(8)
    writer.add_head_count_kv([2, 4])
    writer.add_rope_freq_base(500000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"tok{n}" for n in range(600)] if split is None else ["a"])
    writer.add_token_scores([0.0] * (600 if split is None else 1))
    writer.add_key_value("llama.many", [1] * 5000, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8)
    writer.add_bool("llama.flag", True)
    writer.add_int32("llama.negative", -3)
    if split is not None:
        number, count = split
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", 2 * count)
    prefix = "" if split is None else f"part{split[0]}."
    if quantized:
        rows = np.linspace(-1, 1, 4 * 256, dtype=np.float32).reshape(4, 256)
        q8 = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(prefix + "blk.0.attn_q.weight", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    else:
        writer.add_tensor(prefix + "blk.0.attn_q.weight", np.zeros((2, 32), dtype=np.float16))
    writer.add_tensor(prefix + "output_norm.weight", np.ones(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Net(torch.nn.Module):
    """A module whose class no reader can know."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))


def torch_files():
    torch.manual_seed(0)
    net = Net()
    state = net.state_dict()
    torch.save(state, HERE / "state_dict.pt")
    torch.save(net, HERE / "module.pt")
    torch.save(state, HERE / "legacy.pt", _use_new_zipfile_serialization=False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    sum(p.sum() for p in net.parameters()).backward()
    optimizer.step()
    base = torch.arange(24, dtype=torch.float16)
    checkpoint = {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "loss": 0.25,
        "big": 1 << 80,
        "view": base[4:16].reshape(3, 4),
        "whole": base,
        "fp8": torch.zeros(6, dtype=torch.float8_e4m3fn),
        "bf16": torch.zeros(2, 2, dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.zeros(3)),
        "list": [torch.zeros(1), (torch.zeros(2), {"x": torch.zeros(3)})],
        "numpy": np.float64(1.5),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "ordered": collections.OrderedDict(a=1),
        "meta": torch.zeros(7, device="meta"),
        "sparse": torch.eye(3).to_sparse(),
        "bytes": b"\x00\x01",
        7: "an integer key",
    }
    torch.save(checkpoint, HERE / "checkpoint.pt")
    torch.save(checkpoint, HERE / "checkpoint_p5.pt", pickle_protocol=5)


def subclass_file():
    from torch.testing._internal.two_tensor import TwoTensor

    torch.save({"w": TwoTensor(torch.zeros(3, 4), torch.zeros(3, 4))}, HERE / "subclass.pt")


def main():
    safetensors_file()
    gguf_file("small.gguf")
    for number in range(2):
        gguf_file(f"split-{number + 1:05}-of-00002.gguf", quantized=False, split=(number, 2))
    torch_files()
    subclass_file()
    index = {
        "metadata": {"total_size": 672},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    (HERE / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


if __name__ == "__main__":
    main()
