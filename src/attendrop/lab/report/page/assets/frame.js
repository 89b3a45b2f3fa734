// The frame of a figure: title, explanation, controls, legend, the drawing, downloads and the table of its data.
"use strict";

function symbolOf(method, size = 70) {
  const svg = d3.create("svg").attr("viewBox", "-8 -8 16 16").attr("aria-hidden", "true");
  svg.append("path").attr("d", d3.symbol(method.symbol, size)()).style("fill", method.color);
  return svg.node();
}

/** Buttons that hide and show methods in all figures. */
function legend() {
  const list = el("ul", { class: "legend", "aria-label": "Methods; press one to hide or show it" });
  for (const method of METHODS) {
    const button = el("button", { type: "button", "data-method": method.name, onclick: () => {
      if (state.hidden.has(method.name)) state.hidden.delete(method.name);
      else state.hidden.add(method.name);
      update();
    } }, symbolOf(method), method.label);
    list.append(el("li", {}, button));
  }
  listeners.push(() => list.querySelectorAll("button").forEach((b) =>
    b.setAttribute("aria-pressed", String(!state.hidden.has(b.dataset.method)))));
  return list;
}

/**
 * Adds a section with one figure to the page.
 * draw(width) returns an SVG element, or null where the present choice has no data;
 * table() returns {columns, rows}, which are shown as a table and saved as CSV;
 * entries() returns what the legend of a saved figure lists, each with label, symbol and color.
 */
function addFigure({ id, nav, title, about, controls = [], hasLegend = true, entries = hasLegend ? shownMethods : () => [], draw, table, extra = null }) {
  const canvas = el("div", { class: "canvas" });
  const holder = el("div");
  const shownTable = el("button", { type: "button", "aria-expanded": "false", onclick: () => {
    const open = shownTable.getAttribute("aria-expanded") !== "true";
    shownTable.setAttribute("aria-expanded", String(open));
    fillTable();
  } }, "Show as table");
  const svg = () => canvas.querySelector("svg");
  const save = (label, run) => el("button", { type: "button", onclick: run, "aria-label": `${label} of: ${title}` }, label);
  const tools = el("div", { class: "tools" },
    save("SVG", () => svg() && saveSvg(svg(), title, id, entries())), save("PNG", () => svg() && savePng(svg(), title, id, entries())),
    save("CSV", () => saveCsv(table(), id)), shownTable,
    IS_PAPER ? el("span", { class: "label" }, PAPER_LABEL) : null);
  const figure = el("figure", { "aria-labelledby": `${id}-title` },
    el("div", { class: "controls" }, ...controls), hasLegend ? legend() : null, canvas, extra, tools, holder);
  document.getElementById("figures").append(el("section", { id, "data-nav": nav },
    el("h2", { id: `${id}-title` }, title), el("p", { class: "about" }, about), figure));

  function fillTable() {
    const open = shownTable.getAttribute("aria-expanded") === "true";
    shownTable.textContent = open ? "Hide the table" : "Show as table";
    const { columns, rows } = open ? table() : { columns: [], rows: [] };
    holder.replaceChildren(...(open ? [dataTable(columns, rows, `Data of: ${title}`)] : []));
  }
  let width = 0;
  function redraw() {
    width = canvas.clientWidth;
    const drawing = width ? draw(width) : null;
    if (drawing) {
      // Plot names its groups for assistive technology, which may not look into an image.
      drawing.querySelectorAll("g[aria-label]").forEach((g) => { g.dataset.mark = g.getAttribute("aria-label"); g.removeAttribute("aria-label"); });
      drawing.setAttribute("role", "img");
      drawing.setAttribute("aria-label", `${title}. ${about} The same data is below as a table.`);
    }
    canvas.replaceChildren(drawing ?? el("p", { class: "empty" }, "There is no data for this choice."));
    fillTable();
  }
  listeners.push(redraw);
  new ResizeObserver(() => { if (Math.abs(canvas.clientWidth - width) > 2) requestAnimationFrame(redraw); }).observe(canvas);
  return redraw;
}

// ---- downloads ----

const PAINTS = ["fill", "stroke", "color", "opacity", "font-size", "font-weight", "font-family", "font-variant"];

/** A copy that looks the same outside of the page: its colours are numbers, its title and legend are inside. */
function standalone(svg, title, entries) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of PAINTS) to[i].style.setProperty(name, style.getPropertyValue(name));
    for (const { name, value } of [...to[i].attributes]) if (name !== "style" && value.includes("var(")) to[i].removeAttribute(name);
  });
  copy.querySelectorAll("[data-mark=tip], [aria-label=tip]").forEach((tip) => tip.remove());
  const width = svg.clientWidth || +svg.getAttribute("width"), height = svg.clientHeight || +svg.getAttribute("height");
  const family = getComputedStyle(document.body).fontFamily, ink = resolved("var(--ink)");
  const outer = d3.create("svg").attr("xmlns", "http://www.w3.org/2000/svg").style("font-family", family);
  const text = (x, y, words, size, weight) => outer.append("text").attr("x", x).attr("y", y).attr("fill", ink)
    .style("font-size", size).style("font-weight", weight).text(words);
  const background = outer.append("rect").attr("width", "100%").attr("height", "100%").attr("fill", resolved("var(--panel)"));
  let y = 28;
  text(16, y, title, "16px", 600);
  if (IS_PAPER) text(16, y += 20, PAPER_LABEL, "12px", 400);
  if (entries.length) {
    let x = 16;
    y += 26;
    for (const { label, symbol, color } of entries) {
      const space = 34 + 7.2 * label.length;
      if (x > 16 && x + space > width + 16) { x = 16; y += 20; }
      outer.append("path").attr("transform", `translate(${x + 6},${y - 4})`).attr("d", d3.symbol(symbol ?? d3.symbolSquare, 70)())
        .attr("fill", resolved(color));
      text(x + 18, y, label, "12px", 400);
      x += space;
    }
  }
  d3.select(copy).attr("x", 16).attr("y", y + 14).attr("width", width).attr("height", height);
  outer.node().append(copy);
  const size = [width + 32, y + height + 30];
  outer.attr("width", size[0]).attr("height", size[1]).attr("viewBox", `0 0 ${size[0]} ${size[1]}`);
  background.attr("width", size[0]).attr("height", size[1]);
  return { source: new XMLSerializer().serializeToString(outer.node()), size };
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
function saveSvg(svg, title, name, entries) {
  save(new Blob([standalone(svg, title, entries).source], { type: "image/svg+xml" }), `${name}.svg`);
}
async function savePng(svg, title, name, entries) {
  const { source, size } = standalone(svg, title, entries), scale = 2;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
  await image.decode();
  const canvas = el("canvas", { width: size[0] * scale, height: size[1] * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.drawImage(image, 0, 0, ...size);
  canvas.toBlob((blob) => save(blob, `${name}.png`), "image/png");
}
function saveCsv({ columns, rows }, name) {
  // A text that a spreadsheet would run as a formula gets an apostrophe in front.
  const safe = (value) => (typeof value === "string" && /^[=+\-@]/.test(value) ? `'${value}` : value ?? "");
  save(new Blob([d3.csvFormatRows([columns, ...rows.map((row) => row.map(safe))]) + "\n"], { type: "text/csv" }), `${name}.csv`);
}
