// Sums over many operations at once: exact busy time of any interval from few reads.

const BLOCK = 16; // operations a block: at most two blocks' worth are looked at one by one
const MOST_CLASSES = 6;

// Kinds: Okabe and Ito, Color Universal Design, without vermilion (losses) and black; grey for the rest. Models have
// the colours that they have in all pictures of a run.
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442"];
const REST = "#8d939c";

const classes = { by: "kind", names: [], colours: [], of: new Uint8Array(0) };

// Operations to classes: the six with the most time, then the rest. Models keep the program's order, as in other pictures.
function classify(by) {
  const time = new Map();
  for (const operation of operations) time.set(operation[by], 0);
  for (const track of data.tracks)
    for (let i = 0; i < track.count; i++) {
      const name = operations[track.operation[i]][by];
      time.set(name, time.get(name) + track.end[i] - track.start[i]);
    }
  const order = [...time.keys()];
  const names = order.filter((name) => time.get(name) > 0).sort((a, b) => time.get(b) - time.get(a));
  const shown = names.length > MOST_CLASSES + 1 ? names.slice(0, MOST_CLASSES) : names;
  if (by === "model") shown.sort((a, b) => order.indexOf(a) - order.indexOf(b));
  classes.by = by;
  classes.names = shown.map((name) => name || "unknown");
  classes.colours = shown.map((name, i) => (by === "model" ? page.colours[name] : PALETTE[i]) ?? REST);
  if (shown.length < names.length) {
    classes.names.push(`${names.length - shown.length} others`);
    classes.colours.push(REST);
  }
  classes.of = Uint8Array.from(operations, (operation) => {
    const place = shown.indexOf(operation[by]);
    return place < 0 ? Math.max(classes.names.length - 1, 0) : place;
  });
}

// Running sums of busy time by class at every block's start; the last column is what is inferred.
function sumUp(track, hideInferred) {
  const width = classes.names.length + 1;
  const blocks = Math.floor(track.count / BLOCK) + 1;
  const sums = new Float64Array((blocks + 1) * width);
  const running = new Float64Array(width);
  for (let i = 0; i < track.count; i++) {
    if (i % BLOCK === 0) sums.set(running, (i / BLOCK) * width);
    if (hideInferred && track.how[i]) continue;
    const busy = track.end[i] - track.start[i];
    running[classes.of[track.operation[i]]] += busy;
    if (track.how[i]) running[width - 1] += busy;
  }
  track.sums = sums;
  track.hidden = hideInferred;
}

// Adds to `out` the busy time within [from, to) by class, of operations `low` to `high` - 1.
function addBusy(track, from, to, low, high, out) {
  const width = out.length;
  const firstBlock = Math.ceil((low + 1) / BLOCK);
  const lastBlock = Math.floor((high - 1) / BLOCK);
  if (lastBlock <= firstBlock) return addEach(track, from, to, low, high, out);
  addEach(track, from, to, low, firstBlock * BLOCK, out);
  const { sums } = track;
  for (let c = 0; c < width; c++) out[c] += sums[lastBlock * width + c] - sums[firstBlock * width + c];
  addEach(track, from, to, lastBlock * BLOCK, high, out);
}

function addEach({ start, end, how, operation, hidden }, from, to, low, high, out) {
  for (let i = low; i < high; i++) {
    if (hidden && how[i]) continue;
    const busy = (end[i] < to ? end[i] : to) - (start[i] > from ? start[i] : from);
    if (busy <= 0) continue;
    out[classes.of[operation[i]]] += busy;
    if (how[i]) out[out.length - 1] += busy;
  }
}

// Operations that touch [from, to), as first place and place after the last.
function within(track, from, to) {
  const low = firstAbove(track.reach, from);
  return [low, firstAbove(track.start, to, false, low)];
}

// Calls `use(x, busy by class)` for each of `columns` equal parts of [from, from + width).
function eachColumn(track, from, width, columns, use) {
  const out = new Float64Array(classes.names.length + 1);
  const step = width / columns;
  let low = firstAbove(track.reach, from);
  for (let x = 0; x < columns; x++) {
    const a = from + x * step;
    const b = a + step;
    while (low < track.count && track.reach[low] <= a) low++;
    if (low >= track.count) return;
    if (track.start[low] >= b) continue;
    let jump = 1; // gallop: the next column's place is near
    while (low + jump < track.count && track.start[low + jump] < b) jump *= 2;
    const high = firstAbove(track.start, b, false, low + (jump >> 1), Math.min(low + jump, track.count));
    out.fill(0);
    addBusy(track, a, b, low, high, out);
    use(x, out);
    if (!track.nested) low = Math.max(low, high - 1);
  }
}
