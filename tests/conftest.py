"""Settings of every test process, and the rule for tests that need a GPU."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator

# One thread: the models are tiny, and threads that wait for each other cost more than they save.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms on a GPU need it

import pytest
import torch
from accelerate.utils import imports

from attendrop.utils.processes import freeze_imported
from helpers import precision

torch.set_num_threads(1)
os.fsync = lambda file: None  # waiting for the disk protects from crashes of the machine, which no test can see
imports._is_package_available = functools.cache(imports._is_package_available)  # accelerate asks in every step
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, which transformers does


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests that are marked `gpu` on a machine without one."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_collection_finish() -> None:
    freeze_again()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    yield
    if len(sys.modules) != _frozen:
        freeze_again()


_frozen = 0  # modules that were imported when garbage collection was told to leave them alone


def freeze_again() -> None:
    """Makes the many short runs of the tests faster: each collects garbage, among all objects of what is imported."""
    global _frozen
    freeze_imported()
    _frozen = len(sys.modules)


@pytest.fixture
def float64() -> Iterator[None]:
    """Runs the test in float64, in which a comparison with a slow version depends on the formula alone."""
    with precision.float64():
        yield
