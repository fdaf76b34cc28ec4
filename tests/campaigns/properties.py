"""The property tests with many more examples than ``make test`` takes."""

import re
import subprocess
import sys

from campaigns.attack import ENV, ROOT, Figures

FOLDERS = ("tests/search", "tests/kernels", "tests/rows/test_sources.py", "tests/io", "tests/metrics", "tests/training")


def properties(examples: int, seed: int) -> Figures:
    """Hypothesis's, with a seed and a profile of the campaign's own (tests/conftest.py)."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "hypothesis and not cuda_toolchain and not gpu"]
    command += ["--hypothesis-profile=campaign", f"--hypothesis-seed={seed}", "--hypothesis-show-statistics", *FOLDERS]
    done = subprocess.run(
        command, env=ENV | {"CAMPAIGN_EXAMPLES": str(examples)}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    tried = sum(int(found) for found in re.findall(r"(\d+) passing(?: examples)?,", done.stdout))
    failures = re.findall(r"^FAILED .*", done.stdout, flags=re.MULTILINE)
    if not failures and (done.returncode or not tried):
        failures = [f"pytest ended with {done.returncode}: {done.stdout[-300:]}"]
    tests = re.search(r"(\d+) passed", done.stdout)
    return Figures(tried, failures, f"examples of {tests[1] if tests else 0} tests")
