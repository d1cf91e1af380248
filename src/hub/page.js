"use strict";
// Asks the hub how the run is every two seconds, and shows it. Names, origins and events come from
// strangers: all text gets onto the page as text (textContent), never as HTML.

const EVERY = 2000, EVERY_AT_END = 10000;  // ms between questions
const LONGEST_PAUSE = 30000;               // ms, of the pauses that double while the hub is away
const PATIENCE = 10000;                    // ms that an answer may take
const ROWS = 100;                          // members shown at first

const at = (id) => document.getElementById(id);
const words = (parent, text) => { if (parent.textContent !== text) parent.textContent = text; };
const shown = (element, visible) => { if (element.hidden === visible) element.hidden = !visible; };
const count = (n) => Number(n).toLocaleString("en-US");
const many = (n, one, more = one + "s") => `${count(n)} ${n === 1 ? one : more}`;

/** Seconds as one or two units: "0.8 s", "2 min 5 s", "3 h 10 min". */
function lasting(seconds) {
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min ${Math.round(seconds - 60 * minutes)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes - 60 * hours} min` : `${Math.floor(hours / 24)} days`;
}

const milliseconds = (seconds) => (seconds > 0 ? (seconds < 1 ? `${plain(seconds * 1000, 3)} ms` : lasting(seconds)) : "–");

function bytes(n) {
  const [factor, unit] = unitFor("bytes", n);
  return `${plain(n / factor, 3)} ${unit}`;
}

function moment(seconds) {
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time
    : `${date.toLocaleDateString("en-GB", { day: "2-digit", month: "short" })} ${time}`;
}

// ---- What is shown ------------------------------------------------------------------------------

function facts(status) {
  const recipe = typeof status.recipe?.recipe === "string" ? status.recipe.recipe : "";
  const name = recipe || "Training together";
  words(at("title"), name);
  const list = [`run ${status.run.slice(0, 8)}`, `to members: ${status.down}`, `momentum: ${status.momentum_correction}`,
    `dgc ${status.version}`];
  words(at("footer"), `dgc ${status.version} · run ${status.run}`);
  const place = at("facts");
  if (place.dataset.is !== list.join()) {
    place.replaceChildren(...list.map((text) => make("li", {}, null, text)));
    place.dataset.is = list.join();
  }
  const state = status.failure ? "failed" : status.finished ? "finished" : status.active === 0 ? "paused" : `round ${count(status.round)}`;
  document.title = `${state} · ${name} – dgc hub`;
}

function notice(status) {
  const box = at("notice");
  let text = "", kind = "";
  if (status.failure) {
    text = `The hub has stopped: nothing more is committed. ${status.failure}`;
    kind = "bad";
  } else if (status.finished) {
    text = `Finished after ${many(status.round, "round")}.`;
    kind = "good";
  } else if (!status.has_parameters) {
    text = "Waiting for the first member: it gives the parameters to begin with.";
  } else if (status.active === 0) {
    text = "Paused: waiting for members.";
  }
  words(box, text);
  box.className = `notes ${kind}`;
  shown(box, text !== "");
}

function progress(status) {
  const bar = at("progress");
  const [done, all] = status.rounds > 0 ? [status.round, status.rounds] : [status.epoch, status.epochs];
  shown(bar, all > 0);
  bar.max = all || 1;
  bar.value = Math.min(done, all);
  bar.setAttribute("aria-label", `${Math.floor(100 * Math.min(1, done / (all || 1)))} % of the run`);
}

/** Tiles: label, value, what follows it in small, and a line below. */
function tileTexts(status) {
  const last = status.curve.at(-1), evaluation = status.evaluations.at(-1);
  const still = status.finished || !status.has_parameters || status.active === 0;
  const left = status.rounds > 0 && status.rounds_per_minute > 0 && !still
    ? `, ${lasting(60 * Math.max(0, status.rounds - status.round) / status.rounds_per_minute)} left` : "";
  return [
    ["Rounds", count(status.round), status.rounds > 0 ? `/ ${count(status.rounds)}` : "",
      still ? "none is open" : `open for ${lasting(status.open_for)}, deadline ${lasting(status.deadline)}`],
    ["Rounds a minute", plain(status.rounds_per_minute, 3), "", last ? `last took ${lasting(last[4])}${left}` : "no round yet"],
    ["Members at work", count(status.active), `of ${count(status.members.length)}`,
      `${count(status.inside)} in the round, quorum ${count(status.quorum)}`],
    ["Epochs", plain(status.epoch, 3), `/ ${plain(status.epochs, 3)}`, `${many(status.examples, "example")}`],
    ["Loss", last && last[2] !== null ? plain(last[2], 4) : "–", "",
      evaluation ? `${evaluation.name} ${plain(evaluation.metric, 4)} at round ${count(evaluation.round)}` : "no evaluation yet"],
    ["Bytes up, down", bytes(status.bytes_up), `/ ${bytes(status.bytes_down)}`,
      `${many(status.requests, "request")}, ${count(status.refused)} refused`],
  ];
}

function tiles(status) {
  const place = at("tiles");
  tileTexts(status).forEach(([label, value, beside, more], i) => {
    let tile = place.children[i];
    if (!tile) {
      tile = make("div", { class: "tile" }, place);
      make("p", { class: "label" }, tile, label);
      const line = make("p", { class: "value" }, tile);
      make("b", {}, line);
      line.append(" ");
      make("span", {}, line);
      make("p", { class: "more" }, tile);
    }
    words(tile.querySelector("b"), value);
    words(tile.querySelector(".value span"), beside);
    words(tile.querySelector(".more"), more);
  });
}

/** Columns of members after the name: heading, class, text, small text below. */
const COLUMNS = [
  ["State", "", (m) => [m.state, m.silent < 0 ? "" : m.silent > 60 || m.state === "away" ? `silent for ${lasting(m.silent)}` : ""]],
  ["Rounds", "n", (m) => [count(m.rounds), `${count(m.missed)} missed, ${count(m.late)} late`]],
  ["Examples", "n", (m) => [m.examples_per_second > 0 ? `${plain(m.examples_per_second, 3)} /s` : "–",
    `${count(m.examples)} in all`]],
  ["Share", "n", (m) => [valueText("share", m.share), m.needs > 0 ? `in ${lasting(m.needs)}` : ""]],
  ["Round trip", "n", (m) => [milliseconds(m.round_trip), ""]],
  ["Bytes", "n", (m) => [`${bytes(m.bytes_up)} up`, `${bytes(m.bytes_down)} down`]],
  ["Loss", "n", (m) => [m.loss === null || m.messages === 0 ? "–" : plain(m.loss, 4), ""]],
  ["Residual", "n", (m) => [`${count(m.unsaved)} unsaved`, `${many(m.behind, "round")} behind`]],
];
const rows = new Map();  // by name
let everyRow = false;

function rowOf(name) {
  if (rows.has(name)) return rows.get(name);
  const row = make("tr", { role: "row" });
  const head = make("th", { scope: "row", role: "rowheader" }, row);
  head.append(make("span", {}, null, name), make("small", {}));
  for (const [label, kind] of COLUMNS) {
    const cell = make("td", { role: "cell", class: kind, "data-label": label }, row);
    make("span", label === "State" ? { class: "state" } : {}, cell);
    make("small", {}, cell);
  }
  rows.set(name, row);
  return row;
}

function members(status) {
  const table = at("members"), head = table.tHead.rows[0];
  if (!head.cells.length) {
    for (const [label, kind] of [["Member", ""], ...COLUMNS]) make("th", { scope: "col", role: "columnheader", class: kind }, head, label);
  }
  const away = (m) => (m.state === "away" ? 1 : 0);
  const all = [...status.members].sort((a, b) => away(a) - away(b) || a.name.localeCompare(b.name, "en", { numeric: true }));
  const list = everyRow ? all : all.slice(0, ROWS);
  const wanted = list.map((member) => {
    const row = rowOf(member.name);
    row.dataset.is = member.state;
    words(row.cells[0].lastChild, member.origin);
    COLUMNS.forEach(([label, , texts], i) => {
      const cell = row.cells[i + 1];
      const [text, below] = texts(member);
      words(cell.firstChild, text);
      words(cell.lastChild, below);
      if (label === "State") cell.firstChild.dataset.is = member.state;
    });
    return row;
  });
  const body = table.tBodies[0];
  if (wanted.length !== body.rows.length || wanted.some((row, i) => body.rows[i] !== row)) body.replaceChildren(...wanted);
  shown(table, list.length > 0);
  shown(at("no-members"), list.length === 0);
  shown(at("more-rows"), list.length < all.length);
  words(at("all-rows"), `Show all ${count(all.length)} members`);
}

const ROUND_AXIS = { kind: "number", label: "round" };
const charts = [];

/** A chart that is drawn again only where its values have changed. */
function chartOf(title, view) {
  const chart = new Chart(at("charts"), title, true);
  const legend = make("p", { class: "legend-line" }, chart.head);
  charts.push((status) => {
    const next = view(status);
    const key = JSON.stringify(next);
    if (chart.shown === key) return;
    chart.shown = key;
    words(chart.title, next.title || title);
    legend.replaceChildren();
    if (next.lines.length > 1) {
      for (const line of next.lines) {
        const entry = make("span", {}, legend);
        entry.append(swatch(line.series), make("span", {}, null, line.label));
      }
    }
    chart.show(next);
  });
}

const column = (status, i) => status.curve.map((entry) => entry[i]);
const ofRounds = (status, label, i, series) => ({ series, label, x: column(status, 0), y: column(status, i) });
const ofEvaluations = (status, label, key, series) => ({
  series, label, marks: true, x: status.evaluations.map((e) => e.round), y: status.evaluations.map((e) => e[key]),
});

function makeCharts() {
  const view = (y, lines) => ({ x: ROUND_AXIS, y: { kind: "number", ...y }, lines, empty: "no round yet" });
  chartOf("Loss", (s) => view({ label: "loss" }, [ofRounds(s, "training", 2, 0),
    ...(s.evaluations.length ? [ofEvaluations(s, "evaluation", "loss", 1)] : [])]));
  chartOf("Evaluation", (s) => {
    const name = s.evaluations.at(-1)?.name || "metric";
    return view({ label: name }, s.evaluations.length ? [ofEvaluations(s, name, "metric", 1)] : []);
  });
  chartOf("Seconds a round", (s) => view({ kind: "time", label: "a round was open", zero: true }, [ofRounds(s, "seconds", 4, 2)]));
  chartOf("Members in a round", (s) => view({ label: "members", zero: true }, [ofRounds(s, "members", 3, 3)]));
}

function log(status) {
  const place = at("log"), key = JSON.stringify(status.events);
  if (place.dataset.is === key) return;
  place.dataset.is = key;
  place.replaceChildren(...status.events.map((event) => {
    const line = make("li", {});
    make("time", { datetime: new Date(event.time * 1000).toISOString() }, line, moment(event.time));
    make("span", { class: "round" }, line, `round ${count(event.round)}`);
    const what = make("span", {}, line);
    if (event.member) what.append(make("b", {}, null, event.member), " ");
    what.append(event.what);
    return line;
  }));
  if (status.events.length === 0) make("li", {}, place, "nobody yet");
}

function settings(status) {
  const place = at("settings"), key = JSON.stringify(status.recipe);
  if (place.dataset.is === key) return;
  place.dataset.is = key;
  const entries = Object.entries(status.recipe && typeof status.recipe === "object" ? status.recipe : {})
    .filter(([, value]) => value !== null && value !== "");
  words(at("settings-count"), many(entries.length, "setting"));
  place.replaceChildren(...entries.map(([name, value]) => {
    const line = make("div", {});
    make("dt", {}, line, name);
    make("dd", {}, line, typeof value === "object" ? JSON.stringify(value) : String(value));
    return line;
  }));
}

function show(status) {
  shown(at("ask"), false);
  shown(at("run"), true);
  for (const part of [facts, notice, progress, tiles, members, log, settings]) part(status);
  for (const chart of charts) chart(status);
}

// ---- Asking the hub -----------------------------------------------------------------------------

let token = "", timer = 0, failures = 0, asking = null, latest = null, heard = 0, nextTry = 0;

function link(is, text) {
  at("link").dataset.is = is;
  words(at("link-text"), text);
}

function askForToken(why) {
  stop();
  latest = null;
  shown(at("run"), false);
  shown(at("again"), false);
  shown(at("ask"), true);
  words(at("ask-why"), why);
  words(at("title"), "Training together");
  at("facts").replaceChildren();
  delete at("facts").dataset.is;
  document.title = "dgc hub";
  link("asks", "This page needs a token.");
  at("token").focus();
}

function stop() {
  clearTimeout(timer);
  asking?.abort();
  asking = null;
}

function later(pause) {
  clearTimeout(timer);
  nextTry = Date.now() + pause;
  if (!document.hidden) timer = setTimeout(ask, pause);
}

async function ask() {
  stop();
  if (!token || document.hidden) return;
  const mine = asking = new AbortController();
  const limit = setTimeout(() => mine.abort(), PATIENCE);
  try {
    const answer = await fetch("v1/status", { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", signal: mine.signal });
    if (mine !== asking) return;
    if (answer.status === 401) return askForToken("This token is unknown or revoked.");
    if (answer.status === 403) return askForToken("This token does not let its owner look at the run.");
    if (!answer.ok) throw new Error(`it answers with status ${answer.status}`);
    const status = await answer.json();
    if (mine !== asking) return;
    failures = 0;
    latest = status;
    heard = Date.now();
    shown(at("again"), false);
    link(status.finished ? "idle" : "live", status.finished ? "The run is over." : "Live");
    show(status);
    later(status.finished ? EVERY_AT_END : EVERY);
  } catch (error) {
    if (mine !== asking) return;
    away(error);
  } finally {
    clearTimeout(limit);
  }
}

function away(error) {
  const pause = Math.min(LONGEST_PAUSE, EVERY * 2 ** Math.min(failures++, 10)) * (0.8 + 0.4 * Math.random());
  const what = error.message?.startsWith("it answers") ? error.message : "it does not answer";
  link("away", `The hub is away: ${what}. This page goes on by itself.`);
  later(pause);
  shown(at("again"), true);
  waiting();
}

/** When the next try is, and how old the figures are. */
function waiting() {
  if (at("again").hidden) return;
  const old = latest ? ` Figures are ${lasting(Math.round((Date.now() - heard) / 1000))} old.` : "";
  words(at("again-text"), `Next try in ${Math.max(0, Math.ceil((nextTry - Date.now()) / 1000))} s.${old}`);
}

/** The token of the link, which is not sent to the hub with it. */
function takeToken() {
  const text = location.hash.slice(1);
  try {
    token = decodeURIComponent(text);
  } catch {
    token = text;
  }
  // What can be no token cannot be in a header either.
  if (!/^[A-Za-z0-9._~+/=-]+$/.test(token)) {
    const had = token !== "";
    token = "";
    return askForToken(had ? "What the link has after # is no token." : "");
  }
  failures = 0;
  shown(at("ask"), false);
  link("loading", "Asking the hub …");
  ask();
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = encodeURIComponent(at("token").value.trim());
  at("token").value = "";
  if (location.hash.slice(1) === text) return takeToken();  // the same again: nothing changes by itself
  location.hash = text;
});
at("try").addEventListener("click", ask);
at("all-rows").addEventListener("click", () => {
  everyRow = true;
  if (latest) members(latest);
});
addEventListener("hashchange", takeToken);
addEventListener("online", () => { if (token && failures) ask(); });
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stop();
  else if (token && at("ask").hidden) ask();
});
setInterval(waiting, 1000);
makeCharts();
takeToken();
