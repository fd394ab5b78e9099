"""Groups of 16 values that reach every corner of the quantizer."""

import torch

from sglang_dsv4_nvfp4.layout import GROUP_SIZE


def groups_of_every_kind() -> torch.Tensor:
    """``[n, 16]`` BF16 groups, from subnormal to overflowing, with specials mixed in."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for exponent in range(-45, 45):
        group = torch.randn(64, GROUP_SIZE, generator=generator)
        parts.append(group * 2.0**exponent)
    plain = torch.cat(parts).bfloat16()
    # Bits at random reach every exponent, both zeros, infinities and NaNs.
    bits = torch.randint(0, 1 << 16, (20000, GROUP_SIZE), generator=generator)
    wild = bits.to(torch.uint16).view(torch.bfloat16)
    specials = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
    mixed = plain.clone()
    column = torch.randint(0, GROUP_SIZE, (mixed.shape[0],), generator=generator)
    choice = torch.randint(0, len(specials), (mixed.shape[0],), generator=generator)
    mixed[torch.arange(mixed.shape[0]), column] = specials.bfloat16()[choice]
    constant = specials.bfloat16()[:, None].expand(-1, GROUP_SIZE)
    return torch.cat([plain, mixed, wild, constant])
