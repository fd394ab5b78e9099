"""Write the record of what the seams rely on, from the installed SGLang: ``make surface``."""

import json

from sglang_dsv4_nvfp4 import seams, surface
from sglang_dsv4_nvfp4.machine import distribution_version


def record():
    return {
        "sglang": distribution_version("sglang"),
        "targets": {seam.target: seams.describe(seam) for seam in seams.SEAMS},
    }


if __name__ == "__main__":
    surface.RECORD.write_text(json.dumps(record(), indent=1) + "\n")
    print(f"{surface.RECORD}: look at what differs before it is committed")
