"""What each operation does to the rows of a batch.

A list of what is known to keep examples apart. Whatever is not in it is refused: that no
rule is known to be broken does not prove that an example's value is its own.
"""

from tfdist.synchronous.fit.application import Application
from tfdist.synchronous.fit.row_arithmetic import ARITHMETIC
from tfdist.synchronous.fit.row_lists import LISTS
from tfdist.synchronous.fit.row_movement import MOVEMENT
from tfdist.synchronous.fit.row_selection import SELECTION
from tfdist.synchronous.fit.rows import NotOwnError, Rows

_RULES = {**ARITHMETIC, **MOVEMENT, **SELECTION, **LISTS}


def follow(application: Application) -> Rows:
    """Returns where the rows of an operation's output are.

    Raises:
        NotOwnError: If they may depend on other examples than their own.
    """
    rule = _RULES.get(application.op.type)
    if rule is None:
        raise NotOwnError
    return rule(application)
