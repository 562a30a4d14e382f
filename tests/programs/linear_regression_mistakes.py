"""Run linear_regression.py on each wrong command line from standard input."""

import contextlib
import importlib.util
import io
import json
import os
import sys

from absl import flags

program, cases = sys.argv[1], json.load(sys.stdin)
spec = importlib.util.spec_from_file_location("linear_regression", program)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for case in cases:
    os.environ.pop("TF_CONFIG", None)
    os.environ.update(case["environ"])
    flags.FLAGS.unparse_flags()
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    flags.FLAGS([program, *case["args"]])
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            module.main([program])
            status = 0
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, said.getvalue()]))
