// Charts as files: one SVG of a chart as it is shown, or the same as PNG.
Object.assign(common, (() => {
const { $, $$, element, resolve, save, saveBlob, SHAPES } = common;

// A picture's SVG is saved as it is, or drawn at twice its size as PNG.
async function savePicture(name, kind, svg) {
  if (kind === "svg") return save(`${name}.svg`, "image/svg+xml", svg);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = element("canvas", undefined, { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => saveBlob(`${name}.png`, blob));
}

const xml = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "").replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const textAt = (x, y, size, fill, words, more = "") => `<text x="${x}" y="${y}" font-size="${size}" fill="${xml(fill)}" ${more}>${xml(words)}</text>`;
const FONT = "system-ui, 'Liberation Sans', 'DejaVu Sans', sans-serif";

// Whatever is drawn, as a file of its own, on the page's ground.
const framed = (width, height, inside) => `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="${width}" height="${height}" font-family="${FONT}"><rect width="100%" height="100%" fill="${resolve("--paper")}"/>${inside}</svg>`;

// One SVG of a chart as it is shown: its title, its legend, and its panels side by side.
async function chartPicture(figure) {
  const EDGE = 16, boxes = $$(".panel, .plot-alone", figure).filter((box) => $(".plot", box)?.data), plots = boxes.map((box) => $(".plot", box));
  if (!plots.length) return null;
  const drawn = await Promise.all(plots.map((plot) => Plotly.toImage(plot, { format: "svg", width: plot.clientWidth, height: plot.clientHeight })));
  const origin = $(".panels, .plot-alone", figure).getBoundingClientRect(), places = boxes.map((box) => box.getBoundingClientRect());
  // The keys of the whole chart stand below its title, those of a panel where the page has them.
  const keys = $$(":scope > .legend > *", figure).filter((key) => !key.hidden), HEAD = 34 + (keys.length ? 24 : 0);
  const width = Math.ceil(origin.width + 2 * EDGE), height = Math.ceil(Math.max(...places.map((at) => at.bottom - origin.top)) + HEAD + 2 * EDGE);
  const ink = resolve("--ink"), soft = resolve("--soft");
  const keyAt = (key, x, y) => {
    const mark = $(".swatch, i", key);
    const colour = mark ? getComputedStyle(mark)[mark.className === "swatch" ? "backgroundColor" : "borderTopColor"] : soft;
    const corners = SHAPES[mark?.dataset.symbol]?.replace(/(\d+) (\d+)/g, (_, across, down) => `${x + across / 10} ${y + down / 10}`);
    const box = corners ? `<polygon points="${corners}"` : `<rect x="${x}" y="${y}" width="10" height="10"`;
    return `${box} fill="${xml(colour)}"/>` + textAt(x + 15, y + 9, 12, soft, key.textContent.trim());
  };
  let x = EDGE;
  const legend = keys.map((key) => {
    const at = x;
    x += 26 + 6.6 * key.textContent.trim().length;
    return keyAt(key, at, EDGE + 28);
  });
  legend.push(...$$(".panel .legend > *", figure).map((key) => {
    const at = key.getBoundingClientRect();
    return keyAt(key, at.left - origin.left + EDGE, at.top - origin.top + HEAD + EDGE + 4);
  }));
  const panels = drawn.map((url, i) => {
    const at = places[i], plot = plots[i].getBoundingClientRect(), left = at.left - origin.left + EDGE, top = at.top - origin.top + HEAD + EDGE;
    const inner = decodeURIComponent(url.slice(url.indexOf(",") + 1)).replace(/^<svg /, `<svg x="${plot.left - at.left + left}" y="${plot.top - at.top + top}" `);
    return textAt(left, top + 12, 12.5, ink, $("h4", boxes[i])?.textContent ?? "", 'font-weight="600"') + textAt(left, top + 27, 11, soft, $(".unit", boxes[i])?.textContent ?? "") + inner;
  });
  const title = $(".chart-head :is(h2, h3, h4)", figure)?.textContent ?? "";
  return framed(width, height, textAt(EDGE, EDGE + 12, 15, ink, title, 'font-weight="600"') + legend.join("") + panels.join(""));
}

const COPIED = ["stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "fill", "opacity", "font-size", "font-weight", "text-anchor", "vector-effect"];
const seen = (element) => element.checkVisibility() && element.getBoundingClientRect().width > 1;
// A mark of the page with the look that the page's style gives it.
function dressed(mark) {
  const made = mark.cloneNode(true), look = getComputedStyle(mark);
  for (const name of COPIED) made.setAttribute(name, look.getPropertyValue(name));
  return new XMLSerializer().serializeToString(made);
}

// A box's words line by line, as the page breaks them. What a column's head says below it stands in a box of its own.
function linesOf(box) {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT), range = document.createRange(), lines = [], { bottom } = box.getBoundingClientRect();
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!seen(node.parentElement) || (box.matches("th") && node.parentElement.closest("th span"))) continue;
    for (const { 0: word, index } of node.data.matchAll(/\s*\S+\s*/g)) {
      range.setStart(node, index + word.search(/\S/));
      range.setEnd(node, index + word.trimEnd().length);
      const at = range.getBoundingClientRect(), line = lines.at(-1);
      if (at.top > bottom) return lines; // what a small screen leaves out
      if (line && Math.abs(line.at.top - at.top) < at.height / 2) line.words += word;
      else lines.push({ at, words: word });
    }
  }
  return lines;
}

// The words of boxes, where they stand on the page.
function wordsOf(boxes, origin) {
  return boxes.filter(seen).map((box) => {
    const look = getComputedStyle(box);
    return linesOf(box).map(({ at, words }) => textAt(at.left - origin.left, at.top - origin.top + 0.78 * at.height, look.fontSize, look.color, words.trim().replace(/\s+/g, " "), `font-weight="${look.fontWeight}"`)).join("");
  }).join("");
}

// One SVG of the first figure: its words and its scales where the page has them.
function answerPicture(figure) {
  const origin = figure.getBoundingClientRect();
  const scales = $$("svg", figure).filter(seen).map((svg) => {
    const at = svg.getBoundingClientRect();
    const own = ["viewBox", "preserveAspectRatio"].filter((name) => svg.hasAttribute(name)).map((name) => `${name}="${svg.getAttribute(name)}"`).join(" ");
    return `<svg x="${at.left - origin.left}" y="${at.top - origin.top}" width="${at.width}" height="${at.height}" overflow="visible" ${own}>${$$("rect, line, circle", svg).map(dressed).join("")}</svg>`;
  });
  const words = $$("th, td > b, .numbers, .word, .legend .key, thead span", figure);
  return framed(Math.ceil(origin.width), Math.ceil(origin.height), wordsOf(words, origin) + scales.join(""));
}

// A mixed colour as other programs know it, too.
const plainly = (colour) => {
  const mixed = colour.match(/^color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)/);
  return mixed ? `rgb(${mixed.slice(1).map((part) => Math.round(255 * part)).join(",")})` : xml(colour);
};

// One SVG of a figure made of coloured boxes: these, and the words in and around them.
function boxesPicture(figure, boxes, words) {
  const origin = figure.getBoundingClientRect(), place = (box) => { const at = box.getBoundingClientRect(); return `x="${at.left - origin.left}" y="${at.top - origin.top}" width="${at.width}" height="${at.height}"`; };
  const grounds = [...boxes.filter(seen), ...$$(".swatch", figure).filter(seen)].map((box) => `<rect ${place(box)} rx="3" fill="${plainly(getComputedStyle(box).backgroundColor)}"/>`);
  return framed(Math.ceil(origin.width), Math.ceil(origin.height), grounds.join("") + wordsOf(words, origin));
}

// One SVG of heat maps of attention weights, in rows of as many as are given, each with its name and its tokens.
function mapsPicture(title, maps, tokens, columns) {
  const CELL = 9, LABELS = 110, size = CELL * tokens.length, across = size + LABELS + 30, down = size + LABELS + 30, ink = resolve("--ink"), soft = resolve("--soft");
  const parts = maps.map(({ name, canvas }, i) => {
    const left = (i % columns) * across + LABELS, top = Math.floor(i / columns) * down + 50, large = element("canvas", undefined, { width: size, height: size }), context = large.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, 0, 0, size, size);
    const names = tokens.map((token, t) => textAt(left - 4, top + CELL * (t + 0.85), 8, soft, token, 'text-anchor="end"')
      + textAt(0, 0, 8, soft, token, `text-anchor="end" transform="translate(${left + CELL * (t + 0.85)} ${top + size + 4}) rotate(-90)"`));
    return textAt(left, top - 10, 12.5, ink, name, 'font-weight="600"') + `<image x="${left}" y="${top}" width="${size}" height="${size}" href="${large.toDataURL()}"/>` + names.join("");
  });
  return framed(Math.min(columns, maps.length) * across + 16, Math.ceil(maps.length / columns) * down + 30, textAt(16, 20, 15, ink, `${title}: rows are queries, columns the keys that they attend to`, 'font-weight="600"') + parts.join(""));
}

// One SVG of what is one on the page already.
function drawnPicture(svg) {
  const { width, height } = svg.viewBox.baseVal;
  return framed(width, height, $$("path, circle, text", svg).filter((mark) => !mark.matches(".edge-target")).map(dressed).join(""));
}

function setUpPictures(figure, name, draw = () => chartPicture(figure)) {
  for (const button of $$(".picture", figure)) button.addEventListener("click", async () => {
    const svg = await draw();
    if (svg) await savePicture(name(), button.dataset.kind, svg);
  });
}

return { setUpPictures, answerPicture, boxesPicture, drawnPicture, mapsPicture, framed, textAt };
})());
