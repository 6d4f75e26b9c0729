// The whole: how busy the units are together, and where events were lost.
let wholePicture = null;
function drawOverview() {
  const [width, height] = [Math.round(lanes.width), 56];
  const used = new Float64Array(width);
  const guessed = new Float64Array(width);
  const step = page.span_ns / width;
  const last = classes.names.length;
  for (const track of data.tracks)
    eachColumn(track, 0, page.span_ns, width, (x, busy) => {
      let sum = 0;
      for (let k = 0; k < last; k++) sum += busy[k];
      used[x] += Math.min(1, sum / step) / data.tracks.length;
      guessed[x] += Math.min(1, busy[last] / step) / data.tracks.length;
    });
  const ratio = devicePixelRatio || 1;
  wholePicture = new OffscreenCanvas(Math.max(1, overview.width), Math.max(1, overview.height));
  const c = wholePicture.getContext("2d");
  c.scale(ratio, ratio);
  c.fillStyle = theme.lane;
  c.fillRect(0, 0, width, height);
  const bottom = height - 2;
  const most = height - 14;
  for (const [values, colour] of [[used, theme.soft], [guessed, theme.loss]]) {
    c.fillStyle = colour;
    c.globalAlpha = colour === theme.loss ? 0.75 : 0.55;
    for (let x = 0; x < width; x++) if (values[x] > 0) c.fillRect(x, bottom - values[x] * most, 1, values[x] * most);
  }
  c.globalAlpha = 1;
  const lost = new Float64Array(width); // share of each pixel
  for (const [start, end] of page.losses) {
    const [x, to] = [start / step, Math.max(end / step, start / step + 0.5)];
    for (let at = Math.floor(x); at < Math.min(to, width); at++) lost[at] += Math.min(to, at + 1) - Math.max(x, at);
  }
  c.fillStyle = theme.loss;
  for (let x = 0; x < width; x++) {
    if (!lost[x]) continue;
    c.globalAlpha = Math.min(1, 0.3 + 0.7 * lost[x]);
    c.fillRect(x, 2, 1, 5);
  }
}

function placeFrame() {
  const c = overview.getContext("2d");
  const [width, height] = [lanes.width, 56];
  c.clearRect(0, 0, width, height);
  c.drawImage(wholePicture, 0, 0, width, height);
  const x = (view.start / page.span_ns) * width;
  const to = x + Math.max(3, (view.width / page.span_ns) * width);
  c.fillStyle = theme.card;
  c.globalAlpha = 0.6;
  c.fillRect(0, 0, Math.max(0, x), height);
  c.fillRect(to, 0, Math.max(0, width - to), height);
  c.globalAlpha = 1;
  c.strokeStyle = theme.text;
  c.lineWidth = 1.5;
  c.strokeRect(Math.max(0.75, x), 0.75, Math.min(to, width - 0.75) - Math.max(0.75, x), height - 1.5);
}
