/** Line plots over the last minutes, drawn by uPlot in the page's own colours. */
import uPlot from "./uplot.js";

const SECONDS = 300;
const HEIGHT = 168;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A plot with a time axis; series are {label, colour, step?, format}. `push` takes the time in seconds and one value each. */
export function createPlot(element, series) {
  const data = [[], ...series.map(() => [])];
  let plot;

  const axis = (more) => ({ stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui", ...more });
  const lineOf = ({ label, colour: name, step, format }) => ({
    label,
    stroke: colour(name),
    width: 2,
    points: { show: false },
    spanGaps: true,
    ...(step ? { paths: uPlot.paths.stepped({ align: 1 }) } : { fill: `color-mix(in srgb, ${colour(name)} 12%, transparent)` }),
    value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
  });

  function build() {
    plot?.destroy();
    const options = {
      width: element.clientWidth,
      height: HEIGHT,
      padding: [10, 18, 0, 0],
      cursor: { y: false },
      scales: { x: { range: (_, __, max) => [max - SECONDS, max] }, y: { range: (_, __, max) => [0, Math.max(1, max * 1.12)] } },
      axes: [axis({ size: 26, splits: (_, __, min, max) => (data[0].length === 0 ? [] : minutes(min, max)), values: (_, ticks) => ticks.map((t) => ago(t - (data[0].at(-1) ?? t))) }), axis({ size: 46, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000], values: (_, ticks) => ticks.map((t) => (t >= 10_000 ? `${t / 1000}k` : String(t))) })],
      legend: { markers: { width: 0, fill: (_, i) => colour(series[i - 1].colour), stroke: () => "transparent" } },
      series: [{ label: "", value: (_, t) => (t === null || t === undefined ? "" : ago(t - (data[0].at(-1) ?? t))) }, ...series.map(lineOf)],
    };
    plot = new uPlot(options, data, element);
  }

  build();
  new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT })).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);

  return {
    push(time, ...values) {
      data[0].push(time);
      for (const [i, value] of values.entries()) data[i + 1].push(value);
      while (data[0].length > SECONDS + 1) for (const column of data) column.shift();
      plot.setData(data);
      // Without a pointer over it the legend shows the last second.
      if (plot.cursor.left === undefined || plot.cursor.left < 0) plot.setLegend({ idx: data[0].length - 1 });
    },
  };
}

/** Whole minutes back from now. */
function minutes(min, max) {
  const ticks = [];
  for (let t = max; t >= min; t -= 60) ticks.unshift(t);
  return ticks;
}

function ago(seconds) {
  const s = Math.round(-seconds);
  if (s <= 0) return "now";
  if (s % 60 === 0) return `-${s / 60} min`;
  return s < 60 ? `-${s} s` : `-${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
}

/** A small filled line without axes. */
export function drawSpark(element, values) {
  const last = values.slice(-60);
  const most = Math.max(1e-9, ...last);
  const x = (i) => (last.length < 2 ? 100 : (i / (last.length - 1)) * 100);
  const points = last.map((value, i) => `${x(i).toFixed(2)},${(38 - (value / most) * 34).toFixed(2)}`);
  const line = points.length === 0 ? "" : `M${points.join("L")}`;
  element.innerHTML = `<svg viewBox="0 0 100 40" preserveAspectRatio="none" aria-hidden="true"><path d="${line}L100,40L0,40Z" fill="var(--blue)" opacity="0.13"/><path d="${line}" fill="none" stroke="var(--blue)" stroke-width="1.6" vector-effect="non-scaling-stroke"/></svg>`;
}
