"""The CUDA compiler and headers that SGLang's own packages bring."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest


def cuda_package() -> Path | None:
    """``site-packages/nvidia/cu13``, where SGLang's CUDA packages unpack."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        candidate = Path(folder) / "cu13"
        if (candidate / "include" / "cuda_fp4.h").exists():
            return candidate
    return None


def cuda_include_dir() -> Path:
    """A folder with ``cuda_fp4.h``; skips the test where there is none."""
    package = cuda_package()
    if package is not None:
        return package / "include"
    nvcc = shutil.which("nvcc")
    if nvcc:
        include = Path(nvcc).resolve().parent.parent / "include"
        if (include / "cuda_fp4.h").exists():
            return include
    pytest.skip("needs cuda_fp4.h: neither SGLang's CUDA packages nor nvcc are here")
