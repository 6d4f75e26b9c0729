// Words around the picture; and the start of everything.

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
  return [make("p", operation.name, { className: "title" }), facts(rows, all ? "facts" : "")];
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
  return [make("p", `${grouped(high - low)} operations in ${duration(to - from)}`, { className: "title" }), facts(shown)];
}

const describeLoss = ([start, end, text]) => [
  make("p", text, { className: "title" }),
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

async function begin() {
  const began = performance.now();
  try {
    await readData();
  } catch (error) {
    $("message").textContent = `The data of this page cannot be read (${error.message}). A current browser is needed.`;
    host.dataset.state = "failed";
    return;
  }
  $("message").textContent = "";
  const count = data.tracks.reduce((sum, track) => sum + track.count, 0);
  const inferred = data.tracks.reduce((sum, track) => sum + track.inferred.length, 0);
  $("colour-label").hidden = models.size < 2;
  $("hide-label").hidden = !inferred;
  $("loss").hidden = !page.losses.length;
  if (!count) {
    $("message").textContent = "There are no operations.";
    Object.assign(host.dataset, { state: "ready", operations: 0, drawn: 0 });
    host.querySelector(".tools").hidden = true;
    return;
  }
  readTheme();
  layOut();
  listen();
  recall();
  draw();
  Object.assign(host.dataset, { operations: count, inferred, loadMs: (performance.now() - began).toFixed(0), readyMs: performance.now().toFixed(0), state: "ready" });
}

begin();
