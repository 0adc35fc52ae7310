// What is taken away: an encoding under a condition, in layers or heads, and the attention of heads.
const exploreChange = ({ model, state }) => {
const { $, $$, element } = common;
const AS_IT_IS = "";
const encoding = $("#encoding"), condition = $("#condition"), share = $("#share");
const options = (select, all) => select.replaceChildren(...all.map(([value, words]) => element("option", words, { value })));

// "rotary:keep_highest=0.25" in its three parts.
function partsOf(text) {
  const [, name, kind, value] = /^([^:]*):?([^=]*)=?(.*)$/s.exec(text);
  return [name, kind || "none", value];
}
const conditionsOf = (name) => model.conditions.map(partsOf).filter(([other]) => other === name);
const current = () => state.get().change ?? {};

// The change with this part; null where it changes nothing.
function set(part) {
  const change = { positions: null, layers: null, heads: null, head_changes: [], ...current(), ...part };
  state.set({ change: change.positions === null && !change.layers && !change.heads && !change.head_changes.length ? null : change });
}

function setPositions() {
  if (encoding.value === AS_IT_IS) return set({ positions: null });
  if (!$("#share-box").hidden && !share.value.trim()) return;
  const value = $("#share-box").hidden ? "" : `=${share.value.trim()}`;
  set({ positions: `${encoding.value}:${condition.value}${value}` });
}

function setUp() {
  const encodings = [...new Set(model.conditions.map((text) => partsOf(text)[0]))];
  options(encoding, [[AS_IT_IS, encodings.length ? "as it is" : "none to take away"], ...encodings.map((name) => [name, name])]);
  encoding.disabled = !encodings.length;
  options($("#head-change"), [[AS_IT_IS, "as it is"], ...Object.entries(HEAD_CHANGES)]);
  $("#layers").append(...model.attending.map((layer) => element("button", `L${layer}`, { type: "button", "data-layer": layer })));
  encoding.addEventListener("change", () => {
    if (encoding.value !== AS_IT_IS) offer(encoding.value, ...conditionsOf(encoding.value)[0].slice(1));
    setPositions();
  });
  condition.addEventListener("change", () => {
    const [, , value] = conditionsOf(encoding.value).find(([, name]) => name === condition.value);
    offer(encoding.value, condition.value, value);
    setPositions();
  });
  share.addEventListener("change", setPositions);
  $("#layers").addEventListener("click", ({ target }) => {
    if (target.dataset.layer === undefined) return;
    const layer = Number(target.dataset.layer), chosen = current().layers ?? [];
    // An address may name layers that have no heads, and so no buttons.
    const layers = (chosen.includes(layer) ? chosen.filter((other) => other !== layer) : [...chosen, layer]).filter((one) => model.attending.includes(one)).sort((a, b) => a - b);
    set({ layers: layers.length ? layers : null, heads: null });
  });
  $("#head-change").addEventListener("change", ({ target }) => {
    const { layer, head } = state.get(), others = (current().head_changes ?? []).filter((one) => one.layer !== layer || one.head !== head);
    set({ head_changes: target.value === AS_IT_IS ? others : [...others, { layer, head, to: target.value }] });
  });
  $("#put-back").addEventListener("click", () => state.set({ change: null }));
  for (const box of $$("textarea.other")) box.addEventListener("change", () => state.set({ other_prompt: box.value || null, patch: null }));
}

function offer(name, kind, value) {
  options(condition, conditionsOf(name).map(([, other]) => [other, other.replaceAll("_", " ")]));
  condition.value = kind;
  $("#share-box").hidden = !value;
  if (share !== document.activeElement) share.value = value;
}

// A pressed button that puts one thing back.
function chip(words, back) {
  const button = element("button", `${words} ×`, { type: "button", "aria-label": `Put ${words} back` });
  button.addEventListener("click", back);
  return button;
}

function show() {
  const { change, layer, head, other_prompt: other } = state.get(), { positions = null, layers = null, heads = null, head_changes: changed = [] } = change ?? {};
  const [name, kind, value] = positions === null ? [AS_IT_IS, "", ""] : partsOf(positions);
  encoding.value = name;
  condition.disabled = name === AS_IT_IS;
  if (name === AS_IT_IS) {
    options(condition, [["", "–"]]);
    $("#share-box").hidden = true;
  } else offer(name, kind, value);
  $("#where-box").hidden = name === AS_IT_IS;
  for (const button of $$("[data-layer]", $("#layers"))) button.setAttribute("aria-pressed", Boolean(layers?.includes(Number(button.dataset.layer))));
  $("#where-title").textContent = heads ? "In these heads" : layers ? "In these layers" : "In all layers, or pick some";
  showOnly(heads ?? [], layer, head);
  for (const box of $$(".which")) box.textContent = layer === null ? "" : nameOf(layer, head);
  $("#head-change").value = changed.find((one) => one.layer === layer && one.head === head)?.to ?? AS_IT_IS;
  $("#changed-heads").replaceChildren(...changed.map((one) => chip(`${nameOf(one.layer, one.head)} ${HEAD_CHANGES[one.to] ?? one.to}`, () => set({ head_changes: changed.filter((kept) => kept !== one) }))));
  $(".other-box").hidden = !changed.some(({ to }) => to === "other_prompt");
  for (const box of $$("textarea.other")) if (box !== document.activeElement) box.value = other ?? "";
  $("#put-back").disabled = !change;
}

// Heads that share their keys lose positions together: a choice of one is a choice of all of them.
const MEMBERS = model.heads_sharing_keys;
const groupOf = ([layer, head]) => Array.from({ length: MEMBERS }, (_, i) => [layer, head - head % MEMBERS + i]);
const sameGroup = (one, other) => one[0] === other[0] && Math.floor(one[1] / MEMBERS) === Math.floor(other[1] / MEMBERS);
const namesOf = (group) => group.length === 1 ? nameOf(...group[0]) : `${nameOf(...group[0])} to H${group.at(-1)[1]}`;

// Heads in which positions are taken away, and a button for the head that is looked at.
function showOnly(heads, layer, head) {
  const chosen = heads.filter((one, i) => heads.findIndex((other) => sameGroup(one, other)) === i), group = layer === null ? [] : groupOf([layer, head]);
  const chips = chosen.map((one) => chip(namesOf(groupOf(one)), () => {
    const rest = heads.filter((kept) => !sameGroup(kept, one));
    set({ heads: rest.length ? rest : null });
  }));
  if (group.length && !chosen.some((one) => sameGroup(one, group[0]))) {
    const more = element("button", `Only ${namesOf(group)}`, { type: "button" });
    more.addEventListener("click", () => set({ heads: [...heads, ...group], layers: null }));
    chips.push(more);
  }
  $("#only-heads").replaceChildren(...chips);
  $("#shared-keys").hidden = MEMBERS === 1;
}

return { setUp, show };
};
