"""The live page as a person meets it: how long each answer takes, its JSON included.

Asked without a socket, of the embedded model and of the real Gemma 3 270M with a prompt of 67
tokens. Each prompt and change is new, as it is for who types; what is fitted once for a model, its
position probes, is fitted before. `click` is a head's view of a prompt that was read.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.contest import Claim, in_process
from experiments.explore.playground import Playground
from experiments.loaded import LoadedModel, load
from tests.experiments.explore.pages import Page

_ROUNDS = 5
_EMBEDDED_S = 0.3
# Seconds for Gemma, by what is done.
_GEMMA_S = {"read": 1.5, "click": 0.15, "ablate": 2.0, "patch": 30.0}
_TEXT = (
    "When Mary and John went to the store on the corner of the long street, they met Anna and "
    "Paul, who had bought bread, milk and a bottle of wine for the evening. They talked about the "
    "weather and about the summer for a while, and then, after they had looked at the fruit, "
    "{who} gave a drink to"
)
_SHORT = "When Mary and John went out, {who} gave it to"


def claims() -> list[Claim]:
    """Ask both models, each in a process of its own."""
    embedded = in_process("benchmarks.explore", "embedded")
    slowest = max(embedded, key=lambda name: embedded[name])
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


def prompts(text: str) -> Iterator[tuple[str, str]]:
    """New prompts, clean and corrupted: they differ in who acts."""
    names = ("Mary", "John", "Anna", "Paul", "Mark", "Jane", "Luke", "Rose")
    for step in range(1, len(names)):
        for at, name in enumerate(names):
            other = names[(at + step) % len(names)]
            yield text.format(who=name), text.format(who=other)


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    response = run()
    taken = time.perf_counter() - start
    if response.status_code != 200 or "sentence" in response.text.splitlines()[-1][:20]:
        raise RuntimeError(response.text[-300:])
    return taken


def embedded() -> dict[str, float]:
    """Every request of the embedded model, the median of some."""
    playground = Playground(load())
    page, asked = Page(playground), prompts(_SHORT)
    page.post("move", _moving(next(asked)[0]))  # probes are fitted once
    taken: dict[str, list[float]] = {}
    for number in range(_ROUNDS):
        clean, corrupted = (f"{prompt} {number}" for prompt in next(asked))
        heads = [{"layer": 1, "head": 1, "to": "uniform"}, {"layer": 2, "head": 0, "to": "ablated"}]
        state = {"prompt": clean, "other_prompt": corrupted, "layer": 2, "head": 1}
        changed = {**state, "change": {"head_changes": heads}}
        for name, body in {
            "read": state,
            "head": state,
            "feeds": state,
            "move": {**state, **_moving(clean)},
            "patch": {**state, "patch": {"at": "resid_pre"}},
            "code": changed,
            "save": changed,
        }.items():
            run = seconds(lambda name=name, body=body: page.post(name, body))  # type: ignore[misc]
            taken.setdefault(name, []).append(run)
        taken.setdefault("ablate", []).append(seconds(lambda: page.post("read", changed)))  # noqa: B023
    return {name: median(times) for name, times in taken.items()}


def _moving(prompt: str) -> dict[str, Any]:
    move = {"code": "mean residual", "layer": 0, "site": "resid_post", "moves": {"12": 20}}
    return {"prompt": prompt, "move": move}


def of_gemma() -> dict[str, float]:
    from tests.gemma import gemma_folder

    loaded: LoadedModel = load(gemma_folder())
    playground = Playground(loaded)
    page, asked = Page(playground), prompts(_TEXT)
    page.post("read", {"prompt": next(asked)[0]})  # whatever is set up once
    taken: dict[str, list[float]] = {"read": [], "click": [], "ablate": []}
    for layer in range(_ROUNDS):
        clean, corrupted = next(asked)
        state = {"prompt": clean, "layer": 3 * layer, "head": 1}
        ablated = {**state, "change": {"positions": "rotary:none", "layers": [layer]}}
        for name, request, body in (
            ("read", "read", state),
            ("click", "head", state),
            ("ablate", "read", ablated),
        ):
            run = seconds(lambda name=request, body=body: page.post(name, body))  # type: ignore[misc]
            taken[name].append(run)
    patch = {"prompt": clean, "other_prompt": corrupted, "patch": {"at": "resid_pre"}}
    found = {name: median(times) for name, times in taken.items()}
    return {**found, "patch": seconds(lambda: page.post("patch", patch))}


def main(contestant: str) -> None:
    print(json.dumps(embedded() if contestant == "embedded" else of_gemma()))


if __name__ == "__main__":
    main(sys.argv[1])
