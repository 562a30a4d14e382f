"""The two halves of the experiment as Flower starts them: see pyproject.toml."""

import experiment

from tfdist.research.federated import flower

server = flower.server_app(
    experiment.build_model,
    experiment.AVERAGING,
    experiment.CLIENTS,
    experiment.ROUNDS,
    validation_data=experiment.test_data,
)
client = flower.client_app(
    experiment.build_model, experiment.AVERAGING, experiment.examples_of
)
