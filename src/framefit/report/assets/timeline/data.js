// The data: from text to typed arrays. Times are nanoseconds from the timeline's origin.

const $ = (part) => host.querySelector(`[data-part="${part}"]`);
const page = JSON.parse($("page").textContent);

async function inflated(text) {
  const raw = atob(text.trim());
  const packed = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Bytes in planes: all lowest ones first, then all second ones, ...
function column(bytes, { at, count, planes, signed, summed }, Form = Float64Array) {
  const values = new Float64Array(count);
  for (let plane = 0, scale = 1; plane < planes; plane++, scale *= 256) {
    const from = at + plane * count;
    for (let i = 0; i < count; i++) values[i] += bytes[from + i] * scale;
  }
  if (signed) for (let i = 0; i < count; i++) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
  if (summed) for (let i = 1; i < count; i++) values[i] += values[i - 1];
  return Form === Float64Array ? values : Form.from(values);
}

const operations = page.operations.map(([name, kind, unit, layer, program, model, segment, index]) => ({
  name: page.texts[name], kind: page.texts[kind], unit: page.texts[unit], layer: page.texts[layer],
  program: page.texts[program], model: page.texts[model], segment, index,
}));

const models = new Set(operations.map((one) => one.model).filter(Boolean));

function readTrack(bytes, told) {
  const start = column(bytes, told.start);
  const count = start.length;
  const end = column(bytes, told.duration);
  let nested = false;
  for (let i = 0; i < count; i++) {
    end[i] += start[i];
    nested ||= i > 0 && end[i] < end[i - 1];
  }
  let reach = end; // the latest end so far: ascending, also where operations overlap
  if (nested) {
    reach = end.slice();
    for (let i = 1; i < count; i++) reach[i] = Math.max(reach[i], reach[i - 1]);
  }
  const how = column(bytes, told.how, Uint8Array);
  const inferred = new Uint32Array(told.margins[0].count);
  for (let i = 0, at = 0; i < count; i++) if (how[i]) inferred[at++] = i;
  return {
    name: told.name, count, start, end, reach, nested, how, inferred,
    operation: column(bytes, told.operation, Uint32Array),
    inference: column(bytes, told.inference, Int32Array),
    margins: told.margins.map((margin) => column(bytes, margin)),
  };
}

const data = { tracks: [], releases: null, priority: null, launches: null };

async function readData() {
  const bytes = await inflated($("data").textContent);
  $("data").textContent = "";
  data.tracks = page.tracks.map((told) => readTrack(bytes, told));
  const both = (columns) => columns && columns.map((one) => column(bytes, one));
  data.releases = page.releases && column(bytes, page.releases);
  data.priority = both(page.priority);
  data.launches = both(page.launches);
}

// The first place whose value is above (or, unless strict, at) the wanted one.
function firstAbove(values, wanted, strict = true, from = 0, to = values.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (strict ? values[middle] > wanted : values[middle] >= wanted) to = middle;
    else from = middle + 1;
  }
  return from;
}

// [start earlier, start later, end earlier, end later] by at most so much, in 90 % of cases
function marginsOf(track, i) {
  if (!track.how[i]) return [0, 0, 0, 0];
  const at = firstAbove(track.inferred, i, false);
  return track.margins.map((margin) => margin[at]);
}

const thin = "\u2009";

function duration(ns, digits = 3) {
  const size = Math.abs(ns);
  const [scale, unit] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "µs"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const value = ns / scale;
  const shown = scale === 1 ? Math.round(value) : value.toFixed(Math.max(0, digits - String(Math.trunc(Math.abs(value))).length));
  return `${String(shown).replace("-", "−")}${thin}${unit}`;
}

// A time with all of its digits, thousands apart.
function instant(ns) {
  const [whole, rest] = (Math.abs(ns) / 1e6).toFixed(6).split(".");
  return `${ns < 0 ? "−" : ""}${grouped(whole)}.${rest.slice(0, 3)}${thin}${rest.slice(3)}${thin}ms`;
}

const grouped = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, thin);

function percent(ratio) {
  const value = 100 * ratio;
  return `${value === 0 || value >= 99.95 ? value.toFixed(0) : value < 0.95 ? value.toPrecision(1) : value.toFixed(1)}${thin}%`;
}
