"""`code`: lines of Python that print the numbers that the page shows."""

from experiments.explore.answers import CodeAnswer
from experiments.explore.asked import HeadChange, State
from experiments.explore.changed import ablations
from experiments.explore.playground import Playground
from experiments.explore.text import fitted_on
from experiments.variants.embedded import EMBEDDED_MODEL

_READ = """\
def read():
    with torch.no_grad():
        found = lm.model(tokens)[0].float().log_softmax(-1)
    print(-found[:-1].gather(1, tokens[0, 1:, None])[:, 0])  # nats per token
    print(found[-1].exp().topk({shown}))  # what may come next


read()"""
_LOADED = {"device": "cpu", "revision": None, "dtype": "float32", "positions": "auto", "text": None}
_ASKED = "(lm.model, corrupted, cache, metric)"
_PATCHES = {
    "resid_pre": f"patching.get_act_patch_resid_pre{_ASKED}",
    "pattern": f"patching.get_act_patch_attn_head_pattern_all_pos{_ASKED}",
}


def code(playground: Playground, state: State) -> CodeAnswer:
    """Python that reads the prompt, and once more under the change, the move and the patch.

    Args:
        playground: whose model.
        state: what the page shows.

    Returns:
        Lines to be run where nope-interp is installed.

    Raises:
        UserError: for a prompt or a change that cannot be read.
    """
    shown = min(10, playground.model.cfg.d_vocab)
    lines = [
        "import torch",
        "",
        "import nope_interp as ni",
        "",
        f"lm = ni.load({_load(playground)})",
        f"tokens = {_tokens(playground, state.prompt)}",
        "",
        "",
        *_READ.format(shown=shown).splitlines(),
    ]
    if state.changes is not None:
        lines += _changed(playground, state)
    if state.move is not None:
        lines += _moved(playground, state)
    if state.patch is not None and state.other_prompt:
        lines += _patched(playground, state.patch.at, state.other_prompt)
    return CodeAnswer(code="\n".join(lines) + "\n")


def _load(playground: Playground) -> str:
    config = playground.loaded.config
    given = vars(config) | {"device": playground.variant.spec.device}
    words = [f"{name}={given[name]!r}" for name, usual in _LOADED.items() if given[name] != usual]
    own = [] if config.model == str(EMBEDDED_MODEL) else [repr(config.model)]
    return ", ".join([*own, *words])


def _tokens(playground: Playground, prompt: str) -> str:
    playground.tokens(prompt)  # refuses what cannot be read
    begin = [] if playground.begin_id is None else [str(playground.begin_id)]
    return f"torch.tensor([[{', '.join([*begin, f'*lm.variant.encode({prompt!r})'])}]])"


def _changed(playground: Playground, state: State) -> list[str]:
    assert state.changes is not None
    lines: list[str] = []
    opened = []
    for one in ablations(state.changes):
        words = [repr(one.how)]
        words += [] if one.layers is None else [f"layers={[*one.layers]}"]
        words += [] if one.heads is None else [f"heads={[*one.heads]}"]
        opened.append(f"ni.ablate_positions(lm.model, {', '.join(words)})")
    changes = state.changes.head_changes
    if any(change.to == "other_prompt" for change in changes):
        lines.append(f"other = {_tokens(playground, state.other_prompt or '')}")
        lines.append("cache = lm.model.run_with_cache(other)[1]")
    functions = []
    for number, (hook, of_hook) in enumerate(_by_hook(changes).items()):
        lines += ["", "", f"def change_{number}(x):", "    x = x.clone()"]
        lines += [f"    {_set(playground, change)}" for change in of_hook]
        lines += ["    return x", ""]
        functions.append(f'"{hook}": change_{number}')
    if functions:
        opened.append(f"ni.intervene(lm.model, {{{', '.join(functions)}}})")
    return [*lines, "", f"with {', '.join(opened)}:", "    read()"]


def _by_hook(changes: list[HeadChange]) -> dict[str, list[HeadChange]]:
    found: dict[str, list[HeadChange]] = {}
    for change in changes:
        site = "z" if change.to == "ablated" else "pattern"
        found.setdefault(f"blocks.{change.layer}.attn.hook_{site}", []).append(change)
    return found


def _set(playground: Playground, change: HeadChange) -> str:
    """The line that changes a head's output, whose last axes may be one, or its pattern."""
    layer, head = playground.check_head(change.layer, change.head)
    if change.to == "ablated":
        return f"x.view(*x.shape[:2], {playground.model.cfg.n_heads}, -1)[:, :, {head}] = 0"
    if change.to == "other_prompt":
        return f'x[:, {head}] = cache["blocks.{layer}.attn.hook_pattern"][0, {head}]'
    if change.to == "previous_token":
        rows = "(torch.arange(x.shape[-1]) - 1).clamp(min=0)"
        return f"x[:, {head}] = torch.eye(x.shape[-1])[{rows}]"
    window = playground.positions[layer].window
    seen = "torch.ones_like(x[0, 0]).tril()" + (f".triu({1 - window})" if window else "")
    return f"x[:, {head}] = torch.nn.functional.normalize({seen}, p=1, dim=-1)"


def _moved(playground: Playground, state: State) -> list[str]:
    move = state.move
    assert move is not None
    n = max(playground.tokens(state.prompt).shape[1], max(move.positions.values()) + 1)
    words = ", ".join(f"{name}={value!r}" for name, value in fitted_on(playground, n).items())
    return [
        "",
        f"text = lm.variant.sources[0].sequences({words})",
        f"at = {{'layer': {move.layer}, 'site': {move.site!r}}}",
        f"code = ni.fit_code(lm.model, text, {move.code!r}, **at)",
        f"with ni.set_position(lm.model, code, {move.positions}):",
        "    read()",
    ]


def _patched(playground: Playground, at: str, other_prompt: str) -> list[str]:
    return [
        "",
        "from transformer_lens import patching",
        "",
        f"corrupted = {_tokens(playground, other_prompt)}",
        "with torch.no_grad():",
        "    logits, cache = lm.model.run_with_cache(tokens)",
        "    answer, second = logits[0, -1].argmax(), lm.model(corrupted)[0, -1].topk(2).indices",
        "    other = second[0] if second[0] != answer else second[1]",
        "    metric = lambda logits: logits[0, -1, answer] - logits[0, -1, other]",
        "    clean, low = metric(logits), metric(lm.model(corrupted))",
        *(_by_heads(playground) if at == "head_out" else [f"    found = {_PATCHES[at]}"]),
        "print((found - low) / (clean - low))  # [layer position] or [layer head]",
    ]


def _by_heads(playground: Playground) -> list[str]:
    """TransformerLens's own loop needs an axis of heads, which the outputs of some bridges lack."""
    heads = f"*x.shape[:2], {playground.model.cfg.n_heads}, -1"
    return [
        f"    found = torch.zeros({playground.model.cfg.n_layers}, {playground.model.cfg.n_heads})",
        "    for layer, head in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():",
        '        name = f"blocks.{layer}.attn.hook_z"',
        "",
        "        def put(x):",
        "            x = x.clone()",
        f"            x.view({heads})[:, :, head] = cache[name].view({heads})[:, :, head]",
        "            return x",
        "",
        "        with ni.intervene(lm.model, {name: put}):",
        "            found[layer, head] = metric(lm.model(corrupted))",
    ]
