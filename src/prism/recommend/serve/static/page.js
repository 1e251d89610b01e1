// The page at /: pick products, watch the recommendations move, see why. Talks to the service it came from, and to nothing else.

const $ = (id) => document.getElementById(id);
const names = new Map();
let user = null;
let ranks = new Map(); // where each recommendation of this customer stood before
let probabilities = false; // whether scores are logarithms of them
let catalogue = 0; // items of the model

async function ask(method, path, body) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers["X-API-Key"] = $("key").value;
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.detail), { status: answer.status });
  return content;
}

function say(text, wrong = false) {
  $("said").textContent = text;
  $("said").className = wrong ? "error" : "";
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    say(error instanceof TypeError ? "The service cannot be reached: is it still running?" : error.message, true);
    if (error.status === 401) { $("access").hidden = false; $("access").open = true; $("key").focus(); }
  }
}

const label = (item) => names.get(String(item)) ?? String(item);
const events = (count) => `${count.toLocaleString()} event${count === 1 ? "" : "s"}`;

function keep(item, name) {
  if (name) names.set(String(item), name.trim());
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// [what is seen, what is read aloud] of a rank that changed
function moved(item, rank) {
  const before = ranks.get(String(item));
  if (!ranks.size || before === rank) return null;
  if (before === undefined) return ["new", "new in the list"];
  return before > rank ? [`▲ ${before - rank}`, `up ${before - rank}`] : [`▼ ${rank - before}`, `down ${rank - before}`];
}

function entry(item, extra, share, change) {
  const take = element("button", { type: "button", className: "take" }, element("span", {}, label(item)), element("small", {}, extra));
  if (change) {
    const mark = element("span", { className: change[0].startsWith("▼") ? "moved down" : "moved" }, change[0]);
    mark.setAttribute("aria-hidden", "true");
    take.append(mark, element("span", { className: "aloud" }, `, ${change[1]}`));
  }
  if (share !== undefined) take.style.setProperty("--share", `${share}%`);
  take.addEventListener("click", () => attempt(() => taken(item)));
  return element("li", {}, take);
}

// without a minus before zero, with a true one elsewhere
function signed(number, plus) {
  const text = Math.abs(number).toFixed(2);
  return Number(text) === 0 ? text : (number < 0 ? "−" : plus) + text;
}

function percent(score) {
  const share = 100 * Math.exp(score);
  return share >= 0.1 ? `${share.toFixed(1)} %` : "below 0.1 %";
}

function showRecommended(items) {
  const held = [...$("recommended").querySelectorAll(".take")].indexOf(document.activeElement);
  const best = items[0]?.score ?? 0, last = items.at(-1)?.score ?? 0;
  $("recommended").replaceChildren(...items.map((one, rank) => {
    keep(one.item, one.name);
    const share = probabilities ? Math.exp(one.score - best) : best > last ? (one.score - last) / (best - last) : 0.5;
    const told = probabilities ? percent(one.score) : `score ${signed(one.score, "")}`;
    const row = entry(one.item, `${one.item} · ${told}`, Math.round(3 + 97 * share), moved(one.item, rank));
    row.append(whyButton(one.item, row));
    return row;
  }));
  // who pressed one of them goes on at the same place: the button itself is gone
  if (held >= 0) ($("recommended").querySelectorAll(".take")[held] ?? $("search")).focus();
  ranks = new Map(items.map((one, rank) => [String(one.item), rank]));
}

// Opens and closes the reasons below a recommendation
function whyButton(item, row) {
  const why = element("button", { type: "button", className: "why" }, "Why?");
  why.setAttribute("aria-label", `Why ${label(item)}?`);
  why.setAttribute("aria-expanded", "false");
  why.addEventListener("click", () => attempt(async () => {
    const open = row.querySelector(".reasons");
    if (open) open.remove();
    else row.append(await reasons(item));
    why.setAttribute("aria-expanded", String(!open));
  }));
  return why;
}

async function reasons(item) {
  const found = await ask("GET", `because?user=${encodeURIComponent(user)}&item=${encodeURIComponent(item)}`);
  const made = element("div", { className: "reasons" });
  if (!found.length) {
    const what = $("history").children.length ? "The model knows none of these products yet" : "No history yet";
    say(`${what}: this is what most people start with.`);
    made.append(`${what}: this is what most people start with.`);
    return made;
  }
  const telling = found.filter((one, n) => n === 0 || Math.abs(one.effect) >= 0.005);
  const rows = telling.map((one) => {
    keep(one.item, one.name);
    const age = element("small", {}, one.age ? `${events(one.age)} ago` : "the latest");
    return element("tr", {}, element("td", {}, label(one.item), age), element("td", {}, signed(one.effect, "+")));
  });
  const heads = ["Because of", "adds to its score"].map((text) => element("th", { scope: "col" }, text));
  made.append(element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)));
  if (telling.length < found.length) made.append(element("p", {}, "Other events change nothing."));
  say(`${label(item)}: mostly because of ${label(found[0].item)}.`);
  return made;
}

async function taken(item) {
  const id = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
  const start = performance.now();
  const answer = await ask("POST", "events", { events: [{ user, item: String(item), id }], recommend: { k: 10 } });
  $("latency").textContent = `${(performance.now() - start).toFixed(1)} ms`;
  const items = answer.recommendations[0].items;
  showRecommended(items);
  await history();
  say(`${label(item)} taken.` + (items.length ? ` Most likely next: ${label(items[0].item)}.` : ""));
}

function showHistory(found) {
  const rows = found.history.map((one) => {
    keep(one.item, one.name);
    const when = new Date(1000 * one.time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    return element("li", {}, label(one.item), element("small", {}, when));
  });
  const list = $("history");
  list.replaceChildren(...rows.reverse());
  list.start = found.events;
  list.hidden = !found.events;
  $("nothing").hidden = !!found.events;
  $("forget").hidden = !found.events;
  ready();
  const more = found.events - rows.length;
  $("count").textContent = more > 0 ? `(${events(found.events)}, the latest ${rows.length} shown)` : `(${events(found.events)})`;
  $("events").textContent = found.events.toLocaleString();
  $("bytes").textContent = found.state_bytes ? `${(found.state_bytes / 1024).toFixed(1)} kB` : "–";
}

async function history() {
  try {
    showHistory(await ask("GET", `users/${encodeURIComponent(user)}`));
  } catch (error) {
    if (error.status !== 404) throw error;
    showHistory({ events: 0, history: [], state_bytes: 0 });
  }
}

const someone = () => `visitor-${Math.random().toString(36).slice(2, 8)}`;

async function open(name, fresh = false) {
  const answer = await ask("GET", `recommendations?user=${encodeURIComponent(name)}`);
  user = name; // not before: what is shown, taken and deleted stays one customer's if this fails
  ranks = new Map();
  $("user").value = user;
  showRecommended(answer.recommendations[0].items);
  if (fresh) showHistory({ events: 0, history: [], state_bytes: 0 });
  else await history();
  location.replace(`#${encodeURIComponent(user)}`); // a reload opens the same customer
  if (![...$("opened").options].some((one) => one.value === user)) $("opened").append(element("option", { value: user }));
  say(`${user} is open.`);
}

async function search() {
  const wanted = $("search").value.trim(), limit = 12;
  const found = await ask("GET", `items?limit=${limit}&search=${encodeURIComponent(wanted)}`);
  $("products").replaceChildren(...found.map((one) => {
    keep(one.item, one.name);
    const state = one.available ? one.known ? "" : one.recommended ? " · new" : " · new, and like nothing known" : " · not available";
    return entry(one.item, one.item + state);
  }));
  const count = found.length === limit ? `The first ${limit}` + (wanted ? "" : ` of ${catalogue.toLocaleString()}`) : `${found.length} found`;
  $("found").textContent = found.length ? count : `No product has “${wanted}” in its name or id.`;
}

// What is deleted is gone for good: it takes two presses.
function ready() {
  $("forget").textContent = "Delete this customer";
  $("forget").classList.remove("sure");
}

async function forget() {
  if (!$("forget").classList.contains("sure")) {
    $("forget").textContent = `Press again: all events of ${user} are deleted for good`;
    $("forget").classList.add("sure");
    return;
  }
  const gone = await ask("DELETE", `users/${encodeURIComponent(user)}`);
  await open(user);
  $("user").focus(); // the button is gone
  say(`${events(gone.removed_events)} of ${user} deleted.`);
}

let typing;
$("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => attempt(search), 120); });
$("customer").addEventListener("submit", (event) => { event.preventDefault(); attempt(() => open($("user").value.trim())); });
$("fresh").addEventListener("click", () => attempt(() => open(someone(), true)));
$("key").addEventListener("change", () => attempt(begin));
$("forget").addEventListener("click", () => attempt(forget));
$("forget").addEventListener("blur", ready);

async function begin() {
  const model = await ask("GET", "model");
  probabilities = model.probabilities;
  catalogue = model.items;
  const what = model.baseline ? `the baseline ${model.baseline}` : model.mixer;
  const size = model.state_bytes < 1024 ? `${model.state_bytes} bytes` : `${(model.state_bytes / 1024).toFixed(0)} kB`;
  $("model").textContent = `model ${model.name} · ${what} · ${model.items.toLocaleString()} items · ${size} per customer, however long the history`;
  await search();
  const known = decodeURIComponent(location.hash.slice(1));
  await open(known || someone(), !known);
}
attempt(begin);
