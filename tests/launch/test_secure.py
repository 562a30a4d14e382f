"""What keeps strangers out of a job on several hosts; see also test_secure_hosts.py."""

import os
import re
import stat
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from launch.engines import preflight
from launch.engines.layout import assign
from launch.engines.port_choice import OwnPorts, SharedPorts
from launch.engines.preflight import HostReport
from launch.job.plan import Remote
from launch.job.tunnel import TunnelEnd, tunnels
from launch.remote import identity
from launch.secure import mode, stunnel
from launch.secure.authority import Authority
from tf_config import Cluster, Task

from ..support.identities import issue

# The mode.


def test_whoever_leaves_the_ports_open_is_told():
    hosts = ["10.0.0.1", "10.0.0.2"]
    assert mode.notice(mode.TLS, hosts).endswith("; mutual TLS between the hosts")
    assert "TLS" not in mode.notice(mode.TLS, hosts[:1])
    private, off = (mode.notice(each, hosts) for each in (mode.PRIVATE, mode.OFF))
    for notice in (private, off):
        assert "10.0.0.1, 10.0.0.2" in notice
    assert "not encrypted" in private
    assert off.startswith("WARNING")
    assert "can run code" in off
    with pytest.raises(ValueError, match="unknown mode 'no'; it is one of auto, tls"):
        mode.resolve("no")


def a_report(**changes):
    has = {"stunnel": "/usr/bin/stunnel", "version": "5.68", "open": ""}
    return HostReport(secure={**has, "has_ipv6": True, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stunnel": ""}, "h1 has no stunnel: apt-get install stunnel4"),
        ({"version": "5.9"}, "h1 has stunnel 5.9, which is older than 5.50: apt-get"),
        ({"version": ""}, "h1 has stunnel of an unknown version"),
        ({"open": "no"}, "h1 cannot close TensorFlow's ports to strangers (no)"),
    ],
)
def test_what_a_host_lacks_is_named_with_the_remedy(changes, message):
    reports = {"h0": a_report(), "h1": a_report(**changes)}
    found, otherwise = preflight.insecure(reports)
    assert found.startswith(message)
    assert "--secure=private" in otherwise
    assert "--secure=off" in otherwise
    assert preflight.insecure({"h0": a_report()}) == []


def test_one_host_needs_no_stunnel():
    assert preflight.insecure({"h0": a_report(stunnel="")}) == []


# Ports.

counts = st.dictionaries(st.integers(0, 5), st.integers(1, 4), min_size=1)


@given(counts, st.data())
def test_the_ports_of_tasks_are_free_everywhere_and_their_own(num_tasks, data):
    choice = SharedPorts(num_tasks, data.draw(st.none() | st.integers(1, 65535)))
    free = {}
    for host in num_tasks:
        # Random ones, and not always as many: what is drawn must not depend on them.
        ports = choice.candidates(host)
        taken = data.draw(st.sets(st.integers(0, 1000), max_size=20))
        free[host] = {*ports} - {ports[each % len(ports)] for each in taken}
    if problems := choice.problems(free):
        assert all("free" in each for each in problems.values())
        return
    tasks, entries = choice.tasks(free), choice.entries(free)
    assert {host: len(each) for host, each in tasks.items()} == num_tasks
    inner = [port for each in tasks.values() for port in each]
    assert len({*inner}) == len(inner)
    assert all({*inner} <= free[host] for host in num_tasks)
    assert all(entries[host] in free[host] for host in num_tasks)
    assert not {*entries.values()} & {*inner}


def test_a_wanted_port_that_is_taken():
    choice = SharedPorts({0: 1, 1: 1}, 7000)
    free = {0: choice.candidates(0), 1: choice.candidates(1)[1:]}
    message = "lacks a free port for its tunnel (--first_port=7000)"
    assert choice.problems(free) == {1: message}
    (everywhere,) = SharedPorts({0: 1}, None).problems({0: []}).values()
    assert "lacks a free port" in everywhere


def test_hosts_that_have_no_free_port_in_common():
    choice = SharedPorts({0: 1, 1: 1}, 7000)
    first, *rest = choice.candidates(0)
    half = len(rest) // 2
    problems = choice.problems({0: [first, *rest[:half]], 1: [first, *rest[half:]]})
    assert problems[None].startswith("only 0 ports were free on every host")


def test_ports_of_their_own():
    choice = OwnPorts({0: 2, 1: 1}, 7000)
    assert choice.candidates(0) == [7000, 7001]
    free = {0: [7001], 1: [7000]}
    assert choice.problems(free) == {
        0: "lacks 1 of 2 free ports from --first_port=7000"
    }
    free = {0: [7000, 7001], 1: [7000]}
    assert choice.tasks(free) == {0: [7000, 7001], 1: [7000]}
    assert choice.entries(free) == {}


# Certificates.

AUTHORITY = Authority()


def certificate(pem):
    return x509.load_pem_x509_certificate(pem.encode())


def a_key():
    return identity.make(sys.executable, os.environ)


def test_a_certificate_has_the_names_it_was_given_and_no_other():
    authority = Authority()
    key, request = a_key()
    signed = certificate(authority.sign(request, ["ps-0.tfdist", "chief-0.tfdist"]))
    names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [
        "ps-0.tfdist",
        "chief-0.tfdist",
    ]
    signed.verify_directly_issued_by(certificate(authority.certificate))
    constraints = signed.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca
    private = serialization.load_pem_private_key(key.encode(), None)
    assert private.public_key() == signed.public_key()
    now = datetime.now(timezone.utc)
    assert signed.not_valid_before_utc < now - timedelta(hours=23)
    assert signed.not_valid_after_utc > now + timedelta(days=300)


def test_a_job_does_not_trust_another():
    one, other = Authority(), Authority()
    assert (
        certificate(one.certificate).subject != certificate(other.certificate).subject
    )
    signed = certificate(issue(other, ["ps-0.tfdist"])[0])
    with pytest.raises(ValueError, match="subject"):
        signed.verify_directly_issued_by(certificate(one.certificate))


@given(st.text())
def test_what_is_no_request_gets_no_certificate(text):
    with pytest.raises(ValueError, match=r".*"):
        AUTHORITY.sign(text, ["ps-0.tfdist"])


def test_a_request_that_was_changed_gets_no_certificate():
    _, request = a_key()
    head, *lines, tail = request.strip().splitlines()
    last = lines[-1]
    swapped = last.replace(last[4], "A" if last[4] != "A" else "B", 1)
    changed = "\n".join([head, *lines[:-1], swapped, tail])
    with pytest.raises(ValueError, match=r".*"):
        AUTHORITY.sign(changed, ["ps-0.tfdist"])


def test_a_key_is_in_no_directory_and_only_for_its_owner():
    files = identity.Files()
    files.add("key", "secret\n")
    files.add("config", files.filled("key = /dev/fd/@key@"))
    key, config = files.numbers
    try:
        assert stat.S_IMODE(os.fstat(key).st_mode) == 0o600
        assert os.fstat(key).st_nlink == 0
        assert os.readlink(f"/proc/self/fd/{key}").startswith("/memfd:")
        shown = subprocess.run(
            ["cat", f"/dev/fd/{key}", f"/dev/fd/{config}"],
            pass_fds=files.numbers,
            capture_output=True,
            check=True,
        ).stdout
        assert shown == f"secret\nkey = /dev/fd/{key}".encode()
    finally:
        files.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(key)


def test_an_interpreter_without_the_library_says_so(tmp_path):
    (tmp_path / "cryptography.py").write_text("raise ImportError('it is broken')")
    with pytest.raises(ValueError, match="it is broken"):
        identity.make(sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)})


# What stunnel is told.


def sections(config):
    head, *parts = re.split(r"^\[(.*)\]\n", config, flags=re.M)
    names = parts[::2]
    bodies = [
        dict(line.split(" = ") for line in part.splitlines() if line)
        for part in parts[1::2]
    ]
    return head, dict(zip(names, bodies, strict=True))


many = st.integers(1, 4)


@given(many, many, many)
def test_every_task_is_at_its_address_on_every_host(num_ps, num_workers, num_hosts):
    jobs = {"chief": 1, "ps": num_ps, "worker": num_workers}
    tasks = [Task(job, i) for job, count in jobs.items() for i in range(count)]
    ports = {task: 7000 + i for i, task in enumerate(tasks)}
    cluster = Cluster.from_dict(
        {
            job: [f"127.0.0.1:{ports[Task(job, i)]}" for i in range(count)]
            for job, count in jobs.items()
        }
    )
    where = assign(tasks, [0.0] * num_hosts)
    ends = {host: TunnelEnd(f"10.0.0.{host}", 9000 + host) for host in range(num_hosts)}
    remotes = {host: Remote(f"h{host}", ("ssh",), "/data") for host in range(num_hosts)}
    found = tunnels(cluster, where, ends, remotes, "python", {})
    used = sorted({*where.values()})
    if len(used) == 1:
        assert found == ()
        return
    assert [each.remote.host for each in found] == [f"h{host}" for host in used]
    for host, each in zip(used, found, strict=True):
        head, parts = sections(each.config)
        assert "verifyChain = yes\nrequireCert = yes" in head
        assert "sslVersion = TLSv1.3" in head
        entry = parts.pop("tls")
        assert entry["accept"] == f"0.0.0.0:{9000 + host}"
        assert each.port == 9000 + host
        for task in tasks:
            own, other = f"{task.job}-{task.index}", f"to-{task.job}-{task.index}"
            if where[task] == host:
                part = parts.pop(own)
                assert part["connect"] == f"127.0.0.1:{ports[task]}"
                assert part["sni"] == f"tls:{own}.tfdist"
                assert f"{own}.tfdist" in each.names
            else:
                part = parts.pop(other)
                assert part["accept"] == f"127.0.0.1:{ports[task]}"
                assert part["connect"] == f"10.0.0.{where[task]}:{9000 + where[task]}"
                assert part["checkHost"] == part["sni"] == f"{own}.tfdist"
        assert parts == {}
        # Only the entry is open to others.
        accepts = re.findall(r"^accept = (.*)", each.config, re.M)
        assert [a for a in accepts if not a.startswith("127.0.0.1:")] == [
            entry["accept"]
        ]


def test_an_address_of_ipv6():
    route = stunnel.TunnelRoute(Task("ps", 0), 7000, "[fe80::1]:9000")
    text = stunnel.configuration(9001, [], [route], has_ipv6=True)
    assert "accept = :::9001\n" in text
    assert "connect = fe80::1:9000\n" in text
