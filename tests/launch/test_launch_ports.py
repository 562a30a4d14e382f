import os
import random
import socket

from hypothesis import given
from hypothesis import strategies as st

from launch.network import ports
from launch.remote import host
from launch.supervise import readiness


@given(st.integers(1024, 65535), st.integers(1024, 65535))
def test_candidates_avoid_the_ephemeral_range_unless_too_few_are_left(one, other):
    low, high = sorted((one, other))
    candidates = ports.outside(low, high)
    assert len(candidates) >= 1_000
    if len(candidates) < 65_535 - 10_000 + 1:
        assert not any(low <= port <= high for port in candidates)


def test_picked_ports_are_distinct_and_free():
    picked = ports.pick(50)
    assert len(set(picked)) == 50
    assert all(map(ports.is_free, picked))


def test_programs_with_the_same_seed_seldom_meet():
    picked = []
    for _ in range(2):
        random.seed(0)
        picked.append(ports.pick(5))
    assert picked[0] != picked[1]


def test_listener_is_told_from_a_stranger():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not ports.is_free(port)
        assert host.listens(os.getpid(), port)
        assert not host.listens(os.getppid(), port)
        assert readiness.stranger_on(port, os.getpid()) is None
        stranger = readiness.stranger_on(port, os.getppid())
        assert stranger is not None
        assert stranger.startswith(f"process {os.getpid()} (")
    assert not host.listens(os.getpid(), port)
