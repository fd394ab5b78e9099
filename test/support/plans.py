"""Compressor plans, spelled out byte by byte from SGLang's C++ structs."""

import struct

import torch

INVALID_SEQ_LEN = 0xFFFFFFFF


def decode_plan(ratio, seq_lens, device="cpu"):
    from sglang.kernels.ops.attention.dsv4 import CompressorDecodePlan

    rows = [struct.pack("<Iiii", length, 7, 8, 9) for length in seq_lens]
    return CompressorDecodePlan(ratio, _tensor(rows, 16, device))


def prefill_plan(ratio, rows, device="cpu"):
    """``rows``: (seq_len, ragged_id) pairs; INVALID_SEQ_LEN makes padding."""
    from sglang.kernels.ops.attention.dsv4 import CompressorPrefillPlan

    # buffer_len shares a word with ragged_id: it must not leak into it.
    packed = [struct.pack("<IHHii", length, ragged, 3, 8, 9) for length, ragged in rows]
    writes = torch.empty((0, 8), dtype=torch.uint8, device=device)
    return CompressorPrefillPlan(ratio, _tensor(packed, 16, device), writes)


def _tensor(rows, width, device):
    data = bytearray(b"".join(rows))
    if not data:
        return torch.empty((0, width), dtype=torch.uint8, device=device)
    return torch.frombuffer(data, dtype=torch.uint8).view(-1, width).to(device)
