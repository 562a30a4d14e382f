"""A test for this pytest process, in the folder of those for a second one."""


def test_passes_here():
    pass
