"""`dataclass` for values, at a quarter of what a module pays for the standard one.

Spark starts several Python processes for a query, and each of them makes the classes of
all modules that it imports. `dataclasses.dataclass` compiles six functions for a frozen
class. Only `__init__` has to be compiled; here the others are closures. The result is a
dataclass to `fields`, `replace` and `asdict`, and type checkers see the standard
decorator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter, ge, gt, le, lt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, **others):
        """Make a dataclass; those that are frozen and have slots are made here.

        Args:
            cls: the class.
            frozen: fields can't be assigned.
            slots: there are no other attributes.
            others: as `dataclasses.dataclass` has them. For those made here these are
                `eq`, `order`, `repr` and `kw_only`. They have no `InitVar`, and each
                field is a parameter of `__init__`.
        """

        def make(cls):
            if frozen and slots:
                return _make_value(cls, **others)
            flags = {"frozen": frozen, "slots": slots}
            return dataclasses.dataclass(**flags, **others)(cls)

        return make if cls is None else make(cls)


_Fields = Sequence[Field[Any]]
_Methods = dict[str, Callable[..., Any]]


class _NotGiven:
    """Stands for an argument that a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_NOT_GIVEN = _NotGiven()


def _make_value(
    cls: type[Any],
    *,
    eq: bool = True,
    order: bool = False,
    repr: bool = True,
    kw_only: bool = False,
) -> type[Any]:
    # A class without a text would get one of its signature, which takes long to make.
    cls.__doc__ = cls.__doc__ or ""
    # This much of the standard decorator compiles nothing.
    made = dataclasses.dataclass(
        init=False, repr=False, eq=False, slots=True, kw_only=kw_only
    )(cls)
    every = fields(made)
    methods = {"__init__": _make_init(made, every), **_make_frozen(made, every)}
    if repr:
        methods["__repr__"] = _show
    if eq:
        methods |= _make_equal(every)
    if order:
        methods |= _make_order(every)
    own = dict(made.__dict__)
    # Python puts a None there for a class that has an `__eq__` of its own.
    if own.get("__hash__", MISSING) is None:
        del own["__hash__"]
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _make_init(cls: type[Any], every: _Fields) -> Callable[..., None]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_not_given": _NOT_GIVEN}
    by_place: list[str] = []
    by_name: list[str] = []
    body: list[str] = []
    for field in every:
        name, default = field.name, f"_default_{field.name}"
        parameter, value = name, name
        if field.default is not MISSING:
            names[default] = field.default
            parameter = f"{name}={default}"
        elif field.default_factory is not MISSING:
            names[default] = field.default_factory
            parameter = f"{name}=_not_given"
            value = f"{default}() if {name} is _not_given else {name}"
        (by_name if field.kw_only else by_place).append(parameter)
        body.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = ["self", *by_place, *(["*", *by_name] if by_name else [])]
    lines = [f"def __init__({', '.join(head)}):", *(body or ["pass"])]
    exec("\n ".join(lines), names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in every}
    init.__annotations__["return"] = None
    return init


def _make_frozen(cls: type[Any], every: _Fields) -> _Methods:
    mine = frozenset(field.name for field in every)

    def set_attribute(self: Any, name: str, value: object) -> None:
        # A subclass that is no dataclass may have attributes besides.
        if type(self) is cls or name in mine:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in mine:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {
        "__setattr__": set_attribute,
        "__delattr__": delete_attribute,
        # Without these pickle would assign.
        "__getstate__": _get_state,
        "__setstate__": _set_state,
    }


def _make_order(every: _Fields) -> _Methods:
    compared = _make_getter([each.name for each in every if each.compare])

    def make(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def is_so(self: Any, other: Any) -> Any:
            if other.__class__ is not self.__class__:
                return NotImplemented
            return compare(compared(self), compared(other))

        return is_so

    return {
        "__lt__": make(lt),
        "__le__": make(le),
        "__gt__": make(gt),
        "__ge__": make(ge),
    }


def _make_equal(every: _Fields) -> _Methods:
    compared = _make_getter([each.name for each in every if each.compare])
    hashed = _make_getter(
        [
            each.name
            for each in every
            if (each.compare if each.hash is None else each.hash)
        ]
    )

    def is_equal(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    return {"__eq__": is_equal, "__hash__": lambda self: hash(hashed(self))}


def _make_getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    # For one name `attrgetter` does not give a tuple, and it takes no fewer.
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])


def _show(self: Any) -> str:
    shown = [
        f"{field.name}={getattr(self, field.name)!r}"
        for field in fields(self)
        if field.repr
    ]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
