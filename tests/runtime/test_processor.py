"""The processor of this machine, as the core reads it."""

from __future__ import annotations

import pytest

from kernelyard.runtime.installed import processor

TEXT = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: Another\n"


@pytest.fixture
def info(tmp_path, monkeypatch):
    """A file in the place of Linux's; what was read of the real one is forgotten, before and after."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "INFO", path)
    processor.cpu_facts.cache_clear()
    yield path
    processor.cpu_facts.cache_clear()


def test_the_first_processor_counts(info):
    info.write_text(TEXT)
    assert processor.cpu_facts()["model name"] == "A CPU"
    assert processor.processor().model == "A CPU"
    assert processor.cpu_flags() == {"fpu", "avx2"}


def test_flags_of_arm_have_another_name(info):
    info.write_text("processor\t: 0\nFeatures\t: asimd sve\nCPU part\t: 0xd40\n")
    assert processor.cpu_flags() == {"asimd", "sve"}
    assert processor.processor().model == "0xd40"


def test_other_systems_say_nothing(info):
    assert processor.cpu_flags() == frozenset()
    assert processor.cpu_facts() == {}
