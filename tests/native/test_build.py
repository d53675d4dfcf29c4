"""The self-tests are built as the extension is."""

from __future__ import annotations

import pytest

from tests.native import build


def test_every_level_of_the_build_is_tested() -> None:
    levels, common = build.cmake_flags()
    assert set(levels) == {*build.X86_LEVELS, *build.ARM_LEVELS}
    assert "-ffp-contract=off" in common


def test_no_level_is_tuned_to_the_builder() -> None:
    levels, common = build.cmake_flags()
    flags = [*common, *(flag for level in levels.values() for flag in level)]
    assert not [f for f in flags if "native" in f or "fast-math" in f]


def test_every_kernel_is_in_the_extension() -> None:
    """A source that a self-test links is one that is shipped."""
    listed = (build.ROOT / "CMakeLists.txt").read_text()
    for test in build.self_tests():
        for source in build.sources(test)[1:]:
            assert source.relative_to(build.ROOT).as_posix() in listed
            assert source.exists()


def test_a_failing_compile_is_an_error_with_its_text() -> None:
    builder = build.Builder()
    with pytest.raises(RuntimeError, match="no_such_flag"):
        build.VARIANTS["broken"] = ("-fno_such_flag",)
        try:
            builder.path(build.Program("rows_test", "scalar", "broken"))
        finally:
            del build.VARIANTS["broken"]
