// The page: its data, what the address says is to be seen, the theme, and the refresh while a run trains.
let data = prepared(JSON.parse(byId("data").textContent));
let state = stateOfAddress() || {};
let listedCases = PAGE;
const hiddenRuns = new Set();

function prepared(data) {
  data.runs.forEach((run, i) => {
    run.colour = colour(i);
    for (const one of run.audit.cases) one.run = run.name;
  });
  return data;
}

// #case=...&outcome=failure; null for an ordinary anchor such as #audit
function stateOfAddress() {
  const text = location.hash.slice(1);
  return text && !text.includes("=") ? null : Object.fromEntries([...new URLSearchParams(text)].filter(([, value]) => value));
}

const address = (values) => `#${new URLSearchParams(Object.entries(values).filter(([, value]) => value))}`;
const shownRuns = () => data.runs.filter((run) => !hiddenRuns.has(run.name));

function drawRuns() {
  byId("runs").replaceChildren(byId("runs").firstElementChild, ...data.runs.map((run) => {
    const box = element("input", { type: "checkbox" });
    box.checked = !hiddenRuns.has(run.name);
    box.addEventListener("change", () => {
      if (box.checked) hiddenRuns.delete(run.name); else hiddenRuns.add(run.name);
      drawCharts();
      drawAudit();
    });
    const kind = `${run.method}, seed ${run.seed}, ${run.updates} updates${run.finished ? "" : ", unfinished"}`;
    return element("label", {}, box, element("i", { class: "swatch", "--colour": run.colour }), element("span", {}, `${run.name} `, element("span", { class: "meta" }, kind)));
  }));
}

function drawCharts() {
  drawSummary(byId("summary").lastElementChild, data, shownRuns());
  drawCurves(byId("curves").lastElementChild, data, shownRuns());
}

function auditView() {
  const runs = shownRuns();
  return { runs, cases: runs.flatMap((run) => run.audit.cases), updates: [...new Set(runs.flatMap((run) => run.audit.updates))].sort((a, b) => a - b) };
}

function drawAudit() {
  const audit = auditView();
  byId("sampled").textContent = sampledText(audit.runs);
  drawFilters(byId("filters"), audit, state, (filters) => {
    listedCases = PAGE;
    state = { ...filters, case: state.case };
    history.replaceState(null, "", address(state));
    drawCases();
  });
  drawCases();
}

function drawCases() {
  const { cases } = auditView(), chosen = chosenCases(cases, state), link = (id) => address({ ...state, case: id });
  const at = chosen.findIndex((one) => one.id === state.case);
  drawList(chosen, state, listedCases, link);
  drawCase(byId("case"), cases.find((one) => one.id === state.case), state, link, [chosen[at - 1], at < 0 ? undefined : chosen[at + 1]]);
}

function openAddress() {
  const wanted = stateOfAddress();
  if (wanted === null) return;
  const opens = wanted.case && wanted.case !== state.case;
  state = wanted;
  drawAudit();
  if (opens) toCase();
}

function toCase() {
  byId("case").scrollIntoView({ block: "start" });
  byId("case").focus({ preventScroll: true });
}

function drawEverything() {
  drawRuns();
  drawCharts();
  drawAudit();
}

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").value = theme;
}

function stored(theme) {
  try { // a browser may refuse storage to a page from disk
    if (theme !== undefined) localStorage.setItem("sprout-theme", theme);
    return localStorage.getItem("sprout-theme") || "";
  } catch { return ""; }
}

async function refresh(tag) {
  let next = tag;
  try {
    const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      next = answer.headers.get("ETag");
      data = prepared(await answer.json());
      redrawKeepingPlace();
    } else if (answer.status !== 304) throw new Error(await answer.text());
    byId("live").textContent = `live, as of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    byId("live").textContent = `not refreshed: ${error.message}`;
  }
  setTimeout(() => refresh(next), 1000 * Number(document.body.dataset.refresh));
}

function redrawKeepingPlace() {
  const place = window.scrollY;
  drawRuns();
  drawCharts();
  if (!byId("audit").contains(document.activeElement)) drawAudit();
  window.scrollTo(0, place);
}

useTheme(stored());
byId("theme").addEventListener("change", (event) => useTheme(stored(event.target.value) || event.target.value));
byId("more").addEventListener("click", () => { listedCases += PAGE; drawCases(); });
window.addEventListener("hashchange", openAddress);
drawEverything();
if (state.case) toCase();
if (Number(document.body.dataset.refresh)) refresh(document.body.dataset.tag);
