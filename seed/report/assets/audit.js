// The analyzer audit: a filtered list of cases, and one case with every action token coloured by Delta.
const PAGE = 40, FULL = 2; // cases listed at a time; |Delta| of the full colour

const FILTERS = [
  ["run", "Run", (audit) => [["", "all"], ...audit.runs.map((run) => [run.name, run.name])]],
  ["outcome", "Outcome", () => [["", "all"], ["success", "success"], ["failure", "failure"]]],
  ["skill", "Skill", () => [["", "all"], ["valid", "valid"], ["invalid", "invalid"], ["none", "none"]]],
  ["update", "Update", (audit) => [["", "all"], ...audit.updates.map((update) => [String(update), String(update)])]],
  ["only", "Only", () => [["", "all"], ["disagreement", "Delta against the outcome"], ["random", "the random draw"]]],
  ["order", "Order", () => [["", "update"], ["delta", "largest |Delta|"], ["disagreement", "strongest disagreement"], ["mean", "highest mean Delta"]]],
];

const outcomeOf = (one) => (one.success === null ? "unknown" : one.success ? "success" : "failure");
const skillOf = (one) => (one.skill === null ? "none" : one.skill.valid ? "valid" : "invalid");
const descending = (key) => (a, b) => (b[key] ?? -Infinity) - (a[key] ?? -Infinity);
const ORDERS = { delta: descending("delta_max"), disagreement: descending("disagreement"), mean: descending("delta_mean") };

function matches(one, state) {
  const words = (state.find || "").toLowerCase().split(/\s+/).filter((word) => word);
  const text = words.length ? `${one.task} ${one.family} ${one.skill?.text || ""} ${one.teacher || ""}`.toLowerCase() : "";
  return (!state.run || one.run === state.run)
    && (!state.outcome || outcomeOf(one) === state.outcome)
    && (!state.skill || skillOf(one) === state.skill)
    && (!state.update || String(one.update) === state.update)
    && (!state.only || (state.only === "random" ? one.why === "random" : one.disagreement !== null))
    && words.every((word) => text.includes(word));
}

function chosenCases(cases, state) {
  const chosen = cases.filter((one) => matches(one, state));
  return ORDERS[state.order] ? chosen.sort(ORDERS[state.order]) : chosen;
}

function drawFilters(form, audit, state, changed) {
  const fields = FILTERS.map(([name, label, options]) => {
    const made = options(audit);
    const select = element("select", { name }, ...made.map(([value, text]) => element("option", { value }, text)));
    select.value = made.some(([value]) => value === state[name]) ? state[name] : "";
    return element("label", {}, label, select);
  });
  const find = element("input", { name: "find", type: "search", placeholder: "task, family or skill" });
  find.value = state.find || "";
  form.replaceChildren(...fields, element("label", {}, "Find", find));
  form.oninput = () => changed(Object.fromEntries(new FormData(form)));
  form.onsubmit = (event) => event.preventDefault();
}

function drawList(cases, state, shown, link) {
  byId("cases").replaceChildren(...cases.slice(0, shown).map((one) => element("li", {}, element("a", {
    href: link(one.id), "aria-current": one.id === state.case ? "true" : "false", "--colour": `var(--${one.success ? "good" : "bad"})` },
    outcome(one), ` ${one.task}`,
    element("span", { class: "meta" }, ...listed(one))))));
  byId("count").textContent = `${cases.length} cases${cases.length > shown ? `, ${shown} listed` : ""}`;
  byId("more").textContent = `List ${Math.min(PAGE, cases.length - shown)} more`;
  byId("more").classList.toggle("hidden", cases.length <= shown);
}

const outcome = (one) => element("span", { class: `outcome ${outcomeOf(one)}` }, outcomeOf(one));

function listed(one) {
  const parts = [`update ${one.update}`, one.family];
  if (one.delta_mean !== null) parts.push(`mean Δ ${signed(one.delta_mean, 2)}`, `max |Δ| ${one.delta_max.toFixed(2)}`);
  if (skillOf(one) === "invalid") parts.push("skill invalid");
  return parts.map((part, i) => element("span", {}, `${i ? "· " : ""}${part}`));
}

function sampledText(runs) {
  return runs.map(({ name, audit }) => {
    const shown = `${audit.cases.length} of the ${audit.played} trajectories of update${audit.updates.length > 1 ? "s" : ""} ${audit.updates.join(", ")}`;
    if (!audit.updates.length) return `${name}: no trajectories yet.`;
    if (!audit.scored) return `${name}: ${shown}, without Delta: this run kept no scores (train.scores_every).`;
    if (audit.cases.length === audit.played) return `${name}: all ${shown}.`;
    return `${name}: ${shown}, picked by largest |Delta|, disagreement, invalid skill and at random.`;
  }).join(" ");
}

function drawCase(host, one, state, link, neighbours) {
  if (!one) {
    const missing = state.case ? `The case ${state.case} is not in this page: cases are sampled, and a new page may hold others.` : "Choose a case.";
    host.replaceChildren(element("p", { class: "meta" }, missing));
    return;
  }
  const step = (label, other) => (other ? element("a", { href: link(other.id) }, label) : null);
  const token = element("output", { id: "token", "aria-live": "polite" }, one.delta_mean === null ? "Hover or focus a token for its log-prob." : "Hover or focus a token for its Delta, gate, advantage and log-probs.");
  host.replaceChildren(...[
    element("nav", { "aria-label": "Case" }, step("Previous", neighbours[0]), step("Next", neighbours[1]),
      element("a", { href: `#${new URLSearchParams({ case: one.id })}` }, "Permanent link")),
    element("h3", {}, one.task),
    element("p", { class: "meta" }, outcome(one), ` · ${facts(one).join(" · ")}`),
    element("dl", { class: "facts" }, ...skillFacts(one)),
    one.delta_mean === null ? null : element("div", { class: "scale" }, `Δ −${FULL} and below`, element("i"), `+${FULL} and above`, element("span", {}, "faint: not the policy's token")),
    element("ol", { class: "turns" }, ...one.turns.map((turn, number) => drawTurn(turn, number, token))),
    one.cut ? element("p", { class: "meta" }, `${one.cut} later turns are left out for their size.`) : null,
    one.final ? element("p", { class: "text observation" }, one.final) : null,
    token].filter((part) => part));
  roving(host);
}

function facts(one) {
  const known = [one.run, `update ${one.update}`, one.env, one.family, `reward ${plain(one.reward)}`];
  if (one.delta_mean !== null) known.push(`mean Δ ${signed(one.delta_mean)}`, `largest |Δ| ${one.delta_max.toFixed(3)}`);
  if (one.disagreement !== null) known.push("Δ against the outcome");
  if (one.truncated) known.push("truncated");
  if (one.rejected) known.push(`not trained on: ${one.rejected}`);
  return [...known, `picked: ${one.why}`];
}

function skillFacts(one) {
  const fact = (name, text) => (text ? [element("dt", {}, name), element("dd", { class: "text" }, text)] : []);
  const skill = one.skill, taught = one.teacher !== null && one.teacher !== (skill?.text ?? null);
  if (!skill) return [...fact("skill", "none"), ...fact("teacher saw", one.teacher)];
  return [
    ...fact("skill", skill.valid ? skill.text : `invalid${skill.problem ? `: ${skill.problem}` : ""}`),
    ...fact("summary", skill.summary),
    ...fact("analyzer wrote", skill.raw),
    ...fact("analyzer", skill.analyzer),
    ...(taught ? fact("teacher saw", one.teacher || "an empty skill") : []),
    ...(one.donor && !one.id.endsWith(`/${one.donor}`) ? fact("skill of", one.donor) : []),
  ];
}

function drawTurn(turn, number, readout) {
  const means = turn.delta ? mean(turn.delta) : null, gate = turn.gate ? mean(turn.gate) : null;
  const about = [`turn ${number + 1}`];
  if (means !== null) about.push(`mean Δ ${signed(means)}`, `mean gate ${gate.toFixed(3)}`);
  if (turn.advantage?.length) about.push(`advantage ${signed(mean(turn.advantage))}`);
  if (!turn.valid) about.push("not admissible");
  if (turn.reward) about.push(`reward ${plain(turn.reward)}`);
  if (turn.cut) about.push(`${turn.cut} later tokens are left out for their size`);
  const tokens = turn.texts.map((text, i) => drawToken(turn, i, text, readout));
  return element("li", {},
    element("p", { class: "text observation" }, turn.observation),
    element("div", { class: "tokens", role: "listbox", "aria-label": `action tokens of turn ${number + 1}` }, ...tokens),
    element("p", { class: "meta" }, about.join(" · ")));
}

function drawToken(turn, i, text, readout) {
  const delta = turn.delta?.[i] ?? null, show = () => readToken(readout, turn, i, text);
  const kind = ["token", delta === null ? "" : delta < 0 ? "negative" : "positive", turn.mask[i] ? "" : "given"].filter((name) => name).join(" ");
  return element("span", { class: kind, role: "option", tabindex: "-1", "aria-selected": "false", "--strength": `${(100 * Math.min(1, Math.abs(delta || 0) / FULL)).toFixed(0)}%`,
    onmouseenter: show, onfocus: show }, visible(text));
}

const visible = (text) => text.replace(/\n/g, "⏎\n") || "∅";

function readToken(readout, turn, i, text) {
  const value = (name, column, digits) => (column && column[i] !== null ? element("span", {}, `${name} ${signed(column[i], digits)}`) : null);
  const values = [value("Δ", turn.delta), turn.gate && turn.gate[i] !== null ? element("span", {}, `gate ${turn.gate[i].toFixed(3)}`) : null,
    value("advantage", turn.advantage), value("log-prob l_theta", turn.l_theta, 4), value("with the skill l_skill", turn.l_skill, 4),
    value("at sampling", turn.sampled, 4), element("span", {}, `id ${turn.ids[i]}`)];
  readout.replaceChildren(element("b", {}, JSON.stringify(text)), element("br"), ...values.filter((part) => part));
}

function mean(column) {
  const known = column.filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

// One tab stop for all tokens; arrows go from token to token and from turn to turn.
function roving(host) {
  const lines = [...host.querySelectorAll(".tokens")].map((line) => [...line.children]).filter((line) => line.length);
  const all = lines.flat();
  if (all.length) all[0].setAttribute("tabindex", "0");
  const focus = (token) => {
    for (const other of host.querySelectorAll('.token[tabindex="0"]')) {
      other.setAttribute("tabindex", "-1");
      other.setAttribute("aria-selected", "false");
    }
    token.setAttribute("tabindex", "0");
    token.setAttribute("aria-selected", "true");
    token.focus();
  };
  host.onkeydown = (event) => {
    const at = all.indexOf(event.target);
    if (at < 0) return;
    const line = lines.findIndex((tokens) => tokens.includes(event.target));
    const to = { ArrowRight: all[at + 1], ArrowLeft: all[at - 1], ArrowDown: lines[line + 1]?.[0], ArrowUp: lines[line - 1]?.[0],
      Home: lines[line][0], End: lines[line].at(-1) }[event.key];
    if (!to) return;
    event.preventDefault();
    focus(to);
  };
}
