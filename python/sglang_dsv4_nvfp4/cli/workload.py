"""A small serving workload for DeepSeek-V4's caches, without a model.

Several requests of different length are prefilled in chunks and then decoded. The
latents are drawn once, un-normed; each cache writes them in its own way, and BF16
rows of the same latents are the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sglang_dsv4_nvfp4.cli.models import PAGE_SIZE
from sglang_dsv4_nvfp4.layout import LATENT_DIM, ROPE_DIM
from sglang_dsv4_nvfp4.store.finish import norm_rope

NORM_EPS = 1e-6
ROPE_THETA = 10000.0
WINDOW = 128
INDEX_TOPK = 512
# SGLang pads index rows to this.
INDEX_ALIGNMENT = 64


@dataclass(frozen=True)
class Step:
    """One forward: for each of its tokens the request, the position and the slot."""

    is_decode: bool
    request: torch.Tensor
    position: torch.Tensor
    slot: torch.Tensor


@dataclass(frozen=True)
class Candidates:
    """``indices`` [tokens, k] int32 slots padded with -1, ``lengths`` [tokens] int32,
    and ``rows``: the same candidates as rows of the BF16 reference."""

    indices: torch.Tensor
    lengths: torch.Tensor
    rows: torch.Tensor


class Workload:
    """Latents, slots and candidates of one layer per compress ratio.

    Slots are SGLang's: a request owns shuffled pages of 256, and a compressed entry
    lives at the slot of its group divided by the ratio. Page 0 is the dummy page.
    """

    def __init__(
        self,
        *,
        prompt_lens: tuple[int, ...],
        decode_steps: int,
        chunk_size: int,
        compress_ratios: tuple[int, ...],
        device: str,
        seed: int = 0,
    ) -> None:
        self.prompt_lens = prompt_lens
        self.decode_steps = decode_steps
        self.chunk_size = chunk_size
        self.compress_ratios = compress_ratios
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)
        total_lens = [length + decode_steps for length in prompt_lens]
        self.max_len = max(total_lens)
        self._assign_pages(total_lens)
        self.freqs_cis = _rope_table(self.max_len).to(device)
        self.norm_weight = (
            1 + 0.1 * torch.randn(LATENT_DIM, generator=self._generator)
        ).to(device, torch.bfloat16)
        self._latents = [
            [self._draw_latents(length) for length in total_lens]
            for _ in compress_ratios
        ]

    def steps(self) -> Iterator[Step]:
        """Chunked prefill of each request in turn, then decode of all of them."""
        for request, length in enumerate(self.prompt_lens):
            for start in range(0, length, self.chunk_size):
                stop = min(start + self.chunk_size, length)
                yield self._step([request] * (stop - start), range(start, stop), False)
        for offset in range(self.decode_steps):
            positions = [length + offset for length in self.prompt_lens]
            yield self._step(range(len(positions)), positions, True)

    def latents(self, layer: int, step: Step) -> torch.Tensor:
        """``[tokens, 512]`` BF16 un-normed latents that a step writes to the window."""
        return torch.stack(
            [
                self._latents[layer][request][position]
                for request, position in _pairs(step)
            ]
        ).to(self.device)

    def compressed_latents(self, layer: int, step: Step) -> torch.Tensor:
        """``[tokens, 512]`` BF16: for each token the mean of the group it ends."""
        ratio = self.compress_ratios[layer]
        return torch.stack(
            [
                self._latents[layer][request][
                    max(position + 1 - ratio, 0) : position + 1
                ]
                .float()
                .mean(dim=0)
                .bfloat16()
                for request, position in _pairs(step)
            ]
        ).to(self.device)

    def ends_group(self, layer: int, step: Step) -> torch.Tensor:
        """``[tokens]`` bool: which tokens complete a compressed entry."""
        return (step.position + 1) % self.compress_ratios[layer] == 0

    def compressed_slots(self, layer: int, step: Step) -> torch.Tensor:
        """``[tokens]`` int64 slots of the entries that a step's tokens belong to."""
        return step.slot // self.compress_ratios[layer]

    def group_start(self, layer: int, step: Step) -> torch.Tensor:
        """``[tokens]`` int64: first position of the group that each token ends."""
        return (step.position + 1 - self.compress_ratios[layer]).clamp(min=0)

    def window_rows(self, layer: int, step: Step) -> torch.Tensor:
        """``[tokens, 512]`` BF16: the latents normed and rotated, as caches hold them."""
        return self._finish(self.latents(layer, step), step.position)

    def compressed_rows(self, layer: int, step: Step) -> torch.Tensor:
        """``[finished groups, 512]`` BF16, in the order of :meth:`ends_group`."""
        ends = self.ends_group(layer, step)
        latents = self.compressed_latents(layer, step)[ends]
        return self._finish(latents, self.group_start(layer, step)[ends])

    def window_candidates(self, step: Step) -> Candidates:
        """The last 128 positions of each token's request, its own included."""
        chosen = [
            [(request, p) for p in range(max(0, position + 1 - WINDOW), position + 1)]
            for request, position in _pairs(step)
        ]
        return self._candidates(chosen, WINDOW, ratio=1)

    def compressed_candidates(self, layer: int, step: Step) -> Candidates:
        """All finished groups of each token's request, at most 512 drawn at c4."""
        ratio = self.compress_ratios[layer]
        chosen = []
        for request, position in _pairs(step):
            groups = torch.randperm(
                (position + 1) // ratio, generator=self._generator
            ).tolist()
            chosen.append([(request, group * ratio) for group in groups[:INDEX_TOPK]])
        longest = max(len(row) for row in chosen)
        width = INDEX_TOPK if ratio == 4 else max(longest, 1)
        return self._candidates(
            chosen, -(-width // INDEX_ALIGNMENT) * INDEX_ALIGNMENT, ratio
        )

    def queries(self, step: Step, num_heads: int) -> torch.Tensor:
        """``[tokens, 1, heads, 512]`` BF16 of unit variance."""
        shape = (step.position.shape[0], 1, num_heads, LATENT_DIM)
        q = torch.randn(shape, generator=self._generator)
        return q.to(self.device, torch.bfloat16)

    @property
    def num_slots(self) -> int:
        """Slots of the full pool, the dummy page included."""
        return (1 + sum(len(pages) for pages in self._pages)) * PAGE_SIZE

    def _finish(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return norm_rope(rows, self.norm_weight, NORM_EPS, self.freqs_cis, positions)

    def _assign_pages(self, total_lens: list[int]) -> None:
        counts = [-(-length // PAGE_SIZE) for length in total_lens]
        order = (torch.randperm(sum(counts), generator=self._generator) + 1).tolist()
        self._pages = [[order.pop() for _ in range(count)] for count in counts]

    def _slot(self, request: int, position: int) -> int:
        page = self._pages[request][position // PAGE_SIZE]
        return page * PAGE_SIZE + position % PAGE_SIZE

    def _step(self, requests, positions, is_decode: bool) -> Step:
        requests, positions = list(requests), list(positions)
        slots = [
            self._slot(request, position)
            for request, position in zip(requests, positions, strict=True)
        ]
        return Step(
            is_decode,
            *(
                torch.tensor(values, dtype=torch.int64, device=self.device)
                for values in (requests, positions, slots)
            ),
        )

    def _draw_latents(self, length: int) -> torch.Tensor:
        """Student-t values with a scale per channel: tails as latents have them."""
        normal = torch.randn(length, LATENT_DIM, generator=self._generator)
        chi = torch.randn(length, LATENT_DIM, 5, generator=self._generator)
        heavy = normal / chi.square().mean(dim=-1).sqrt()
        channel = torch.exp(0.5 * torch.randn(LATENT_DIM, generator=self._generator))
        return (heavy * channel).bfloat16()

    def _candidates(
        self, chosen: list[list[tuple[int, int]]], width: int, ratio: int
    ) -> Candidates:
        indices = torch.full((len(chosen), width), -1, dtype=torch.int32)
        rows = torch.full((len(chosen), width), -1, dtype=torch.int64)
        for token, entries in enumerate(chosen):
            for column, (request, position) in enumerate(entries):
                indices[token, column] = self._slot(request, position) // ratio
                rows[token, column] = request * self.max_len + position
        lengths = torch.tensor([len(row) for row in chosen], dtype=torch.int32)
        return Candidates(
            indices.to(self.device), lengths.to(self.device), rows.to(self.device)
        )


def _pairs(step: Step) -> Iterator[tuple[int, int]]:
    return zip(step.request.tolist(), step.position.tolist(), strict=True)


def _rope_table(length: int) -> torch.Tensor:
    """``[length, 32]`` complex64 rotations."""
    inverse = ROPE_THETA ** (-torch.arange(0, ROPE_DIM, 2).float() / ROPE_DIM)
    angles = torch.outer(torch.arange(length).float(), inverse)
    return torch.polar(torch.ones_like(angles), angles)
