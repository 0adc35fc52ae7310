"""The film strip of docs/explore.md: six pictures of a page in use, from a real run.

    python -m tests.experiments.explore.film [MODEL [FOLDER]]

The real Gemma 3 270M and the folder docs where nothing else is named.
"""

import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from experiments.explore.serving import explore
from experiments.loaded import load
from tests.experiments.explore.page import LivePage, in_a_tab
from tests.experiments.report.browser import Browser, start_chromium, window
from tests.gemma import gemma_gguf
from tests.paths import ROOT

SIZE = (1400, 900)
PATIENCE_S = 400  # a first move fits codes and probes
COLOURS, MOST_BYTES = 256, 150_000  # of a palette, for a picture that is larger without one
PROMPT = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Mary and John went to the store, Mary gave a drink to"


class Film:
    """A page that is used as a person would, with a picture of each step and its seconds."""

    def __init__(self, page: LivePage, folder: Path) -> None:
        self.page, self.folder, self.began = page, folder, time.monotonic()

    def keep(self, name: str, top: str = "header", of: Browser | None = None) -> None:
        """A picture of what is seen when that part is at the top of the window."""
        page = of or self.page
        page.run("document.querySelector(arguments[0]).scrollIntoView()", top)
        shown = self.folder / f"explore-{name}.png"
        assert page.driver.save_screenshot(str(shown))
        picture = Image.open(shown).convert("RGB")
        picture.save(shown, optimize=True)
        if shown.stat().st_size > MOST_BYTES:
            picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(shown, optimize=True)
        said = page.find("#said").text
        print(f"{time.monotonic() - self.began:6.1f} s  {name}: {said}", flush=True)

    def answered(self) -> None:
        """Nothing is asked any more."""
        WebDriverWait(self.page.driver, PATIENCE_S).until(
            lambda _: self.page.run("return document.querySelector('#bench').dataset.asks === ''")
        )

    def type(self) -> None:
        self.page.find("#prompt").send_keys(Keys.CONTROL, "a", Keys.NULL, PROMPT, Keys.ENTER)
        self.page.wait(lambda: self.page.state["prompt"] == PROMPT)
        self.answered()
        ActionChains(self.page.driver).move_to_element(
            self.page.find("#tokens span:nth-child(3)")
        ).perform()
        self.keep("1-type")

    def see(self) -> None:
        heads = self.page.all("#map button[data-label='previous-token']") or self.page.all(
            "#map button"
        )
        heads[0].click()
        self.answered()
        self.page.wait(lambda: self.page.all("#attention .circuits canvas:not(.bare)"))
        self.keep("2-see", "#heads")

    def take_away(self) -> None:
        for name in ("rotary", "learned"):
            if name in self.page.find("#encoding").text:
                self.page.choose("#encoding", name)
                self.page.wait(lambda: self.page.state.get("change"))
        self.answered()
        self.keep("3-take-away")

    def move(self) -> None:
        self.page.click("#put-back")
        self.answered()
        self.page.run("document.querySelector('#take-away').open = false")
        self.page.run("document.querySelector('#move').open = true")
        tokens = self.page.all("#tokens span")
        ActionChains(self.page.driver).drag_and_drop(tokens[-3], tokens[3]).perform()
        self.page.wait(lambda: self.page.state.get("move"))
        self.answered()
        self.page.wait(lambda: self.page.all("#followed .main-svg"))
        self.keep("4-move")

    def patch(self) -> None:
        self.page.click("#no-move")
        self.page.run("document.querySelector('#move').open = false")
        self.page.run("document.querySelector('#patch').open = true")
        self.page.find("#patch textarea.other").send_keys(OTHER)
        self.page.click("#patch-start")
        self.page.wait(lambda: self.page.state.get("patch"))
        self.answered()
        self.page.wait(lambda: self.page.all("#recovered .main-svg"))
        self.keep("5-patch")

    def save(self) -> None:
        self.page.run("document.querySelector('#patch').open = false")
        self.page.run("document.querySelector('#keep').open = true")
        self.page.click("#save-page")
        self.answered()
        (saved,) = self.page.wait(lambda: [*self.page.downloads.glob("*.html")])
        with in_a_tab(self.page.driver):
            kept = Browser(self.page.driver, saved.as_uri(), self.page.downloads)
            kept.wait_until_ready()
            window(kept, SIZE)
            kept.wait(lambda: kept.all("#attention .circuits canvas:not(.bare)"))
            kept.run("scrollTo(0, 0)")
            kept.wait(lambda: kept.all("#recovered .main-svg"))
            self.keep("6-save", of=kept)


def main(model: str | None = None, folder: str = str(ROOT / "docs")) -> None:
    """Use a model's page, and keep the pictures in the folder."""
    with tempfile.TemporaryDirectory() as place:
        driver = start_chromium(Path(place) / "profile")
        downloads = Path(place) / "downloads"
        downloads.mkdir()
        where = {"behavior": "allow", "downloadPath": str(downloads)}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
        began = time.monotonic()
        served = explore(load(model or gemma_gguf()), out=Path(place) / "runs")
        try:
            page = LivePage(driver, served.url, downloads)
            window(page, SIZE)
            film = Film(page, Path(folder))
            film.began = began
            for step in (film.type, film.see, film.take_away, film.move, film.patch, film.save):
                step()
        finally:
            driver.quit()
            served.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
