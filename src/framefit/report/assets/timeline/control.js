// What a reader does: moving, zooming, choosing, searching; and the address that remembers it.

const LEAST_WIDTH = 20; // ns
const FIRST_WINDOWS = 6;

function show(start, width) {
  const span = page.span_ns || 1;
  view.width = Math.min(Math.max(width, LEAST_WIDTH), span * 1.02);
  view.start = Math.min(Math.max(start, -0.01 * span), 1.01 * span - view.width);
  redraw();
  remember();
}

const zoom = (factor, x = lanes.width / 2) => {
  const anchor = toTime(x);
  const width = Math.min(Math.max(view.width * factor, LEAST_WIDTH), page.span_ns * 1.02);
  show(anchor - (x / lanes.width) * width, width);
};
const move = (part) => show(view.start + part * view.width, view.width);
const fit = () => show(-0.01 * page.span_ns, 1.02 * page.span_ns);

// The address: #t=12.5ms&w=300us&hide=1&by=model&q=conv; a bare number is nanoseconds. Where a page has
// several timelines, in=NAME says which is meant; other addresses are the page's own anchors.
const SCALES = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9 };
function timeIn(text) {
  const found = /^\s*(-?[\d.]+(?:e\d+)?)\s*(ns|us|µs|ms|s)?\s*$/.exec(text ?? "");
  return found ? Number(found[1]) * SCALES[found[2] ?? "ns"] : NaN;
}

let remembering = 0;
let recalling = false;

// Kinds that are many, as where each segment is one, say less than models.
const defaultColours = () => (new Set(operations.map((one) => one.kind)).size > MOST_CLASSES + 1 && models.size > 1 ? "model" : "kind");

// At first: so few windows that each is seen; the strip above shows them all.
function begun() {
  const at = firstAbove(data.releases ?? [], 0);
  if (data.releases?.length > at + 4 * FIRST_WINDOWS) show(data.releases[at], data.releases[at + FIRST_WINDOWS] - data.releases[at]);
  else fit();
}

function remember() {
  if (recalling) return;
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    const told = new URLSearchParams({ t: Math.round(view.start), w: Math.round(view.width) });
    if (state.hide) told.set("hide", "1");
    if (classes.by !== defaultColours()) told.set("by", classes.by);
    if ($("search").value) told.set("q", $("search").value);
    if (document.querySelectorAll(".timeline").length > 1) told.set("in", host.id);
    try {
      history.replaceState(null, "", `#${told}`);
    } catch { /* too often for this browser; the next move will do */ }
  }, 200);
}

function recall() {
  const address = new URLSearchParams(location.hash.slice(1));
  const own = ["t", "w", "hide", "by", "q"].some((key) => address.has(key)) && (address.get("in") ?? host.id) === host.id;
  if (own || !frames) follow(own ? address : new URLSearchParams());
}

function follow(told) {
  recalling = true;
  $("hide").checked = told.get("hide") === "1";
  $("colour").value = ["kind", "model"].includes(told.get("by")) ? told.get("by") : defaultColours();
  arrange();
  const [start, width] = [timeIn(told.get("t")), timeIn(told.get("w"))];
  if (Number.isFinite(width)) show(Number.isFinite(start) ? start : (page.span_ns - width) / 2, width);
  else begun();
  $("search").value = told.get("q") ?? "";
  search(Number.isFinite(width) ? 0 : 1);
  recalling = false;
}

// Colours and what is hidden: everything that sums depend on.
function arrange() {
  state.hide = $("hide").checked;
  $("tip").hidden = true;
  if (state.hide && state.selected >= 0 && data.tracks[state.track].how[state.selected]) choose(state.track, -1);
  classify($("colour").value);
  for (const track of data.tracks) sumUp(track, state.hide);
  drawLegend();
  drawOverview();
  redraw();
  remember();
}

// -- searching

function search(step) {
  const text = $("search").value.trim();
  const number = /^(?:#|inference\s*)?(\d+)$/i.exec(text);
  state.found = null;
  $("matches").textContent = "";
  if (number) {
    if (step) toInference(Number(number[1]));
  } else if (text) {
    const wanted = text.toLowerCase();
    const hits = operations.flatMap((one, i) => (`${one.name}\n${one.layer}`.toLowerCase().includes(wanted) ? [i] : []));
    state.found = new Set(hits);
    let count = 0;
    for (const track of data.tracks) for (let i = 0; i < track.count; i++) if (state.found.has(track.operation[i])) count++;
    $("matches").textContent = count ? `${grouped(count)} found` : "not found";
    host.dataset.found = count;
    if (count && step) toNext((track, i) => state.found.has(track.operation[i]), step);
  }
  redraw();
  remember();
}

function toInference(wanted) {
  let [from, to] = [Infinity, -Infinity];
  for (const track of data.tracks)
    for (let i = 0; i < track.count; i++)
      if (track.inference[i] === wanted) {
        from = Math.min(from, track.start[i]);
        to = Math.max(to, track.end[i]);
      }
  $("matches").textContent = to < 0 ? "not there" : `inference ${grouped(wanted)}`;
  if (to < from) return;
  host.dataset.inference = wanted;
  show(from - 0.05 * (to - from), 1.1 * (to - from));
}

// The next (or previous) operation on any unit for which `good` holds; it is chosen and brought into view.
function toNext(good, step) {
  const chosen = state.selected >= 0 && data.tracks[state.track];
  const now = chosen ? chosen.start[state.selected] : view.start + view.width / 2 - (step > 0 ? view.width / 2 : 0);
  let best = null;
  data.tracks.forEach((track, place) => {
    const after = (i) => place > state.track || (place === state.track && i > state.selected);
    let i = firstAbove(track.start, now, step > 0 ? false : true);
    if (step < 0) i--;
    for (; i >= 0 && i < track.count; i += step) {
      const time = track.start[i];
      if (chosen && time === now && (place === state.track && i === state.selected || after(i) !== step > 0)) continue;
      if (best && (time - best.time) * step >= 0) break;
      if (good(track, i)) {
        best = { place, i, time };
        break;
      }
    }
  });
  if (!best) return false;
  choose(best.place, best.i);
  reveal();
  return true;
}

function toLoss() {
  const middle = view.start + view.width / 2;
  const close = view.width / 1000;
  const next = page.losses.find(([start, end]) => (start + end) / 2 > middle + close) ?? page.losses[0];
  if (!next) return;
  const [start, end] = next;
  const width = Math.max((end - start) * 3, 40 * typicalDuration());
  show((start + end) / 2 - width / 2, width);
}

function typicalDuration() {
  let [time, count] = [0, 0];
  for (const track of data.tracks)
    for (let i = 0; i < track.count; i += 1 + Math.floor(track.count / 1000)) {
      time += track.end[i] - track.start[i];
      count++;
    }
  return count ? time / count : 1e3;
}

function choose(place, i) {
  state.track = place;
  state.selected = i;
  $("detail").replaceChildren(...(i < 0 ? [] : describe(data.tracks[place], i, true)));
  host.dataset.selected = i < 0 ? "" : operations[data.tracks[place].operation[i]].name;
  redraw();
}

function reveal(closer = false) {
  const track = data.tracks[state.track];
  const [start, end] = [track.start[state.selected], track.end[state.selected]];
  const wide = Math.max(end - start, 1);
  if (closer || wide * 400 < view.width) {
    const width = closer ? wide * 4 : wide * 24;
    show((start + end) / 2 - width / 2, width);
  } else if (start < view.start || end > view.start + view.width) show((start + end) / 2 - view.width / 2, view.width);
}

// -- pointers

function hit(x, y) {
  const place = lanes.tracks.findIndex((top) => y >= top - 20 && y <= top + lanes.bar + 8);
  if (place < 0) return null;
  const track = data.tracks[place];
  const slack = (3 * view.width) / lanes.width;
  const time = toTime(x);
  const [low, high] = within(track, time - slack, time + slack);
  let [best, far] = [-1, Infinity];
  for (let i = low; i < Math.min(high, low + 2000); i++) {
    if (state.hide && track.how[i]) continue;
    const away = Math.max(track.start[i] - time, time - track.end[i], 0);
    if (away <= far) [best, far] = [i, away];
  }
  return { place, track, i: best, count: high - low, low, high };
}

function hover(event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const tip = $("tip");
  const loss = lanes.losses >= 0 && y >= lanes.losses && y < lanes.losses + 20
    && page.losses.find(([start, end]) => toX(start) - 4 <= x && x <= toX(end) + 4);
  const found = hit(x, y);
  if (!loss && (!found || found.i < 0)) {
    tip.hidden = true;
    return;
  }
  tip.replaceChildren(...(loss ? describeLoss(loss) : found.count > 24 ? describeMany(found, x) : describe(found.track, found.i)));
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18;
  const top = below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 14 : below;
  tip.style.transform = `translate(${Math.max(6, left)}px, ${Math.max(6, top)}px)`;
}

const pointers = new Map();
let moved = 0;
let pinch = null;

function pressed(event) {
  canvas.focus({ preventScroll: true });
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, event);
  if (pointers.size === 1) moved = 0;
  pinch = null;
}

function dragged(event) {
  if (!pointers.has(event.pointerId)) return hover(event);
  const before = pointers.get(event.pointerId);
  pointers.set(event.pointerId, event);
  const [one, two] = [...pointers.values()];
  const left = canvas.getBoundingClientRect().left;
  if (two) {
    const apart = Math.max(Math.abs(one.clientX - two.clientX), 12);
    const middle = (one.clientX + two.clientX) / 2 - left;
    pinch ??= { time: toTime(middle), ratio: apart * view.width };
    const width = Math.min(Math.max(pinch.ratio / apart, LEAST_WIDTH), page.span_ns * 1.02);
    show(pinch.time - (middle / lanes.width) * width, width);
    moved = 99;
    return;
  }
  moved += Math.abs(event.clientX - before.clientX);
  if (moved < 4) return;
  canvas.classList.add("moving");
  $("tip").hidden = true;
  show(view.start - ((event.clientX - before.clientX) / lanes.width) * view.width, view.width);
}

function released(event) {
  if (!pointers.delete(event.pointerId)) return;
  pinch = null;
  canvas.classList.remove("moving");
  if (moved >= 4 || event.type !== "pointerup") return;
  const box = canvas.getBoundingClientRect();
  const found = hit(event.clientX - box.left, event.clientY - box.top);
  choose(found ? found.place : state.track, found ? found.i : -1);
}

function wheeled(event) {
  if (!event.ctrlKey && document.activeElement !== canvas) return; // the page scrolls
  event.preventDefault();
  const size = event.deltaMode === 1 ? 16 : 1;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
    return move(((event.deltaX || event.deltaY) * size) / lanes.width);
  const x = event.clientX - canvas.getBoundingClientRect().left;
  zoom(Math.exp(Math.max(-0.6, Math.min(0.6, event.deltaY * size * (event.ctrlKey ? 0.012 : 0.0022)))), x);
}

function overviewPressed(event) {
  if (event.type === "pointermove" && !event.buttons) return;
  if (event.type === "pointerdown") overview.setPointerCapture(event.pointerId);
  const x = event.clientX - overview.getBoundingClientRect().left;
  show((x / lanes.width) * page.span_ns - view.width / 2, view.width);
}

// -- keys

const inView = () => firstAbove(data.tracks[state.track].start, view.start, false);
function neighbour(step) {
  const track = data.tracks[state.track];
  if (!track?.count) return;
  let i = state.selected < 0 ? inView() : state.selected + step;
  while (state.hide && track.how[i]) i += step;
  if (i < 0 || i >= track.count) return;
  choose(state.track, i);
  reveal();
}
function unit(step) {
  choose(Math.min(Math.max(state.track + step, 0), data.tracks.length - 1), -1);
}
const KEYS = {
  ArrowLeft: (far) => move(far ? -0.9 : -0.15), ArrowRight: (far) => move(far ? 0.9 : 0.15),
  ArrowUp: () => unit(-1), ArrowDown: () => unit(1),
  "+": () => zoom(0.7), "=": () => zoom(0.7), w: () => zoom(0.7), "-": () => zoom(1.43), s: () => zoom(1.43),
  a: () => move(-0.15), d: () => move(0.15), 0: fit, Home: fit, ",": () => neighbour(-1), ".": () => neighbour(1),
  Enter: () => state.selected >= 0 && reveal(true), i: () => !state.hide && toNext((track, i) => track.how[i], 1),
  l: toLoss, h: () => $("hide").click(), "/": () => $("search").focus(), "?": () => $("keys").showModal(),
  Escape: () => { $("search").value = ""; choose(state.track, -1); search(0); },
};

function keyed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open || !host.contains(event.target)) return;
  const typing = event.target === $("search");
  if (typing && event.key !== "Escape") return;
  const onCanvas = event.target === canvas || typing;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!KEYS[key] || (!onCanvas && (event.key.startsWith("Arrow") || event.key === "Enter"))) return;
  event.preventDefault();
  if (typing) canvas.focus();
  KEYS[key](event.shiftKey);
}

function listen() {
  canvas.addEventListener("wheel", wheeled, { passive: false });
  canvas.addEventListener("pointerdown", pressed);
  canvas.addEventListener("pointermove", dragged);
  canvas.addEventListener("pointerup", released);
  canvas.addEventListener("pointercancel", released);
  canvas.addEventListener("pointerleave", () => ($("tip").hidden = true));
  canvas.addEventListener("dblclick", () => state.selected >= 0 && reveal(true));
  canvas.addEventListener("focus", redraw);
  canvas.addEventListener("blur", redraw);
  overview.addEventListener("pointerdown", overviewPressed);
  overview.addEventListener("pointermove", overviewPressed);
  addEventListener("keydown", keyed);
  addEventListener("hashchange", recall);
  $("search").addEventListener("input", () => search(0));
  $("search").addEventListener("keydown", (event) => event.key === "Enter" && search(event.shiftKey ? -1 : 1));
  $("hide").addEventListener("change", arrange);
  $("colour").addEventListener("change", arrange);
  $("in").addEventListener("click", () => zoom(0.6));
  $("out").addEventListener("click", () => zoom(1 / 0.6));
  $("fit").addEventListener("click", fit);
  $("loss").addEventListener("click", toLoss);
  $("help").addEventListener("click", () => $("keys").showModal());
  new ResizeObserver(() => { layOut(); drawOverview(); draw(); }).observe(canvas.parentElement);
  addEventListener("theme", () => { readTheme(); layOut(); drawOverview(); draw(); });
}
