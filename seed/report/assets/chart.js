// One frame for every chart: axes, a cursor that pointer and arrow keys move, its reading, and the numbers as a table.
const HEIGHT = 210, LEFT = 54, RIGHT = 8, TOP = 8, BOTTOM = 22;

// chart: {title, note, series (for the legend), xs (ascending), scale, range [low, high], format,
//         draw(svg, places of xs, y, width), reading(index of xs), table: {headings, rows()}}
function frame(chart) {
  const svg = shape("svg", { tabindex: "0", role: "img", "aria-label": `${chart.title}. Arrow keys read values.` });
  const readout = element("output", { class: "readout", "aria-live": "polite" }, chart.note || "");
  const details = element("details", {}, element("summary", {}, "as a table"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(table(chart.table.headings, chart.table.rows()));
  });
  const figure = element("figure", {}, element("h4", {}, chart.title), legend(chart.series), svg, readout, details);
  const cursor = { at: null };
  const redraw = () => draw(svg, chart, cursor);
  const show = (at) => {
    cursor.at = at;
    readout.textContent = at === null ? chart.note || "" : chart.reading(at);
    redraw();
  };
  svg.addEventListener("pointermove", (event) => show(nearest(svg, chart, event)));
  svg.addEventListener("pointerleave", () => show(null));
  svg.addEventListener("blur", () => show(null));
  svg.addEventListener("keydown", (event) => {
    const last = chart.xs.length - 1, at = cursor.at;
    const next = { ArrowRight: at === null ? 0 : Math.min(at + 1, last), ArrowLeft: at === null ? last : Math.max(at - 1, 0),
      Home: 0, End: last, Escape: null }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(next);
  });
  new ResizeObserver(redraw).observe(figure);
  return figure;
}

function draw(svg, chart, cursor) {
  const width = svg.clientWidth;
  if (!width) return;
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("height", HEIGHT);
  svg.replaceChildren();
  const [low, high] = chart.range, y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  for (const value of ticks(low, high, 5)) {
    svg.append(shape("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, chart.format === percent ? roundPercent(value) : chart.format(value)));
  }
  for (const [place, text] of chart.scale.labels(chart.xs, width)) {
    svg.append(shape("text", { class: "tick", x: place, y: HEIGHT - 6, "text-anchor": "middle" }, text));
  }
  const places = chart.scale.places(chart.xs, width);
  chart.draw(svg, places, y, width);
  if (cursor.at !== null) {
    const place = places[cursor.at];
    svg.append(shape("line", { class: "cursor", x1: place, x2: place, y1: TOP, y2: HEIGHT - BOTTOM }));
  }
}

function nearest(svg, chart, event) {
  const box = svg.getBoundingClientRect(), places = chart.scale.places(chart.xs, box.width), at = event.clientX - box.left;
  return places.reduce((best, place, i) => (Math.abs(place - at) < Math.abs(places[best] - at) ? i : best), 0);
}

// Where updates stand: by their number, for lines, or one column each.
const byNumber = {
  place: (xs, width) => (x) => LEFT + ((x - xs[0]) / (xs[xs.length - 1] - xs[0] || 1)) * (width - LEFT - RIGHT),
  places: (xs, width) => xs.map(byNumber.place(xs, width)),
  labels: (xs, width) => ticks(xs[0], xs[xs.length - 1], Math.max(2, width / 90)).filter(Number.isInteger)
    .map((x) => [byNumber.place(xs, width)(x), String(x)]),
};
const byColumn = {
  places: (xs, width) => xs.map((_, i) => LEFT + ((i + 0.5) / xs.length) * (width - LEFT - RIGHT)),
  labels: (xs, width) => {
    const places = byColumn.places(xs, width), every = Math.ceil((xs.length * 46) / (width - LEFT - RIGHT));
    return xs.map((x, i) => [places[i], String(x)]).filter((_, i) => i % every === 0);
  },
};

function ticks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) values.push(Number((k * step).toPrecision(12)));
  return values;
}

// series: [{name, colour, dashed, points: [{x, y, low, high}]}]; low and high, where given, are the band
function lineChart({ title, note, series, format = plain, within = null }) {
  const shown = series.map((one) => ({ ...one, points: one.points.filter((point) => point.y !== null && point.y !== undefined) }))
    .filter((one) => one.points.length);
  if (!shown.length) return null;
  const xs = [...new Set(shown.flatMap((one) => one.points.map((point) => point.x)))].sort((a, b) => a - b);
  const at = shown.map((one) => new Map(one.points.map((point) => [point.x, point])));
  const value = (point) => format(point.y) + (point.low === undefined || point.low === null ? "" : ` (${format(point.low)} to ${format(point.high)})`);
  const read = (x) => shown.map((one, i) => (at[i].has(x) ? `${shown.length > 1 ? one.name + " " : ""}${value(at[i].get(x))}` : null));
  return frame({
    title, note, series: shown, xs, scale: byNumber, range: within || extent(shown), format,
    draw: (svg, _, y, width) => shown.forEach((one) => drawLine(svg, one, byNumber.place(xs, width), y)),
    reading: (place) => `update ${xs[place]}: ${read(xs[place]).filter((text) => text !== null).join(" · ")}`,
    table: { headings: ["update", ...shown.map((one) => one.name)],
      rows: () => xs.map((x) => [String(x), ...shown.map((_, i) => (at[i].has(x) ? value(at[i].get(x)) : ""))]) },
  });
}

function drawLine(svg, { colour: stroke, dashed, points }, x, y) {
  const band = points.filter((point) => point.low !== undefined && point.low !== null);
  const path = (corners) => corners.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
  if (band.length > 1) {
    const edge = [...band.map((point) => [x(point.x), y(point.high)]), ...[...band].reverse().map((point) => [x(point.x), y(point.low)])];
    svg.append(shape("path", { class: "band", "--colour": stroke, d: `${path(edge)}Z` }));
  }
  svg.append(shape("path", { class: dashed ? "mark dashed" : "mark", "--colour": stroke, d: path(points.map((point) => [x(point.x), y(point.y)])) }));
  if (points.length > 25) return;
  for (const point of points) svg.append(shape("circle", { class: "dot", "--colour": stroke, cx: x(point.x), cy: y(point.y), r: 2.6 }));
}

function extent(series) {
  const values = series.flatMap((one) => one.points.flatMap((point) => [point.y, point.low, point.high]))
    .filter((value) => value !== null && value !== undefined);
  const low = Math.min(...values), high = Math.max(...values), air = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - air < 0 ? 0 : low - air, high + air];
}
