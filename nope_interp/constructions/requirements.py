"""What a construction needs of a config, said in one sentence where it is not there."""

from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig


def require(config: TransformerConfig, who: str, **needed: object) -> None:
    """Raise UserError where a field of `config` has another value than the one that `who` needs."""
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise UserError(
                f"{who} needs {name}={value!r}, but this config has {getattr(config, name)!r}."
            )


def require_at_least(config: TransformerConfig, who: str, **needed: int) -> None:
    """Raise UserError where a size of `config` is smaller than the one that `who` needs."""
    for name, least in needed.items():
        if getattr(config, name) < least:
            raise UserError(
                f"{who} needs {name} of at least {least}, but this config has "
                f"{getattr(config, name)}."
            )
