"use strict";
// Everything that was told by a machine is put in as text, never as markup.
const $ = (id) => document.getElementById(id);
const PHASES = ["proposed", "approved", "preparing", "ready", "switching", "committed"];
const ACTS = document.body.dataset.acts === "yes";
let shown = null;
let offset = 0; // of the server's clock to ours, ms
let heard = Date.now();

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") node.className = value;
    else if (name === "click") node.addEventListener("click", value);
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value < 1) return `${(value * 1000).toFixed(value < 0.1 ? 1 : 0)} ms`;
  return value < 120 ? `${value.toFixed(2)} s` : `${Math.floor(value / 60)} min`;
}

function clock(iso) {
  return new Date(iso).toLocaleTimeString([], { hour12: false });
}

function words(move) {
  const pairs = move.moves.map((one) => `${one.leaver} -> ${one.joiner || "?"} in slot ${one.slot}`);
  return pairs.join(", ") || "links formed again";
}

const open = (move) => PHASES.slice(0, 5).includes(move.state);
const stoppable = (move) => move.kind === "planned" && ["approved", "preparing", "ready"].includes(move.state);
const waits = (move) => move.state === "proposed" && move.requested_by === "policy";

function button(verb, move, text, css) {
  return ACTS ? make("button", { type: "button", class: css, click: () => ask(verb, move) }, text) : null;
}

function pills(data) {
  const states = { running: "good", held: "warn", failed: "bad" };
  const items = [
    [data.state, states[data.state] || ""], [data.epoch === null ? "no epoch yet" : `epoch ${data.epoch}`, ""], [`step ${data.step}`, ""],
    [`automation ${data.automation}`, data.automation === "automatic" ? "" : "warn"],
  ];
  if (data.rate !== null) items.splice(3, 0, [`${data.rate.toFixed(2)} steps/s`, ""]);
  if (data.step_s !== null) items.push([`${seconds(data.step_s)} a step`, ""]);
  $("pills").replaceChildren(...items.map(([text, css]) => make("li", { class: css }, text)));
}

function attention(data) {
  const lines = [];
  if (!data.connected) lines.push(make("p", { class: "bad" }, "The bus does not answer: this is what was last known. Training goes on."));
  if (data.reason) lines.push(make("p", {}, make("span", {}, data.reason)));
  if (data.automation === "paused") {
    lines.push(make("p", {}, make("span", {}, `Automation is paused ${data.automation_words}. The dead are replaced all the same.`)));
  }
  for (const one of data.machines) {
    for (const why of one.not_ready) {
      const place = why.where ? ` at ${why.where.split("/").pop()}` : "";
      const tried = why.attempts === 1 ? "once" : `${why.attempts} times`;
      lines.push(make("p", { class: "warn" }, `${one.machine} is not ready for ${why.slots.length > 1 ? "slots" : "slot"} ${why.slots.join(", ")}: ${why.error}${place}, tried ${tried}, next try at ${clock(why.next_try)}.`));
    }
  }
  for (const move of data.migrations.filter(waits)) {
    const text = `${move.id} waits for you: move ${move.moves.map((one) => one.leaver).join(", ")} away? ${move.cause}`;
    const hint = ACTS ? null : make("code", {}, `trainmover migration approve ${move.id}`);
    lines.push(make("p", {}, make("span", {}, text), button("approve", move, "Approve", "act"), button("reject", move, "Reject", "stop"), hint));
  }
  $("attention").replaceChildren(...lines);
  $("attention").hidden = lines.length === 0;
}

function slots(data) {
  const leaving = new Set(data.migrations.filter(open).flatMap((one) => one.moves.map((move) => move.leaver)));
  const accused = new Set(data.incidents.filter((one) => !one.closed).map((one) => one.machine));
  const active = data.machines.filter((one) => one.role === "active").sort((a, b) => a.slot - b.slot);
  const cards = active.map((one) => {
    const ranks = data.ranks.filter((rank) => rank.machine === one.machine);
    const late = Math.max(0, ...ranks.map((rank) => rank.behind_s));
    const pace = late ? `, ${seconds(late)} late` : "";
    const css = accused.has(one.machine) ? "slot accused" : leaving.has(one.machine) ? "slot leaving" : "slot";
    const note = accused.has(one.machine) ? "believed bad" : leaving.has(one.machine) ? "is leaving" : `step ${one.step ?? "-"}`;
    return make("div", { class: css }, make("span", { class: "soft" }, `slot ${one.slot}, rank ${ranks.map((rank) => rank.rank).join(", ")}`),
      make("b", {}, one.machine), make("span", { class: accused.has(one.machine) ? "bad" : "soft" }, `${note}${pace}`));
  });
  if (cards.length) $("slots").replaceChildren(...cards);
  const standbys = data.machines.filter((one) => one.role === "standby");
  $("standbys").textContent = `Standbys: ${standbys.map((one) => `${one.machine} (ready for ${one.ready_slots.length} of ${active.length})`).join(", ") || "none"}`;
  $("standbys").className = standbys.length ? "soft" : "warn";
}

function timers(move, now) {
  return make("ol", { class: "phases" }, ...PHASES.map((phase, index) => {
    const began = move.times[phase];
    if (!began) return make("li", {}, phase, make("small", {}, "-"));
    const next = PHASES.slice(index + 1).find((name) => move.times[name]);
    const isOpen = !next && phase !== "committed" && open(move);
    const until = next ? Date.parse(move.times[next]) : isOpen ? now : Date.parse(began);
    const took = Math.max(0, (until - Date.parse(began)) / 1000);
    return make("li", { class: isOpen ? "open" : "done" }, phase,
      make("small", {}, phase === "committed" ? clock(began) : seconds(took) + (isOpen ? " ..." : "")));
  }));
}

function moving(data, now) {
  const ended = data.migrations.filter((one) => !open(one));
  const last = ended.length ? ended[ended.length - 1] : null;
  const list = data.migrations.filter(open);
  const parts = list.map((move) => make("div", { class: "move" },
    make("div", { class: "head" }, make("b", {}, `${move.id} ${move.kind}: ${words(move)}`), stoppable(move) ? button("abort", move, "Abort", "stop") : null),
    make("p", { class: "soft" }, `${move.cause} (asked for by ${move.requested_by})`), timers(move, now)));
  if (!list.length) parts.push(make("p", { class: "soft" }, "Nothing moves."));
  if (last && !list.length) {
    parts.push(make("div", { class: "move" }, make("div", { class: "head" }, make("b", {}, `last: ${last.id} ${last.state}: ${words(last)}`),
      make("span", {}, last.pause_s === null ? "" : `pause ${seconds(last.pause_s)}`)), timers(last, now)));
  }
  $("now").replaceChildren(...parts);
}

const ROW = 22;
function heat(data) {
  const ranks = data.ranks;
  $("ranks").replaceChildren(...ranks.map((one) => make("div", { title: one.machine }, `${one.rank} ${one.machine}`)));
  const full = Math.max(data.step_s || 0, 0.02);
  const steps = data.late_steps;
  $("scale").textContent = steps.length ? `Steps ${steps[0]} to ${steps[steps.length - 1]}; full colour is ${seconds(full)}.` : "No telemetry yet.";
  const canvas = $("heat");
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${ranks.length * ROW}px`;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.height = Math.max(1, Math.round(ranks.length * ROW * ratio));
  const brush = canvas.getContext("2d");
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--heat").trim();
  const columns = Math.max(60, steps.length);
  const width = canvas.width / columns;
  ranks.forEach((one, row) => one.late_s.forEach((late, index) => {
    const column = columns - one.late_s.length + index;
    brush.fillStyle = `rgba(${colour}, ${Math.min(1, late / full).toFixed(3)})`;
    brush.fillRect(column * width, row * ROW * ratio + 1, Math.ceil(width), ROW * ratio - 2);
  }));
}

$("heat").addEventListener("mousemove", (event) => {
  if (!shown || !shown.ranks.length) return;
  const box = $("heat").getBoundingClientRect();
  const rank = shown.ranks[Math.floor((event.clientY - box.top) / ROW)];
  if (!rank) return;
  const columns = Math.max(60, shown.late_steps.length);
  const index = Math.floor(((event.clientX - box.left) / box.width) * columns) - (columns - rank.late_s.length);
  if (index < 0 || index >= rank.late_s.length) return;
  const step = shown.late_steps[shown.late_steps.length - rank.late_s.length + index];
  $("pointed").textContent = `rank ${rank.rank} on ${rank.machine}, step ${step}: ${seconds(rank.late_s[index])} late`;
});

function table(id, heads, rows, none) {
  const head = make("tr", {}, ...heads.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell) => {
    const node = cell instanceof Node ? cell : document.createTextNode(cell === null || cell === undefined ? "-" : String(cell));
    const size = (node.textContent || "").length;
    return make("td", { class: size > 44 ? "long" : size < 25 ? "whole" : "" }, node);
  })));
  $(id).replaceChildren(...(rows.length ? [make("thead", {}, head), make("tbody", {}, ...body)] : [make("caption", { class: "soft" }, none)]));
}

function tables(data) {
  table("incidents", ["since", "kind", "machine", "sure", "finding", "state"], data.incidents.slice(-12).reverse().map((one) => [
    clock(one.opened), one.kind, one.machine || "nobody", `${Math.round(one.confidence * 100)} %`, one.summary, one.closed ? "closed" : "open"]),
  "No detector finds anything.");
  table("history", ["migration", "at", "kind", "move", "state", "pause", "redone", "asked by", "decided by", "cause"], [...data.migrations].reverse().map((one) => [
    make("a", { href: `/migrations/${encodeURIComponent(one.id)}` }, one.id), clock(Object.values(one.times)[0]), one.kind, words(one),
    make("span", { class: one.state === "committed" ? "good" : open(one) ? "warn" : "bad" }, one.state), seconds(one.pause_s), one.steps_redone,
    one.requested_by, one.decided_by || "-", one.reason ? `${one.cause}; ${one.reason}` : one.cause]), "Nothing has moved so far.");
  table("machines", ["machine", "role", "slot", "step", "step time", "ready for", "host", "note"], data.machines.map((one) => [
    one.machine, one.role, one.slot, one.step, seconds(one.step_s), one.ready_slots.join(", ") || "-", one.host, one.note || "-"]), "None has registered.");
  $("facts").replaceChildren(...[...data.lines].reverse().map((line) => make("li", { class: line.bad ? "warn" : "" },
    make("time", { datetime: line.time }, clock(line.time)), `  ${line.text}`)));
}

function draw() {
  if (!shown) return;
  const now = Date.now() + offset;
  pills(shown); attention(shown); slots(shown); moving(shown, now); heat(shown); tables(shown);
}

const stream = new EventSource("/api/stream");
stream.addEventListener("job", (event) => {
  shown = JSON.parse(event.data);
  heard = Date.now();
  offset = Date.parse(shown.now) - heard;
  draw();
});
setInterval(() => {
  if (!shown) return;
  if (Date.now() - heard > 5000) {
    $("attention").hidden = false;
    $("attention").replaceChildren(make("p", { class: "bad" }, `The dashboard's server does not answer since ${clock(heard)}: this is old.`));
  } else if (shown.migrations.some(open)) moving(shown, Date.now() + offset);
}, 1000);
window.addEventListener("resize", () => shown && heat(shown));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

let asking = null;
function ask(verb, move) {
  asking = { verb, id: move.id };
  $("ask-title").textContent = `${verb} ${move.id}?`;
  $("ask-text").textContent = `${words(move)}. ${move.cause}`;
  $("token-label").hidden = Boolean(sessionStorage.getItem("token"));
  $("by").value = localStorage.getItem("by") || "";
  $("ask-error").textContent = "";
  $("ask").showModal();
}
$("ask-no").addEventListener("click", () => $("ask").close());
$("ask").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = $("token").value || sessionStorage.getItem("token") || "";
  if ($("by").value) localStorage.setItem("by", $("by").value);
  const body = { by: $("by").value || "dashboard" };
  if ($("reason").value) body.reason = $("reason").value;
  try {
    const answer = await fetch(`/api/migrations/${encodeURIComponent(asking.id)}/${asking.verb}`, {
      method: "POST", body: JSON.stringify(body),
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` } });
    const said = await answer.json();
    if (answer.ok) {
      sessionStorage.setItem("token", token);
      $("ask").close();
      return;
    }
    if (answer.status === 401) {
      sessionStorage.removeItem("token");
      $("token-label").hidden = false;
    }
    $("ask-error").textContent = `${said.reason} ${said.next_step}`;
  } catch (error) {
    $("ask-error").textContent = `The dashboard's server does not answer: ${error.message}`;
  }
});
