// Data, names, numbers, colours and small pieces of the page. All scripts share one scope; this one runs first.
"use strict";

const A = JSON.parse(document.getElementById("analysis").textContent);
const PAPER_LABEL = A.paper_label;
const IS_PAPER = A.protocol === "paper";
const OUTCOMES = A.outcomes; // name -> {label, phrase, is_score, is_relative}, in the order in which they are shown
const SCORE = Object.keys(OUTCOMES).find((name) => OUTCOMES[name].is_score);
const COST = Object.keys(OUTCOMES).find((name) => OUTCOMES[name].is_relative);
const SYMBOLS = [
  d3.symbolCircle, d3.symbolSquare, d3.symbolTriangle, d3.symbolDiamond, d3.symbolStar, d3.symbolCross, d3.symbolWye,
];

// Every method has one colour and one shape on the whole page; the baseline is grey.
const METHODS = (() => {
  const others = A.methods.filter((m) => m.name !== A.baseline);
  const ordered = [...A.methods.filter((m) => m.name === A.baseline), ...others];
  return ordered.map((m, i) => ({
    name: m.name, label: m.label || m.name, isBaseline: m.name === A.baseline,
    color: `var(--m${i === 0 ? 0 : 1 + ((i - 1) % 7)})`, symbol: SYMBOLS[i % SYMBOLS.length],
  }));
})();
const METHOD = new Map(METHODS.map((m) => [m.name, m]));
const labelOf = (name) => METHOD.get(name)?.label ?? name;

// What the reader has chosen. `update` draws everything again that depends on it.
const state = { task: null, size: null, part: null, hidden: new Set() };
const listeners = [];
function update() { for (const listener of listeners) listener(); }
// With many methods, a grid of settings for example, only those with the largest differences are drawn at first.
const MOST_DRAWN = 9;
if (METHODS.length > MOST_DRAWN) {
  const size = (m) => d3.max(A.cells.filter((c) => c.method === m.name), (c) => Math.abs(c.outcomes[SCORE]?.comparison?.difference ?? 0)) ?? 0;
  for (const m of d3.sort(METHODS.filter((m) => !m.isBaseline), (m) => -size(m)).slice(MOST_DRAWN - 1)) state.hidden.add(m.name);
}
const shownMethods = () => METHODS.filter((m) => !state.hidden.has(m.name));

const unique = (values) => [...new Set(values)];
const cellsHere = () => A.cells.filter((c) => c.task === state.task && c.size === state.size && c.part === state.part);

/** An element with attributes and children. Texts become text nodes, never markup. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
function fmt(value, signed = false) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  const text = size.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3);
  return (+text === 0 ? "" : value < 0 ? "−" : signed ? "+" : "") + text;
}
const fmtOutcome = (outcome, value) => (OUTCOMES[outcome].is_relative ? `${fmt(value)} ×` : fmt(value));
const percent = (value) => (isNumber(value) ? `${Math.round(100 * value)} %` : "–");

/** The colour that a CSS variable has now, as rgb(). */
function resolved(color) {
  const probe = document.getElementById("announce");
  probe.style.color = color;
  const value = getComputedStyle(probe).color;
  probe.style.color = "";
  return value;
}
/** From negative over neutral to positive, for values from -1 to 1, in the colours of the present theme. */
function diverging() {
  const [low, mid, high] = ["var(--low)", "var(--mid)", "var(--high)"].map(resolved);
  const down = d3.interpolateLab(mid, low), up = d3.interpolateLab(mid, high);
  return (t) => (t < 0 ? down(Math.min(1, -t)) : up(Math.min(1, t)));
}
/** Black or white, whichever is easier to read on a colour: either has a contrast of at least 4.58 to 1. */
function inkOn(color) {
  const { r, g, b } = d3.rgb(color);
  const linear = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) > 0.179 ? "#000000" : "#ffffff";
}

function announce(text) { document.getElementById("announce").textContent = text; }

/** A labelled select. */
function choice(label, options, value, onchange, names = (o) => o) {
  const id = `field${choice.count = (choice.count ?? 0) + 1}`;
  const select = el("select", { id, onchange: () => onchange(select.value) });
  for (const option of options) select.append(el("option", { value: option }, String(names(option))));
  select.value = value;
  return el("div", { class: "field" }, el("label", { for: id }, label), select);
}
/** Radio buttons in a row. */
function segmented(label, options, value, onchange, names = (o) => o) {
  const group = `g${segmented.count = (segmented.count ?? 0) + 1}`;
  const items = options.map((option) => el("label", {},
    el("input", { type: "radio", name: group, value: option, checked: option === value, onchange: () => onchange(option) }),
    el("span", {}, String(names(option)))));
  return el("fieldset", { class: "pick" }, el("legend", {}, label), el("div", { class: "segmented" }, ...items));
}
function checkbox(label, value, onchange) {
  const input = el("input", { type: "checkbox", checked: value, onchange: () => onchange(input.checked) });
  return el("label", { class: "check" }, input, label);
}

function dataTable(columns, rows, label) {
  const body = rows.map((row) => el("tr", {}, ...row.map((value) =>
    el("td", { class: isNumber(value) ? "n" : null }, isNumber(value) ? String(+value.toPrecision(6)) : String(value ?? "")))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    el("table", { class: "data" },
      el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", { scope: "col" }, c)))), el("tbody", {}, ...body)));
}
