"""BF16 latents and exact attention over them: what both formats are compared with."""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.cli.workload import Candidates, Step, Workload
from sglang_dsv4_nvfp4.layout import LATENT_DIM


class BF16Reference:
    """One layer's latents, unquantized, and attention over them in FP32."""

    def __init__(self, layer: int, workload: Workload) -> None:
        self._layer = layer
        self._workload = workload
        num_rows = len(workload.prompt_lens) * workload.max_len
        shape = (num_rows, LATENT_DIM)
        self._window = torch.zeros(shape, device=workload.device)
        self._compressed = torch.zeros(shape, device=workload.device)

    def write(self, step: Step) -> None:
        """Keep the finished rows of a step, compressed ones at their group's start."""
        workload, layer = self._workload, self._layer
        base = step.request * workload.max_len
        self._window[base + step.position] = workload.window_rows(layer, step).float()
        if workload.compress_ratios[layer]:
            ends = workload.ends_group(layer, step)
            where = (base + workload.group_start(layer, step))[ends]
            self._compressed[where] = workload.compressed_rows(layer, step).float()

    def attend(
        self,
        q: torch.Tensor,
        window: Candidates,
        compressed: Candidates | None,
        attn_sink: torch.Tensor,
    ) -> torch.Tensor:
        """``[tokens, heads, 512]`` FP32; the sink is one more logit without a value."""
        outputs = []
        for token in range(q.shape[0]):
            latents = self._rows(self._window, window, token)
            if compressed is not None:
                extra = self._rows(self._compressed, compressed, token)
                latents = torch.cat([latents, extra])
            logits = q[token, 0].float() @ latents.T * LATENT_DIM**-0.5
            with_sink = torch.cat([logits, attn_sink[:, None]], dim=1)
            weights = torch.softmax(with_sink, dim=1)[:, :-1]
            outputs.append(weights @ latents)
        return torch.stack(outputs)

    def _rows(
        self, table: torch.Tensor, candidates: Candidates, token: int
    ) -> torch.Tensor:
        rows = candidates.rows[token]
        return table[rows[rows >= 0]]
