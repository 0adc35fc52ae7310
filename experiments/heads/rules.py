"""Rules of a user's own, from a small TOML table: which heads get which label.

[[rule]]
label = "far"
metric = "first_token"
threshold = 0.3
nulls = ["random-init"]
says = "a third of its attention or more rests on the first token"
"""

import tomllib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, no_type_check

from nope_interp.errors import UserError
from nope_interp.fields import Range, check_fields, from_mapping
from nope_interp.files import utf8_of
from probes.head_rules import METRICS, NONE, RANDOM_INIT, SHUFFLED_OFFSETS, SHUFFLED_TOKENS, Rule

_NULLS = (SHUFFLED_OFFSETS, SHUFFLED_TOKENS, RANDOM_INIT)


def own_rules(path: str | None) -> tuple[Rule, ...]:
    """The rules that a file holds.

    Args:
        path: a TOML file of tables named `rule`; None for no rules.

    Returns:
        The rules in their order; the first that holds gives the label.

    Raises:
        UserError: where the file cannot be read or holds no rules, for unknown metrics, nulls and
            fields, thresholds that are not above 0, and labels that are empty or stand twice.
    """
    if path is None:
        return ()
    text = utf8_of(path, "the rules", "give a TOML file")
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"the rules {path!r} are no valid TOML ({error}): mend them.") from error
    tables = values.get("rule")
    if values.keys() != {"rule"} or not isinstance(tables, list) or not tables:
        raise UserError(f"the rules {path!r} hold no rules: begin each one with a line [[rule]].")
    rules = tuple(_rule(table, f"rule {n} of {path!r}") for n, table in enumerate(tables, 1))
    labels = [rule.label for rule in rules]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"the rules {path!r} give the label {label!r} twice: rename one.")
    return rules


# Scores that weights keep wherever they go among a query's keys.
_UNSHUFFLED = ("uniform", "entropy", "repeated_token")


@no_type_check  # it is checked by `check_fields`, in sentences
@dataclass(frozen=True)
class _Table:
    """A rule as it stands in a file."""

    label: str
    metric: Literal[METRICS]  # type: ignore[valid-type]
    threshold: Annotated[float, Range(above=0)]
    nulls: tuple[Literal[_NULLS], ...] | None = None  # type: ignore[valid-type]
    says: str = ""


def _rule(values: Any, what: str) -> Rule:
    table: Any = from_mapping(_Table, values, what)
    check_fields(table, f"{what}:")
    if not table.label.strip() or table.label == NONE:
        raise UserError(f"{what} has the label {table.label!r}: give it a name but {NONE!r}.")
    unshuffled = table.metric in _UNSHUFFLED
    usual = (RANDOM_INIT,) if unshuffled else (SHUFFLED_OFFSETS, RANDOM_INIT)
    nulls = usual if table.nulls is None else table.nulls
    useless = [null for null in nulls if unshuffled and null != RANDOM_INIT]
    if useless:
        raise UserError(
            f"{what} holds {table.metric} against {' and '.join(useless)}, which do not change it: "
            f"give nulls = [{RANDOM_INIT!r}]."
        )
    return Rule(**vars(table) | {"nulls": nulls})
