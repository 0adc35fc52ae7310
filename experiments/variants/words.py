"""The words in which an experiment is asked for: dotted fields, and shorthands for some of them.

The command line, sweeps and messages know a config's fields by these words alone:
`transformer.n_layers` stands for the field `n_layers` of the config's `transformer`. A shorthand
such as `seq_len` sets several fields; one of them that is given beside it wins. Imports nothing
heavy.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from nope_interp.errors import FieldError, UserError, shown, unknown_name
from nope_interp.fields import field_types, from_mapping

# Options that say how a run is done, not what it is: no config has them.
_OF_COMMANDS = ("device", "shards", "ray", "jobs", "out", "json", "quiet")


@dataclass(frozen=True)
class Shorthand:
    """A word that stands for fields.

    Attributes:
        fields: what it sets.
        help: what it means, where the help of its first field does not say it.
        values: what each of the fields gets; the word's own value unless given.
        kind: the type of the word's own value; that of its first field unless given.
    """

    fields: tuple[str, ...]
    help: str = ""
    values: Callable[[Any], Sequence[Any]] | None = None
    kind: Any = None

    def spread(self, value: Any) -> dict[str, Any]:
        """The values of its fields."""
        values = repeat(value) if self.values is None else self.values(value)
        return dict(zip(self.fields, values, strict=False))


class Worded:
    """A config that is asked for in words.

    Attributes:
        shorthands: words beside its fields.
        argument: the field that a command takes by itself, without an option's name.
        several: whether the command takes more than one value of it.
        named: the field that a name stands for where the library takes one in a config's place.
    """

    shorthands: ClassVar[Mapping[str, Shorthand]] = {}
    argument: ClassVar[str | None] = None
    several: ClassVar[bool] = False
    named: ClassVar[str] = "model"

    @property
    def on_cpu_alone(self) -> str | None:
        """What runs on no other device than the CPU, by name; None where it runs on any."""
        return None

    def check_runs_on(self, device: str) -> None:
        """Refuse a device that the experiment does not run on.

        Args:
            device: a torch device.

        Raises:
            UserError: where it does not run there.
        """
        if device != "cpu" and self.on_cpu_alone is not None:
            raise UserError(
                f"{self.on_cpu_alone} runs on the CPU: leave the device {device!r} out."
            )

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, which `from_dict` reads back.

        Returns:
            Values by name; those of nested configs by name again.
        """
        raise NotImplementedError

    @classmethod
    def from_dict(cls: type["Asked"], values: Any) -> "Asked":
        """The config of these values.

        Args:
            values: by name, nested or by dotted word; what is left out has its default.

        Returns:
            The config.

        Raises:
            UserError: for unknown names, wrong types and values that make no sense.
        """
        check_words(cls, values if isinstance(values, dict) else {})
        return from_mapping(cls, values, "the config")

    @classmethod
    def check_agreement(cls, given: Mapping[str, Any]) -> None:
        """Refuse words, given in one place, of which one would silently win over another.

        Args:
            given: values by field.

        Raises:
            FieldError: for such words.
        """


Asked = TypeVar("Asked", bound=Worded)


@dataclass(frozen=True)
class Field:
    """One value of a config, however deep it is nested.

    Attributes:
        word: its dotted name.
        kind: its type.
        help: what it means, as the docstring of its config says.
        repeated: whether it is a list of texts, each given by itself.
    """

    word: str
    kind: Any
    help: str
    repeated: bool = False


@cache
def fields_of(kind: type) -> dict[str, Field]:
    """Every field of a config and of the configs in it, by its word, in declared order."""
    kinds, helps = field_types(kind), _documented(kind)
    found: dict[str, Field] = {}
    for field in dataclasses.fields(kind):
        inner = kinds[field.name]
        if dataclasses.is_dataclass(inner):
            for word, deep in fields_of(inner).items():  # type: ignore[arg-type]
                found[f"{field.name}.{word}"] = dataclasses.replace(
                    deep, word=f"{field.name}.{word}"
                )
        else:
            repeated = bool(field.metadata.get("repeated"))
            found[field.name] = Field(field.name, inner, helps.get(field.name, ""), repeated)
    return found


def usual_values(kind: Any) -> dict[str, Any]:
    """What each field of a config is by default, by its word; nothing where one has no default.

    Args:
        kind: the config.

    Returns:
        The JSON-able values.
    """
    required = any(
        field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(kind)
    )
    return {} if required else flat("the config", kind().to_dict())


def _documented(kind: type) -> dict[str, str]:
    """What the docstrings of a config and its bases say of each attribute."""
    import docstring_parser

    said: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        parsed = docstring_parser.parse(base.__doc__ or "")
        said |= {p.arg_name: " ".join((p.description or "").split()) for p in parsed.params}
    return said


def is_within(word: str, names: frozenset[str]) -> bool:
    """Whether a field is one of these names, or lies in one that is a config.

    Args:
        word: of the field.
        names: of fields and of configs.

    Returns:
        Whether it is.
    """
    return word in names or word.partition(".")[0] in names


def expanded(kind: type[Worded], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of fields for those of words, in whatever order these are given.

    A field's own value wins over a shorthand's, and a shorthand of few fields over one of more. One
    that would set nothing, since all of its fields are given otherwise, is refused.

    Args:
        kind: the config.
        given: values by field or shorthand.

    Returns:
        Values by field.

    Raises:
        FieldError: for two that contradict each other.
    """
    spread: dict[str, Any] = {}
    own: dict[str, Any] = {}

    def n_fields(word: str) -> int:
        return len(kind.shorthands[word].fields) if word in kind.shorthands else 1

    for word in sorted(given, key=n_fields, reverse=True):
        value, shorthand = given[word], kind.shorthands.get(word)
        if shorthand is not None:
            sets = shorthand.spread(value)
            _check_heard(word, sets, given)
            spread |= sets
        if shorthand is None or word in shorthand.fields:
            own[word] = value
    kind.check_agreement(spread | own)
    return spread | own


def _check_heard(word: str, sets: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    if word in sets or not sets.keys() <= given.keys():
        return
    for field, value in sets.items():
        if given[field] != value:
            says = f"is {shown(given[word])}, but {field} is {shown(given[field])}: leave one out."
            raise FieldError(word, says)


def asked(kind: type[Asked], given: object, words: Mapping[str, Any]) -> Asked:
    """A config from what an entry point of the library was given.

    Args:
        kind: the config.
        given: one, to be taken as it is; a model's or a paper's name; or None for the defaults.
        words: values laid over it, by field or shorthand: `seq_len=64`, `ablate="rotary"`,
            `**{"transformer.n_layers": 2}`.

    Returns:
        The config.

    Raises:
        UserError: for anything else that is given, unknown words, and values that make no sense.

    Example:
        >>> from experiments.comparison.config import CompareConfig
        >>> config = asked(CompareConfig, "openai-community/gpt2", {"ablate": "learned"})
        >>> config.model, config.ablate
        ('openai-community/gpt2', 'learned')
    """
    if isinstance(given, kind):
        if not words:
            return given
        base = flat("the config", given.to_dict())
    elif given is None or isinstance(given, str | Path):
        base = {} if given is None else {kind.named: str(given)}
    else:
        raise UserError(
            f"the config is {type(given).__name__}: give a {kind.__name__}, a name, or neither."
        )
    plain = {word: getattr(value, "to_dict", lambda v=value: v)() for word, value in words.items()}
    try:
        return kind.from_dict(nested({**base, **expanded(kind, flat("the config", plain))}))
    except FieldError as error:
        word = word_for(kind, words, error.field)
        raise error if word is None else error.renamed(word) from error


def word_for(kind: type[Worded], given: Mapping[str, Any], field: str) -> str | None:
    """The given word that set a field.

    Args:
        kind: the config.
        given: values by field or shorthand.
        field: which one.

    Returns:
        The field itself or a shorthand; None where none set it.
    """
    if field in given:
        return field
    short = (word for word in given if word in kind.shorthands)
    return next((word for word in short if field in kind.shorthands[word].fields), None)


def check_words(kind: type, values: Mapping[str, Any]) -> None:
    """Raise UserError, with the nearest right word, for a nested name that is no field's."""
    words = [*fields_of(kind)]
    known = {*words, *(word.partition(".")[0] for word in words)}
    for name, value in values.items():
        if name not in known:
            raise _unknown(name, words)
        for key in value if isinstance(value, dict) and name not in words else ():
            if not isinstance(key, str) or f"{name}.{key}" not in words:
                raise _unknown(f"{name}.{key if isinstance(key, str) else shown(key)}", words)


def _unknown(name: object, words: Sequence[str]) -> UserError:
    if name in _OF_COMMANDS:
        return UserError(f"{name} cannot stand in a config: give --{name} with the command.")
    return unknown_name("field of the config", name, words, closeness=0.7)


def within(parent: str, make: Callable[[Any], Any], values: Any) -> Any:
    """`make(values)`, whose wrong fields are named as those of `parent`."""
    try:
        return make(values)
    except FieldError as error:
        raise error.renamed(f"{parent}.{error.field}") from error


def flat(what: str, values: Any) -> dict[str, Any]:
    """Nested names as dotted words.

    Args:
        what: holds the values, as a message calls it.
        values: by name, some of them nested.

    Returns:
        Values by dotted word.

    Raises:
        UserError: where these are no named values, and where a name is no word or comes twice.
    """
    if not isinstance(values, dict):
        raise UserError(f"{what} is {type(values).__name__}: give named values.")
    found: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise UserError(f"{what} has the key {shown(key)}: expected the name of a value.")
        inner = flat(f"{what}'s {key}", value) if isinstance(value, dict) else None
        own = {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items()}
        for dotted in own:
            if dotted in found:
                raise UserError(f"{what} gives {dotted!r} twice: leave one out.")
        found |= own
    return found


def nested(words: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted words as nested names; raises UserError where a word is a value and a parent."""
    found: dict[str, Any] = {}
    for word, value in words.items():
        _put(found, word, value)
    return found


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise UserError(f"{dotted!r} is given, but {parent!r} is a value: give one of them.")
    if isinstance(values.get(last), dict):
        raise UserError(f"{dotted!r} is a value, but names within it are given: give one of them.")
    values[last] = value
