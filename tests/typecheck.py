"""How the suite checks annotations while it runs: with whole numbers where floats are expected."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
