// The charts of a report, in groups: each metric of every run that has it.
const PHASES = ["rollout", "analyze", "rescore", "update", "eval", "checkpoint"];

function drawSummary(host, data, runs) {
  const best = (run) => run.evals.reduce((best, one) => (best === null || one.student.success > best.student.success ? one : best), null);
  const rows = [
    ["method", (run) => run.method],
    ["seed", (run) => String(run.seed)],
    ["updates", (run) => `${run.updates} of ${run.planned}${run.finished ? "" : ", unfinished"}`],
    ["success: base", (run) => percent(run.summary.success_base)],
    ["base (select)", (run) => percent(run.summary.success_base_select)],
    ["base with its own episode's skill (select)", (run) => percent(run.summary.success_base_own_skill)],
    ["base with an oracle's skill", (run) => percent(run.summary.success_base_oracle_skill)],
    ["after Stage 1", (run) => percent(run.summary.success_sft)],
    ["after Stage 1, with its own skill (select)", (run) => percent(run.summary.success_stage1_own_skill)],
    ["best evaluation (select)", (run) => (best(run) ? `${percent(best(run).student.success)} after ${best(run).updates} updates` : "–")],
    ["final", (run) => final(run.summary)],
    ["final, mean over families", (run) => percent(run.summary.macro_success_final)],
    ["Stage-1 skills valid", (run) => percent(run.summary.stage1_skill_valid)],
    ["Stage-1 skills right", (run) => percent(run.summary.stage1_skill_right)],
    ["training, without evaluation", (run) => duration(run.summary.training_s)],
    ["all stages", (run) => duration(run.summary.wall_s)],
  ];
  const measured = rows.filter(([, value]) => runs.some((run) => !["–", ""].includes(value(run))));
  host.replaceChildren(
    table(["run", ...runs.map((run) => run.name)], measured.map(([name, value]) => [name, ...runs.map(value)])),
    element("p", { class: "hint" }, "Success on the report panel unless marked; in parentheses 95 % Wilson intervals."),
    ...families(runs),
    ...runs.flatMap((run) => run.audit.notes.map((note) => element("p", { class: "hint note" }, `${run.name}: ${note}`))));
}

function final(summary) {
  if (summary.success_final === null) return "–";
  const [low, high] = summary.ci95_final;
  return `${percent(summary.success_final)} (${percent(low)} to ${percent(high)}, ${summary.report_tasks} tasks)`;
}

const duration = (seconds) => (seconds ? (seconds < 600 ? `${seconds.toFixed(0)} s` : seconds < 36000 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`) : "–");

// Success by family at each run's last evaluation.
function families(runs) {
  const last = runs.map((run) => run.evals.at(-1)?.student.families || {});
  const names = [...new Set(last.flatMap(Object.keys))].sort();
  if (names.length < 2) return [];
  const cell = (one) => (one ? `${percent(one.success)} of ${one.tasks}` : "–");
  return [element("h3", {}, "By family, last evaluation on the select panel"),
    table(["family", ...runs.map((run) => run.name)], names.map((name) => [name, ...last.map((one) => cell(one[name]))]))];
}

function drawCurves(host, data, runs) {
  const opened = [...host.querySelectorAll("select")].map((select) => select.value)[0];
  const groups = [
    ["Learning", [...evaluations(data, runs), training(runs), metric(runs, "Valid actions, training", "episode/valid_action_ratio", percent),
      metric(runs, "Turns of an episode", "episode/length/mean"), metric(runs, "Entropy", "actor/entropy"),
      metric(runs, "Gradient norm", "actor/grad_norm")]],
    ["Delta and gate", deltas(data, runs)],
    ["Analyzer", analyzer(runs)],
    ["Time and reuse", [...runs.map(timing), metric(runs, "Forest reuse: tokens per row computed", "seed/forest_reuse_ratio"),
      metric(runs, "Pair tokens per second of the update", "seed/pair_tokens_per_s")]],
  ].map(([title, charts]) => [title, charts.filter((chart) => chart)]).filter(([, charts]) => charts.length);
  const thin = runs.filter((run) => run.metrics.stride > 1).map((run) => `${run.name}: every ${run.metrics.stride}th update and the last are drawn.`);
  host.replaceChildren(
    ...(runs.some((run) => run.metrics.step.length) ? [] : [element("p", { class: "hint" }, "No update is on record yet.")]),
    ...thin.map((text) => element("p", { class: "hint" }, text)),
    ...groups.flatMap(([title, charts]) => [element("h3", {}, title), element("div", { class: "charts" }, ...charts)]),
    ...anyMetric(runs, opened));
}

function points(run, name, low, high) {
  const { step, values } = run.metrics, column = values[name] || [];
  return column.map((y, i) => ({ x: step[i], y, low: values[low]?.[i], high: values[high]?.[i] }));
}

function metric(runs, title, name, format = plain, note = undefined) {
  return lineChart({ title, note, format, series: runs.map((run) => ({ name: run.name, colour: run.colour, points: points(run, name) })) });
}

function evaluations(data, runs) {
  const own = (run, who, key) => run.evals.filter((one) => one[who]).map((one) => ({ x: one.updates, y: one[who][key] }));
  const banded = (run, who) => run.evals.filter((one) => one[who])
    .map((one) => ({ x: one.updates, y: one[who].success, low: one[who].low, high: one[who].high }));
  const line = (run, name, points, dashed = false) => ({ name, colour: run.colour, dashed, points });
  const graded = runs.some((run) => run.evals.some(({ student }) => student.reward !== null && student.reward !== student.success));
  const seeds = data.methods.map((method, i) => ({ name: `${method.method} (${method.seeds} seeds)`, colour: colour(i), points: method.points }));
  return [
    lineChart({ title: "Success, select panel", note: "Band: 95 % Wilson interval over the panel's tasks.", format: percent,
      series: runs.flatMap((run) => [line(run, run.name, banded(run, "student")), line(run, `${run.name}, own skill in the prompt`, banded(run, "teacher"), true)]) }),
    lineChart({ title: "Success by method, mean over seeds", note: "Band: 95 % Student-t interval over seeds.", format: percent, series: seeds }),
    graded ? lineChart({ title: "Mean reward, select panel", series: runs.map((run) => line(run, run.name, own(run, "student", "reward"))) }) : null,
    lineChart({ title: "Success, select panel, mean over families", format: percent, series: runs.map((run) => line(run, run.name, own(run, "student", "macro"))) }),
  ];
}

function training(runs) {
  return lineChart({ title: "Success of the rollouts trained on", note: "Other tasks every update. Band: 95 % Wilson interval.", format: percent,
    series: runs.map((run) => ({ name: run.name, colour: run.colour, points: points(run, "episode/success_rate", "episode/ci95_low", "episode/ci95_high") })) });
}

function deltas(data, runs) {
  const split = (run, stem) => [["success", false], ["failure", true]].map(([outcome, dashed]) =>
    ({ name: `${run.name}, ${outcome}`, colour: run.colour, dashed, points: points(run, `seed/${stem}_${outcome}`) }));
  const histogram = (run, key) => heatmap({
    title: `${key === "delta" ? "Delta" : "Gate"} of every token${runs.length > 1 ? `, ${run.name}` : ""}`,
    note: "Shade: share of the update's tokens. Line: median. The outermost bins hold what lies beyond.",
    columns: run.audit.histograms.filter((one) => one[key].some((count) => count)).map((one) => ({ x: one.update, counts: one[key] })),
    bins: data.bins[key], colour: run.colour });
  return [
    lineChart({ title: "Delta = l_skill − l_theta, mean over tokens", note: "Band: 5 % to 95 % of the tokens.",
      series: runs.map((run) => ({ name: run.name, colour: run.colour, points: points(run, "seed/delta_mean", "seed/delta_p05", "seed/delta_p95") })) }),
    lineChart({ title: "Delta by outcome", note: "Equal curves: the skill's presence speaks, not its content.", series: runs.flatMap((run) => split(run, "delta")) }),
    ...runs.map((run) => histogram(run, "delta")),
    metric(runs, "Gate, mean over tokens", "seed/gate_mean"),
    metric(runs, "Tokens with an active gate", "seed/gate_active_ratio", percent),
    lineChart({ title: "Gate by outcome", series: runs.flatMap((run) => split(run, "gate")) }),
    ...runs.map((run) => histogram(run, "gate")),
  ];
}

function analyzer(runs) {
  const minus = runs.map((run) => ({ name: run.name, colour: run.colour,
    points: run.evals.filter((one) => one.teacher).map((one) => ({ x: one.updates, y: one.teacher.success - one.student.success })) }));
  return [
    metric(runs, "Valid skills", "seed/skill_valid_rate", percent),
    metric(runs, "Right skills, by the environment's own check", "seed/skill_right_rate", percent),
    lineChart({ title: "Success gained by the policy's own skill in the prompt", format: percent, series: minus }),
    metric(runs, "Named things that occur in the trajectory", "seed/skill_grounding", percent),
    metric(runs, "Repeated phrases", "seed/skill_repeat_rate", percent),
    metric(runs, "Tokens of a skill", "seed/skill_tokens"),
  ];
}

function timing(run, _, runs) {
  const { step, values } = run.metrics, column = (name) => values[`timing_s/${name}`];
  if (!step.length || !column("step")) return null;
  const inside = PHASES.filter((name) => name !== "checkpoint");
  const rest = step.map((_, i) => Math.max(0, (column("step")[i] || 0) - inside.reduce((sum, name) => sum + (column(name)?.[i] || 0), 0)));
  const parts = PHASES.filter(column).map((name) => ({ name, values: column(name) }));
  return stackedBars({ title: `Seconds of an update${runs.length > 1 ? `, ${run.name}` : ""}`, xs: step,
    note: "A checkpoint's time is on record with the next update.",
    parts: [...parts, { name: "other", values: rest }].map((part, i) => ({ ...part, colour: colour(i) })) });
}

function anyMetric(runs, chosen) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics.values)))].sort();
  if (!names.length) return [];
  const select = element("select", { "aria-label": "Metric" }, ...names.map((name) => element("option", {}, name)));
  const place = element("div", { class: "charts" });
  const show = () => place.replaceChildren(...[metric(runs, select.value, select.value)].filter((chart) => chart));
  select.addEventListener("change", show);
  select.value = names.includes(chosen) ? chosen : names[0];
  show();
  return [element("h3", {}, "Any metric"), element("p", { class: "hint" }, select), place];
}
