"""Pytrees: nested structures taken apart into leaves and put together again.

In: tuples, lists, dicts, namedtuples, dataclasses, attrs classes, and what is registered with optree. Out: their leaves
in order, and a structure. Dataclasses and attrs classes are registered in our own namespace when they are first seen.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable
from typing import Any

import optree

NAMESPACE = "tracejit"
_ordered = optree.dict_insertion_ordered(True, namespace=NAMESPACE)  # dicts keep their order, in our namespace only
_ordered.__enter__()  # and for good


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Leaves and structure of a pytree; None is a leaf, and what `is_leaf` says."""
    leaves, spec = optree.tree_flatten(tree, is_leaf, none_is_leaf=True, namespace=NAMESPACE)
    fresh = {type(x) for x in leaves if is_record(x)}
    if not fresh:
        return leaves, spec
    for cls in fresh:
        _register(cls)
    return flatten(tree, is_leaf)


def unflatten(spec: Any, leaves: Iterable[Any]) -> Any:
    """The pytree of that structure."""
    return optree.tree_unflatten(spec, leaves)


def mapped(f: Callable[[Any], Any], tree: Any) -> Any:
    """The pytree of f's results on the leaves of a tree that has been flattened before."""
    return optree.tree_map(f, tree, none_is_leaf=True, namespace=NAMESPACE)


def leaf_names(spec: Any, root: str) -> list[str]:
    """How each leaf is reached from `root`, as Python: `params['w'][0]`."""
    return [a.codify(root) for a in optree.treespec_accessors(spec)]


class Leaf:
    """Base of dataclasses that are values, not containers."""

    __slots__ = ()


def is_record(x: Any) -> bool:
    """Whether `x` is an object whose fields are children."""
    return not isinstance(x, (type, Leaf)) and (
        dataclasses.is_dataclass(x) or hasattr(type(x), "__attrs_attrs__") or isinstance(x, types.SimpleNamespace)
    )


def _register(cls: type) -> None:
    """Teach optree a dataclass, attrs class or namespace: its fields are children; other instance attributes do not
    survive."""
    fixed: tuple[str, ...] | None = None
    if dataclasses.is_dataclass(cls):
        fixed = tuple(f.name for f in dataclasses.fields(cls))
    elif hasattr(cls, "__attrs_attrs__"):
        fixed = tuple(f.name for f in cls.__attrs_attrs__)

    def take_apart(x: Any) -> tuple[Any, Any, Any]:
        present = tuple(vars(x)) if fixed is None else tuple(n for n in fixed if hasattr(x, n))
        return tuple(getattr(x, n) for n in present), present, present

    def put_together(present: tuple[str, ...], children: Iterable[Any]) -> Any:
        x = cls.__new__(cls)  # type: ignore[call-overload]
        for n, child in zip(present, children):
            object.__setattr__(x, n, child)
        return x

    try:
        optree.register_pytree_node(
            cls, take_apart, put_together, namespace=NAMESPACE, path_entry_type=optree.GetAttrEntry
        )
    except ValueError:  # another thread was faster
        pass
