// Puts the page together.
"use strict";

(function start() {
  const first = A.cells.find((c) => c.size === "all" && c.part === "validation") ?? A.cells[0] ?? {};
  const axes = { task: "Task", size: "Training data", part: "Scored on" };
  for (const axis of Object.keys(axes)) state[axis] = first[axis] ?? null;
  const filters = document.getElementById("filters");
  for (const [axis, label] of Object.entries(axes)) {
    const options = unique(A.cells.map((c) => c[axis]));
    if (axis === "size") options.sort((a, b) => sizeNumber(a) - sizeNumber(b));
    if (options.length > 1) filters.append(choice(label, options, state[axis], (v) => { state[axis] = v; update(); }, axis === "size" ? sizeLabel : undefined));
  }
  filters.hidden = !filters.childElementCount;
  filters.prepend(el("p", {}, "The tables and figures below show"));
  const summary = document.querySelector(".summary-block");
  if (summary) filters.before(summary);
  listeners.push(() => document.querySelectorAll(".cell-block").forEach((block) => {
    block.hidden = !Object.keys(axes).every((axis) => block.dataset[axis] === String(state[axis]));
  }));

  for (const make of [seedsFigure, costFigure, curvesFigure, sizesFigure, heatmapFigure, tuningFigure, metricFigures, explorer, agreementFigure, disagreements, allRuns]) make();

  const nav = document.getElementById("nav");
  nav.append(el("a", { href: "#verdicts" }, "Verdicts"));
  document.querySelectorAll("[data-nav]").forEach((section) => nav.append(el("a", { href: `#${section.id}` }, section.dataset.nav)));

  const button = document.getElementById("theme"), themes = ["system", "light", "dark"];
  // A page from the disk may not be allowed to store anything; then the choice lasts as long as the page.
  const stored = () => { try { return localStorage.getItem("attendrop-theme"); } catch { return null; } };
  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    try { localStorage.setItem("attendrop-theme", theme); } catch { /* see above */ }
    update();
  }
  button.hidden = false;
  button.addEventListener("click", () => setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  setTheme(themes.includes(stored()) ? stored() : "system");
})();
