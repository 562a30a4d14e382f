"""The errors that tfdist raises for its users, all of them subclasses of `Error`.

`docs/errors.md` says what each means and what to do. The errors of `tfdist.research` and of
`tfdist.estimator` are subclasses of `Error`, too.
"""

from tfdist._support.names import PublicNames

__all__, __getattr__, __dir__ = PublicNames(__file__).exported(globals())
