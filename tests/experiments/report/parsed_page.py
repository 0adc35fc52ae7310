"""A report page as a browser would parse it, and what holds of every page."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

HOSTILE = "</script><script>document.title='x'</script>"
IMAGE = "<img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """What a browser would find: elements, their attributes and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        self._in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.words.append(data)

    def unpacked(self, name: str) -> str:
        """What stands in the page compressed under that name."""
        names = [attributes.get("id") for tag, attributes in self.elements if tag == "script"]
        packed = base64.b64decode(self.scripts[names.index(name)], validate=True)
        return gzip.decompress(packed).decode("utf-8")

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.unpacked("report-data"))

    @property
    def libraries(self) -> dict[str, str]:
        names = [a.get("id") or "" for tag, a in self.elements if tag == "script"]
        found = [name for name in names if name.startswith("library-")]
        return {name.removeprefix("library-"): self.unpacked(name) for name in found}

    def assert_holds_each_library_once(self) -> None:
        # Their licence line and their global's definition are in each exactly once.
        assert self.libraries["plotly"].count("* plotly.js v") == 1
        assert self.libraries["circuitsvis"].count("var CircuitsVis=") == 1
        assert len(self.scripts) == 4  # data, Plotly, CircuitsVis, ours

    def assert_asks_nothing_of_the_network(self) -> None:
        for tag, attributes in self.elements:
            # Links are for people to follow; everything else with an address would be fetched.
            for name in ("src", "srcset", "href", "data", "action", "poster"):
                if tag != "a" and attributes.get(name):
                    assert str(attributes[name]).startswith("data:"), (tag, attributes)
        runs = [*self.libraries.values(), *self.scripts]
        assert "sourceMappingURL" not in "".join(runs)

    def assert_lets_only_its_own_scripts_run(self) -> None:
        metas = [a for _, a in self.elements if a.get("http-equiv") == "Content-Security-Policy"]
        policy = str(metas[0]["content"])
        assert policy.startswith("default-src 'none'")
        allowed = set(re.findall(r"'sha256-([^']+)'", policy))
        # What is packed is no program until the page's script has unpacked it: by then it is one.
        kinds = [attributes.get("type") for tag, attributes in self.elements if tag == "script"]
        own = [text for text, kind in zip(self.scripts, kinds, strict=True) if kind is None]
        runs = [*own, *self.libraries.values()]
        digests = [hashlib.sha256(script.encode()).digest() for script in runs]
        assert allowed == {base64.b64encode(digest).decode() for digest in digests}
        assert len(own) == 1
