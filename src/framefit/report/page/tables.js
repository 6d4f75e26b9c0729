// Words and figures around the picture; and the start of everything.

function make(tag, content = [], settings = {}) {
  const element = Object.assign(document.createElement(tag), settings);
  element.append(...[content].flat());
  return element;
}

function edge(track, i, which, margins) {
  const how = which ? track.how[i] >> 4 : track.how[i] & 15;
  const time = which ? track.end[i] : track.start[i];
  if (!how) return [instant(time), make("br"), "measured"];
  const [low, high] = margins.slice(2 * which, 2 * which + 2);
  const around = low === 0 && high === 0 ? "no interval" : `−${duration(low)} … +${duration(high)}`;
  return [instant(time), make("br"), make("span", `inferred: ${page.hows[how]}`, { className: "inferred" }), ` (${around})`];
}

function facts(rows, className = "") {
  const cells = rows.map(([name, value]) => [make("dt", name), make("dd", value)]);
  return make("dl", className ? cells.map((pair) => make("div", pair)) : cells.flat(), { className });
}

// An operation in words; `all`: with what a tooltip has no room for.
function describe(track, i, all = false) {
  const operation = operations[track.operation[i]];
  const margins = marginsOf(track, i);
  const inference = track.inference[i];
  const rows = [
    ["duration", duration(track.end[i] - track.start[i], 4)],
    ["start", edge(track, i, 0, margins)],
    ["end", edge(track, i, 1, margins)],
    ["kind", operation.kind],
  ];
  if (operation.layer && operation.layer !== operation.name) rows.push(["layer", operation.layer]);
  if (operation.model) rows.push(["model", `${operation.model}, segment ${operation.segment}`]);
  if (inference >= 0) rows.push(["inference", grouped(inference)]);
  const at = data.launches && inference >= 0 && inference < data.launches[0].length;
  if (at) rows.push(["window, frame", `${grouped(data.launches[0][inference])}, ${grouped(data.launches[1][inference])}`]);
  if (all) {
    rows.push(["unit", track.name], ["operation", operation.index < 0 ? "not in the program" : String(operation.index)]);
    rows.push(["on the device's clock", `${BigInt(page.origin_ns) + BigInt(Math.round(track.start[i]))} ns`]);
  }
  return [make("p", operation.name, { className: "name" }), facts(rows, all ? "facts" : "")];
}

function describeMany({ track }, x) {
  const [from, to] = [toTime(x - 2), toTime(x + 2)];
  const [low, high] = within(track, from, to);
  const busy = new Float64Array(classes.names.length + 1);
  addBusy(track, from, to, low, high, busy);
  const rows = classes.names.map((name, k) => [name, busy[k]]).filter((row) => row[1] > 0).sort((a, b) => b[1] - a[1]);
  const shown = rows.slice(0, 5).map(([name, time]) => [name, percent(Math.min(1, time / (to - from)))]);
  const all = rows.reduce((sum, row) => sum + row[1], 0);
  if (busy.at(-1)) shown.push(["of it inferred", percent(busy.at(-1) / all)]);
  return [make("p", `${grouped(high - low)} operations in ${duration(to - from)}`, { className: "name" }), facts(shown)];
}

const describeLoss = ([start, end, text]) => [
  make("p", text, { className: "name" }),
  facts([["from", instant(start)], ["for", duration(end - start)]]),
];

function drawLegend() {
  const entry = (text, mark) => make("span", [mark, text]);
  const entries = classes.names.map((name, k) => {
    const mark = make("i");
    mark.style.background = classes.colours[k];
    return entry(name, mark);
  });
  const marks = [];
  if (data.tracks.some((track) => track.inferred.length))
    marks.push(["inferred", "hatched"], ["90 % interval of an edge; far out: share inferred", "whisker"]);
  if (data.priority?.[0].length) marks.push(["priority period", "reserved"]);
  if (page.losses.length) marks.push(["events lost", "lost"]);
  $("legend").replaceChildren(...entries, ...marks.map(([text, className]) => entry(text, make("i", [], { className }))));
}

function card(name, value, remark) {
  const small = remark ? [make("small", remark)] : [];
  return make("dl", [make("dt", name), make("dd", [value, ...small])], { className: "card" });
}

function drawCards(count, inferred) {
  const { profile } = page;
  const cards = [card("Operations", grouped(count), `in ${duration(page.span_ns)}`)];
  if (profile) {
    const { events } = profile;
    cards.push(card("Inferences", grouped(profile.inferences)));
    const odd = [["spurious", events.spurious], ["duplicated", events.duplicated], ["out of order", events.out_of_order]];
    const told = odd.filter((one) => one[1]).map(([name, number]) => `${grouped(number)} ${name}`).join(", ");
    cards.push(card("Events received", grouped(events.received), told || `of ${grouped(events.expected)} expected`));
    cards.push(card("Events lost", percent(events.expected ? events.lost / events.expected : 0), events.lost ? `${grouped(events.lost)}, all inferred` : "nothing to infer"));
    const units = Object.values(profile.utilisation_by_unit);
    const most = units.length ? Math.max(...units) : 0;
    const busiest = Object.keys(profile.utilisation_by_unit)[units.indexOf(most)];
    if (units.length) cards.push(card("Busiest unit", percent(most), busiest));
    const over = profile.violations.length;
    cards.push(card("Beyond expectation", grouped(over), over === 1 ? "operation" : "operations"));
  } else if (inferred) cards.push(card("Inferred", percent(inferred / count), `${grouped(inferred)} operations`));
  $("cards").replaceChildren(...cards);
}

const between = (time, [low, high]) => {
  const half = Math.max(high - time, time - low);
  return half > 0 ? [duration(time), make("small", ` ± ${duration(half, 2)}`)] : [duration(time)];
};

function panel(title, content, remark) {
  const note = remark ? [make("p", remark, { className: "note" })] : [];
  return make("section", [make("h2", title), ...[content].flat(), ...note], { className: "panel" });
}

function table(head, rows) {
  const line = (cells, tag) => make("tr", cells.map((cell) => make(tag, cell)));
  return make("table", [make("thead", line(head, "th")), make("tbody", rows.map((row) => line(row, "td")))]);
}

function totals(title, all, most) {
  const whole = Object.values(all).reduce((sum, one) => sum + one.duration_ns, 0) || 1;
  const sorted = Object.entries(all).sort((a, b) => b[1].duration_ns - a[1].duration_ns);
  const rows = sorted.slice(0, most).map(([name, one]) => {
    const bar = make("span", [], { className: "bar" });
    bar.style.width = `${(100 * one.duration_ns) / whole}%`;
    const first = make("span", [name, bar], { title: name });
    const each = one.count ? one.duration_ns / one.count : 0;
    return [first, grouped(one.count), between(one.duration_ns, one.interval_ns), duration(each), percent(one.inferred_ratio)];
  });
  const more = sorted.length > most ? `and ${sorted.length - most} more` : "";
  return panel(title, table(["", "count", "time", "each", "inferred"], rows), more);
}

function drawTables() {
  const { profile } = page;
  if (!profile) return;
  const list = (sentences) => make("ul", sentences.map((sentence) => make("li", sentence)));
  const parts = [];
  const units = Object.entries(profile.utilisation_by_unit).map(([name, used]) => [name, percent(used)]);
  if (profile.diagnosis.length) parts.push(panel("Why events were lost", list(profile.diagnosis)));
  if (profile.warnings.length) parts.push(panel("What to know of these figures", list(profile.warnings)));
  if (profile.violations.length) {
    const rows = profile.violations.slice(0, 12).map((one) => [
      make("span", one.operation, { title: one.operation }), grouped(one.count), duration(one.expected_ns),
      between(one.actual_ns, one.interval_ns), one.expected_ns ? `× ${(one.actual_ns / one.expected_ns).toFixed(2)}` : "–",
    ]);
    const more = profile.violations.length > 12 ? `and ${profile.violations.length - 12} more` : "";
    parts.push(panel("Longer than expected", table(["", "times", "expected", "took", "ratio"], rows), more));
  }
  if (Object.keys(profile.totals_by_kind).length) parts.push(totals("Time by kind", profile.totals_by_kind, 12));
  if (Object.keys(profile.totals_by_layer).length) parts.push(totals("Time by layer", profile.totals_by_layer, 12));
  if (units.length) parts.push(panel("Units", table(["", "busy"], units)));
  $("tables").replaceChildren(...parts);
}

async function begin() {
  const began = performance.now();
  try {
    await readData();
  } catch (error) {
    $("message").textContent = `The data of this page cannot be read (${error.message}). A current browser is needed.`;
    root.dataset.state = "failed";
    return;
  }
  $("message").textContent = "";
  const count = data.tracks.reduce((sum, track) => sum + track.count, 0);
  const inferred = data.tracks.reduce((sum, track) => sum + track.inferred.length, 0);
  const models = new Set(operations.map((one) => one.model).filter(Boolean));
  const method = page.profile && `${page.profile.method === "align" ? "by alignment" : "by rule"}, intervals ${page.profile.calibrated ? "calibrated on this trace" : "not calibrated"}`;
  const told = [`${data.tracks.length} unit${data.tracks.length === 1 ? "" : "s"}`, [...models].join(", "), inferred ? method : ""];
  $("subtitle").textContent = told.filter(Boolean).join(" · ");
  $("colour-label").hidden = models.size < 2;
  $("loss").hidden = !page.losses.length;
  drawCards(count, inferred);
  drawTables();
  if (!count) {
    $("message").textContent = "There are no operations.";
    Object.assign(root.dataset, { state: "ready", operations: 0, drawn: 0 });
    $("tools").hidden = true;
    return;
  }
  readTheme();
  layOut();
  listen();
  recall();
  draw();
  Object.assign(root.dataset, { operations: count, inferred, loadMs: (performance.now() - began).toFixed(0), state: "ready" });
}

begin();
