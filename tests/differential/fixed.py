"""A dozen programs, spread over the kinds. Each was drawn or made small once."""

from .programs import Program

FIXED = {
    "partial_batch_of_a_sequence": Program(
        inputs="ids",
        layers=("dense", "max_pooling1d"),
        optimizer="adam",
        rows=44,
        stride=3,
    ),
    "function_in_a_step": Program(
        layers=("batch_normalization", "counter"),
        optimizer="momentum",
        step="in_function",
        data="dataset",
    ),
    "function_around_a_layer": Program(
        layers=("in_function",), optimizer="adamw", step="by_hand", stride=3
    ),
    "draws": Program(
        layers=("dropout", "gaussian_noise"), step="draws", execution=2, stride=4
    ),
    "draws_without_a_seed": Program(layers=("drop_path",), stride=3, optimizer="adam"),
    "noise": Program(layers=("dense",), step="noise", data="unknown_length"),
    "shuffled_in_on_epoch_end": Program(
        data="shuffling_py_dataset", epochs=2, stride=3, optimizer="nesterov"
    ),
    "two_threads": Program(
        inputs="image",
        layers=("conv2d", "max_pooling2d"),
        head="classes",
        data="py_dataset_of_threads",
        epochs=2,
        stride=3,
    ),
    "shuffled_rows": Program(
        inputs="two", data="shuffled", epochs=2, weighted=True, optimizer="rmsprop"
    ),
    "apply_in_a_condition": Program(
        step="in_condition", optimizer="clipnorm", data="full_batches", rows=48
    ),
    "two_optimizers": Program(
        layers=("layer_normalization", "shared"),
        step="two_optimizers",
        optimizer="adamax",
        data="generator",
        rows=48,
        validated=True,
    ),
    "masked_sequence": Program(
        inputs="masked_ids", layers=("gru",), head="binary", predicted=True
    ),
    "between_exchanges": Program(
        layers=("average", "own_loss"),
        head="two_outputs",
        step="totals",
        optimizer="ftrl",
        stride=6,
        exchange=3,
    ),
}
"""By what each is about."""
