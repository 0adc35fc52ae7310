"""Annotations checked while the suite runs, shapes of tensors among them.

As jaxtyping's own import hook does, with less work in each call: that one binds the arguments to
the signature and checks them twice over, and made small models take twice their time.
"""

import ast
import builtins
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor

PACKAGES = ("nope_interp", "probes", "experiments")

ON = True  # False as for a user, for whom nothing is checked

_NAME = "_checked"  # among the builtins: the decorator's, in every module
_SCOPE = jaxtyped("context")
# With whole numbers where floats are expected.
_HOW = BeartypeConf(is_pep484_tower=True)
_check = beartype(conf=_HOW)
_nested: set[CodeType] = set()


def checked(thing: Any) -> Any:
    """The function, or the dataclass, which checks what it is given and what it returns.

    Axes of one name have one length throughout a call. Of a function inside another one only the
    first is checked: each call of the outer one makes it anew, and to write its checks takes longer
    than all that they check. Where types and shapes decide, those that passed once pass again.
    """
    if isinstance(thing, type):
        thing.__init__ = checked(thing.__init__)  # type: ignore[misc]
        return thing
    if "<locals>" in thing.__qualname__:
        if thing.__code__ in _nested:
            return thing
        _nested.add(thing.__code__)
    check, shaped, by_kind = None, False, False
    # What passed was given these, and returned one of those.
    passed: dict[Any, set[Any]] = defaultdict(set)

    @wraps(thing)
    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal check, shaped, by_kind
        if not ON:
            return thing(*arguments, **named)
        if check is None:  # written when first needed: half of all functions never are
            check, shaped, by_kind = _checking(thing), _has_shapes(thing), _goes_by_kind(thing)
        if not shaped:
            return check(*arguments, **named)
        if not by_kind:
            with _SCOPE:
                return check(*arguments, **named)
        given = tuple(map(_kind, arguments))
        if named:
            given += tuple((name, _kind(value)) for name, value in named.items())
        returned = passed.get(given)
        if returned is None:
            with _SCOPE:
                found = check(*arguments, **named)
        else:
            found = thing(*arguments, **named)
            if _kind(found) in returned:
                return found
            _check_all(thing, inspect.signature(thing).bind(*arguments, **named), found)
        passed[given].add(_kind(found))
        return found

    return called


def _kind(value: Any) -> Any:
    """All that a check of shapes and classes asks of it."""
    kind = type(value)
    if _is_array(kind):
        return kind, value.shape, value.dtype
    return kind


@cache
def _is_array(kind: type) -> bool:
    return issubclass(kind, (Tensor, np.ndarray))


def _goes_by_kind(function: Callable[..., Any]) -> bool:
    """Whether no annotation asks more of a value than `_kind` tells, such as what a list holds."""
    given = inspect.signature(function).parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return not any(one.kind in several for one in given) and all(
        map(_told_by_kind, function.__annotations__.values())
    )


def _told_by_kind(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return all(map(_told_by_kind, get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return "{" not in hint.dim_str  # a length that an argument's value says
    plain = isinstance(hint, type) and get_origin(hint) is None
    return hint in (None, Any) or (plain and not getattr(hint, "_is_protocol", False))


def _check_all(thing: Any, bound: inspect.BoundArguments, found: Any) -> None:
    """Checks a call's arguments and what it returned, in one scope."""
    with _SCOPE:
        for name, hint in thing.__annotations__.items():
            if name in bound.arguments:
                die_if_unbearable(bound.arguments[name], hint, conf=_HOW)
        die_if_unbearable(found, thing.__annotations__.get("return", Any), conf=_HOW)


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
