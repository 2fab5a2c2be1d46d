// Asks the server what is new, once a second, and shows it. Text from peers goes to the page as text only.
"use strict";

const LOOK_MS = 1000, HIDDEN_TIMES = 5, RETRY_MS = 2000, ANSWER_MS = 10000;
const LOGS = ["commits", "validations", "notes"];
const NOTES_MAX = 200, MARKS_MAX = 400, RECOVERIES_MAX = 32, HOLDERS_ROOMY = 24, OLD_SECONDS = 20;
const SIGNS = {
  training: "▶", ready: "✓", rebuilding: "↻", vacant: "○", waiting: "…", finished: "■", silent: "✕", unknown: "?", halted: "✕",
};
const TONES = {
  lost: "lost", gone: "lost", halt: "lost", liar: "lost", convicted: "lost", poisoned: "lost", skip: "lost", compute: "lost", nonsense: "lost",
  rebuild: "rebuilding", offer: "rebuilding", learner: "rebuilding", copy: "rebuilding", leave: "rebuilding", leaver: "rebuilding",
  move: "rebuilding", doubt: "rebuilding", case: "rebuilding", rebuilt: "good", finished: "good", answer: "good", view: "view", lineage: "view", found: "view", fork: "view",
};
// Where a stage's weights came from, in the words of ftnode status. Newer versions may know others.
const SOURCES = {
  initial: "the first weights", snapshot: "a snapshot", kept: "weights that it still had", replica: "another holder's weights",
  head: "a kept copy", shadow: "a kept copy", blend: "a blend of both neighbours' weights", copy: "a neighbour's weights",
  omit: "nobody: routes leave it out", first: "the model that the run goes on from", interpolate: "a blend of the nearest stages' weights",
};
const TELLING = new Set(["lost", "gone", "halt", "rebuild", "rebuilt", "poisoned", "skip", "offer", "compute"]);

const find = (id) => document.getElementById(id);
const say = (id, text) => {
  const node = typeof id === "string" ? find(id) : id;
  if (node.textContent !== text) node.textContent = text;
};
function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}
const short = (peer) => peer.slice(-6) || "nobody";
const whole = new Intl.NumberFormat("en");
const count = (value) => whole.format(Math.round(value));
const stageName = (stage) => (stage === 0 ? "Head" : `Stage ${stage}`);
const source = (rung) => `from ${SOURCES[rung] || rung}`;
const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);
function lasting(seconds) {
  if (!(seconds < 1e7)) return "long";
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

let known; // what this page has read of the present generation
function beginAnew(generation) {
  known = {
    generation, commits: 0, validations: 0, notes: 0, loss: new Curve(), rate: new Curve(), credited: 0,
    validation: new Curve(), said: [], marks: new Map(), most: new Map(), cells: new Map(), recoveries: new Map(),
  };
  curve.curve = known.loss;
  curve.dots = known.validation;
  rate.curve = known.rate;
  for (const id of ["stages", "log", "recoveries", "credits"]) find(id).replaceChildren();
  find("giving").hidden = true;
  find("log").append(make("li", "quiet empty", "Nothing was decided yet."));
  marksChanged = true;
}
let marksChanged = true;

const curve = new Chart(find("curve"), new Curve(), {
  says: (step, loss, mark) => [`step ${count(step)}, loss ${loss.toFixed(4)}`, ...(mark ? mark.says : [])].join("\n"),
});
const rate = new Chart(find("rate"), new Curve(), {
  zero: true, says: (step, tokens) => `step ${count(step)}, ${count(tokens)} tokens/s`,
});

// -- what is told

// Relative, so that the page works behind the path of a reverse proxy.
async function ask(where) {
  const answer = await fetch(where, { signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
  if (answer.status === 429) throw new Busy(Number(answer.headers.get("Retry-After")) || 1);
  if (!answer.ok) throw new Error(`it answers ${answer.status}`);
  const told = await answer.json();
  if (told.format !== 1) throw new Error("the page is of another version; load it anew");
  return told;
}

class Busy extends Error {
  constructor(seconds) {
    super(`too many questions come from this network; the page goes on in ${seconds} s`);
    this.seconds = seconds;
  }
}

// A public page tells everybody the same, so that it need not be asked for what is new to one.
let open = null;
async function look() {
  const places = new URLSearchParams({
    generation: known.generation, commits: known.commits, validations: known.validations, notes: known.notes,
  });
  const told = await ask(open || !known.generation ? "look" : `look?${places}`);
  open = told.public || null;
  if (told.generation !== known.generation) beginAnew(told.generation);
  if (!open || !lacks(told) || await takePast()) take(told);
  show(told);
  return LOGS.some((log) => told[log].more);
}

const firstOf = (log) => log.next - log.rows.length;
const lacks = (told) => LOGS.some((log) => firstOf(told[log]) > known[log]);

// Everything so far, from the beginning; whether it is of the same generation as the newest word.
async function takePast() {
  const past = await ask("past"), fits = past.generation === known.generation;
  if (!fits) return false;
  beginAnew(past.generation);
  for (const log of LOGS) known[log] = firstOf(past[log]);
  take(past);
  return true;
}

// What is not known yet; a log may begin with rows that are.
function take(told) {
  for (const log of LOGS) {
    const { rows, next } = told[log];
    for (const row of rows.slice(Math.max(0, known[log] - firstOf(told[log])))) PUT[log](row);
    known[log] = Math.max(known[log], next);
  }
}

const PUT = {
  commits([step, loss, tokens, seconds]) {
    known.loss.put(step, loss);
    if (seconds > 0 && tokens > 0) known.rate.put(step, tokens / seconds);
  },
  validations([step, loss]) {
    known.validation.put(step, loss);
  },
  notes: hear,
};

function hear([time, step, peer, kind, text, word]) {
  if (kind === "lost") mark(step + 1, text, false);
  let at = known.said.length;
  while (at > 0 && known.said[at - 1].time > time) at -= 1;
  const older = at > 0 ? known.said[at - 1].item : null;
  if (at === 0 && known.said.length === NOTES_MAX) return;
  if (!known.said.length) find("log").replaceChildren();
  const item = noteItem(time, step, peer, kind, text, word);
  known.said.splice(at, 0, { time, item });
  find("log").insertBefore(item, older);
  if (known.said.length > NOTES_MAX) known.said.shift().item.remove();
}

// Newest first; what is not about losses and recoveries can be hidden.
function noteItem(time, step, peer, kind, text, word) {
  const item = make("li", TELLING.has(kind) ? "telling" : ""), words = make("div", "words"), what = make("span", "kind", word);
  what.dataset.kind = TONES[kind] || "";
  words.append(what, make("span", "", text), make("span", "by", `${short(peer)}, after step ${count(step)}`));
  item.append(make("time", "", clock(time)), words);
  return item;
}

function mark(step, text, back) {
  const found = known.marks.get(step) || { step, lost: true, back: false, says: [] };
  if (found.says.includes(text) && found.back >= back) return;
  if (found.says.length < 6) found.says.push(text);
  found.back = found.back || back;
  known.marks.set(step, found);
  if (known.marks.size > MARKS_MAX) known.marks.delete(known.marks.keys().next().value);
  marksChanged = true;
}

// -- what is shown

function show(told) {
  const status = told.status;
  showBanner(told);
  showAnnouncement(status);
  showJoining(told.public);
  const since = clock(Date.now() / 1000 - told.age);
  say("source", told.source === "replay" ? "A replay of recorded traces" : told.silent ? `As of ${since}` : "Live");
  if (!status || !status.run) {
    say("state", status ? "no run" : "looking");
    return;
  }
  document.title = `${status.name} · ${count(status.step)} · ftnode`;
  say("name", status.name);
  say("run", `run ${status.run.slice(0, 12)}`);
  const state = told.silent && status.state !== "finished" ? "silent" : status.state;
  say("state", state);
  find("state").dataset.state = state;
  const eyes = told.source === "replay" ? "all traces together" : `as ${short(status.speaker.peer)} sees it`;
  say("heard", `${eyes}${told.source === "live" && told.age > 3 ? `, ${lasting(told.age)} ago` : ""}`);
  showFigures(status);
  showStages(told.silent ? grownOlder(status, told.age) : status);
  showRecoveries(status);
  showCredits(status);
  if (marksChanged) curve.marks = [...known.marks.values()].sort((a, b) => a.step - b.step);
  marksChanged = false;
  curve.draw();
  rate.draw();
  find("curve").setAttribute("aria-label", `Loss by step: ${status.loss ?? "none"} at step ${status.step}, ${known.marks.size} steps with losses of holders`);
  if (!shownOnce) performance.mark("shown");
  shownOnce = true;
}
let shownOnce = false;

function showAnnouncement(status) {
  const text = status ? status.announcement : "";
  find("announcement").hidden = !text;
  say("announcement", text ? `The run's author says: ${text}` : "");
}

function showJoining(open) {
  const ways = open && open.joining;
  find("joining").hidden = !ways;
  if (!ways) return;
  say("join", ways.join);
  say("watch", ways.watch);
  find("listed").hidden = !ways.listed;
}

function showBanner(told) {
  const status = told.status, heard = status && status.run && told.silent;
  let text = told.trouble;
  if (heard) text = `nobody has been heard since ${clock(Date.now() / 1000 - told.age)}${text ? `: ${text}` : ""}`;
  if (!text && status && status.waiting) text = status.waiting.startsWith("halted") ? status.waiting : `waiting for ${status.waiting}`;
  if (!told.trouble && !heard && status && status.alarms) text = [text, ...status.alarms].filter(Boolean).join("; ");
  if (!text && status && !status.run) text = "no volunteer is known here yet; the page shows the run as soon as one joins";
  find("banner").hidden = !text;
  say("banner", text ? text[0].toUpperCase() + text.slice(1) : "");
}

// What was said of holders when somebody was last heard, as much older.
const grownOlder = (status, age) => ({ ...status, stages: status.stages.map((row) => ({ ...row, age: row.age + age })) });

function showFigures(status) {
  say("step", count(status.step));
  say("steps", `of ${count(status.steps)}`);
  find("progress").style.width = `${status.steps ? Math.min(100, 100 * status.step / status.steps) : 0}%`;
  say("loss", status.loss === null ? "–" : status.loss.toFixed(3));
  const now = known.loss.meanOfLast(20);
  say("trend", Number.isFinite(now) && known.loss.length >= 20 ? `${now.toFixed(3)} over the last 20 steps` : "nats per token");
  say("validation", status.validation === null ? "–" : status.validation.toFixed(3));
  say("perplexity", status.validation === null ? "" : `perplexity ${shortNumber(Math.exp(Math.min(status.validation, 50)))}`);
  say("speed", status.tokens_per_second === null ? "–" : count(status.tokens_per_second));
  const left = status.eta_seconds, steps = status.steps - status.step;
  say("pace", steps > 0 && Number.isFinite(left) ? `${lasting(left / steps)} a step, ${lasting(left)} left` : "");
  const holders = new Set(status.stages.map((row) => row.peer).filter(Boolean));
  say("volunteers", count(holders.size + status.standbys.length));
  say("standing", status.standbys.length ? `${count(status.standbys.length)} standing by` : holders.size ? "all hold stages" : "");
  const healed = status.recoveries.filter((row) => row.seconds !== null);
  say("recovered", status.recoveries.length ? `${healed.length} of ${status.recoveries.length}` : "0");
  const slowest = Math.max(...healed.map((row) => row.seconds));
  const none = status.recoveries.length ? "not back yet" : "no stage was lost";
  say("outage", healed.length ? `slowest in ${lasting(slowest)}` : none);
}

function showStages(status) {
  const table = find("stages"), cells = known.cells, seen = new Set();
  if (!cells.size) table.replaceChildren();
  table.classList.toggle("many", status.stages.length > HOLDERS_ROOMY);
  const peers = new Map(status.peers.map((row) => [row.peer, row]));
  for (const row of status.stages) {
    const line = stageLine(table, row, seen);
    const key = `${row.stage}/${row.peer}`;
    seen.add(key);
    let cell = cells.get(key);
    if (!cell) {
      cell = makeHolder(line.holders);
      cells.set(key, cell);
    }
    showHolder(cell, row, status, peers.get(row.peer));
  }
  for (const [key, cell] of cells) {
    if (!seen.has(key)) {
      cell.node.remove();
      cells.delete(key);
    }
  }
  const view = status.view < 0 ? "" : `change ${count(status.view)} of who holds what, led by ${short(status.leader)}`;
  say("view", view);
  const names = status.standbys.slice(0, 24).map(short).join(", ");
  say("limits", limitText(status, peers.get(status.limiting_peer)));
  say("plan", status.plan ? `Last plan: ${status.plan}` : "");
  showTrust(status);
  say("standbys", names ? `Standing by: ${names}${status.standbys.length > 24 ? " and others" : ""}` : "");
}

// In the words of ftnode status. A public page tells nothing of it.
function showTrust(status) {
  say("trust", [...(status.rollback_lines || []), ...(status.doubt_lines || [])].join("\n"));
}

function stageLine(table, row, seen) {
  const key = `stage ${row.stage}`;
  let line = known.cells.get(key);
  if (!line) {
    line = { node: make("div", "stage"), holders: make("div", "holders"), epoch: make("p", "quiet") };
    const label = make("div", "label");
    label.append(make("h3", "", stageName(row.stage)), line.epoch);
    line.node.append(label, line.holders);
    table.append(line.node);
    known.cells.set(key, line);
  }
  seen.add(key);
  say(line.epoch, `change ${count(row.epoch)}`);
  return line;
}

function makeHolder(parent) {
  const cell = {
    node: make("div", "holder"), peer: make("span", "peer"), badge: make("span", "badge", "leads"), state: make("span", "state"),
    step: make("span", "quiet"), queue: make("div", "counts"), time: make("div", "counts"), bar: make("i"), track: make("div", "bar"),
  };
  const first = make("div", "first"), second = make("div", "second");
  first.append(cell.peer, cell.badge);
  second.append(cell.state, cell.step);
  cell.track.append(cell.bar);
  cell.node.append(first, second, cell.queue, cell.time, cell.track);
  parent.append(cell.node);
  return cell;
}

// How a volunteer spent its last minute; nodes of before do not say.
function timeText(peer) {
  if (!peer || peer.computed === null) return "";
  const share = (part) => `${Math.round(100 * part)} %`;
  return `computes ${share(peer.computed)}, sends ${share(peer.sent)}, waits ${share(peer.waited)}`;
}

function limitText(status, peer) {
  if (!peer) return "";
  const who = short(peer.peer), line = status.limited_by === "line";
  const up = peer.line_up === null ? "" : ` (${shortNumber(8 * peer.line_up / 1e6)} Mbit/s up)`;
  const busy = Math.round(100 * (line ? peer.line_full : peer.computed));
  return line ? `The line of ${who}${up} limits the run: full for ${busy} % of the last minute` : `The device of ${who} limits the run: it computed for ${busy} % of the last minute`;
}

function showHolder(cell, row, status, peer) {
  const most = Math.max(known.most.get(row.stage) || 1, row.accumulated);
  known.most.set(row.stage, most);
  const state = row.peer ? row.state : "vacant";
  if (cell.node.dataset.state !== state) cell.node.dataset.state = state;
  cell.node.classList.toggle("old", Boolean(row.peer) && row.age > OLD_SECONDS);
  say(cell.peer, row.peer ? short(row.peer) : "nobody");
  cell.badge.hidden = !row.peer || row.peer !== status.leader || row.stage !== firstStageOf(status, row.peer);
  say(cell.state, `${SIGNS[state] || "·"} ${state}`);
  const step = row.peer ? `step ${count(row.step)}` : "";
  const work = [`${count(row.accumulated)} done`, row.queue ? `${count(row.queue)} queued` : ""].filter(Boolean).join(", ");
  const more = !row.peer ? "waits for a volunteer" : row.age > 5 ? `heard ${lasting(row.age)} ago` : state === "finished" ? "all done" : work;
  say(cell.step, step);
  const time = row.peer ? timeText(peer) : "";
  say(cell.queue, more);
  say(cell.time, time);
  cell.node.title = [row.peer, state, step, more, time].filter(Boolean).join(", ");
  cell.track.hidden = !row.peer;
  cell.bar.style.width = `${state === "finished" ? 100 : 100 * Math.min(1, row.accumulated / most)}%`;
}

const firstStageOf = (status, peer) => status.stages.find((row) => row.peer === peer)?.stage;

function showRecoveries(status) {
  for (const row of status.recoveries) {
    const done = row.seconds !== null;
    mark(row.step, `${stageName(row.stage)} ${done ? `back after ${lasting(row.seconds)}` : "not back yet"}, ${source(row.rung)}`, done);
  }
  const list = find("recoveries"), items = known.recoveries, seen = new Set();
  if (!items.size) list.replaceChildren(...(status.recoveries.length ? [] : [make("li", "quiet empty", "No stage was lost so far.")]));
  for (const row of status.recoveries.slice(-RECOVERIES_MAX)) {
    const key = `${row.step}/${row.stage}`, words = JSON.stringify(row), before = items.get(key);
    seen.add(key);
    if (before && before.words === words) continue;
    const item = recoveryItem(row);
    if (before) before.item.replaceWith(item); else list.prepend(item);
    items.set(key, { words, item });
  }
  for (const [key, { item }] of items) {
    if (seen.has(key)) continue;
    item.remove();
    items.delete(key);
  }
}

function recoveryItem(row) {
  const item = make("li"), first = make("div", "first");
  first.append(make("span", "", `${stageName(row.stage)} at step ${count(row.step)}`));
  const time = make("span", "", row.seconds === null ? "↻ not yet healed" : `✓ ${lasting(row.seconds)}`);
  time.dataset.done = row.seconds === null ? "no" : "yes";
  first.append(time);
  const bytes = row.bytes_fetched ? `, ${shortNumber(row.bytes_fetched / 1e6)} MB fetched` : "";
  const losses = [["before", row.validation_before], ["after", row.validation_after]]
    .filter(([, loss]) => loss !== null).map(([when, loss]) => `${loss.toFixed(3)} ${when}`).join(", ");
  const before = row.epoch < 0; // of the speaker's time: it knows no names, and no reason
  const who = `${row.lost ? short(row.lost) : "somebody"} → ${short(row.newcomer)}`;
  const why = [before ? "" : row.reason, losses ? `validation ${losses}` : ""].filter(Boolean).join("; ");
  item.append(first, make("p", "", before ? `rebuilt ${source(row.rung)}` : `${who}, ${source(row.rung)}${bytes}`), make("p", "why", why));
  return item;
}

function size(bytes) {
  const units = ["bytes", "kB", "MB", "GB", "TB"], unit = Math.min(Math.floor(Math.log10(bytes) / 3), units.length - 1);
  return `${+(bytes / 1000 ** unit).toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

// Who answers may stand by, and not hear who did the newest steps: what went further stays.
function showCredits(status) {
  if (status.credits_step <= known.credited || !status.credits.length) return;
  known.credited = status.credits_step;
  const whole = status.credits.reduce((sum, row) => sum + row.visits, 0);
  find("giving").hidden = false;
  say("counted", `steps 1 to ${count(status.credits_step)}`);
  find("credits").replaceChildren(...status.credits.map((row) => {
    const line = make("tr"), who = make("td"), name = row.name || (row.peer ? short(row.peer) : "others");
    who.append(make("bdi", "", name));
    if (row.name) who.append(make("span", "quiet", ` ${short(row.peer)}`));
    if (row.rebuilt) who.append(make("span", "quiet", ` brought back ${count(row.rebuilt)}`));
    if (row.relayed_bytes) who.append(make("span", "quiet", ` relayed ${size(row.relayed_bytes)}`));
    who.title = row.peer;
    line.append(who, make("td", "", count(row.visits)), make("td", "", `${(whole ? 100 * row.visits / whole : 0).toFixed(1)} %`));
    line.append(make("td", "", (row.seconds / 3600).toFixed(2)));
    return line;
  }));
}

// Pages of many watchers that came at the same moment drift apart.
function pauseMs() {
  const pause = open ? open.seconds * 1000 * (0.8 + 0.4 * Math.random()) : LOOK_MS;
  return document.hidden ? HIDDEN_TIMES * pause : pause;
}

async function lookForever() {
  let pause;
  try {
    pause = await look() ? 0 : pauseMs();
  } catch (error) {
    const own = `The dashboard's own process does not answer (${error.message}); is ftnode dashboard still running?`;
    find("banner").hidden = false;
    say("banner", open ? `Nothing new comes: ${error.message}` : own);
    pause = error instanceof Busy ? error.seconds * 1000 : RETRY_MS;
  }
  setTimeout(lookForever, pause);
}

// Without https there is no clipboard for pages: then the command is marked, to be copied by hand.
for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", async () => {
    const command = find(button.dataset.copies);
    getSelection().selectAllChildren(command);
    try {
      await navigator.clipboard.writeText(command.textContent);
      say(button, "Copied");
    } catch {
      say(button, "Marked");
    }
  });
}
find("only").addEventListener("change", () => find("log").classList.toggle("only", find("only").checked));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  curve.draw();
  rate.draw();
});
beginAnew("");
lookForever();
