// How a whole is made up along training: seconds of an update by phase, tokens by value.

// parts: [{name, colour, values}], one value per entry of xs
function stackedBars({ title, note, xs, parts, format = plain }) {
  const totals = xs.map((_, i) => parts.reduce((sum, part) => sum + (part.values[i] || 0), 0));
  const shares = (i) => parts.map((part) => `${part.name} ${format(part.values[i] || 0)}`);
  return frame({
    title, note, xs, format, scale: byColumn, range: [0, Math.max(...totals) * 1.03 || 1],
    series: parts.map((part) => ({ ...part, box: true })),
    draw: (svg, places, y, width) => {
      const room = (width - LEFT - RIGHT) / xs.length, bar = Math.max(0.7, room > 4 ? room - 1.5 : room);
      xs.forEach((_, i) => {
        let below = 0;
        for (const part of parts) {
          const top = below + (part.values[i] || 0);
          svg.append(shape("rect", { class: "area", "--colour": part.colour, x: places[i] - bar / 2, width: bar, y: y(top), height: y(below) - y(top) }));
          below = top;
        }
      });
    },
    reading: (at) => `update ${xs[at]}: ${format(totals[at])} = ${shares(at).join(" + ")}`,
    table: { headings: ["update", ...parts.map((part) => part.name), "all"],
      rows: () => xs.map((x, i) => [String(x), ...parts.map((part) => format(part.values[i] || 0)), format(totals[i])]) },
  });
}

// columns: [{x, counts}]; one shaded cell per bin, darker for a larger share of the column
function heatmap({ title, note, columns, bins, colour: fill, format = plain }) {
  if (!columns.length) return null;
  const sums = columns.map(({ counts }) => counts.reduce((a, b) => a + b, 0) || 1);
  const quantile = (i, q) => {
    let seen = 0;
    const at = columns[i].counts.findIndex((count) => (seen += count) >= q * sums[i]);
    return (bins[at] + bins[at + 1]) / 2;
  };
  const quantiles = [0.05, 0.25, 0.5, 0.75, 0.95];
  return frame({
    title, note, xs: columns.map(({ x }) => x), format, scale: byColumn, range: [bins[0], bins[bins.length - 1]], series: [],
    draw: (svg, places, y, width) => {
      const room = (width - LEFT - RIGHT) / columns.length;
      columns.forEach(({ counts }, i) => {
        const left = places[i] - room / 2, median = y(quantile(i, 0.5));
        counts.forEach((count, bin) => {
          if (!count) return;
          svg.append(shape("rect", { class: "area", "--colour": fill, opacity: Math.max(0.05, Math.sqrt(count / sums[i])).toFixed(3),
            x: left, width: Math.max(room - 1, 0.7), y: y(bins[bin + 1]), height: y(bins[bin]) - y(bins[bin + 1]) }));
        });
        svg.append(shape("line", { class: "median", x1: left, x2: left + room - 1, y1: median, y2: median }));
      });
    },
    reading: (i) => `update ${columns[i].x}, ${sums[i]} tokens: ${quantiles.map((q) => `${100 * q} % below ${format(quantile(i, q))}`).join(" · ")}`,
    table: { headings: ["update", "tokens", ...quantiles.map((q) => `${100 * q} %`)],
      rows: () => columns.map((_, i) => [String(columns[i].x), String(sums[i]), ...quantiles.map((q) => format(quantile(i, q)))]) },
  });
}
