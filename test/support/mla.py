"""Attention calls of the Triton kernels, and what they must come to."""

import torch
from support.references import attention_reference

from sglang_dsv4_nvfp4.attention import triton_backend
from sglang_dsv4_nvfp4.attention.inputs import CandidateSet, SparseMLAInputs
from sglang_dsv4_nvfp4.layout import (
    BYTES_PER_TOKEN,
    DATA_BYTES,
    LATENT_DIM,
    NOPE_BYTES,
    NUM_GROUPS,
    SCALE_BYTES,
)
from sglang_dsv4_nvfp4.quantize import dequantize

# BF16 weights times BF16 rows, summed in FP32: half a BF16 step each, and the output's
# rounding; partial results are rounded once more. The interpreter cuts BF16 numbers off
# where a GPU rounds them: a whole step instead of half.
_RELATIVE_ERROR = {"cuda": 2.0**-8, "cpu": 2.0**-7}
_TOLERANCE = {"cuda": 2.0**-7, "cpu": 2.0**-6}


def random_cache(generator, num_pages, page_size, device):
    """Pages of random codes with scales around 1 and RoPE values of a normal size."""
    pages = torch.randint(
        0, 256, (num_pages, page_size * BYTES_PER_TOKEN), generator=generator
    ).to(torch.uint8)
    data = pages[:, : page_size * DATA_BYTES].view(num_pages, page_size, DATA_BYTES)
    rope = torch.randn(num_pages, page_size, 64, generator=generator).bfloat16()
    data[:, :, NOPE_BYTES:] = rope.view(torch.uint8)
    scales = pages[:, page_size * DATA_BYTES :].view(num_pages, page_size, SCALE_BYTES)
    drawn = torch.rand(num_pages, page_size, NUM_GROUPS, generator=generator) + 0.25
    scales[:, :, :NUM_GROUPS] = drawn.to(torch.float8_e4m3fn).view(torch.uint8)
    scales[:, :, NUM_GROUPS:] = 0
    return pages.view(num_pages, page_size, BYTES_PER_TOKEN).to(device)


def valid_rows(part, token):
    """The rows that a query may attend to."""
    row = part.indices[token]
    if part.lengths is not None:
        row = row[: max(int(part.lengths[token]), 0)]
    return dequantize(part.cache, row[row >= 0]).cpu()


def kernels(device):
    """``use_hopper`` for each kernel that a device can run."""
    return (False, True) if triton_backend.is_hopper(torch.device(device)) else (False,)


class Case:
    """Random calls on a device, and the kernels that can serve them there."""

    def __init__(self, generator, device):
        self.generator = generator
        self.device = device
        self.kernels = kernels(device)

    def inputs(
        self,
        tokens,
        heads=8,
        width=70,
        page_size=64,
        extra_width=40,
        extra_page_size=2,
        num_slots=300,
        with_lengths=True,
        with_sink=True,
    ):
        extra = None
        if extra_page_size:
            extra = self._candidates(
                tokens, extra_width, extra_page_size, num_slots, with_lengths
            )
        sink = torch.randn(heads, generator=self.generator).to(self.device)
        q = torch.randn(tokens, heads, LATENT_DIM, generator=self.generator)
        return SparseMLAInputs(
            q=q.bfloat16().to(self.device),
            main=self._candidates(tokens, width, page_size, num_slots, with_lengths),
            extra=extra,
            attn_sink=sink if with_sink else None,
            softmax_scale=LATENT_DIM**-0.5,
        )

    def run(self, inputs, num_splits, use_hopper):
        return triton_backend.run(inputs, num_splits, use_hopper=use_hopper)

    def check(self, inputs, num_splits, exact=False):
        """Each kernel against FP64; ``exact`` for outputs that are one row."""
        parts = [part for part in (inputs.main, inputs.extra) if part is not None]
        rows = [
            torch.cat([valid_rows(part, token) for part in parts])
            for token in range(inputs.q.shape[0])
        ]
        sink = None if inputs.attn_sink is None else inputs.attn_sink.cpu()
        expected, expected_lse = attention_reference(
            inputs.q.cpu(), rows, sink, inputs.softmax_scale
        )
        for use_hopper in self.kernels:
            output, lse = self.run(inputs, num_splits, use_hopper)
            output, lse = output.cpu().double(), lse.cpu().double()
            if exact:
                torch.testing.assert_close(output, expected, atol=0, rtol=0)
            error = (output - expected).norm() / expected.norm().clamp(min=1e-30)
            assert error <= _RELATIVE_ERROR[self.device] or not expected.any(), (
                use_hopper,
                error,
            )
            tolerance = _TOLERANCE[self.device]
            largest = float(expected.abs().max())
            torch.testing.assert_close(
                output, expected, atol=largest * tolerance, rtol=tolerance
            )
            torch.testing.assert_close(lse, expected_lse, atol=1e-3, rtol=1e-5)

    def _candidates(self, tokens, width, page_size, num_slots, with_lengths):
        num_pages = -(-num_slots // page_size)
        drawn = torch.randint(
            0, num_pages * page_size, (tokens, width), generator=self.generator
        )
        # Some that are no candidates, at random places.
        hole = torch.rand(tokens, width, generator=self.generator) < 0.1
        lengths = torch.randint(
            0, width + 1, (tokens,), generator=self.generator, dtype=torch.int32
        )
        return CandidateSet(
            cache=random_cache(self.generator, num_pages, page_size, self.device),
            indices=drawn.masked_fill(hole, -1).int().to(self.device),
            lengths=lengths.to(self.device) if with_lengths else None,
        )
