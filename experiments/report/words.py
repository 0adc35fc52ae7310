"""Every word of the pages as a page of the documentation.

`python -m experiments.report.words > docs/words.md` writes it again.
"""

import re

from experiments.report.shell import environment

_HEAD = """# Every word of the pages

Where a page says one of these, it tells the meaning on hover and on keyboard focus.
What matters most is told [more briefly](glossary.md).

"""


def words_markdown() -> str:
    """The entries of the pages' glossary, as HTML that Markdown takes as it stands.

    Returns:
        The page.
    """
    entries = environment().get_template("glossary.html").render()
    # An empty line would end the HTML.
    lines = [line for line in re.sub(r' data-\w+="[^"]*"', "", entries).splitlines() if line]
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(words_markdown(), end="")
