"""Writes a first script, which trains a model on a cluster of this machine.

    python -m launch.quickstart [FILE]

The script is FILE, or `quickstart.py` in the current directory.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from tf_config.commands import as_typed

_NAME = "quickstart.py"
# Text and no module, which would import TensorFlow. A wheel has it, but not examples/.
_SCRIPT = '''\
"""The shortest cluster program: linear regression on parameter servers.

tfdist local quickstart.py
"""

import keras
import numpy as np

import tfdist

x = np.random.default_rng(0).normal(size=(4096, 8)).astype("float32")
y = x @ np.arange(8, dtype="float32")

strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")

model.fit(x, y, batch_size=64, epochs=5, verbose=2)
print(strategy.placement_report())
'''


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns its exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values = Flags()
    command_line.define_help(values)
    _, rest = command_line.parse_flags(argv, values, __doc__ or "")
    if len(rest) > 1:
        raise UsageError(f"quickstart takes one path; received {shlex.join(rest)}")
    path = Path(*rest or [_NAME])
    try:
        with path.open("x") as file:
            file.write(_SCRIPT)
    except FileExistsError:
        raise UsageError(
            f"{path} exists, and is not overwritten: remove it, or give the path of a "
            "new file"
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; choose another path"
        ) from None
    run = as_typed("python -m launch.local", argv[0])
    print(f"wrote {path}; to train on this machine:\n")
    print(f"    {run} {shlex.quote(str(path))}")
    return 0


if __name__ == "__main__":
    command_line.run(main, "launch.quickstart")
