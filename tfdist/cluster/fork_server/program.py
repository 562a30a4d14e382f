"""The program of a forked task: a script, or a module as `python -m` runs it."""

import builtins
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType, TracebackType
from typing import Any

_MAIN = "__main__"


class ForkedProgram:
    """The script or module that a task runs, with its arguments.

    `namespace` has the globals of its `__main__`; `directory` is what the interpreter
    would put first on `sys.path`, or None. Raises ValueError for another kind of
    command.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        _, *rest = argv
        self._argv = tuple(argv)
        self._is_module = rest[:1] == ["-m"] and len(rest) > 1
        self._arguments = tuple(rest[2:] if self._is_module else rest[1:])
        self._name = rest[1] if self._is_module else "".join(rest[:1])
        if not self._is_module and not (
            self._name.endswith(".py") and os.path.isfile(self._name)
        ):
            raise ValueError(f"{' '.join(rest[:1]) or 'no script'} is no Python file")
        self.namespace: dict[str, Any] = {}
        self.directory = None if _is_path_safe() else self._directory()

    def _directory(self) -> str:
        if self._is_module:
            return os.getcwd()
        return os.path.dirname(os.path.realpath(self._name))

    def prepare(self, path: Sequence[str]) -> None:
        """Makes this interpreter look as if it had just been started.

        `path` is `sys.path`, after the directory of the program.
        """
        main = ModuleType(_MAIN)
        self.namespace = vars(main)
        self.namespace.update(__builtins__=builtins)
        if sys.version_info < (3, 14):
            self.namespace.update(__annotations__={})
        sys.modules[_MAIN] = main
        sys.argv[:] = [self._name, *self._arguments]
        sys.orig_argv[:] = self._argv
        sys.path[:] = [*([self.directory] if self.directory else []), *path]

    def run(self) -> None:
        """Runs the program; call it from the frame that is to be its only caller."""
        code = self._load_module() if self._is_module else self._load_script()
        exec(code, self.namespace)

    def _load_script(self) -> CodeType:
        path = os.path.abspath(self._name)
        loader = importlib.machinery.SourceFileLoader(_MAIN, path)
        self.namespace.update(
            __loader__=loader, __file__=path, __package__=None, __cached__=None
        )
        return loader.source_to_code(loader.get_data(path), path)

    def _load_module(self) -> CodeType:
        spec = importlib.util.find_spec(self._name)
        if spec and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{self._name}.{_MAIN}")
        loader: Any = spec.loader if spec else None
        code = loader.get_code(spec.name) if spec and loader else None
        if spec is None or code is None:
            print(f"{self._argv[0]}: No module named {self._name}", file=sys.stderr)
            sys.exit(1)
        self.namespace.update(
            __loader__=spec.loader,
            __file__=spec.origin,
            __package__=spec.parent,
            __spec__=spec,
            __cached__=spec.cached,
        )
        sys.argv[0] = str(spec.origin)
        return code


def hide_callers(namespace: dict[str, Any]) -> None:
    """Hides the frames below the program's from the report of an exception."""
    shown = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        while trace and trace.tb_frame.f_globals is not namespace:
            trace = trace.tb_next
        shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def _is_path_safe() -> bool:
    return bool(getattr(sys.flags, "safe_path", False))
