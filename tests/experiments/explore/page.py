"""The live page in a browser, and what its tests ask of it."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from experiments.explore.serving import explore
from experiments.loaded import LoadedModel
from tests.experiments.report.browser import Browser


@contextmanager
def serving(lm: LoadedModel, runs: Path) -> Iterator[str]:
    """The address of a model's page, while it is served from a thread of the tests' own."""
    page = explore(lm, out=runs)
    yield page.url
    page.close()


@contextmanager
def in_a_tab(driver: webdriver.Chrome) -> Iterator[None]:
    """What is opened meanwhile is opened in a tab of its own."""
    before = driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        yield
    finally:
        driver.close()
        driver.switch_to.window(before)


class LivePage(Browser):
    """A live page that is opened once and led from state to state by its address."""

    def __init__(self, driver: webdriver.Chrome, address: str, downloads: Path) -> None:
        super().__init__(driver, address, downloads)
        self.address = address
        self.wait_until_ready()
        self.settle()

    def settle(self) -> "LivePage":
        """Nothing is asked any more, and something was answered."""
        self.wait(
            lambda: self.run(
                "return document.querySelector('#bench').dataset.asks === '' &&"
                "document.querySelector('#head-title').textContent !== ''"
            )
        )
        return self

    def go(self, state: Mapping[str, Any]) -> "LivePage":
        """Shows a state as its address does."""
        # The browser's own event comes later, and then changes nothing more.
        self.run(
            "location.hash = arguments[0]; dispatchEvent(new PopStateEvent('popstate'))",
            quote(json.dumps(state)),
        )
        return self.settle()

    def saved(self, selector: str, suffix: str) -> Path:
        """The file that a click saves; a name that is taken already is not seen to be saved."""
        self.empty_downloads()
        return super().saved(selector, suffix)

    def empty_downloads(self) -> None:
        for file in self.downloads.iterdir():
            file.unlink(missing_ok=True)  # one that is half written is renamed

    @property
    def state(self) -> dict[str, Any]:
        """What the address says that the page shows."""
        return self.run("return JSON.parse(decodeURIComponent(location.hash.slice(1)))")

    @property
    def tokens(self) -> list[str]:
        """What is told of each token, number and all."""
        return [str(box.get_attribute("aria-label")) for box in self.all("#tokens span")]

    def keys(self, *keys: str) -> None:
        """What a person types, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, selector: str, most: int = 120) -> None:
        """Tab, as often as it takes."""
        for _ in range(most):
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
            self.keys(Keys.TAB)
        raise AssertionError(f"no tab leads to {selector}")

    def rows(self, table: str) -> list[list[str]]:
        """The texts of a table's body."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0] + ' tbody tr')]"
            ".map(row => [...row.children].map(cell => cell.textContent))",
            table,
        )


def numbers(text: str) -> list[float]:
    """The numbers in a text, with the signs that the page writes."""
    found = re.findall(r"[+−-]?\d+(?:\.\d+)?", text)
    return [float(one.replace("−", "-")) for one in found]
