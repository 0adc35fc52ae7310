"""Tables in the documentation that are made of the code, each between two marks of its own."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.paths import ROOT


def page_with(page: Path, name: str, maker: str, table: str) -> str:
    """A page with a table in its place.

    Args:
        page: a file in Markdown.
        name: of the table, in its marks.
        maker: the module that makes it, which stands in the first mark.
        table: its lines.

    Returns:
        The page's text.
    """
    where = Path(*maker.split(".")).with_suffix(".py").as_posix()
    begin, end = f"<!-- {name}: written by {where} -->\n", f"<!-- {name} end -->\n"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    assert found, f"{page.relative_to(ROOT)} has no place for {name}"
    assert closed, f"{page.relative_to(ROOT)} does not end {name}"
    return f"{before}{begin}\n{table}\n{end}{after}"


def in_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The lines of a table."""
    every = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in every)
