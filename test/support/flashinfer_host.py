"""FlashInfer's SM120 modules, compiled for sm_120a and questioned without a device.

As a module it gives :func:`ask`; as a program (in a process whose loader finds a
libcuda) it reads questions as JSON from standard input and prints answers.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.cuda_toolkit import cuda_package

from sglang_dsv4_nvfp4.machine import cache_root

# RTX PRO 6000 Blackwell: 188 SMs, and 99 KB of shared memory that a block may use.
SM_COUNT = 188
MAX_SHARED_BYTES = 99 * 1024


def ask(questions: dict) -> dict:
    """Answers to ``questions``; compiles the modules first (about 3 minutes), once.

    Skips the test where the machine lacks a compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc or gcc) for a libcuda stand-in")
    root = _cache_root()
    environment = {
        **os.environ,
        **_toolkit(root),
        "FLASHINFER_WORKSPACE_BASE": str(root),
    }
    _make_stubs(root / "stubs", compiler)
    environment["FLASHINFER_CUDA_ARCH_LIST"] = "12.0a"
    environment["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        input=json.dumps(questions),
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def _cache_root() -> Path:
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    return root


def _toolkit(root: Path) -> dict[str, str]:
    """Environment for a CUDA 13 toolkit: SGLang's packages bring a whole one."""
    package = cuda_package()
    if package is None or not (package / "bin" / "nvcc").exists():
        pytest.skip("needs nvcc: SGLang's CUDA packages are not here")
    # Its compiler is newer than its headers, by a minor version that CCCL dislikes.
    flag = "-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK"
    return {
        "CUDA_HOME": str(package),
        "FLASHINFER_EXTRA_CFLAGS": flag,
        "FLASHINFER_EXTRA_CUDAFLAGS": flag,
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{root / 'stubs'}",
        "LD_LIBRARY_PATH": f"{root / 'stubs'}:{package / 'lib'}",
    }


def _make_stubs(folder: Path, compiler: str) -> None:
    """A libcuda with nothing in it, and the libcudart.so that the linker looks for."""
    folder.mkdir(exist_ok=True)
    cudart = folder / "libcudart.so"
    cudart.unlink(missing_ok=True)
    (runtime,) = (cuda_package() / "lib").glob("libcudart.so.*")
    cudart.symlink_to(runtime)
    source = folder / "stub.c"
    source.write_text("int libcuda_stand_in;\n")
    for name in ("libcuda.so.1", "libcuda.so"):
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source)]
            + ["-o", str(folder / name)],
            check=True,
        )


def _answer(questions: dict) -> dict:
    from flashinfer.jit.cake_sparse_mla_sm120_dsv4_nvfp4 import (
        gen_cake_sparse_mla_sm120_dsv4_nvfp4_module,
    )
    from flashinfer.mla._sparse_mla_sm120 import _execution

    module = _execution.get_sparse_mla_sm120_module()
    supported = [
        bool(
            _execution.query(
                "supports_attention",
                shape["num_heads"],
                shape["topk"],
                shape["page_size"],
                shape["extra_topk"],
                shape["extra_page_size"],
                is_dsv4_nvfp4=True,
            )
        )
        for shape in questions["supports"]
    ]
    plans = []
    for shape in questions["plans"]:
        plan = _execution.resolve_dsv4_nvfp4(
            tokens=shape["num_tokens"],
            heads=shape["num_heads"],
            topk=shape["topk"],
            extra_topk=shape["extra_topk"],
            page_size=shape["page_size"],
            extra_page_size=shape["extra_page_size"],
            page_stride_bytes=shape["page_size"] * 384,
            extra_page_stride_bytes=shape["extra_page_size"] * 384,
            cpb=0,
            sm_count=SM_COUNT,
            max_shared_bytes=MAX_SHARED_BYTES,
            prefill=shape["prefill"],
        )
        plans.append(
            {
                key: str(value) if isinstance(value, str) else int(value)
                for key, value in dict(plan["inspect"]()).items()
            }
        )
    info = {
        key: [int(item) for item in value] if isinstance(value, tuple) else int(value)
        for key, value in _execution.dsv4_nvfp4_format_info().items()
    }
    # The append comes from a module of its own, which FlashInfer builds apart.
    cache_ops = _execution.get_sparse_mla_dsv4_nvfp4_cache_ops_module()
    cake = gen_cake_sparse_mla_sm120_dsv4_nvfp4_module().build_and_load()
    exports = {
        name: hasattr(compiled, name)
        for key, compiled in (
            ("attention_exports", module),
            ("cache_exports", cache_ops),
            ("cake_exports", cake),
        )
        for name in questions[key]
    }
    return {"supports": supported, "plans": plans, "format": info, "exports": exports}


if __name__ == "__main__":
    assert find_spec("flashinfer"), "flashinfer is not installed"
    print(json.dumps(_answer(json.load(sys.stdin))))
