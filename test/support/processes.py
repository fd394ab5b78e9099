"""Running Python where nothing has been imported or hooked yet."""

import json
import os
import subprocess
import sys
from pathlib import Path

# What a user types.
COMMAND = str(Path(sys.executable).with_name("sglang-dsv4-nvfp4"))

_UNSET = (
    "SGLANG_SM120_KV_CACHE_FORMAT",
    "SGLANG_SM120_FLASHMLA_BACKEND",
    "SGLANG_SM120_NVFP4_KERNEL",
    "SGLANG_SM120_NVFP4_PROFILE",
    "SGLANG_SM120_NVFP4_CHECK_INDICES",
    "TRITON_INTERPRET",
)


def ask_support(name, *arguments, **environment):
    """The JSON that one of this folder's programs prints last, run where nothing has
    been imported yet."""
    folder = Path(__file__).parent
    paths = [str(folder.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = run_python(
        str(folder / name),
        *arguments,
        PYTHONPATH=os.pathsep.join(paths),
        **environment,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def run_python(*arguments, stdin=None, **environment):
    """A fresh interpreter with only ``environment`` of our variables set."""
    inherited = {key: value for key, value in os.environ.items() if key not in _UNSET}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env={**inherited, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )
