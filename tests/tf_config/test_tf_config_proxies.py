"""When TensorFlow's gRPC follows a proxy of the environment, as TensorFlow 2.21 does."""

import pytest

from tf_config.proxies import exception_for, proxied, proxy

HTTP = {"http_proxy": "http://p:3128"}


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, None),
        (HTTP, "http_proxy"),
        ({"https_proxy": "http://p", **HTTP}, "https_proxy"),
        ({"grpc_proxy": "http://p", **HTTP}, "grpc_proxy"),
        ({"HTTP_PROXY": "http://p", "all_proxy": "http://p"}, None),
        ({"http_proxy": "socks5://p"}, None),
        ({"http_proxy": ""}, None),
        ({"grpc_proxy": "", **HTTP}, None),
    ],
)
def test_the_variable_that_counts(environ, name):
    assert proxy(environ) == name
    assert proxied(["a"], environ) == (["a"] if name else [])


@pytest.mark.parametrize(
    ("exceptions", "reached"),
    [
        ({}, ["ps.org", "10.0.0.7", "::1"]),
        ({"no_proxy": "ps.org"}, ["10.0.0.7", "::1"]),
        ({"no_proxy": " .ORG , 10.0.0.0/24"}, ["::1"]),
        ({"no_proxy": "*"}, ["ps.org", "10.0.0.7", "::1"]),
        ({"no_proxy": "ps.org", "no_grpc_proxy": "::1"}, ["ps.org", "10.0.0.7"]),
        ({"no_proxy": "ps.org", "no_grpc_proxy": ""}, ["ps.org", "10.0.0.7", "::1"]),
        ({"no_proxy": ",,"}, ["ps.org", "10.0.0.7", "::1"]),
    ],
)
def test_the_hosts_that_are_excepted(exceptions, reached):
    hosts = ["ps.org", "10.0.0.7", "ps.org", "::1"]
    environ = {**HTTP, **exceptions}
    assert proxied(hosts, environ) == reached
    assert proxied(hosts, {**environ, **exception_for(hosts, environ)}) == []


def test_what_is_excepted_stays_so():
    environ = {**HTTP, "no_proxy": "a,b"}
    assert exception_for(["c", "a"], environ) == {"no_grpc_proxy": "a,b,c"}
    assert exception_for(["a"], environ) == {}
    assert exception_for(["a"], {"no_proxy": "b"}) == {}
