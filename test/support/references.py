"""References in FP64, sharing no code with what they check."""

import math

import torch


def norm_rope_reference(kv, weight, eps, freqs_cis, positions):
    """Row by row, in FP64, with cosines and sines spelled out."""
    finished = []
    for row, position in zip(kv.double(), positions.tolist(), strict=True):
        normed = row / math.sqrt((row @ row).item() / 512 + eps) * weight.double()
        for pair in range(32):
            a, b = normed[448 + 2 * pair].item(), normed[449 + 2 * pair].item()
            turn = complex(freqs_cis[position, pair].item())
            rotated = complex(a, b) * turn
            normed[448 + 2 * pair], normed[449 + 2 * pair] = rotated.real, rotated.imag
        finished.append(normed)
    return torch.stack(finished)


def attention_reference(q, candidate_rows, attn_sink, softmax_scale):
    """``candidate_rows``: for each token the ``[n, 512]`` rows it may attend to.

    Returns FP64 outputs ``[tokens, heads, 512]`` and natural-log LSE without the
    sink ``[tokens, heads]``.
    """
    outputs, lses = [], []
    for query, rows in zip(q.double(), candidate_rows, strict=True):
        if len(rows) == 0:
            outputs.append(torch.zeros(query.shape, dtype=torch.float64))
            lses.append(torch.full(query.shape[:1], -math.inf, dtype=torch.float64))
            continue
        logits = query @ rows.double().T * softmax_scale
        top = logits.max(dim=1, keepdim=True).values
        if attn_sink is not None:
            top = torch.maximum(top, attn_sink.double()[:, None])
        # An infinite sink takes all the weight.
        weights = torch.where(torch.isinf(top), 0.0, torch.exp(logits - top))
        total = weights.sum(dim=1, keepdim=True)
        if attn_sink is not None:
            total = total + torch.exp(attn_sink.double()[:, None] - top).nan_to_num(1.0)
        outputs.append(weights / total @ rows.double())
        lses.append(torch.logsumexp(logits, dim=1))
    return torch.stack(outputs), torch.stack(lses)


def rope_table(length):
    angles = torch.rand(length, 32, generator=torch.Generator().manual_seed(9)) * 6.28
    return torch.polar(torch.ones_like(angles), angles)
