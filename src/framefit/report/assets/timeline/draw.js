// Drawing. A frame costs what the screen holds, not what the data holds.

const view = { start: 0, width: 1 }; // ns
const state = { hide: false, found: null, track: 0, selected: -1 };
const canvas = $("canvas");
const overview = $("overview");
const lanes = { ruler: 0, windows: -1, losses: -1, tracks: [], bar: 46, height: 0, width: 0 };
const theme = {};
const DETAIL = 0.4; // operations a pixel up to which each one is drawn

function readTheme() {
  const probe = host.appendChild(make("i")); // a variable may name one colour for light and another for dark
  for (const name of ["text", "soft", "line", "lane", "card", "beat", "priority", "loss", "focus"]) {
    probe.style.color = `var(--${name})`;
    theme[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  theme.font = getComputedStyle(document.body).fontFamily;
  theme.hatch = hatching(theme.card);
}

function hatching(colour) {
  const tile = new OffscreenCanvas(8, 8);
  const c = tile.getContext("2d");
  c.strokeStyle = colour;
  c.lineWidth = 2;
  for (const shift of [-8, 0, 8]) {
    c.moveTo(shift - 1, 9);
    c.lineTo(shift + 9, -1);
  }
  c.stroke();
  return tile;
}

function layOut() {
  const width = canvas.parentElement.clientWidth;
  lanes.width = width;
  lanes.bar = Math.min(64, Math.max(26, Math.round(240 / Math.max(1, data.tracks.length))));
  let y = 26;
  const lane = (height) => (y += height) - height;
  lanes.windows = data.releases ? lane(20) : -1;
  lanes.losses = page.losses.length ? lane(22) : -1;
  lanes.tracks = data.tracks.map(() => lane(24 + lanes.bar + 8) + 24);
  lanes.height = y + 6;
  sized(canvas, width, lanes.height);
  sized(overview, width, 56);
}

function sized(one, width, height) {
  const ratio = devicePixelRatio || 1;
  one.style.height = `${height}px`;
  one.width = Math.round(width * ratio);
  one.height = Math.round(height * ratio);
  one.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
}

const toX = (ns) => ((ns - view.start) / view.width) * lanes.width;
const toTime = (x) => view.start + (x / lanes.width) * view.width;

let frames = 0;
let worst = 0;
function draw() {
  const began = performance.now();
  const c = canvas.getContext("2d");
  c.clearRect(0, 0, lanes.width, lanes.height);
  const counts = { operations: 0, columns: 0 };
  drawRuler(c);
  drawBeat(c);
  drawLosses(c);
  data.tracks.forEach((track, place) => drawTrack(c, track, place, counts));
  drawSelection(c);
  placeFrame();
  const spent = performance.now() - began;
  if (frames++ > 0) worst = Math.max(worst, spent); // the first one compiles
  Object.assign(host.dataset, {
    drawn: counts.operations, columns: counts.columns, frameMs: spent.toFixed(2), worstFrameMs: worst.toFixed(2),
    frames, start: Math.round(view.start), width: Math.round(view.width), hideInferred: state.hide,
  });
}

let asked = 0;
const redraw = () => (asked ||= requestAnimationFrame(() => { asked = 0; draw(); }));

function tickStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}

function drawRuler(c) {
  const step = Math.max(1, tickStep((view.width / lanes.width) * (lanes.width < 560 ? 84 : 110)));
  const [scale, unit] = step < 1e3 && view.start < 1e6 ? [1, "ns"] : step < 1e5 && view.start < 1e9 ? [1e3, "µs"] : step < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
  c.font = `11px ${theme.font}`;
  c.textAlign = "left";
  c.textBaseline = "middle";
  for (let at = Math.ceil(view.start / step) * step; at <= view.start + view.width; at += step) {
    const x = Math.round(toX(at)) + 0.5;
    c.fillStyle = theme.line;
    c.fillRect(x - 0.5, 0, 1, lanes.height);
    c.fillStyle = theme.soft;
    const [whole, part] = (at / scale).toFixed(digits).split(".");
    const text = `${grouped(whole)}${part ? `.${part}` : ""}${thin}${unit}`;
    if (x + 4 + c.measureText(text).width < lanes.width) c.fillText(text, x + 4, 11);
  }
}

function drawBeat(c) {
  if (!data.releases) return;
  const { releases } = data;
  const first = Math.max(0, firstAbove(releases, view.start) - 1);
  const last = firstAbove(releases, view.start + view.width, false);
  const wide = (lanes.width * (last - first)) / Math.max(1, last - first) ** 2;
  c.font = `11px ${theme.font}`;
  c.textBaseline = "middle";
  c.textAlign = "left";
  if (wide >= 4)
    for (let i = first; i < Math.min(last, releases.length - 1); i++) {
      const [x, to] = [Math.max(-1, toX(releases[i])), Math.min(lanes.width + 1, toX(releases[i + 1]))];
      c.fillStyle = i % 2 ? theme.beat : theme.lane;
      c.fillRect(x, lanes.windows, to - x, 15);
      c.fillStyle = theme.line;
      c.fillRect(Math.round(toX(releases[i])), lanes.windows, 1, lanes.height - lanes.windows);
      if (to - x < 58) continue;
      c.fillStyle = theme.soft;
      c.fillText(to - x > 90 ? `window ${grouped(i)}` : grouped(i), Math.max(x, 0) + 5, lanes.windows + 8);
    }
  if (!data.priority) return;
  const [starts, lengths] = data.priority;
  const from = Math.max(0, firstAbove(starts, view.start) - 1);
  const until = firstAbove(starts, view.start + view.width, false);
  if (until - from > lanes.width / 3) return;
  for (let i = from; i < until; i++) {
    const [x, to] = [Math.max(-1, toX(starts[i])), Math.min(lanes.width + 1, toX(starts[i] + lengths[i]))];
    if (to <= x) continue;
    c.fillStyle = theme.priority;
    c.fillRect(x, lanes.windows + 15, to - x, lanes.height - lanes.windows - 15);
    c.fillStyle = theme.focus;
    c.fillRect(x, lanes.windows + 15, to - x, 2);
  }
}

function drawTrack(c, track, place, counts) {
  const top = lanes.tracks[place];
  const from = view.start;
  const to = view.start + view.width;
  const [low, high] = within(track, from, to);
  const busy = new Float64Array(classes.names.length + 1);
  addBusy(track, from, to, low, high, busy);
  const all = busy.slice(0, -1).reduce((sum, one) => sum + one, 0);
  const inferred = state.hide ? " measured" : busy.at(-1) > 0 ? `, ${percent(busy.at(-1) / all)} inferred` : "";
  c.textBaseline = "middle";
  c.textAlign = "left";
  c.font = `600 12px ${theme.font}`;
  c.fillStyle = theme.text;
  c.fillText(track.name, 6, top - 10);
  const at = 6 + c.measureText(track.name).width + 8;
  c.font = `11px ${theme.font}`;
  c.fillStyle = theme.soft;
  const seen = Math.min(to, page.span_ns) - Math.max(from, 0); // the view may reach beyond the run
  c.fillText(`busy ${percent(seen > 0 ? Math.min(1, all / seen) : 0)}${inferred}`, at, top - 10);
  if (place === state.track && document.activeElement === canvas) {
    c.fillStyle = theme.focus;
    c.fillRect(0, top - 18, 3, lanes.bar + 20);
  }
  c.fillStyle = theme.line;
  c.fillRect(0, top + lanes.bar, lanes.width, 1);
  if (high - low > lanes.width * DETAIL) drawColumns(c, track, top, counts);
  else drawOperations(c, track, top, low, high, counts);
}

// Far out: of each pixel column the busy time by class, stacked, and below it what is inferred.
// As pixels: a canvas takes them far quicker than thousands of thin rectangles.
function drawColumns(c, track, top, counts) {
  const width = Math.round(lanes.width);
  const ratio = devicePixelRatio || 1;
  const bar = Math.round(lanes.bar * ratio);
  const height = Math.round((lanes.bar + 8) * ratio);
  if (track.sheet?.width !== width || track.sheet.height !== height) {
    track.sheet = new OffscreenCanvas(width, height);
    track.picture = new ImageData(width, height);
  }
  const { sheet, picture } = track;
  picture.data.fill(0);
  const pixels = new Uint32Array(picture.data.buffer);
  const last = classes.names.length;
  const colours = classes.colours.map(packed);
  const below = packed(theme.loss);
  const step = view.width / width;
  const strip = height - bar - Math.round(2 * ratio);
  eachColumn(track, view.start, view.width, width, (x, busy) => {
    let sum = 0;
    for (let k = 0; k < last; k++) sum += busy[k];
    const scale = bar / Math.max(step, sum);
    let filled = 0;
    for (let k = 0, reached = 0; k < last; k++) {
      if (!busy[k]) continue;
      reached += busy[k] * scale;
      for (; filled + 0.5 < reached; filled++) pixels[(bar - 1 - filled) * width + x] = colours[k];
      counts.columns++;
    }
    if (!busy[last]) return;
    const rows = Math.max(1, Math.round((strip * busy[last]) / sum));
    for (let y = 0; y < rows; y++) pixels[(bar + Math.round(2 * ratio) + y) * width + x] = below;
  });
  sheet.getContext("2d").putImageData(picture, 0, 0);
  c.fillStyle = theme.line; // as high as a unit that is always busy
  c.fillRect(0, top, lanes.width, 1);
  c.globalAlpha = state.found ? 0.4 : 1;
  c.drawImage(sheet, 0, top, lanes.width, height / ratio);
  c.globalAlpha = 1;
}

// Red, green and blue of #rrggbb, or of rgb(r, g, b).
function parts(colour) {
  return colour[0] === "#" ? [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)) : colour.match(/[\d.]+/g).slice(0, 3).map(Number);
}

// A colour as one number: alpha, blue, green, red.
function packed(colour) {
  const [r, g, b] = parts(colour);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

function drawOperations(c, track, top, low, high, counts) {
  const { bar } = lanes;
  const shown = [];
  for (let i = low; i < high; i++) {
    if (track.end[i] < view.start) continue;
    const how = track.how[i];
    if (state.hide && how) drawKnownEdges(c, track, i, top);
    else shown.push(i);
  }
  const looks = shown.map((i) => {
    const x = Math.max(-20, toX(track.start[i]));
    const to = Math.min(lanes.width + 20, toX(track.end[i]));
    return [i, x, Math.max(to - x - (to - x > 4 ? 1 : 0), 0.8)];
  });
  for (const [i, x, width] of looks) {
    const operation = operations[track.operation[i]];
    const colour = classes.colours[classes.of[track.operation[i]]];
    const dimmed = state.found && !state.found.has(track.operation[i]);
    c.globalAlpha = dimmed ? 0.22 : 1;
    c.fillStyle = colour;
    c.fillRect(x, top, width, bar);
    if (track.how[i]) drawUncertain(c, track, i, top, colour, width);
    if (width > 30 && !dimmed) label(c, operation.name, x, top, width, colour, track.how[i]);
    c.globalAlpha = 1;
  }
  counts.operations += shown.length;
}

// What is not measured: hatched inside, dashed at the edge, and its interval as a whisker.
function drawUncertain(c, track, i, top, colour, width) {
  const { bar } = lanes;
  const [earlier, later, endEarlier, endLater] = marginsOf(track, i);
  const startHow = track.how[i] & 15;
  const endHow = track.how[i] >> 4;
  const [x, to] = [toX(track.start[i]), toX(track.end[i])];
  const room = Math.max((to - x) / 2, 0.4);
  const edge = (at, low, high, inwards) => {
    const reach = Math.min(room, Math.max(6, inwards));
    const from = at === x ? x : to - reach;
    hatch(c, startHow && endHow ? x : from, top, startHow && endHow ? to - x : reach, bar);
    c.fillStyle = colour;
    const alpha = c.globalAlpha;
    c.globalAlpha = 0.28 * alpha;
    c.fillRect(low, top + 4, high - low, bar - 8);
    c.globalAlpha = alpha;
    c.fillStyle = theme.loss;
    const y = top + bar + 4;
    c.fillRect(low, y - 0.75, Math.max(high - low, 1.5), 1.5);
    if (high - low < 5) return;
    c.fillRect(low, y - 3, 1.5, 6);
    c.fillRect(high - 1.5, y - 3, 1.5, 6);
    for (let dash = top; dash < top + bar; dash += 6) c.fillRect(at - 0.75, dash, 1.5, 3);
  };
  if (startHow) edge(x, toX(track.start[i] - earlier), toX(track.start[i] + later), toX(track.start[i] + later) - x);
  if (endHow) edge(to, toX(track.end[i] - endEarlier), toX(track.end[i] + endLater), to - toX(track.end[i] - endEarlier));
}

function hatch(c, x, y, width, height) {
  const [from, to] = [Math.max(x, 0), Math.min(x + width, lanes.width)];
  if (to <= from) return;
  const pattern = c.createPattern(theme.hatch, "repeat");
  c.save();
  c.globalAlpha *= 0.7;
  c.fillStyle = pattern;
  c.fillRect(from, y, to - from, height);
  c.restore();
}

function drawKnownEdges(c, track, i, top) {
  c.fillStyle = classes.colours[classes.of[track.operation[i]]];
  if (!(track.how[i] & 15)) c.fillRect(toX(track.start[i]), top, 2, lanes.bar);
  if (!(track.how[i] >> 4)) c.fillRect(toX(track.end[i]) - 2, top, 2, lanes.bar);
}

const widths = new Map(); // labels are of one size; measuring is slow
function widthOf(c, text) {
  if (!widths.has(text)) widths.set(text, c.measureText(text).width);
  return widths.get(text);
}

function label(c, text, x, top, width, colour, hatched) {
  const from = Math.max(x, 0);
  const room = Math.min(x + width, lanes.width) - from - 9;
  c.font = `500 11px ${theme.font}`;
  const whole = widthOf(c, text);
  const letters = Math.floor((room / whole) * text.length);
  if (letters < Math.min(3, text.length)) return;
  const shown = whole <= room ? text : `${text.slice(0, letters - 1)}…`;
  c.textBaseline = "middle";
  c.textAlign = "left";
  const y = top + lanes.bar / 2;
  if (hatched) {
    c.fillStyle = colour;
    c.fillRect(from + 3, y - 8, c.measureText(shown).width + 5, 16);
  }
  c.fillStyle = inkOn(colour);
  c.fillText(shown, from + 5, y + 0.5);
}

const inks = new Map();
function inkOn(colour) {
  if (!inks.has(colour)) {
    const [r, g, b] = parts(colour).map((part) => (part / 255) ** 2.2);
    inks.set(colour, 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#10151c" : "#ffffff");
  }
  return inks.get(colour);
}

function drawLosses(c) {
  if (lanes.losses < 0) return;
  const top = lanes.losses;
  const bottom = lanes.height - 6;
  let free = -1; // labels do not lie on each other, nor one pixel's losses on one another
  let drawn = -1;
  for (const [start, end, text] of page.losses) {
    if (end < view.start || start > view.start + view.width) continue;
    const [x, to] = [Math.max(-2, toX(start)), Math.min(lanes.width + 2, toX(end))];
    const width = Math.max(to - x, 2);
    if (x + width <= drawn) continue;
    drawn = x + width;
    c.fillStyle = theme.loss;
    c.fillRect(x, top, width, 3);
    if (width >= 5) {
      c.globalAlpha = 0.1;
      c.fillRect(x, top + 3, width, bottom - top - 3);
      c.globalAlpha = 1;
    }
    const from = Math.max(x, 0) + 2;
    if (from < free || (width < 3 && view.width > page.span_ns / 3)) continue;
    c.font = `11px ${theme.font}`;
    c.textBaseline = "middle";
    c.textAlign = "left";
    const room = widthOf(c, text);
    if (from + room > lanes.width + 2) continue;
    c.fillStyle = theme.text;
    c.fillText(text, from + 1, top + 11);
    free = from + room + 12;
  }
}

function drawSelection(c) {
  const track = data.tracks[state.track];
  if (!track || state.selected < 0) return;
  const x = toX(track.start[state.selected]);
  const width = Math.max(toX(track.end[state.selected]) - x, 2);
  if (x > lanes.width || x + width < 0) return;
  c.strokeStyle = theme.text;
  c.lineWidth = 2;
  c.strokeRect(Math.max(x, -4), lanes.tracks[state.track] - 1, Math.min(width, lanes.width + 8), lanes.bar + 2);
}
