"""Properties: round trips, and nothing but ClusterError for any input."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from tf_config import JOBS, Cluster, ClusterError, Task, TFConfig, split_address

names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,20}", fullmatch=True)
hosts = st.one_of(
    names,
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda ip: f"[{ip}]"),
)
addresses = st.builds("{}:{}".format, hosts, st.integers(1, 65535))


@st.composite
def clusters(draw) -> Cluster:
    given_addresses = draw(
        st.lists(addresses, min_size=4, max_size=12, unique_by=str.lower)
    )
    chief, evaluator, *rest = given_addresses
    ps = draw(st.integers(0, len(rest) - 1))
    with_chief = ps > 0 or draw(st.booleans())
    return Cluster.from_hosts(
        chief=[chief] if with_chief else [],
        ps=rest[:ps],
        worker=rest[ps:],
        evaluator=[evaluator] if draw(st.booleans()) else [],
    )


@st.composite
def configs(draw) -> TFConfig:
    cluster = draw(clusters())
    tasks = [*cluster.tasks(), Task("evaluator", 0)]
    return TFConfig(cluster, draw(st.sampled_from(tasks)))


@given(clusters())
def test_a_cluster_survives_its_dict(cluster):
    assert Cluster.from_dict(json.loads(json.dumps(cluster.as_dict()))) == cluster


@given(clusters())
def test_a_cluster_survives_flags(cluster):
    flags = {job: ",".join(hosts) for job, hosts in cluster.as_dict().items()}
    assert Cluster.from_hosts(**flags) == cluster


@given(clusters())
def test_every_task_has_its_own_address_and_parses_back(cluster):
    tasks = list(cluster.tasks())
    assert all(task in cluster and Task.parse(str(task)) == task for task in tasks)
    assert len({split_address(cluster.address(task)) for task in tasks}) == len(tasks)


@given(configs())
def test_a_config_survives_json_but_for_the_evaluators_address(config):
    seen_by_tensorflow = dataclasses.replace(config.cluster, evaluator=())
    read = TFConfig.from_json(config.to_json())
    assert read == TFConfig(seen_by_tensorflow, config.task)
    assert read.to_json() == config.to_json()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)

# Values near enough to a valid TF_CONFIG to get past the first checks.
some_address = addresses | st.text() | json_values | st.sampled_from(["a:1", "b:1"])
some_hosts = st.lists(some_address, max_size=3) | some_address
some_job = st.sampled_from([*JOBS, "PS", "master"]) | st.text()
some_cluster = st.dictionaries(some_job, some_hosts, max_size=4)
some_task = st.fixed_dictionaries(
    {},
    optional={
        "type": some_job | json_values,
        "index": st.integers(0, 2) | json_values,
        "trial": json_values,
    },
)
almost_configs = st.fixed_dictionaries(
    {"cluster": some_cluster | json_values, "task": some_task | json_values},
    optional={"environment": json_values, "extra": json_values},
)


def read_or_refuse(text: str) -> None:
    try:
        config = TFConfig.from_json(text)
    except ClusterError as error:
        message = str(error)
    else:
        message = ""
        assert TFConfig.from_json(config.to_json()).task == config.task
    # What was received must not reach the terminal as control codes.
    assert message.replace("\n", "").isprintable()


@given(st.text())
def test_any_text_is_read_or_refused(text):
    read_or_refuse(text)


@given(json_values | almost_configs)
def test_any_json_is_read_or_refused(value):
    read_or_refuse(json.dumps(value))


@given(configs(), st.data())
def test_a_damaged_config_is_read_or_refused(config, data):
    text = config.to_json()
    place = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 3))
    read_or_refuse(text[:place] + data.draw(st.text(max_size=3)) + text[place + cut :])


@given(st.text() | json_values)
def test_any_address_is_split_or_refused(address):
    try:
        host, port = split_address(address)
    except ClusterError:
        return
    assert host
    assert 1 <= port <= 65535
