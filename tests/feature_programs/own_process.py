"""Tests for a second pytest process; the last but one kills the process."""

import os

import pytest

pytestmark = pytest.mark.own_process
TOLD = "OF_THE_FIRST_PROCESS"


@pytest.fixture
def that_fails():
    yield
    raise ValueError("of the fixture")


def test_passes():
    assert os.environ[TOLD] != str(os.getpid())


def test_fails():
    assert os.getpid() == 0


def test_is_skipped():
    pytest.skip("for a reason")


def test_fails_at_its_end(that_fails):
    pass


@pytest.mark.parametrize("status", [5])
def test_exits(status):
    print("the last words", flush=True)
    os._exit(status)


def test_comes_after():
    pass
