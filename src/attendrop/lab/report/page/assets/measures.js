// Figures beyond the comparison itself: grids of p and q, tuning, what methods log, single predictions, all runs.
"use strict";

function heatmapFigure() {
  const maps = [...A.heatmaps, ...(A.tuning?.heatmaps ?? [])];
  if (!maps.length) return;
  const view = { number: 0 };
  const map = () => maps[view.number];
  const rowsOf = () => map().ys.flatMap((y, j) => map().xs.map((x, i) => ({ x, y, value: map().difference[j]?.[i] })));
  const controls = maps.length < 2 ? [] : [choice("Grid", d3.range(maps.length), 0,
    (v) => { view.number = +v; redraw(); }, (i) => [labelOf(maps[i].method), maps[i].task, maps[i].size].filter(Boolean).join(", "))];
  const redraw = addFigure({
    id: "heatmap", nav: "Grid", title: `${maps[0].x} × ${maps[0].y}: difference from ${labelOf(A.baseline)}`, hasLegend: false, controls,
    about: `Each cell is the difference in ${OUTCOMES[SCORE].label} from ${labelOf(A.baseline)}. Blue is higher, orange is lower. The best cell of a grid is partly luck: look for regions, not for a maximum.`,
    draw(width) {
      const rows = rowsOf().filter((r) => isNumber(r.value)), color = diverging();
      const limit = d3.max(rows, (r) => Math.abs(r.value)) || 1, paint = (r) => color(r.value / limit);
      const size = Math.min(70, (Math.min(width, 720) - 60) / map().xs.length);
      return Plot.plot({
        ...BASE, width: Math.min(width, 60 + size * map().xs.length), height: Math.min(52, size) * map().ys.length + 66, marginLeft: 50, marginRight: 6, marginTop: 26, marginBottom: 40, padding: 0.03,
        x: { domain: map().xs, label: map().x, labelArrow: "none", labelAnchor: "center" }, y: { domain: [...map().ys].reverse(), label: map().y, labelArrow: "none" },
        marks: [
          Plot.cell(rows, { x: "x", y: "y", fill: paint, rx: 3 }),
          size > 38 ? Plot.text(rows, { x: "x", y: "y", text: (r) => fmt(r.value, true), fill: (r) => inkOn(paint(r)), fontSize: size > 48 ? 12 : 10 }) : null,
          tipOf(rows, { x: "x", y: "y", title: (r) => `${map().x} = ${r.x}, ${map().y} = ${r.y}\ndifference ${fmt(r.value, true)}` }),
        ].filter(Boolean),
      });
    },
    table: () => ({ columns: ["method", map().x, map().y, "difference"], rows: rowsOf().map((r) => [labelOf(map().method), r.x, r.y, r.value]) }),
  });
}

const ABOUT_CURVES = {
  random: "The expected best score after k random trials, with its band.",
  grid: "The expected best score of k points of the grid, drawn without replacement.",
  search: "The best score after the first k trials of this one search. Its points depend on those before, so that another search would give another line, and there is no band.",
};

function tuningFigure() {
  const curves = A.tuning?.curves ?? [];
  if (!curves.length) return;
  const kind = curves[0].kind ?? "random", best = kind === "search" ? "best" : "expected best";
  const seriesOf = () => curves.filter((c) => !state.hidden.has(c.method)).map((c, i) => ({
    ...(METHOD.get(c.method) ?? { label: c.method, color: `var(--m${i % 8})`, symbol: SYMBOLS[i % SYMBOLS.length] }),
    rows: series3(c.k, c.expected_best, c.low, c.high),
  }));
  const points = (point) => Object.entries(point ?? {}).map(([name, v]) => `${name}=${isNumber(v) ? +v.toPrecision(4) : v}`).join(", ");
  // {method: {role: result}}, where a role is the chosen setting or one that it is compared with.
  const rows = Object.entries(A.tuning.dev ?? {}).flatMap(([method, roles]) => Object.entries(roles ?? {}).map(([role, r]) =>
    [labelOf(method), role, fmt(r?.mean), Object.keys(r?.values ?? {}).length, points(r?.point)]));
  addFigure({
    id: "tuning", nav: "Tuning", title: "Score against search budget",
    about: `${ABOUT_CURVES[kind]} Compare methods at equal k: the maximum alone favours the method with more trials.`,
    draw: (width) => lineChart(width, seriesOf(), { x: "trials", y: `${best} ${OUTCOMES[SCORE].label}` }),
    extra: rows.length ? el("div", {}, el("h3", {}, IS_PAPER ? "On the development set" : "On the development set, which the search never saw"),
      dataTable(["method", "setting", OUTCOMES[SCORE].label, "seeds", "values"], rows, "Scores of the chosen settings")) : null,
    table: () => ({ columns: ["method", "trials", best, "low", "high"], rows: seriesOf().flatMap((s) => s.rows.map((r) => [s.label, r.x, r.y, r.low, r.high])) }),
  });
}

/** What the methods logged, grouped: metrics whose names differ only in the number at their end are one figure. */
function metricGroups() {
  const groups = new Map();
  for (const [method, metrics] of Object.entries(A.method_metrics)) {
    for (const [metric, values] of Object.entries(metrics)) {
      const [, stem, layer] = /^(.*?)(?:_((?:(?:encoder|decoder|cross|self)_)*(?:layer|block)_\d+))?$/.exec(metric);
      const key = `${method}\n${stem}`;
      if (!groups.has(key)) groups.set(key, { method, stem, lines: [] });
      groups.get(key).lines.push({ metric, layer: layer ?? null, values });
    }
  }
  for (const group of groups.values()) group.lines.sort((a, b) => (+/\d+$/.exec(a.metric) || 0) - (+/\d+$/.exec(b.metric) || 0));
  return [...groups.values()];
}
const metricName = (stem) => stem.split("/").at(-1).replaceAll("_", " ");

function metricFigure(groups, { id, nav, title, about }) {
  if (!groups.length) return;
  const view = { number: 0 };
  const group = () => groups[view.number];
  const seriesOf = () => {
    const { lines, method } = group();
    const from = d3.interpolateLab(resolved("var(--m1)"), resolved("var(--m5)"));
    return lines.map((line, i) => ({
      label: line.layer ? line.layer.replaceAll("_", " ") : labelOf(method), symbol: lines.length < 8 ? SYMBOLS[i % SYMBOLS.length] : null,
      color: lines.length === 1 ? (METHOD.get(method)?.color ?? "var(--m1)") : from(i / (lines.length - 1)),
      rows: series3(line.values.step, line.values.mean, line.values.low, line.values.high),
    }));
  };
  const key = el("ul", { class: "legend" });
  const redraw = addFigure({
    id, nav, title, about, hasLegend: false, entries: () => seriesOf(),
    controls: groups.length < 2 ? [] : [choice("Value", d3.range(groups.length), 0, (v) => { view.number = +v; redraw(); },
      (i) => `${labelOf(groups[i].method)}: ${metricName(groups[i].stem)}`)],
    draw(width) {
      const series = seriesOf();
      key.replaceChildren(...series.map((s) => el("li", {}, el("span", { class: "check" }, symbolOf({ symbol: s.symbol ?? d3.symbolSquare, color: s.color }), s.label))));
      return lineChart(width, series, { x: "step", y: metricName(group().stem) });
    },
    extra: key,
    table: () => ({ columns: ["method", "metric", "step", "mean", "low", "high"],
      rows: group().lines.flatMap((l) => series3(l.values.step, l.values.mean, l.values.low, l.values.high).map((r) => [labelOf(group().method), l.metric, r.x, r.y, r.low, r.high])) }),
  });
}

function metricFigures() {
  const groups = metricGroups(), isLearned = (g) => /drop_probability$/.test(g.stem);
  metricFigure(groups.filter(isLearned), { id: "learned", nav: "Learned dropout", title: "Learned drop probability per layer",
    about: "The probability with which AttendOut's generator drops an attention position, for each layer, as training goes on." });
  metricFigure(groups.filter((g) => !isLearned(g)), { id: "rates", nav: "Drop rates", title: "Metrics logged by the methods",
    about: "The values that the methods log: shares of candidates, of dropped positions, of the attention that went with them, and others." });
}

const isHere = (entry) => entry.task === state.task && (entry.size == null || entry.size === state.size);

function agreementFigure() {
  const entries = A.agreement.filter((a) => a.per_example?.length);
  if (!entries.length) return;
  // With up to 20 seeds there is a bar for each share that is possible; with more, shares are rounded to tens of percent.
  const all = entries.flatMap((e) => e.per_example.filter(isNumber));
  const steps = d3.range(1, 21).find((n) => all.every((v) => Math.abs(v * n - Math.round(v * n)) < 0.01)) ?? 10;
  const bins = (values) => d3.range(steps + 1).map((i) => ({ x: i / steps, n: values.filter((v) => Math.round(steps * v) === i).length / values.length }));
  const here = () => shownMethods().map((method) => ({ method, entry: entries.find((e) => e.method === method.name && isHere(e)) }))
    .filter((r) => r.entry).map((r) => ({ ...r, bins: bins(r.entry.per_example.filter(isNumber)) }));
  addFigure({
    id: "agreement", nav: "Agreement", title: "Do the seeds agree on single examples?",
    about: "For each example of the development set: in what share of the seeds is it predicted correctly? Bars at 0 % and 100 % are examples on which all seeds agree; bars between depend on the seed.",
    draw(width) {
      const shown = here();
      if (!shown.length) return null;
      const rows = shown.flatMap((r, k) => r.bins.map((b) => ({ ...b, k, method: r.method, agreement: r.entry.agreement })));
      const top = d3.max(rows, (r) => r.n), room = 0.34;
      return Plot.plot({
        ...BASE, width, height: 84 * shown.length + 44, marginLeft: 14, marginRight: 14, marginBottom: 40, marginTop: 4,
        x: { domain: [-0.5 / steps, 1 + 0.5 / steps], label: "share of seeds that are correct", labelArrow: "none", tickFormat: (v) => `${Math.round(100 * v)} %`, ticks: d3.ticks(0, 1, Math.min(steps, 5)) },
        y: { axis: null, domain: [shown.length, 0] },
        marks: [
          ...shown.map(({ method }, k) => Plot.rect(rows.filter((r) => r.k === k), { x1: (r) => r.x - 0.44 / steps, x2: (r) => r.x + 0.44 / steps, y1: k + 0.98, y2: (r) => k + 0.98 - (0.98 - room) * r.n / top, fill: method.color })),
          Plot.ruleY(shown, { y: (_, k) => k + 0.98, stroke: "var(--line)" }),
          Plot.text(shown, { frameAnchor: "left", y: (_, k) => k + 0.16, textAnchor: "start", fontWeight: 600, text: (r) => short(`${r.method.label} · ${percent(r.entry.agreement)} agreement`, width), fill: "var(--ink)" }),
          tipOf(rows, { x: "x", y: (r) => r.k + 0.98 - (0.98 - room) * r.n / top, title: (r) => `${r.method.label}\ncorrect in ${Math.round(100 * r.x)} % of the seeds:\n${(100 * r.n).toFixed(1)} % of the examples` }),
        ],
      });
    },
    table: () => ({ columns: ["method", "task", "share of seeds", "share of examples", "agreement"],
      rows: here().flatMap((r) => r.bins.map((b) => [r.method.label, state.task, b.x, b.n, r.entry.agreement])) }),
  });
}

function disagreements() {
  if (!A.disagreements.length) return;
  const list = el("ul", { class: "examples" }), more = el("ul", { class: "examples" });
  const rest = el("details", {}, el("summary", {}, "Show more examples"), more);
  document.getElementById("figures").append(el("section", { id: "disagreements", "data-nav": "Disagreements" },
    el("h2", {}, "Examples on which the methods disagree"),
    el("p", { class: "about" }, "The share of the seeds that predict each example correctly, for each method. The examples with the largest spread come first."), list, rest));
  listeners.push(() => {
    const here = A.disagreements.filter(isHere).slice(0, 40);
    const cards = here.map((d) => el("li", {},
      el("span", { class: "hint" }, `example ${d.example}`, d.gold != null ? ` · label ${d.gold}` : ""), el("p", {}, d.text ?? ""),
      ...METHODS.filter((m) => isNumber(d.right[m.name])).map((m) => {
        const fill = el("div", { class: "fill" });
        fill.style.width = `${100 * d.right[m.name]}%`;
        fill.style.background = m.color;
        return el("div", { class: "share" }, el("span", {}, m.label), el("div", { class: "track", "aria-hidden": "true" }, fill), el("span", { class: "n" }, percent(d.right[m.name])));
      })));
    list.replaceChildren(...cards.slice(0, 6));
    more.replaceChildren(...cards.slice(6));
    rest.hidden = cards.length <= 6;
    if (!here.length) list.replaceChildren(el("li", { class: "hint" }, "None on this task."));
  });
}

function allRuns() {
  if (!A.runs.length) return;
  const names = unique(A.runs.flatMap((r) => Object.keys(flatScores(r))));
  const columns = ["method", "task", "size", "seed", "status", "seconds", ...names, "error"];
  const rows = () => A.runs.map((r) => [labelOf(r.method), r.task, r.size, r.seed, r.status, r.seconds, ...names.map((n) => flatScores(r)[n]), r.error]);
  const details = el("details", {}, el("summary", {}, `All ${A.runs.length} runs`),
    el("div", { class: "tools" }, el("button", { type: "button", onclick: () => saveCsv({ columns, rows: rows() }, "runs") }, "CSV")));
  details.addEventListener("toggle", () => details.append(dataTable(columns, rows(), "All runs")), { once: true });
  document.getElementById("figures").append(el("section", { id: "runs", "data-nav": "Runs" }, el("h2", {}, "Runs"), details));
}
function flatScores(run) {
  const flat = {};
  for (const [name, value] of Object.entries(run.scores ?? {})) {
    if (value && typeof value === "object") for (const [score, v] of Object.entries(value)) flat[name === "validation" ? score : `${name} ${score}`] = v;
    else flat[name] = value;
  }
  return flat;
}
