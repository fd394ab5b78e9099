"""What a compiled Triton kernel takes of a GPU, read from its machine code."""

import re
import subprocess
import tempfile
from pathlib import Path

import triton

_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def resources(compiled) -> dict:
    """``{shared, registers, spilled}``: bytes a block, registers and bytes a thread.

    Registers that do not fit lie on the thread's stack; no kernel here has anything
    else there.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        usage = subprocess.run(
            [str(_CUOBJDUMP), "-res-usage", cubin.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return {
        "shared": compiled.metadata.shared,
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "spilled": sum(
            int(re.search(rf"{kind}:(\d+)", usage)[1]) for kind in ("STACK", "LOCAL")
        ),
    }
