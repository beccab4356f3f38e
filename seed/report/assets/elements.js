"use strict";

// Elements are built here and nowhere else: text only ever becomes text.
const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("--")) made.style.setProperty(name, value); // the page's policy forbids style attributes
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const byId = (id) => document.getElementById(id);
const colour = (index) => `var(--run-${index % 8})`;
const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);
const roundPercent = (value) => `${Number((100 * value).toFixed(1))} %`;
const signed = (value, digits = 3) => (value === null ? "–" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`);

function plain(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size > 0 && size < 0.001) return value.toExponential(1);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${plain(value / (unit === 1e4 ? 1e3 : unit))}${letter}`;
  }
  return size >= 100 ? value.toFixed(0) : value.toPrecision(3).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

function table(headings, rows) {
  const cells = (tag, values) => values.map((value) => element(tag, {}, value));
  const body = rows.map((row) => element("tr", {}, ...cells("td", row)));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    element("table", {}, element("thead", {}, element("tr", {}, ...cells("th", headings))), element("tbody", {}, ...body)));
}

function legend(series) {
  if (series.length < 2) return null;
  const kind = (one) => `swatch${one.dashed ? " dashed" : ""}${one.box ? " box" : ""}`;
  return element("p", { class: "legend" }, ...series.map((one) =>
    element("span", {}, element("i", { class: kind(one), "--colour": one.colour }), one.name)));
}
