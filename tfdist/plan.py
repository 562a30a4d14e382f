"""The command `python -m tfdist.plan`: plans which ps holds each variable.

Programs call the function `tfdist.plan`; this file is only the command.
"""

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    # Importing this module makes `tfdist.plan` refer to it, where users expect the
    # function.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from tfdist.planning.model import plan

        return plan(*args, **kwargs)


if __name__ == "__main__":
    from tfdist.planning.command import main

    sys.exit(main(sys.argv))

sys.modules[__name__].__class__ = _Callable
