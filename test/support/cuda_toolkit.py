"""The CUDA compiler and headers that SGLang's own packages bring."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

_CUDA_HOME = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))


def cuda_package() -> Path | None:
    """``site-packages/nvidia/cu13``, where SGLang's CUDA packages unpack."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        candidate = Path(folder) / "cu13"
        if _is_complete(candidate / "include"):
            return candidate
    return None


def cuda_include_dir() -> Path:
    """A folder with ``cuda_fp4.h``; skips the test where there is none."""
    package = cuda_package()
    if package is not None:
        return package / "include"
    nvcc = shutil.which("nvcc")
    for root in (Path(nvcc).resolve().parents[1] if nvcc else None, _CUDA_HOME):
        if root is not None and _is_complete(root / "include"):
            return root / "include"
    pytest.skip("needs cuda_fp4.h: neither SGLang's CUDA packages nor nvcc are here")


def _is_complete(include: Path) -> bool:
    # Some installations have the headers without those that they include.
    names = ("cuda_fp4.h", "cuda_fp8.h", "crt/host_defines.h")
    return all((include / name).exists() for name in names)
