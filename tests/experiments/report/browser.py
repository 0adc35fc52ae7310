"""A headless Chromium with the network off, and what the tests of the pages ask of it."""

import csv
import html
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.paths import ROOT

# Seconds, for what would otherwise hang: far more than any machine takes.
PATIENCE = 400

DESKTOP, TABLET, PHONE = (1400, 900), (1024, 768), (400, 860)
SCREENSHOTS = ROOT / "build" / "screenshots"

# Boxes of tables that are wider than their room.
CUT_OFF = """
return [...document.querySelectorAll(".scroll")]
  .filter((box) => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1)
  .map((box) => [box.ariaLabel, box.scrollWidth, box.clientWidth])
"""

# Text that is seen, on what it stands: the least contrast, after WCAG 2.1.
CONTRASTS = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const over = ([r, g, b, a], below) => [r, g, b].map((c, i) => (c * a + below[i] * (255 - a)) / 255);
const ground = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    layers.push(colour);
    if (colour[3] === 255) break;
  }
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const words = [...element.childNodes].filter((n) => n.nodeType === 3 && n.textContent.trim());
  if (!words.length || !element.checkVisibility() || element.closest(arguments[0])) continue;
  let opacity = 1;
  for (let at = element; at; at = at.parentElement) opacity *= getComputedStyle(at).opacity;
  const below = ground(element), [r, g, b, a] = rgba(getComputedStyle(element).color);
  const both = [light(over([r, g, b, a * opacity], below)), light(below)].sort((x, y) => y - x);
  const said = words[0].textContent.trim().slice(0, 40);
  found.push([(both[0] + 0.05) / (both[1] + 0.05), said, element.outerHTML.slice(0, 60)]);
}
return found.sort((x, y) => x[0] - y[0]);
"""

# CircuitsVis draws on canvas; a disabled control need not be read.
NOT_READ = "script, .circuits, svg, .hidden, :disabled, :has(> :disabled), .skip"


class Browser:
    """A page opened from its file, with what the tests ask of it."""

    def __init__(self, driver: webdriver.Chrome, url: str, downloads: Path) -> None:
        self.driver, self.downloads = driver, downloads
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        driver.get_log("browser")  # type: ignore[no-untyped-call]
        driver.get(url)

    def wait_until_ready(self) -> "Browser":
        """Its data are unpacked and its menus work."""
        self.wait(lambda: self.run("return document.documentElement.classList.contains('ready')"))
        return self

    def open_everything(self) -> "Browser":
        """Every part is open and every chart is drawn."""
        self.wait_until_ready()
        self.run("for (const part of document.querySelectorAll('details.part')) part.open = true")
        self.wait(self._draws_nothing_more)
        return self

    def _draws_nothing_more(self) -> bool:
        waiting = self.all("[data-waiting]")
        if waiting:
            self.run("arguments[0].scrollIntoView({block: 'center'})", waiting[0])
        return not waiting

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], Any]) -> Any:
        """However long it takes; what is drawn anew while it is asked is asked again."""
        gone = [StaleElementReferenceException]
        waiting = WebDriverWait(self.driver, PATIENCE, 0.05, ignored_exceptions=gone)
        return waiting.until(lambda _: condition())

    def click(self, selector: str) -> None:
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def choose(self, selector: str, value: str) -> None:
        Select(self.find(selector)).select_by_value(value)

    def traces(self, chart: str, panel: int = 0) -> list[dict[str, Any]]:
        """What Plotly holds for a panel: the drawn data itself."""
        return self.run(
            "const plot = document.querySelectorAll(`#${arguments[0]} .plot`)[arguments[1]];"
            "return plot.data.map(t => ({name: t.name, type: t.type, x: t.x, y: t.y, z: t.z}))",
            chart,
            panel,
        )

    def line(self, chart: str, name: str, panel: int = 0) -> list[float]:
        (found,) = [t["y"] for t in self.traces(chart, panel) if t["name"] == name]
        return found

    def column(self, name: str, table: str = "table") -> list[str]:
        heads = [cell.text.split("\n")[0] for cell in self.all(f"#{table} thead th")]
        index = heads.index(name) + 1
        return [cell.text for cell in self.all(f"#{table} tbody td:nth-child({index})")]

    def sort_by(self, name: str, table: str = "table") -> None:
        buttons = self.all(f"#{table} thead button")
        (button,) = [button for button in buttons if button.text == name]
        self.run("arguments[0].scrollIntoView({block: 'center'})", button)
        button.send_keys(Keys.ENTER)  # the keyboard's way; a click does the same

    def saved(self, selector: str, suffix: str) -> Path:
        """The file with that ending that a click saves."""
        before = set(self.downloads.iterdir())
        self.click(selector)

        def written() -> list[Path]:
            """Its name may be there before what it holds."""
            new = set(self.downloads.iterdir()) - before
            return [f for f in new if f.suffix == suffix and f.stat().st_size]

        (file,) = self.wait(written)
        return file

    def download(self, selector: str) -> list[list[str]]:
        """The rows of the CSV file that a click saves."""
        with self.saved(selector, ".csv").open(encoding="utf-8", newline="") as stream:
            return list(csv.reader(stream))


class Tab:
    """A page that stays open in a tab of its own, with all its parts open.

    For tests that leave it as the next one needs it: to draw a page takes seconds.
    """

    def __init__(self, driver: webdriver.Chrome, url: str, downloads: Path) -> None:
        self.before = driver.current_window_handle
        driver.switch_to.new_window("tab")
        self.handle = driver.current_window_handle
        self.browser = Browser(driver, url, downloads).open_everything()
        driver.switch_to.window(self.before)

    @contextmanager
    def shown(self) -> Iterator[Browser]:
        """The tab is in front, and its page has nothing to complain of afterwards."""
        driver = self.browser.driver
        driver.switch_to.window(self.handle)
        try:
            yield self.browser
            logged = driver.get_log("browser")  # type: ignore[no-untyped-call]
            assert logged == [], logged
        finally:
            driver.switch_to.window(self.before)


def start_chromium(profile: Path) -> webdriver.Chrome:
    """A Chromium that keeps its files in `profile` and reaches no host."""
    options = webdriver.ChromeOptions()
    options.binary_location = _program("chromium", "chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-software-rasterizer",
        "--window-size=1200,900",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the network is off
        "--force-prefers-reduced-motion",  # nothing moves while a test points at it
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(_program("chromedriver", "chromium-driver"))
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(PATIENCE)
    return driver


def _program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is not on the PATH: install it (Debian: apt-get install {package}).")
    return path


def framed(driver: webdriver.Chrome, page: Path, outer: Path, downloads: Path) -> Browser:
    """A page within another, which is written to `outer`, as a notebook shows it."""
    inner = html.escape(page.read_text(encoding="utf-8"))
    outer.write_text(f'<iframe srcdoc="{inner}" width="1100" height="900"></iframe>', "utf-8")
    browser = Browser(driver, outer.as_uri(), downloads)
    # Until its page has come, a frame holds an empty document, which a driver may go on asking.
    inside = "document.querySelector('iframe').contentDocument"
    browser.wait(lambda: browser.run(f"return {inside}.querySelector('h1') !== null"))
    driver.switch_to.frame(browser.find("iframe"))
    return browser.open_everything()


def ground(page: Browser) -> int:
    """How light the page's background is, 0 to 765."""
    colour = page.run("return getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.strip("rgb()").split(","))


def window(page: Browser, size: tuple[int, int], scheme: str = "light") -> None:
    width, height = size
    wanted = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wanted)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def keep(page: Browser, name: str) -> None:
    """A picture of the page, for people to look at; without a tooltip over it."""
    page.run("document.activeElement.blur()")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    assert page.driver.save_screenshot(str(SCREENSHOTS / f"{name}.png"))


def box(page: Browser, selector: str) -> dict[str, float]:
    return page.run("return document.querySelector(arguments[0]).getBoundingClientRect()", selector)
