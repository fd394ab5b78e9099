"""Buffers that a captured CUDA graph may keep pointing at.

A graph replays raw addresses, so scratch that a captured kernel has seen must
never move or be freed. An arena hands out slices of size buckets, each allocated
once and kept for the life of the process: the number of buffers is bounded by the
buckets, not by the sizes that occur. A bucket that is first asked for when a larger
one exists shares its memory, since SGLang captures its largest batch first.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/arena.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

# Bucket size in elements to its memory; several buckets may share one buffer.
_Buckets = dict[int, torch.Tensor]


class Arena:
    """Process-lifetime scratch.

    Not for concurrent use: work that may run on two streams at once needs a key
    of its own each.

    Args:
        name: who it belongs to, for error messages.
        buckets_per_octave: 1 for powers of two; more waste less memory.
    """

    def __init__(self, name: str, buckets_per_octave: int = 1) -> None:
        self._name = name
        self._buckets_per_octave = buckets_per_octave
        self._buckets: dict[tuple[Hashable, torch.dtype, str], _Buckets] = {}

    def take(
        self,
        key: Hashable,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        fill: Callable[[torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """A contiguous tensor of ``shape``.

        The same key, bucket, dtype and device always give the same memory. Its
        contents are what its last user left, at first what ``fill`` wrote.

        Raises:
            RuntimeError: the bucket is new and a CUDA graph is being captured.
        """
        count = 1
        for extent in shape:
            count *= extent
        size = bucket_size(count, self._buckets_per_octave)
        buckets = self._buckets.setdefault((key, dtype, str(device)), {})
        buffer = buckets.get(size)
        if buffer is None:
            larger = [bucket for bucket in buckets if bucket > size]
            if larger:
                buffer = buckets[min(larger)]
            else:
                buffer = self._allocate(key, size, dtype, device)
                if fill is not None:
                    fill(buffer)
            buckets[size] = buffer
        return buffer[:count].view(shape)

    def __len__(self) -> int:
        """The number of buffers allocated so far."""
        return len(
            {
                buffer.data_ptr()
                for buckets in self._buckets.values()
                for buffer in buckets.values()
            }
        )

    def _allocate(
        self, key: Hashable, size: int, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        if is_capturing(device):
            raise RuntimeError(
                f"{self._name}: a buffer of {size} {dtype} elements (key {key!r}) "
                "was not warmed up before CUDA graph capture; run the same batch "
                "once outside the capture"
            )
        # A tensor made in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            return torch.empty(size, dtype=dtype, device=device)


def bucket_size(count: int, buckets_per_octave: int = 1) -> int:
    """The smallest bucket that holds ``count`` elements.

    Buckets are the powers of two, and between two of them ``buckets_per_octave - 1``
    more at equal distances.
    """
    power = 1 << max(count - 1, 0).bit_length()
    step = max(power // 2 // buckets_per_octave, 1)
    return max(-(-count // step) * step, 1)


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of ``device`` is capturing a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
