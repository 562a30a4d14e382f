"""The graph of one step: the task of each operation, and messages between tasks.

A step, from Keras's train_step to what the tasks send each other:
`tfdist/parameter_server/steps/worker_function` (has it traced, once) -> `step_graph` (keeps
its graph) -> `tasks` (which task computes each operation) -> `messages` (which tensors
travel together) -> `packing` (rewrites the graph accordingly, by `wire`) -> `compiling` (has
XLA compile what the worker computes, with jit_compile=True) -> `graph_fragment` (adds it to the
worker's function, once for each step, or `repetition` in a loop, if `unrolling` says so).
With exchange=ExchangeEvery(k), `local` first makes k steps on copies of the variables out of it, by
`rewriting`. A function that has become large is spared TensorFlow's graph optimizers.
"""
