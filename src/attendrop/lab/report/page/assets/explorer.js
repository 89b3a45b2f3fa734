// The attention explorer: one example, layer and head at a time.
"use strict";

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

/** The packed maps of an example (pack.py) as a function (layer, head) -> {attention, attribution, candidate, dropped}. */
function mapsOf(packed, size) {
  const attention = bytes(packed.attention), attribution = bytes(packed.attribution), flags = bytes(packed.flags);
  const cells = size * size, flagBytes = Math.ceil(cells / 4), starts = d3.cumsum([0, ...packed.heads]);
  return (layer, head) => {
    const row = packed.layers.indexOf(layer);
    if (row < 0 || head >= packed.heads[row]) return null;
    const k = starts[row] + head;
    const flag = (i) => (flags[k * flagBytes + (i >> 2)] >> (2 * (i & 3))) & 3;
    return {
      attention: (i) => attention[k * cells + i] / 255, relative: (i) => (attribution[k * cells + i] - 128) / 127, scale: packed.scales[k],
      attribution: (i) => (attribution[k * cells + i] - 128) / 127 * packed.scales[k], candidate: (i) => (flag(i) & 1) > 0, dropped: (i) => (flag(i) & 2) > 0,
    };
  };
}

function explorer() {
  const examples = A.explorer?.examples ?? [];
  if (!examples.length) return;
  const loaded = new Map();
  const view = { example: 0, layer: examples[0].maps.layers[0], head: 0, query: 0, color: "attention", candidates: true, dropped: true, pruned: false };
  const example = () => examples[view.example];
  const packed = () => (view.pruned && example().pruned ? example().pruned.maps : example().maps);
  const mapAt = (layer, head) => {
    const key = `${view.example} ${view.pruned && !!example().pruned}`;
    if (!loaded.has(key)) loaded.set(key, mapsOf(packed(), example().tokens.length));
    return loaded.get(key)(layer, head);
  };
  const current = () => mapAt(view.layer, view.head);

  const grid = el("div", { class: "heads", role: "grid", "aria-label": "Layers and heads. Arrow keys move." });
  const tokens = el("div", { class: "tokens", role: "radiogroup", "aria-label": "Token that attends. Arrow keys move." });
  const reading = el("p", { class: "reading" }), facts = el("p", { class: "about" });

  /** Attribution of a head in its layer and model: how much the prediction depends on it, from 0 to 1. */
  function strengths() {
    const all = new Map();
    const n = example().tokens.length ** 2;
    example().maps.layers.forEach((layer, row) => d3.range(example().maps.heads[row]).forEach((head) => {
      const map = mapAt(layer, head);
      all.set(`${layer} ${head}`, map ? map.scale * Math.sqrt(d3.mean(d3.range(n), (i) => map.relative(i) ** 2)) : null);
    }));
    const top = d3.max(all.values()) || 1;
    return (layer, head) => { const v = all.get(`${layer} ${head}`); return v == null ? null : v / top; };
  }

  function drawGrid() {
    const { layers, heads } = example().maps, count = d3.max(heads), strength = strengths(), paint = diverging();
    grid.style.gridTemplateColumns = `auto repeat(${count}, minmax(0, 1.35rem))`;
    const rows = layers.map((layer, row) => el("div", { role: "row" },
      el("span", { class: "side", role: "rowheader" }, String(layer)),
      ...d3.range(heads[row]).map((head) => {
        const selected = layer === view.layer && head === view.head, value = strength(layer, head);
        const button = el("button", { type: "button", role: "gridcell", tabindex: selected ? "0" : "-1", "aria-selected": String(selected),
          "data-layer": layer, "data-head": head, "aria-label": `layer ${layer}, head ${head}${value == null ? ", pruned" : `, attribution ${percent(value)} of the largest`}`,
          title: `layer ${layer}, head ${head}`, onclick: () => { Object.assign(view, { layer, head }); redraw(); } });
        button.style.background = value == null ? "repeating-linear-gradient(45deg, var(--line) 0 3px, transparent 3px 6px)" : paint(0.06 + 0.94 * value);
        return button;
      })));
    grid.replaceChildren(...rows);
  }
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const { layers, heads } = example().maps, row = Math.max(0, Math.min(layers.length - 1, layers.indexOf(view.layer) + step[0]));
    view.layer = layers[row];
    view.head = Math.max(0, Math.min(heads[row] - 1, view.head + step[1]));
    redraw();
    grid.querySelector('[aria-selected="true"]').focus();
    announce(`layer ${view.layer}, head ${view.head}`);
  });

  function paintOf(map) {
    const color = diverging(), n = example().tokens.length;
    const top = d3.max(d3.range(n * n), (i) => map.attention(i)) || 1;
    return view.color === "attention" ? (i) => color(map.attention(i) / top) : (i) => color(map.relative(i));
  }

  function drawTokens() {
    const map = current(), n = example().tokens.length, paint = map && paintOf(map);
    tokens.replaceChildren(...example().tokens.map((token, k) => {
      const i = view.query * n + k, selected = k === view.query;
      const button = el("button", { type: "button", role: "radio", "aria-checked": String(selected), tabindex: selected ? "0" : "-1", onclick: () => { view.query = k; redraw(); } }, token);
      if (map) {
        button.style.background = paint(i);
        button.style.color = inkOn(paint(i));
        button.classList.toggle("candidate", view.candidates && map.candidate(i));
        button.classList.toggle("dropped", view.dropped && map.dropped(i));
      }
      return button;
    }));
    reading.textContent = map ? sentence(map) : "The attention of this layer has been pruned: every token attends to all tokens alike.";
  }
  function sentence(map) {
    const n = example().tokens.length, here = d3.range(n).map((k) => ({ token: example().tokens[k], i: view.query * n + k }));
    const top = d3.greatest(here, (t) => map.attention(t.i)), most = d3.greatest(here, (t) => map.attribution(t.i));
    const candidates = here.filter((t) => map.candidate(t.i)), dropped = here.filter((t) => map.dropped(t.i));
    const list = (items) => items.map((t) => `“${t.token}”`).join(", ");
    return `“${example().tokens[view.query]}” attends most to “${top.token}” (${percent(map.attention(top.i))}). ${map.attribution(most.i) > 0 ? `The prediction depends most on its attention to “${most.token}”. ` : "No attention of this token supports the prediction. "}`
      + (candidates.length ? `Candidates: ${list(candidates)}. ` : "No candidates. ") + (dropped.length ? `One draw drops: ${list(dropped)}.` : "One draw drops nothing in this row.");
  }
  tokens.addEventListener("keydown", (event) => {
    const n = example().tokens.length;
    const to = { ArrowLeft: view.query - 1, ArrowUp: view.query - 1, ArrowRight: view.query + 1, ArrowDown: view.query + 1, Home: 0, End: n - 1 }[event.key];
    if (to == null) return;
    event.preventDefault();
    view.query = Math.max(0, Math.min(n - 1, to));
    redraw();
    tokens.querySelector('[aria-checked="true"]').focus();
    announce(reading.textContent);
  });

  function draw(width) {
    const map = current();
    if (!map) return null;
    const names = example().tokens, n = names.length, left = Math.min(92, 12 + 7.2 * d3.max(names, (t) => t.length)), top = left;
    const side = Math.max(9, Math.min(30, (width - left - 8) / n)), paint = paintOf(map), size = Math.max(7.5, Math.min(12, side - 1));
    const cut = (t) => (t.length > 11 ? `${t.slice(0, 10)}…` : t);
    const svg = d3.create("svg").attr("width", left + side * n + 4).attr("height", top + side * n + 4).style("font-size", `${size}px`);
    svg.append("rect").attr("x", left - 3).attr("y", top + view.query * side - 1).attr("width", side * n + 5).attr("height", side + 1).attr("rx", 3).style("fill", "none").style("stroke", "var(--focus)").style("stroke-width", 2);
    const cells = svg.append("g").selectAll("rect").data(d3.range(n * n)).join("rect")
      .attr("x", (i) => left + (i % n) * side + 0.5).attr("y", (i) => top + Math.floor(i / n) * side + 0.5).attr("width", side - 1).attr("height", side - 1).attr("rx", 2).style("fill", paint);
    cells.append("title").text((i) => `${names[Math.floor(i / n)]} → ${names[i % n]}\nattention ${map.attention(i).toFixed(2)}\nattribution ${(+map.attribution(i).toPrecision(2))}${map.dropped(i) ? "\ndropped in this draw" : map.candidate(i) ? "\ncandidate" : ""}`);
    cells.on("click", (_, i) => { view.query = Math.floor(i / n); redraw(); });
    if (view.candidates) cells.filter((i) => map.candidate(i)).style("stroke", "var(--ink)").style("stroke-width", 1.2).style("stroke-dasharray", "2 1.5");
    if (view.dropped) svg.append("g").selectAll("path").data(d3.range(n * n).filter((i) => map.dropped(i))).join("path")
      .attr("d", (i) => { const x = left + (i % n) * side, y = top + Math.floor(i / n) * side, m = side * 0.27; return `M${x + m},${y + m}L${x + side - m},${y + side - m}M${x + side - m},${y + m}L${x + m},${y + side - m}`; })
      .style("stroke", (i) => inkOn(paint(i))).style("stroke-width", 1.6).style("pointer-events", "none").style("fill", "none");
    svg.append("g").selectAll("text").data(names).join("text").attr("x", left - 6).attr("y", (_, k) => top + (k + 0.5) * side).attr("dy", "0.34em").attr("text-anchor", "end").style("fill", "var(--ink)")
      .style("font-weight", (_, k) => (k === view.query ? 700 : 400)).text(cut);
    svg.append("g").selectAll("text").data(names).join("text").attr("transform", (_, k) => `translate(${left + (k + 0.5) * side},${top - 6}) rotate(-90)`).attr("dy", "0.34em").style("fill", "var(--ink)").text(cut);
    return svg.node();
  }

  const layerField = el("div"), headField = el("div");
  function drawFields() {
    const { layers, heads } = example().maps;
    layerField.replaceChildren(choice("Layer", layers, view.layer, (v) => { view.layer = +v; view.head = Math.min(view.head, heads[layers.indexOf(+v)] - 1); redraw(); }));
    headField.replaceChildren(choice("Head", d3.range(heads[layers.indexOf(view.layer)]), view.head, (v) => { view.head = +v; redraw(); }));
    const shown = view.pruned && example().pruned ? example().pruned : example();
    facts.textContent = [example().text, example().gold != null ? `label: ${example().gold}` : null, shown.predicted != null ? `prediction: ${shown.predicted}` : null].filter((t) => t != null).join(" · ");
  }
  const controls = [
    choice("Example", d3.range(examples.length), 0, (v) => { Object.assign(view, { example: +v, query: 0 });
      if (!example().maps.layers.includes(view.layer)) view.layer = example().maps.layers[0];
      view.head = Math.min(view.head, example().maps.heads[example().maps.layers.indexOf(view.layer)] - 1);
      redraw(); }, (i) => `${i + 1}: ${short(examples[i].text ?? "", 300)}`),
    layerField, headField,
    segmented("Colour", ["attention", "attribution"], view.color, (v) => { view.color = v; redraw(); }),
    ...(examples.some((e) => e.pruned) ? [segmented("Model", ["before", "after"], "before", (v) => { view.pruned = v === "after"; redraw(); }, (v) => `${v} pruning`)] : []),
    checkbox("outline candidates", true, (v) => { view.candidates = v; redraw(); }),
    checkbox("cross out what one draw drops", true, (v) => { view.dropped = v; redraw(); }),
  ];
  const drawMatrix = addFigure({
    id: "explorer", nav: "Explorer", title: "Attention explorer", hasLegend: false, controls, draw,
    about: "A row of the matrix is a token that attends, a column a token that is attended to. Attribution says how much the prediction depends on a position (blue: it supports the prediction, orange: it opposes it). The positions with the highest attribution in each row are the candidates; one draw of AD-DROP drops some of them.",
    table: () => {
      const map = current(), names = example().tokens, n = names.length;
      return { columns: ["layer", "head", "from", "to", "attention", "attribution", "candidate", "dropped"], rows: map ? d3.range(n * n).map((i) =>
        [view.layer, view.head, names[Math.floor(i / n)], names[i % n], +map.attention(i).toFixed(3), +map.attribution(i).toPrecision(3), +map.candidate(i), +map.dropped(i)]) : [] };
    },
  });
  const canvas = document.querySelector("#explorer .canvas"), row = el("div", { class: "explore" });
  canvas.before(facts, tokens, reading, row);
  row.append(el("div", {}, el("h3", {}, "Layers and heads"), el("p", { class: "key" }, "Rows are layers, columns heads. The stronger the colour, the more the prediction depends on this head."), grid), canvas);
  if (A.explorer.left_out) row.after(el("p", { class: "key" }, `${A.explorer.left_out} more examples are left out, so that this page stays small.`));
  function redraw() { drawFields(); drawGrid(); drawTokens(); drawMatrix(); }
  listeners.push(() => { drawFields(); drawGrid(); drawTokens(); });
}
