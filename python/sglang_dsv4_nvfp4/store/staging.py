"""BF16 rows on their way into the pages.

One arena for the process: a buffer per cache kind and power-of-two bucket, never
moved, so that captured graphs replay. The window, c4 and c128 stores can run on
different streams, hence a key each.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/staging.py``.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.arena import Arena
from sglang_dsv4_nvfp4.layout import LATENT_DIM

# Staging keys are compress ratios; SGLang calls the window alone ratio 0.
WINDOW_KEY = 0


class StagingArena:
    """``[rows, 512]`` BF16 staging, and the ``out_loc`` that addresses its rows."""

    def __init__(self) -> None:
        self._arena = Arena("NVFP4 store staging")

    def rows(self, key: int, num_rows: int, device: torch.device) -> torch.Tensor:
        """Zeroed rows: what the store leaves out must not be a past batch's row.

        Raises:
            RuntimeError: the bucket is new under CUDA graph capture.
        """
        rows = self._arena.take(key, (num_rows, LATENT_DIM), torch.bfloat16, device)
        return rows.zero_()

    def identity_out_loc(
        self, key: int, num_rows: int, device: torch.device
    ) -> torch.Tensor:
        """``[0, 1, ..., num_rows - 1]`` int64, which SGLang's store insists on."""
        # Written once: SGLang's kernel reads it before it waits for the kernel that
        # was launched before it.
        return self._arena.take(
            ("out_loc", key), (num_rows,), torch.int64, device, fill=_fill_identity
        )

    def __len__(self) -> int:
        """The number of buffers allocated so far."""
        return len(self._arena)


def _fill_identity(buffer: torch.Tensor) -> None:
    torch.arange(buffer.shape[0], out=buffer)


staging = StagingArena()
