"""First lines of docstrings begin with a noun or a verb."""

import pytest

from .. import first_lines

MODULE = '''"""{}"""

LIMIT = 7
"""{}"""


class Gate:
    """{}"""

    @property
    def size(self):
        """{}"""

    def is_open(self):
        """{}"""
'''
NOUNS_AND_VERBS = (
    "Gates at which steps wait.",
    "The most steps that wait.",
    "Counts what waits.",
    "The number of steps.",
    "Returns True if a step may start.",
)
CLAUSES = (
    "What steps wait for.",
    "Of the steps, the most that wait.",
    "Where each step waits.",
    "How many steps there are.",
    "Returns whether a step may start.",
)


def test_nouns_and_verbs_are_no_problem():
    assert not list(first_lines.problems("gate.py", MODULE.format(*NOUNS_AND_VERBS)))


@pytest.mark.parametrize(
    ("index", "place", "kind"),
    [
        (0, "gate.py:1", "module"),
        (1, "gate.py:4", "constant"),
        (2, "gate.py:8", "class"),
        (3, "gate.py:12", "property"),
        (4, "gate.py:15", "function"),
    ],
)
def test_a_clause_is_named_with_what_to_write_instead(index, place, kind):
    texts = list(NOUNS_AND_VERBS)
    texts[index] = CLAUSES[index]
    (line,) = first_lines.problems("gate.py", MODULE.format(*texts))
    assert line.startswith(f'{place}: "{CLAUSES[index]}" begins with a clause. ')
    assert line.endswith(first_lines.INSTEAD[kind])


@pytest.mark.not_in_gate
def test_the_packages_have_none():
    assert first_lines.found() == []
