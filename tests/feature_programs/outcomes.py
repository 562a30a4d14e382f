"""Tests whose outcome differs between workers: see test_feature_jobs.py."""

import time

import pytest

import tf_config

INDEX = tf_config.TFConfig.from_environment().task.index


def test_passes():
    pass


def test_fails_on_one():
    assert INDEX == 0


@pytest.mark.feature("a row")
def test_passes_after_a_failure():
    pass


def test_hangs_on_one():
    time.sleep(1000 * INDEX)


def test_fails_on_both():
    raise ValueError("on both")


def test_leaves_other_variables(request):
    request.node.user_properties.append(("variables", f"those of {INDEX}"))


@pytest.mark.skip(reason="says so")
def test_is_skipped():
    pass


def test_passes_at_the_end():
    pass
