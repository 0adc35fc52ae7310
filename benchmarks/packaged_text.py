"""One long text: the documentation of Debian packages that were unpacked below a folder.

`python -m benchmarks.packaged_text FOLDER > text.txt` prints the words of HTML pages and `.rst`
files. Files come in the order of the SHA-256 of their paths below the folder, so that every part of
the text is of all packages alike. Of equal lines the first alone is kept, and lines of fewer than
four characters are left out. So are folders called translations, which the kernel's documentation
has.
"""

import gzip
import sys
from collections.abc import Iterator
from hashlib import blake2b, sha256
from html.parser import HTMLParser
from pathlib import Path

_KINDS = (".html", ".html.gz", ".rst", ".rst.gz")
_ENDS_LINE = {
    *("p", "li", "tr", "div", "h1", "h2", "h3", "h4"),
    *("pre", "br", "dt", "dd", "td", "section"),
}
_UNSEEN = {"script", "style", "head", "nav"}
_LEAST = 4  # characters in a line


class _Words(HTMLParser):
    """Collects what a page shows."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.shown: list[str] = []
        self.unseen = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.unseen += tag in _UNSEEN
        self._end_line(tag)

    def handle_endtag(self, tag: str) -> None:
        self.unseen -= tag in _UNSEEN and self.unseen > 0
        self._end_line(tag)

    def handle_data(self, data: str) -> None:
        if not self.unseen:
            self.shown.append(data)

    def _end_line(self, tag: str) -> None:
        if tag in _ENDS_LINE:
            self.shown.append("\n")


def lines(folder: Path) -> Iterator[str]:
    """The text's lines, without their ends."""
    seen: set[bytes] = set()
    for file in _files(folder):
        for line in map(str.rstrip, _text(file).splitlines()):
            digest = blake2b(line.encode(), digest_size=8).digest()
            if len(line.strip()) >= _LEAST and digest not in seen:
                seen.add(digest)
                yield line


def _files(folder: Path) -> list[Path]:
    """Of `folder`, but for translations of the kernel's documentation."""
    files = [
        file
        for file in folder.rglob("*")
        if file.name.endswith(_KINDS)
        and file.is_file()
        and not file.is_symlink()
        and "translations" not in file.parts
    ]
    return sorted(files, key=lambda file: sha256(str(file.relative_to(folder)).encode()).digest())


def _text(file: Path) -> str:
    raw = file.read_bytes()
    text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8", errors="ignore")
    if ".html" not in file.name:
        return text
    page = _Words()
    page.feed(text)
    return "".join(page.shown)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("give the folder that packages were unpacked below.")
    sys.stdout.writelines(f"{line}\n" for line in lines(Path(sys.argv[1])))
