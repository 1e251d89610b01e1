// The page at /: pick products, watch the recommendations move, see why. Talks to the service it came from, and to nothing else.

const $ = (id) => document.getElementById(id);
const names = new Map();
let user = null;
let ranks = new Map(); // where each recommendation of this customer stood before

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
  try { await work(); } catch (error) { say(error.message, true); }
}

const label = (item) => names.get(String(item)) ?? String(item);

function keep(item, name) {
  names.set(String(item), (name ?? String(item)).trim());
}

// [what is seen, what is read aloud] of a rank that changed
function moved(item, rank) {
  const before = ranks.get(String(item));
  if (!ranks.size || before === rank) return null;
  if (before === undefined) return ["new", "new in the list"];
  return before > rank ? [`▲ ${before - rank}`, `up ${before - rank}`] : [`▼ ${rank - before}`, `down ${rank - before}`];
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function entry(item, extra, share, change) {
  const take = element("button", { type: "button", className: "take" }, label(item), element("small", {}, extra));
  if (change) {
    const mark = element("span", { className: "moved" }, change[0]);
    mark.setAttribute("aria-hidden", "true");
    take.append(mark, element("span", { className: "aloud" }, `, ${change[1]}`));
  }
  if (share !== undefined) take.style.setProperty("--share", `${share}%`);
  take.addEventListener("click", () => attempt(() => taken(item)));
  return element("li", {}, take);
}

function showRecommended(items) {
  const best = items.length ? items[0].score : 0, last = items.length ? items[items.length - 1].score : 0;
  $("recommended").replaceChildren(...items.map((one, rank) => {
    keep(one.item, one.name);
    const share = best > last ? Math.round(15 + 75 * (one.score - last) / (best - last)) : 50;
    const row = entry(one.item, `${one.item} · score ${one.score.toFixed(2)}`, share, moved(one.item, rank));
    const why = element("button", { type: "button" }, "Why?");
    why.setAttribute("aria-label", `Why ${label(one.item)}?`);
    why.addEventListener("click", () => attempt(() => reasons(one.item)));
    row.append(why);
    return row;
  }));
  ranks = new Map(items.map((one, rank) => [String(one.item), rank]));
}

async function taken(item) {
  if (!user) { $("user").value = `visitor-${Math.random().toString(36).slice(2, 8)}`; await open($("user").value); }
  const start = performance.now();
  const answer = await ask("POST", "events", { events: [{ user, item: String(item), id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` }], recommend: { k: 10 } });
  $("latency").textContent = `${(performance.now() - start).toFixed(1)} ms`;
  showRecommended(answer.recommendations[0].items);
  say(`${label(item)} taken.`);
  $("why").replaceChildren();
  await history();
}

async function reasons(item) {
  const found = await ask("GET", `because?user=${encodeURIComponent(user)}&item=${encodeURIComponent(item)}`);
  if (!found.length) { say("Nobody's history yet: this is what most people start with."); return; }
  const rows = found.map((one) => element("tr", {}, element("td", {}, one.name?.trim() ?? label(one.item), element("small", {}, one.age ? ` ${one.age} events ago` : " the latest")), element("td", {}, (one.effect > 0 ? "+" : "−") + Math.abs(one.effect).toFixed(3))));
  const head = element("tr", {}, element("th", { scope: "col" }, "event"), element("th", { scope: "col" }, "score with it − without"));
  $("why").replaceChildren(element("h3", {}, `${label(item)}, because of`), element("table", {}, head, ...rows));
}

async function history() {
  try {
    const found = await ask("GET", `users/${encodeURIComponent(user)}`);
    $("history").replaceChildren(...found.history.slice().reverse().map((item) => element("li", {}, label(item))));
    $("count").textContent = `(${found.events})`;
    $("events").textContent = found.events;
    $("bytes").textContent = `${(found.state_bytes / 1024).toFixed(1)} kB`;
    $("forget").hidden = false;
  } catch (error) {
    if (error.status !== 404) throw error;
    $("history").replaceChildren();
    $("count").textContent = "(nobody yet)";
    $("events").textContent = 0; $("bytes").textContent = "–"; $("forget").hidden = true;
  }
}

async function open(name) {
  user = name;
  ranks = new Map();
  $("why").replaceChildren();
  const answer = await ask("GET", `recommendations?user=${encodeURIComponent(user)}`);
  showRecommended(answer.recommendations[0].items);
  await history();
  say(`${user} is open.`);
}

async function search() {
  const found = await ask("GET", `items?limit=12&search=${encodeURIComponent($("search").value)}`);
  $("products").replaceChildren(...found.map((one) => { keep(one.item, one.name); return entry(one.item, one.available ? one.item : `${one.item} · not available`); }));
}

let typing;
$("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => attempt(search), 120); });
$("customer").addEventListener("submit", (event) => { event.preventDefault(); attempt(() => open($("user").value.trim())); });
$("key").addEventListener("change", () => attempt(begin));
$("forget").addEventListener("click", () => attempt(async () => { const gone = await ask("DELETE", `users/${encodeURIComponent(user)}`); await open(user); say(`${gone.removed_events} events of ${user} are deleted.`); }));

async function begin() {
  const model = await ask("GET", "model");
  $("model").textContent = `model ${model.name}: ${model.mixer}, ${model.items.toLocaleString()} items; a customer is ${(model.state_bytes / 1024).toFixed(0)} kB, however long the history`;
  await search();
}
attempt(begin);
