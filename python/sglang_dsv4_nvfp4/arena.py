"""Buffers that a captured CUDA graph may keep pointing at.

A graph replays raw addresses, so scratch that a captured kernel has seen must
never move or be freed. An arena hands out slices of power-of-two buckets, each
allocated once and kept for the life of the process: the number of buffers is
bounded by the buckets, not by the sizes that occur.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch


class Arena:
    """Process-lifetime scratch in power-of-two buckets.

    Not for concurrent use: work that may run on two streams at once needs a key
    of its own each.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._buckets: dict[tuple[Hashable, int, torch.dtype, str], torch.Tensor] = {}

    def take(
        self,
        key: Hashable,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.Tensor:
        """A contiguous tensor of ``shape`` with arbitrary contents.

        The same key, bucket, dtype and device always give the same memory.

        Raises:
            RuntimeError: the bucket is new and a CUDA graph is being captured.
        """
        count = 1
        for extent in shape:
            count *= extent
        return self._bucket(key, count, dtype, device)[:count].view(shape)

    def __len__(self) -> int:
        """The number of buffers allocated so far."""
        return len(self._buckets)

    def _bucket(
        self, key: Hashable, count: int, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        size = bucket_size(count)
        identity = (key, size, dtype, str(device))
        buffer = self._buckets.get(identity)
        if buffer is None:
            if is_capturing(device):
                raise RuntimeError(
                    f"{self._name}: a buffer of {size} {dtype} elements (key {key!r}) "
                    "was not warmed up before CUDA graph capture; run the same batch "
                    "once outside the capture"
                )
            # A tensor made in inference mode could not be written outside of it.
            with torch.inference_mode(False):
                buffer = torch.empty(size, dtype=dtype, device=device)
            self._buckets[identity] = buffer
        return buffer


def bucket_size(count: int) -> int:
    """The smallest power of two that holds ``count`` elements."""
    return 1 << max(count - 1, 0).bit_length()


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of ``device`` is capturing a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
