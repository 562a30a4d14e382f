"""`client_app`: a client's round as a Flower `ClientApp`."""

import uuid
from collections.abc import Callable

import keras
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tfdist._support.types import Nest
from tfdist.research.federated.averaging import FederatedAveraging
from tfdist.research.federated.execution import checks
from tfdist.research.federated.execution.client_training import ClientTraining
from tfdist.research.federated.flower.array_layout import ArrayLayout, layout_of
from tfdist.research.federated.flower.averaging_strategy import arrays_of, record_of

# The last app that was called in this process. Flower's simulation sends the app with
# every message, and a new graph for each would take longer than the training.
_local: dict[str, tuple[ClientTraining, ArrayLayout]] = {}


def client_app(
    build_model: Callable[[], keras.Model],
    averaging: FederatedAveraging,
    examples_of: Callable[[int], Nest],
) -> ClientApp:
    """Returns the app that trains on a client's own examples.

    It works with `AveragingStrategy`, and with Flower's own strategies, since it replies with
    its weights and `num-examples`. A client's number is the `partition-id` of its node, which
    Flower's simulation sets, and a node on a real device gets from its command line.

    Args:
        build_model: Returns a Keras model, built and compiled: the same on all clients.
        averaging: The algorithm, as on the server.
        examples_of: Returns `(x, y)`, `(x, y, sample_weight)` or a batched
            `tf.data.Dataset` of these, from a client's number. It is called in each round.
    """
    key = uuid.uuid4().hex
    app = ClientApp()

    @app.query()
    def number(message: Message, context: Context) -> Message:
        config = ConfigRecord({"client": _number_of(context)})
        return Message(RecordDict({"config": config}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        # Ray copies this function and the globals it names, but not those of a module's.
        training, layout = _training(key, build_model, averaging)
        return _trained(training, layout, examples_of, message, context)

    return app


def _training(
    key: str, build_model: Callable[[], keras.Model], averaging: FederatedAveraging
) -> tuple[ClientTraining, ArrayLayout]:
    """Returns this process's training of an app, whose graph is made once."""
    if key not in _local:
        # Models of apps that were called before would stay in memory.
        _local.clear()
        model = build_model()
        training = ClientTraining(model, averaging)
        _local[key] = training, layout_of(model, training.vector)
    return _local[key]


def _trained(
    training: ClientTraining,
    layout: ArrayLayout,
    examples_of: Callable[[int], Nest],
    message: Message,
    context: Context,
) -> Message:
    client = _number_of(context)
    config = message.content.config_records["config"]
    sent = arrays_of(message.content.array_records["arrays"])
    weights = layout.vector(sent)
    examples = checks.arrays_of(examples_of(client), client)
    update = training.update(weights, examples, int(config["server-round"]) - 1, client)
    trained = layout.arrays(weights + update.change)
    content = RecordDict(
        {
            # In the order in which they came, which `to_numpy_ndarrays` goes by.
            "arrays": record_of({name: trained[name] for name in sent}),
            "metrics": MetricRecord({"num-examples": update.examples}),
        }
    )
    return Message(content, reply_to=message)


def _number_of(context: Context) -> int:
    try:
        return int(context.node_config["partition-id"])
    except KeyError:
        raise ValueError(
            "a client's number is the partition-id of its node, which has none: "
            "flower-supernode --node-config 'partition-id=0'"
        ) from None
