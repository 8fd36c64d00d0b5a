"""Forms of answers, for the option `constraint`: a JSON Schema as a dict, a dataclass, a pydantic
model class, a Regex, a Choice, a Grammar, or JSON_OBJECT.

    @dataclass
    class Person:
        name: str
        age: int

    person = client.generate_as(Person, "Who wrote Emma? As JSON:")

docs/constraints.md of the server says what of JSON Schema and of regular expressions is kept."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import re
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

__all__ = [
    "JSON_OBJECT", "Choice", "Constraint", "Grammar", "Regex", "UnfinishedAnswer",
    "constraint_fields", "json_schema", "parse_answer",
]


@dataclass(frozen=True)
class Regex:
    """The whole text matches the regular expression."""

    pattern: str


@dataclass(frozen=True)
class Choice:
    """The text is one of these."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Grammar:
    """The text is the rule `root` of a grammar in GBNF."""

    text: str


class _JsonObject(enum.Enum):
    JSON_OBJECT = enum.auto()


#: Any JSON object.
JSON_OBJECT = _JsonObject.JSON_OBJECT

#: A dict is a JSON Schema; a type is a dataclass, a pydantic model class, or another that a field of
#: a dataclass may have.
Constraint = Union[Mapping[str, Any], type, Regex, Choice, Grammar, _JsonObject]


class UnfinishedAnswer(Exception):
    """An answer ended before it had its form, by its length. `text` is what there is of it."""

    def __init__(self, text: str):
        super().__init__("the answer ended before its form did: raise max_tokens")
        self.text = text


_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_FORMATS = {
    datetime.datetime: "date-time", datetime.date: "date", datetime.time: "time", uuid.UUID: "uuid"
}
_UNIONS = (Union, getattr(types, "UnionType", Union))


def constraint_fields(constraint: Constraint) -> dict[str, Any]:
    """Returns the fields of the message Constraint."""
    if isinstance(constraint, Regex):
        return {"regex": constraint.pattern}
    if isinstance(constraint, Choice):
        if isinstance(constraint.texts, (str, bytes)):
            raise TypeError("Choice: expected a sequence of str")
        return {"choice": {"texts": list(constraint.texts)}}
    if isinstance(constraint, Grammar):
        return {"grammar": constraint.text}
    if constraint is JSON_OBJECT:
        return {"json_object": True}
    return {"json_schema": json.dumps(json_schema(constraint), ensure_ascii=False)}


def json_schema(constraint: Any) -> Any:
    """Returns the JSON Schema of a type; a dict is one already."""
    if isinstance(constraint, Mapping):
        return dict(constraint)
    if hasattr(constraint, "model_json_schema"):  # pydantic's
        return constraint.model_json_schema()
    definitions = _Definitions()
    schema = _schema(constraint, definitions)
    return {**schema, "$defs": definitions.schemas} if definitions.schemas else schema


class _Definitions:
    """The schemas of dataclasses, by names that are unique: of two classes called Item the second is
    Item2."""

    def __init__(self) -> None:
        self.schemas: dict[str, dict[str, Any]] = {}
        self._names: dict[Any, str] = {}

    def name_of(self, of: Any) -> str:
        if of not in self._names:
            taken = self.schemas
            numbered = (f"{of.__name__}{n}" for n in range(2, len(taken) + 3))
            name = next(name for name in (of.__name__, *numbered) if name not in taken)
            self._names[of], taken[name] = name, {}  # which a field of its own may refer to
            taken[name] = _object_schema(of, self)
        return self._names[of]


def _schema(of: Any, definitions: _Definitions) -> dict[str, Any]:
    if of is Any:
        return {}
    if of in _SCALARS:
        return {"type": _SCALARS[of]}
    if of in _FORMATS:
        return {"type": "string", "format": _FORMATS[of]}
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return {"enum": [member.value for member in of]}
    if dataclasses.is_dataclass(of):
        return {"$ref": f"#/$defs/{definitions.name_of(of)}"}
    return _generic_schema(of, definitions)


def _object_schema(of: Any, definitions: _Definitions) -> dict[str, Any]:
    hints = typing.get_type_hints(of)
    names, required = _field_names(of)
    return {
        "type": "object",
        "properties": {name: _schema(hints[name], definitions) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _field_names(of: Any) -> tuple[list[str], list[str]]:
    """Returns the names of a dataclass's arguments, and of those without a default."""
    missing = dataclasses.MISSING
    fields = [field for field in dataclasses.fields(of) if field.init]
    required = [
        field.name for field in fields
        if field.default is missing and field.default_factory is missing
    ]
    return [field.name for field in fields], required


def _generic_schema(of: Any, definitions: _Definitions) -> dict[str, Any]:
    origin, args = typing.get_origin(of), typing.get_args(of)
    if origin in _UNIONS:
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin is list or of is list:
        return {"type": "array", "items": _schema(args[0], definitions) if args else {}}
    if origin is tuple and args[1:] == (...,):
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is tuple:
        items = [_schema(arg, definitions) for arg in args]
        return {
            "type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)
        }
    if (origin is dict or of is dict) and args[:1] in ((), (str,)):
        values = _schema(args[1], definitions) if args else {}
        return {"type": "object", "additionalProperties": values}
    raise TypeError(f"no JSON schema for {of!r}")


def parse_answer(constraint: Constraint, text: str) -> Any:
    """Returns the text as what the constraint asks for: an instance of a type, a JSON value, or, of
    Regex, Choice and Grammar, the text itself. ValueError: the text is no such value's JSON, or is
    nested too deeply for Python."""
    if isinstance(constraint, (Regex, Choice, Grammar)):
        return text
    if hasattr(constraint, "model_validate_json"):  # pydantic's
        return constraint.model_validate_json(text)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if constraint is JSON_OBJECT:
            return _built(dict, value)
        return value if isinstance(constraint, Mapping) else _built(constraint, value)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    """NaN, Infinity and -Infinity are JSON to Python alone."""
    raise ValueError(f"expected JSON, got {name}")


def _built(of: Any, value: Any) -> Any:
    """Makes a value of a type of its JSON; ValueError if the JSON is of none."""
    if of is Any:
        return value
    if of is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf  # as json reads 1e400
        if math.isinf(value):
            raise ValueError("expected float, got a larger number")
        return value
    if of in _SCALARS:
        if type(value) is not of:
            raise ValueError(f"expected {of.__name__}, got {value!r}")
        return value
    if of in _FORMATS:
        if not isinstance(value, str):
            raise ValueError(f"expected {of.__name__}, got {value!r}")
        if of is uuid.UUID:
            return uuid.UUID(value)
        # Before Python 3.11 a fraction of a second must have three digits or six.
        value = re.sub(r"\.([0-9]+)", lambda match: f".{match[1]:0<6.6}", value)
        return of.fromisoformat(value.replace("Z", "+00:00").replace("z", "+00:00"))
    if isinstance(of, type) and issubclass(of, enum.Enum):
        for member in of:
            if _is_json_of(member.value, value):
                return member
        raise ValueError(f"{value!r} is not a valid {of.__name__}")
    if dataclasses.is_dataclass(of):
        return _built_object(of, value)
    return _built_generic(of, value)


def _is_json_of(own: Any, value: Any) -> bool:
    """Whether the JSON of a value of Python is this one: to Python True is 1, and no list is a tuple."""
    if isinstance(own, (list, tuple)):
        return isinstance(value, list) and len(own) == len(value) and all(map(_is_json_of, own, value))
    if isinstance(own, dict):
        return isinstance(value, dict) and own.keys() == value.keys() and all(
            _is_json_of(item, value[key]) for key, item in own.items())
    return own == value and isinstance(own, bool) == isinstance(value, bool)


def _built_object(of: Any, value: Any) -> Any:
    names, required = _field_names(of)
    if not isinstance(value, dict) or not set(required) <= value.keys() <= set(names):
        raise ValueError(f"expected the fields of {of.__name__}, got {value!r}")
    hints = typing.get_type_hints(of)
    return of(**{key: _built(hints[key], item) for key, item in value.items()})


def _built_generic(of: Any, value: Any) -> Any:
    origin, args = typing.get_origin(of) or of, typing.get_args(of)
    if origin in _UNIONS:
        for arg in args:
            try:
                return _built(arg, value)
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
        raise ValueError(f"expected one of {args}, got {value!r}")
    if origin is typing.Literal:
        if not any(_is_json_of(arg, value) for arg in args):
            raise ValueError(f"expected one of {args}, got {value!r}")
        return value
    expected = dict if origin is dict else list
    if not isinstance(value, expected):
        raise ValueError(f"expected a {expected.__name__}, got {value!r}")
    if origin is list:
        return [_built(args[0], item) for item in value] if args else value
    if origin is tuple:
        kinds = args[:1] * len(value) if args[1:] == (...,) else args
        if len(kinds) != len(value):
            raise ValueError(f"expected {len(kinds)} items, got {value!r}")
        return tuple(_built(kind, item) for kind, item in zip(kinds, value))
    return {key: _built(args[1], item) for key, item in value.items()} if args else value
