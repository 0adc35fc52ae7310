"""The live page as a person meets it: how long each answer takes, its JSON included.

Asked without a socket, of the embedded model and of the real Gemma 3 270M with a prompt of 64
tokens. Each prompt and change is new, as it is for who types. `fit` is what the first move waits
for, once for a model and a length. `click` is a head's view of a prompt that was read; `seen` is
the time from a click in Chromium until the head's map is seen, and `drawn` until each of its cells
can be pointed at. `patch` differs in the last words, `patch_early` in the first one.
`python -m benchmarks.explore gemma` prints seconds of the clock and of the processor, which differ
where other work runs beside.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contest import Claim, in_process
from experiments.explore.playground import Playground
from experiments.explore.serving import explore
from experiments.loaded import LoadedModel, load
from tests.experiments.explore.page import LivePage
from tests.experiments.explore.pages import Page
from tests.experiments.report.browser import DESKTOP, start_chromium, window

_ROUNDS = 5
PROCESSOR = ", processor"
_EMBEDDED_S = 0.3
# Seconds for Gemma, by what is done.
_GEMMA_S = {
    "read": 1.5,
    "click": 0.15,
    "seen": 0.15,
    "ablate": 2.0,
    "patch": 30.0,
    "patch_early": 30.0,
}
# Seconds until the head's map is seen, and until all of its view is drawn.
_DRAWN = """
const [name, done] = arguments, began = performance.now();
const figure = document.querySelector("#attention");
const isThere = () => document.querySelector("#head-title").textContent.startsWith(`${name} `);
let first = null, last = null;
const watch = new MutationObserver(() => {
  if (!isThere()) return;
  last = performance.now();
  if (first === null && figure.querySelector(".bare"))
    requestAnimationFrame(() => { first ??= performance.now(); });
});
const ready = () => {
  if (first === null || performance.now() - last < 500) return setTimeout(ready, 50);
  watch.disconnect();
  done([(first - began) / 1000, (last - began) / 1000]);
};
watch.observe(figure, { subtree: true, childList: true, attributes: true });
const [, layer, head] = name.match(/L(.*)H(.*)/);
document.querySelector(`#map [data-layer="${layer}"][data-head="${head}"]`).click();
ready();
"""
_TEXT = (
    "{first}: When Mary and John went to the store on the corner of the street, they met Anna and "
    "Paul, who had bought bread, milk and a bottle of wine for the evening. They talked about the "
    "weather and about the summer, and then, after they had looked at fruit, "
    "{who} gave a drink to"
)
_TOKENS = 64  # of a prompt made of it, the begin token included
_SHORT = "When Mary and John went out, {who} gave it to"


def claims() -> list[Claim]:
    """Ask both models, each in a process of its own."""
    embedded = in_process("benchmarks.explore", "embedded")
    slowest = max((name for name in embedded if PROCESSOR not in name), key=embedded.__getitem__)
    found = in_process("benchmarks.explore", "gemma")
    return [
        Claim(
            f"live page, embedded model: the slowest answer ({slowest}) / {_EMBEDDED_S:g} s",
            embedded[slowest] / _EMBEDDED_S,
            1.0,
        ),
        *(
            Claim(f"live page, Gemma 3 270M: {name} / {limit:g} s", found[name] / limit, 1.0)
            for name, limit in _GEMMA_S.items()
        ),
    ]


class Times:
    """Seconds that requests took, of the clock and of the processor, by name."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {}

    def ask(self, name: str, run: Callable[[], Any]) -> None:
        """Run a request, and keep its seconds."""
        began, processor = time.perf_counter(), time.process_time()
        response = run()
        self.keep(f"{name}{PROCESSOR}", time.process_time() - processor)
        self.keep(name, time.perf_counter() - began)
        if response.status_code != 200 or "sentence" in response.text.splitlines()[-1][:20]:
            raise RuntimeError(response.text[-300:])

    def keep(self, name: str, seconds: float) -> None:
        self._taken.setdefault(name, []).append(seconds)

    @property
    def medians(self) -> dict[str, float]:
        """By name."""
        return {name: median(times) for name, times in self._taken.items()}


def prompts(text: str) -> Iterator[tuple[str, str]]:
    """New prompts, clean and corrupted: they differ in who acts, and Anna tells them."""
    names = ("Mary", "John", "Anna", "Paul", "Mark", "Jane", "Luke", "Rose")
    for step in range(1, len(names)):
        for at, name in enumerate(names):
            other = names[(at + step) % len(names)]
            yield text.format(first="Anna", who=name), text.format(first="Anna", who=other)


def embedded() -> dict[str, float]:
    """Every request of the embedded model, the median of some."""
    playground = Playground(load())
    page, asked, times = Page(playground), prompts(_SHORT), Times()
    page.get()  # which packs the scripts, once
    page.post("move", _moving(next(asked)[0]))  # probes are fitted once
    for number in range(_ROUNDS):
        clean, corrupted = (f"{prompt} {number}" for prompt in next(asked))
        heads = [{"layer": 1, "head": 1, "to": "uniform"}, {"layer": 2, "head": 0, "to": "ablated"}]
        state = {"prompt": clean, "other_prompt": corrupted, "layer": 2, "head": 1}
        changed = {**state, "change": {"head_changes": heads}}
        patched = {**state, "patch": {"at": "resid_pre"}}
        moved = {**state, **_moving(clean)}
        for name, request, body in (
            ("read", "read", state),
            ("head", "head", state),
            ("feeds", "feeds", state),
            ("move", "move", moved),
            ("patch", "patch", patched),
            ("code", "code", changed),
            ("ablate", "read", changed),
            ("save", "save", {**changed, **moved, **patched}),
        ):
            times.ask(name, partial(page.post, request, body))
    return times.medians


def _moving(prompt: str, layer: int = 0) -> dict[str, Any]:
    move = {"code": "mean residual", "layer": layer, "site": "resid_post", "moves": {"12": 20}}
    return {"prompt": prompt, "move": move}


def of_gemma() -> dict[str, float]:
    """What a person does first with Gemma, the median of some."""
    from tests.gemma import gemma_folder

    playground = Playground(load(gemma_folder()))
    page, asked, times = Page(playground), prompts(_TEXT), Times()
    first = next(asked)[0]
    page.post("read", {"prompt": first})  # whatever is set up once
    if (n := playground.tokens(first).shape[1]) != _TOKENS:
        raise RuntimeError(f"a prompt has {n} tokens, and the goals are for {_TOKENS}")
    for layer in range(_ROUNDS):
        clean, corrupted = next(asked)
        state = {"prompt": clean, "layer": 3 * layer, "head": 1}
        ablated = {**state, "change": {"positions": "rotary:none", "layers": [layer]}}
        times.ask("read", partial(page.post, "read", state))
        times.ask("click", partial(page.post, "head", state))
        times.ask("ablate", partial(page.post, "read", ablated))
    patch = {"patch": {"at": "resid_pre"}, "prompt": clean}
    early = {**patch, "prompt": clean, "other_prompt": clean.replace("Anna:", "John:")}
    times.ask("patch", partial(page.post, "patch", {**patch, "other_prompt": corrupted}))
    times.ask("patch_early", partial(page.post, "patch", early))
    moving = _moving(clean, layer=4)  # rotary layers have to have attended before
    times.ask("fit", partial(page.post, "fit", moving))
    for to in range(_ROUNDS):
        moving["move"]["moves"] = {"12": 20 + to}
        times.ask("move", partial(page.post, "move", moving))
    for seen, drawn in _drawn(playground.loaded, clean):
        times.keep("seen", seen)
        times.keep("drawn", drawn)
    return times.medians


def _drawn(loaded: LoadedModel, prompt: str) -> Iterator[tuple[float, float]]:
    """Seconds from a click on a head until its map is seen, and all is drawn, in Chromium."""
    with tempfile.TemporaryDirectory() as place:
        driver = start_chromium(Path(place))
        served = explore(loaded, out=Path(place) / "runs")
        try:
            page = LivePage(driver, served.url, Path(place))
            window(page, DESKTOP)
            page.go({"prompt": prompt, "layer": 0, "head": 0})
            page.wait(lambda: page.all("#attention .circuits canvas"))
            for layer in range(1, _ROUNDS + 1):
                yield driver.execute_async_script(_DRAWN, f"L{layer}H{layer % 4}")
                page.settle()
        finally:
            driver.quit()
            served.close()


def main(contestant: str) -> None:
    print(json.dumps(embedded() if contestant == "embedded" else of_gemma()))


if __name__ == "__main__":
    main(sys.argv[1])
