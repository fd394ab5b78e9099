"""The tests over an SGLang that has the feature in its tree: ``make test-intree``.

Copies the installed SGLang, brings the feature into the copy as a user would, and runs the
same tests there, with the plugin switched off. Fails where one comes out otherwise than
it did with the plugin (``make test``).
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from sglang_dsv4_nvfp4.intree import places

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
TREE = BUILD / "in-tree"
WITH_PLUGIN, IN_TREE = BUILD / "with-plugin.xml", BUILD / "in-tree.xml"

# Tests of this repository's scripts and pages, which no form of the feature changes.
OUTSIDE = ("benchmark", "docs")
# What a test says that is about the plugin, or needs a stock SGLang.
NEEDS_STOCK = "needs an SGLang without the feature in its tree"


def main():
    if not WITH_PLUGIN.exists():
        sys.exit(f"nothing to compare with: {WITH_PLUGIN} is missing. Run `make test`")
    copy_sglang(TREE / "python")
    command = Path(sys.executable).with_name("sglang-dsv4-nvfp4")
    subprocess.run([command, "intree", "apply", "--tree", TREE], check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(TREE / "python"),
        # The plugin does nothing there; it is not even loaded.
        "SGLANG_PLUGINS": "none",
    }
    check_that_it_is_used(environment)
    tests = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", f"--junitxml={IN_TREE}"),
            *(f"--ignore=test/srt/{folder}" for folder in OUTSIDE),
            *sys.argv[1:],
        ],
        cwd=ROOT,
        env=environment,
    )
    problems = differences(outcomes(WITH_PLUGIN), outcomes(IN_TREE))
    print("\n".join(problems))
    sys.exit(tests.returncode or bool(problems))


def copy_sglang(folder):
    """The installed one, in place of any that ``folder`` has."""
    target = folder / "sglang"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(
        places.installed_sglang(),
        target,
        ignore=shutil.ignore_patterns("__pycache__"),
    )


def check_that_it_is_used(environment):
    program = "from sglang_dsv4_nvfp4.intree import aliases; print(aliases.tree())"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if found != str(TREE / "python" / "sglang"):
        sys.exit(f"the tests would run over {found}, not over {TREE}")


def outcomes(results):
    """What came out of each test, by its name."""
    found = {}
    for case in ET.parse(results).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = [
            child for child in case if child.tag in ("failure", "error", "skipped")
        ]
        found[name] = f"{kinds[0].tag} {kinds[0].get('message')}" if kinds else "passed"
    return found


def differences(with_plugin, in_tree):
    """A line for each test that came out otherwise, and how many did not."""
    outside = tuple(f"test.srt.{folder}." for folder in OUTSIDE)
    expected = {
        name: outcome
        for name, outcome in with_plugin.items()
        if not name.startswith(outside)
    }
    problems = [
        f"{name}: {expected.get(name, 'not run')} with the plugin, "
        f"{in_tree.get(name, 'not run')} in-tree"
        for name in sorted(expected.keys() | in_tree.keys())
        if in_tree.get(name) != expected.get(name)
        and NEEDS_STOCK not in in_tree.get(name, "")
    ]
    same = sum(in_tree.get(name) == outcome for name, outcome in expected.items())
    stock = sum(NEEDS_STOCK in outcome for outcome in in_tree.values())
    print(
        f"{same} tests came out alike, {stock} need a stock SGLang, {len(problems)} differ"
    )
    return problems


if __name__ == "__main__":
    main()
