"""Options of the command line, made from the fields of configs.

Each field is an option of its dotted name (`--transformer.n-layers 6`), and so is each shorthand
that its config declares (`--positions rotary`). What the options mean, which values they take and
what each sets stand in the configs alone.
"""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from experiments.variants.words import Field, Shorthand, fields_of, is_within, usual_values
from nope_interp.errors import UserError, shown
from nope_interp.files import given_path

Parameters = dict[str, inspect.Parameter]


class _Nothing:
    """What an option is whose value is the word none: typer takes None for an option left out."""


def option_of(word: str) -> str:
    """The option of a field or shorthand.

    Example:
        >>> option_of("transformer.n_layers")
        '--transformer.n-layers'
    """
    return f"--{word.replace('_', '-')}"


def parameters(kind: Any, hidden: frozenset[str]) -> Parameters:
    """A parameter for each word of a config but the hidden ones, as typer reads them, by word."""
    fields = {word: field for word, field in fields_of(kind).items() if not is_within(word, hidden)}
    usual = usual_values(kind)
    own = {
        word: _argument(field, kind.several)
        if word == kind.argument
        else _option(word, field, field.help, usual.get(word))
        for word, field in fields.items()
    }
    short = {
        word: _of_shorthand(word, fields[shorthand.fields[0]], shorthand, hidden, usual)
        for word, shorthand in kind.shorthands.items()
        if shorthand.fields[0] in fields
    }
    return own | short


def parameter(word: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """A parameter of a command, under a name that Python allows."""
    name = word.replace(".", "__")
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def signed(command: Callable[..., None], every: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """The command, which typer takes to have these parameters."""
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in every}
    return command


def taking(words: Parameters) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator of a command that takes these words where it says `**values`."""

    def taken(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command).parameters.values()
        return signed(command, [*own, *words.values()])

    return taken


def given(words: Mapping[str, inspect.Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were given, by word."""
    found = {word: values[parameter.name] for word, parameter in words.items()}
    return {
        word: None if value is _Nothing else value
        for word, value in found.items()
        if value is not None
    }


def _argument(field: Field, several: bool) -> inspect.Parameter:
    metavar = "PAPER" if field.word == "name" else "NAME_OR_PATH"
    if several:
        told = f"{_sentence(field.help)} Several models stand side by side."
        many = typer.Argument(metavar=f"{metavar}...", help=told)
        return parameter(field.word, Annotated[list[str] | None, many])
    _, read = _reader(field.kind)
    argument = typer.Argument(metavar=metavar, parser=read, help=_sentence(field.help))
    return parameter(field.word, Annotated[Any, argument])


def _of_shorthand(
    word: str,
    field: Field,
    shorthand: Shorthand,
    meaningless: frozenset[str],
    usual: Mapping[str, Any],
) -> inspect.Parameter:
    sets = [name for name in shorthand.fields if name != word and not is_within(name, meaningless)]
    others = f" (sets {', '.join(map(option_of, sets))})" if sets else ""
    told = f"{(shorthand.help or field.help).rstrip('.')}{others}"
    kind = shorthand.kind or field.kind
    # What a shorthand of another type stands for is told by its own values.
    value = usual.get(field.word) if kind is field.kind else None
    return _option(word, replace(field, kind=kind), told, value)


def _option(word: str, field: Field, said: str, usual: Any) -> inspect.Parameter:
    """`usual` is its value where the option is left out; None is not shown."""
    name, about = option_of(word), f"{_sentence(said)}{_by_default(usual)}"
    if field.kind is bool:
        switch = typer.Option(f"{name}/--no-{name.removeprefix('--')}", help=about)
        return parameter(word, Annotated[bool | None, switch])
    if field.repeated:
        several = typer.Option(name, metavar="TEXT", help=f"{about} Can be given again.")
        return parameter(word, Annotated[list[str] | None, several])
    metavar, read = _reader(field.kind)
    return parameter(
        word, Annotated[Any, typer.Option(name, metavar=metavar, parser=read, help=about)]
    )


def _by_default(usual: Any) -> str:
    if isinstance(usual, bool):
        usual = "yes" if usual else "no"
    if isinstance(usual, list):
        usual = ",".join(map(str, usual))
    return "" if usual in (None, "") else f" Default: {usual}."


def _sentence(said: str) -> str:
    plain = said.replace("`", "").replace("None", "none")
    return f"{plain[:1].upper()}{plain[1:].rstrip('.')}."


def _reader(kind: Any) -> tuple[str, Callable[[str], Any]]:
    """How values of a type are shown, and what reads one."""
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (option for option in get_args(kind) if option is not type(None))
        metavar, read = _reader(inner)
        return metavar, lambda text: _Nothing if text == "none" else read(text)
    if get_origin(kind) is Annotated:
        return _reader(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind)), str
    if get_origin(kind) is tuple:
        return _reader_of_many(get_args(kind))
    return _SCALARS[kind]


def _reader_of_many(kinds: tuple[Any, ...]) -> tuple[str, Callable[[str], Any]]:
    if kinds == (int, int):
        told = "{}: give the shortest and the longest, such as 2-8."
        return "SHORTEST-LONGEST", _reading(lambda text: [int(n) for n in text.split("-")], told)
    if kinds[0] is int:
        told = "{}: give numbers such as 0,2,5."
        return "N,N,...", _reading(lambda text: [int(n) for n in text.split(",")], told)
    return "NAME,NAME,...", lambda text: [name.strip() for name in text.split(",")]


def _reading(read: Callable[[str], Any], wrong: str) -> Callable[[str], Any]:
    """`read`, which says `wrong` of a text where it cannot; of a long one its beginning."""

    def reading(text: Any) -> Any:  # typer has a default read, too
        try:
            return read(text)
        except ValueError:
            raise typer.BadParameter(wrong.format(shown(text))) from None

    return reading


whole_number = _reading(int, "{} is not a valid integer.")


def path_of(text: Any) -> Path:
    """A path; `~` is the home folder where the shell has left it, as in --out=~/runs."""
    try:
        return given_path(text)
    except UserError as error:
        raise typer.BadParameter(str(error)) from None


_SCALARS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("N", whole_number),
    float: ("X", _reading(float, "{} is not a valid number.")),
    str: ("TEXT", str),
}
