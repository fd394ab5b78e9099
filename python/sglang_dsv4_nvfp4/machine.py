"""The device and the versions that this process runs with.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/machine.py``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# What this module is part of.
_DISTRIBUTION = __name__.partition(".")[0].replace("_", "-")
_DISTRIBUTIONS = (
    _DISTRIBUTION,
    "sglang",
    "flashinfer-python",
    "flashinfer-jit-cache",
    "torch",
    "triton",
)


def describe_device() -> str:
    """The CUDA device of this process in words, e.g. ``NVIDIA H200 (SM90)``."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    return f"{name} (SM{major}{minor}, CUDA {torch.version.cuda})"


def device_name() -> str:
    """The CUDA device of this process by name, or ``cpu``."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def device_slug() -> str:
    """:func:`device_name` as a file's name."""
    return re.sub(r"[^a-z0-9]+", "_", device_name().lower())


def cache_root() -> Path:
    """Where measurements and other things that can be made anew are kept; the folder may
    not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / _DISTRIBUTION


@functools.cache
def sm_count(device: torch.device) -> int | None:
    """Multiprocessors of a CUDA device; None where there is none."""
    import torch

    if device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).multi_processor_count


def versions() -> dict[str, str | None]:
    """What decides how NVFP4 is served, by distribution name; None: not installed."""
    return {name: distribution_version(name) for name in _DISTRIBUTIONS}


def versions_text(found: Mapping[str, str | None]) -> str:
    """What :func:`versions` gave, in words; what is not installed is left out."""
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def distribution_version(name: str) -> str | None:
    """The installed version of a distribution, None where there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
