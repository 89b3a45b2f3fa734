// The figures of a comparison: seeds, cost, curves, amounts of data.
"use strict";

const BASE = { style: { background: "none", color: "var(--ink)", fontSize: "12px", fontFamily: "inherit" } };
const AXIS = { labelArrow: "none", nice: true };
const PLAIN_GRID = () => Plot.gridX({ stroke: "var(--line)", strokeOpacity: 1 });
const GRID_Y = () => Plot.gridY({ stroke: "var(--line)", strokeOpacity: 1 });
const tipOf = (rows, options) => Plot.tip(rows, Plot.pointer({
  ...options, fill: "var(--panel)", stroke: "var(--line)", fontSize: 12, lineHeight: 1.3, textPadding: 9, maxRadius: 30,
}));
/** The options of an axis on which all values are the same: without a range of its own, it would have none. */
const spread = (values) => {
  const [low, high] = d3.extent(values.filter(isNumber));
  return high - low > 1e-9 ? {} : { domain: [low - 0.05, high + 0.05] };
};
const outcomesHere = () => Object.keys(OUTCOMES).filter((o) => A.cells.some((c) => c.outcomes[o]));
const cellOf = (method) => cellsHere().find((c) => c.method === method);

function seedsFigure() {
  if (!A.cells.length) return;
  const view = { outcome: outcomesHere()[0], kind: "values", paired: false };
  const rowsOf = () => shownMethods().flatMap((method) => {
    const values = cellOf(method.name)?.outcomes[view.outcome]?.values ?? {};
    const base = cellOf(A.baseline)?.outcomes[view.outcome]?.values ?? {};
    return Object.entries(values).filter(([, v]) => isNumber(v)).map(([seed, value]) => ({
      method, seed, value, difference: isNumber(base[seed]) ? value - base[seed] : null,
    }));
  });

  function draw(width) {
    const isDifference = view.kind === "differences", { label: name, is_relative } = OUTCOMES[view.outcome];
    const methods = shownMethods().filter((m) => cellOf(m.name)?.outcomes[view.outcome] && !(isDifference && m.isBaseline));
    const place = new Map(methods.map((m, i) => [m.name, i]));
    const seeds = unique(rowsOf().map((r) => r.seed));
    const offset = (seed) => 0.12 + 0.22 * ((seeds.indexOf(seed) * 0.618) % 1);
    const rows = rowsOf().filter((r) => place.has(r.method.name)).map((r) => ({
      ...r, x: isDifference ? r.difference : r.value, y: place.get(r.method.name) + offset(r.seed),
    })).filter((r) => isNumber(r.x));
    if (!rows.length) return null;
    const means = methods.map((m) => {
      const outcome = cellOf(m.name).outcomes[view.outcome], c = outcome.comparison;
      const [mid, bounds] = isDifference ? [c?.difference, c?.population ?? c?.interval] : [outcome.mean, outcome.interval];
      return { method: m, y: place.get(m.name) - 0.02, mid, low: bounds?.[0], high: bounds?.[1] };
    });
    const delta = A.delta[view.outcome];
    const lines = isDifference ? [] : d3.sort(rows, (r) => r.y);
    const svg = Plot.plot({
      ...BASE, width, height: 62 * methods.length + 56, marginLeft: 14, marginRight: 20, marginTop: 6, marginBottom: 40,
      x: { ...AXIS, ...spread([...rows.map((r) => r.x), ...means.flatMap((m) => [m.low, m.high])]), label: isDifference ? `difference in ${name} from ${labelOf(A.baseline)}` : name + (is_relative ? ` (× ${labelOf(A.baseline)})` : ""), ticks: width < 500 ? 4 : 7 },
      y: { axis: null, domain: [methods.length - 0.5, -0.5] },
      marks: [
        isDifference && delta ? Plot.rect([0], { x1: -delta, x2: delta, y1: -0.5, y2: methods.length - 0.5, fill: "var(--flat-bg)" }) : null,
        PLAIN_GRID(),
        isDifference ? Plot.ruleX([0], { stroke: "var(--ink)" }) : null,
        Plot.line(lines, { x: "x", y: "y", z: "seed", stroke: "var(--soft)", strokeWidth: 1.2 }),
        ...methods.map((m) => Plot.dot(rows.filter((r) => r.method === m), { x: "x", y: "y", r: 4, symbol: m.symbol, fill: m.color, fillOpacity: 0.75 })),
        ...means.filter((m) => isNumber(m.low)).map((m) => Plot.ruleY([m], { x1: "low", x2: "high", y: "y", stroke: m.method.color, strokeWidth: 3, strokeLinecap: "round" })),
        ...means.filter((m) => isNumber(m.mid)).map((m) => Plot.dot([m], { x: "mid", y: "y", r: 6.5, symbol: m.method.symbol, fill: m.method.color, stroke: "var(--panel)", strokeWidth: 1.5 })),
        Plot.text(methods, { frameAnchor: "left", y: (m) => place.get(m.name), dy: -17, textAnchor: "start", fontWeight: 600, text: (m) => short(m.label, width),
          stroke: "var(--panel)", strokeWidth: 4, fill: "var(--ink)" }),
        tipOf(rows, { x: "x", y: "y", title: (r) => `${r.method.label}\nseed ${r.seed}: ${fmtOutcome(view.outcome, r.value)}` + (r.method.isBaseline ? "" : `\ndifference: ${fmt(r.difference, true)}`) }),
      ].filter(Boolean),
    });
    // The line through the runs of one seed shows while the pointer is near one of them.
    const paths = d3.select(svg).selectAll("[aria-label=line] path").data(unique(lines.map((r) => r.seed)));
    const show = () => paths.style("opacity", (seed) => (svg.value?.seed === seed ? 1 : view.paired ? 0.45 : 0));
    svg.addEventListener("input", show);
    show();
    return svg;
  }
  const redraw = addFigure({
    id: "seeds", nav: "Seeds", title: "Every seed", draw,
    about: "Each small mark is one run. The large mark is the mean; the line through it is its interval. Runs of one seed share the head, the order of the examples and all draws.",
    controls: [
      choice("Outcome", outcomesHere(), view.outcome, (v) => { view.outcome = v; redraw(); }, (o) => OUTCOMES[o].label),
      segmented("Show", ["values", "differences"], "values", (v) => { view.kind = v; redraw(); }, (v) => (v === "values" ? "values" : "paired differences")),
      checkbox("connect runs of one seed", false, (v) => { view.paired = v; redraw(); }),
    ],
    table: () => ({ columns: ["method", "task", "size", "part", "outcome", "seed", "value", "difference"],
      rows: rowsOf().map((r) => [r.method.label, state.task, state.size, state.part, view.outcome, r.seed, r.value, r.difference]) }),
  });
}
const short = (text, width) => { const room = Math.floor(width / 7.5); return text.length > room ? `${text.slice(0, room - 1)}…` : text; };

function costFigure() {
  if (!A.cells.some((c) => isNumber(c.outcomes[COST]?.mean) && isNumber(c.outcomes[SCORE]?.mean))) return;
  const { label: cost, phrase } = OUTCOMES[COST];
  const rowsOf = () => shownMethods().map((method) => ({ method, outcomes: cellOf(method.name)?.outcomes ?? {} }))
    .map(({ method, outcomes }) => ({ method, score: outcomes[SCORE], cost: outcomes[COST] }))
    .filter((r) => isNumber(r.score?.mean) && isNumber(r.cost?.mean))
    .map((r) => ({ method: r.method, x: r.cost.mean, x1: r.cost.interval?.[0], x2: r.cost.interval?.[1], y: r.score.mean, y1: r.score.interval?.[0], y2: r.score.interval?.[1] }));
  addFigure({
    id: "cost", nav: `${cost[0].toUpperCase()}${cost.slice(1)}`, title: `Score against ${cost}`,
    about: `The mean of each method, with its interval in both directions. ${A.greater_is_better ? "Up and to the left" : "Down and to the left"} is better: a better score with less ${phrase}.`,
    draw(width) {
      const rows = rowsOf();
      if (!rows.length) return null;
      const middle = d3.mean(d3.extent(rows, (r) => r.x));
      return Plot.plot({
        ...BASE, width, height: Math.min(380, Math.max(280, width * 0.45)), marginLeft: 52, marginRight: 24, marginBottom: 42, marginTop: 26,
        x: { ...AXIS, label: `${phrase} (× ${labelOf(A.baseline)})`, insetLeft: 16, insetRight: 16, ...spread(rows.flatMap((r) => [r.x, r.x1, r.x2])) },
        y: { ...AXIS, label: OUTCOMES[SCORE].label, inset: 12, ...spread(rows.flatMap((r) => [r.y, r.y1, r.y2])) },
        marks: [
          GRID_Y(), PLAIN_GRID(),
          ...rows.map((r) => isNumber(r.y1) ? Plot.ruleX([r], { x: "x", y1: "y1", y2: "y2", stroke: r.method.color, strokeWidth: 2 }) : null),
          ...rows.map((r) => isNumber(r.x1) ? Plot.ruleY([r], { y: "y", x1: "x1", x2: "x2", stroke: r.method.color, strokeWidth: 2 }) : null),
          ...rows.map((r) => Plot.dot([r], { x: "x", y: "y", r: 7, symbol: r.method.symbol, fill: r.method.color, stroke: "var(--panel)", strokeWidth: 1.5 })),
          // Labels of neighbours are above and below in turn, and lie on the side that has more room.
          ...d3.sort(rows, (r) => r.x).map((r, i) => Plot.text([r], { x: "x", y: "y", text: [short(r.method.label, width * 0.6)], fontWeight: 600, fill: "var(--ink)",
            textAnchor: r.x <= middle ? "start" : "end", dx: r.x <= middle ? 12 : -12, dy: i % 2 ? 14 : -12, stroke: "var(--panel)", strokeWidth: 4 })),
          tipOf(rows, { x: "x", y: "y", title: (r) => `${r.method.label}\n${OUTCOMES[SCORE].label} ${fmt(r.y)}\n${fmt(r.x)} × the ${phrase} of ${labelOf(A.baseline)}` }),
        ].filter(Boolean),
      });
    },
    table: () => ({ columns: ["method", cost, `${cost} low`, `${cost} high`, "score", "score low", "score high"],
      rows: rowsOf().map((r) => [r.method.label, r.x, r.x1, r.x2, r.y, r.y1, r.y2]) }),
  });
}

/** Lines with bands, one for each series {label, color, symbol, rows: [{x, y, low, high}]}. */
function lineChart(width, series, { x, y, xTicks }) {
  const all = series.flatMap((s) => s.rows.map((r) => ({ ...r, s })));
  if (!all.length) return null;
  const marks = [GRID_Y()];
  for (const { rows, color, symbol } of series) {
    const banded = rows.filter((r) => isNumber(r.low) && isNumber(r.high));
    if (banded.length > 1) marks.push(Plot.areaY(banded, { x: "x", y1: "low", y2: "high", fill: color, fillOpacity: 0.14 }));
    marks.push(Plot.line(rows, { x: "x", y: "y", stroke: color, strokeWidth: 2 }));
    const step = Math.ceil(rows.length / 12);
    if (symbol) marks.push(Plot.dot(rows.filter((_, i) => i % step === 0 || i === rows.length - 1), { x: "x", y: "y", symbol, fill: color, r: 4 }));
  }
  marks.push(tipOf(all, { x: "x", y: "y", title: (r) => `${r.s.label}\n${x}: ${+(+r.x).toPrecision(4)}\n${y}: ${fmt(r.y)}${isNumber(r.low) ? ` [${fmt(r.low)}, ${fmt(r.high)}]` : ""}` }));
  return Plot.plot({
    ...BASE, width, height: Math.min(380, Math.max(260, width * 0.42)), marginLeft: 52, marginRight: 24, marginBottom: 42, marginTop: 26,
    x: { ...AXIS, label: x, ticks: xTicks ?? (width < 500 ? 4 : 8), tickFormat: xTicks ? (v) => String(v) : undefined, nice: false, insetLeft: 6, insetRight: 6 },
    y: { ...AXIS, ...spread(all.flatMap((r) => [r.y, r.low, r.high])), label: y }, marks,
  });
}
const series3 = (xs, mean, low, high) => xs.map((x, i) => ({ x, y: mean?.[i], low: low?.[i], high: high?.[i] })).filter((r) => isNumber(r.y));

function curvesFigure() {
  const names = Object.keys(A.curve_titles);
  if (!names.length) return;
  const view = { name: names[0] };
  const title = (name) => A.curve_titles[name];
  const seriesOf = () => shownMethods().map((m) => ({ ...m, curves: cellOf(m.name)?.curves })).filter((m) => m.curves?.mean?.[view.name])
    .map((m) => ({ ...m, rows: series3(m.curves.epoch, m.curves.mean[view.name], m.curves.low?.[view.name], m.curves.high?.[view.name]) }));
  const wholeEpochs = () => {
    const last = d3.max(seriesOf(), (s) => d3.max(s.rows, (r) => r.x));
    return last >= 2 && last <= 12 ? d3.range(Math.ceil(d3.min(seriesOf(), (s) => d3.min(s.rows, (r) => r.x))), last + 1) : undefined;
  };
  const redraw = addFigure({
    id: "curves", nav: "Curves", title: "Curves during training",
    about: "The mean over the seeds at each evaluation, with its band. A method can learn more slowly, or overfit later.",
    controls: [segmented("Value", names, view.name, (v) => { view.name = v; redraw(); }, title)],
    draw: (width) => lineChart(width, seriesOf(), { x: "epoch", y: title(view.name), xTicks: wholeEpochs() }),
    table: () => ({ columns: ["method", "epoch", view.name, "low", "high"], rows: seriesOf().flatMap((s) => s.rows.map((r) => [s.label, r.x, r.y, r.low, r.high])) }),
  });
}

const sizeNumber = (size) => (size === "all" ? Infinity : +(/=([\d.]+)/.exec(size)?.[1] ?? 0));
const sizeLabel = (size) => {
  const [, kind, value] = /^(\w+)=(.+)$/.exec(size) ?? [];
  return kind === "fraction" ? percent(+value) : kind === "shots" ? `${value} shots` : size;
};

function sizesFigure() {
  const sizes = d3.sort(unique(A.cells.map((c) => c.size)), sizeNumber);
  if (sizes.length < 2) return;
  const rowsOf = () => shownMethods().flatMap((method, k) => sizes.map((size, i) => {
    const score = A.cells.find((c) => c.method === method.name && c.task === state.task && c.part === state.part && c.size === size)?.outcomes[SCORE];
    return { method, size, i, x: i + 0.013 * sizes.length * (k - (METHODS.length - 1) / 2), y: score?.mean, low: score?.interval?.[0], high: score?.interval?.[1] };
  })).filter((r) => isNumber(r.y));
  addFigure({
    id: "sizes", nav: "Data size", title: "Amount of training data",
    about: "The mean score at each amount of training data, with its interval. A regulariser often helps most where data is scarce.",
    draw(width) {
      const rows = rowsOf();
      if (!rows.length) return null;
      return Plot.plot({
        ...BASE, width, height: Math.min(380, Math.max(260, width * 0.42)), marginLeft: 52, marginRight: 24, marginBottom: 42, marginTop: 26,
        x: { label: "training data", labelArrow: "none", domain: [-0.3, sizes.length - 0.7], ticks: d3.range(sizes.length), tickFormat: (i) => sizeLabel(sizes[i] ?? "") },
        y: { ...AXIS, ...spread(rows.flatMap((r) => [r.y, r.low, r.high])), label: OUTCOMES[SCORE].label },
        marks: [
          GRID_Y(),
          ...METHODS.flatMap((m) => {
            const own = rows.filter((r) => r.method === m);
            return [Plot.line(own, { x: "x", y: "y", stroke: m.color, strokeWidth: 2 }),
              Plot.ruleX(own.filter((r) => isNumber(r.low)), { x: "x", y1: "low", y2: "high", stroke: m.color, strokeWidth: 2 }),
              Plot.dot(own, { x: "x", y: "y", r: 5, symbol: m.symbol, fill: m.color })];
          }),
          tipOf(rows, { x: "x", y: "y", title: (r) => `${r.method.label}\n${sizeLabel(r.size)}: ${fmt(r.y)} [${fmt(r.low)}, ${fmt(r.high)}]` }),
        ],
      });
    },
    table: () => ({ columns: ["method", "task", "size", "score", "low", "high"], rows: rowsOf().map((r) => [r.method.label, state.task, r.size, r.y, r.low, r.high]) }),
  });
}
