"""Annotations checked while the suite runs, shapes of tensors among them.

As jaxtyping's own import hook does, with less work in each call: that one binds the arguments to
the signature and checks them twice over, and made small models take twice their time.
"""

import ast
import builtins
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

PACKAGES = ("nope_interp", "probes", "experiments")

ON = True  # False as for a user, for whom nothing is checked

_NAME = "_checked"  # among the builtins: the decorator's, in every module
_SCOPE = jaxtyped("context")
# With whole numbers where floats are expected.
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_nested: set[CodeType] = set()


def checked(thing: Any) -> Any:
    """The function, or the dataclass, which checks what it is given and what it returns.

    Axes of one name have one length throughout a call. Of a function inside another one only the
    first is checked: each call of the outer one makes it anew, and to write its checks takes longer
    than all that they check.
    """
    if isinstance(thing, type):
        thing.__init__ = checked(thing.__init__)  # type: ignore[misc]
        return thing
    if "<locals>" in thing.__qualname__:
        if thing.__code__ in _nested:
            return thing
        _nested.add(thing.__code__)
    check, shaped = None, False

    @wraps(thing)
    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal check, shaped
        if not ON:
            return thing(*arguments, **named)
        if check is None:  # written when first needed: half of all functions never are
            check, shaped = _checking(thing), _has_shapes(thing)
        if not shaped:
            return check(*arguments, **named)
        with _SCOPE:
            return check(*arguments, **named)

    return called


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    hints = function.__annotations__
    for name, hint in hints.items():
        if isinstance(hint, str) and not _can_be_read(hint, function.__globals__):
            hints[name] = Any
    return _check(function)


def _can_be_read(hint: str, names: dict[str, Any]) -> bool:
    try:
        eval(hint, names)
    except NameError:  # defined later: beartype waits
        return True
    except TypeError:  # such as pd.Series[Any], which only type checkers know
        return False
    return True


def _has_shapes(function: Callable[..., Any]) -> bool:
    return any("jaxtyping" in repr(hint) for hint in function.__annotations__.values())


class _Decorated(ast.NodeTransformer):
    """Puts `checked` on functions and dataclasses, but on none with `no_type_check`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._with(node, len(node.decorator_list))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        made = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        return self._with(node, 0) if made else self.generic_visit(node)

    def _with(self, node: ast.FunctionDef | ast.ClassDef, place: int) -> ast.AST:
        if any("no_type_check" in ast.unparse(decorator) for decorator in node.decorator_list):
            return node
        self.generic_visit(node)
        decorator = ast.copy_location(ast.Name(_NAME, ast.Load()), node)
        node.decorator_list.insert(place, decorator)
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Decorated().visit(ast.parse(self.get_data(path), path))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def check_annotations() -> None:
    """From now on, checks what is imported of our packages."""
    setattr(builtins, _NAME, checked)
    sys.meta_path.insert(0, _Finder())
