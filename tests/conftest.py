# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import os
import signal

import pytest
import torch
from hypothesis import settings

from tests.decoding import load, load_draft
from tests.fakes import FakeLLM
from tests.tiny import write_drafter, write_target

# before any test imports a kernel; where a CUDA device is visible, kernels run on it
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# no deadline: a busy machine is no failure; the same examples everywhere, and nothing left behind
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small products gain nothing from a second thread and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell that starts the tests in the background leaves Ctrl-C ignored, also in children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def set_threads():
    """torch.set_num_threads, undone at the end."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_user(tmp_path_factory):
    """Fixtures of a module or more run before own_cache does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDSPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees tables that another one, or the user, has measured."""
    monkeypatch.setenv("HYBRIDSPEC_CACHE", str(tmp_path / "hybridspec-cache"))


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory):
    """Directory of the tiny target; not to be changed."""
    return write_target(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture(scope="session")
def tiny_drafter(tmp_path_factory):
    """Directory of its drafter; not to be changed."""
    return write_drafter(tmp_path_factory.mktemp("tiny") / "drafter")


@pytest.fixture(scope="session")
def target(tiny_target):
    """The tiny target in exact mode."""
    return load(tiny_target)


@pytest.fixture(scope="session")
def drafter(tiny_drafter, target):
    """The tiny drafter on it."""
    return load_draft(tiny_drafter, target)


@pytest.fixture
def inference():
    """For tests that call rooms below the engine's own loop."""
    with torch.inference_mode():
        yield


@pytest.fixture
def fake_llm(monkeypatch):
    """The fake engine in place of the real one, and two prompts in place of those that ship."""
    for module in ("hybridspec.engine.llm", "hybridspec.bench.decode"):
        monkeypatch.setattr(f"{module}.LLM", FakeLLM)
    for module in ("hybridspec.models.embedded", "hybridspec.bench.decode"):
        monkeypatch.setattr(f"{module}.demo_prompts", lambda: ["import os\n", "import sys\n"])
    return FakeLLM


@pytest.fixture
def tiny_pair(tmp_path):
    """Directories of a sound tiny target and drafter, which a test may damage."""
    return write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
