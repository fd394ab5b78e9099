"""Running Python where nothing has been imported or hooked yet."""

import os
import subprocess
import sys

_UNSET = (
    "SGLANG_SM120_KV_CACHE_FORMAT",
    "SGLANG_SM120_FLASHMLA_BACKEND",
    "SGLANG_PLUGINS",
    "TRITON_INTERPRET",
)


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
