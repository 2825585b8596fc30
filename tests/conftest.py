"""What all tests share: an own cache of machine code for each run, checks after every pass, fixed seeds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest

# Before the package is imported, here and in processes that tests start: code of an earlier run must not hide a fault.
CACHE = tempfile.mkdtemp(prefix="tracejit-tests-")
os.environ["TRACEJIT_CACHE"] = CACHE
os.environ.setdefault("TRACEJIT_CHECK", "1")

hypothesis.settings.register_profile("default", deadline=None)  # the first example of a kind compiles
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def _seed() -> None:
    np.random.seed(0)


@pytest.fixture
def threads_as_before() -> Iterator[None]:
    """Afterwards there are as many threads again."""
    from tracejit import config
    from tracejit.runtime import threads

    before = config.num_threads()
    yield
    config.set_num_threads(before)
    threads.prepare()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session", autouse=True)
def _remove_cache() -> Iterator[None]:
    yield
    shutil.rmtree(CACHE, ignore_errors=True)
