// How each kind of series is drawn: from data to a series of Apache ECharts. Colours are the page's variables, so
// light, dark and paper need no other drawing.

const { fontFamily } = getComputedStyle(document.body);
const colourOf = (line) => line.fill || (line.colour < 0 ? "var(--soft)" : `var(--c${line.colour})`);
const still = { emphasisDisabled: true }; // the library cannot lighten a colour that is a variable

// A bar with ends, from one point to another.
function whisker([x1, y1], [x2, y2]) {
  const line = (a, b, c, d) => ({
    type: "line", silent: true, shape: { x1: a, y1: b, x2: c, y2: d },
    style: { stroke: "var(--text)", lineWidth: 1.2, opacity: 0.75 },
  });
  const [dx, dy] = y1 === y2 ? [0, 3] : [3, 0];
  const end = (x, y) => line(x - dx, y - dy, x + dx, y + dy);
  return [line(x1, y1, x2, y2), end(x1, y1), end(x2, y2)];
}

// Which points' labels have room, and on which side: none lies on another one, or beyond the chart.
function labelSides(line, api, { x: left, width }) {
  const taken = [];
  return line.data.map(([x, y], at) => {
    const text = line.labels[at];
    if (!text) return 0;
    const [px, py] = api.coord([x, y]);
    for (const side of [1, -1]) {
      const from = side > 0 ? px + 9 : px - 9 - 6.6 * text.length;
      const box = [from, py - 16, from + 6.6 * text.length, py];
      const free = taken.every((other) => box[0] > other[2] || box[2] < other[0] || box[1] > other[3] || box[3] < other[1]);
      if (!free || box[0] < left || box[2] > left + width) continue;
      taken.push(box);
      return side;
    }
    return 0;
  });
}

const DRAWN = {
  line: (told, line) => ({
    type: "line", data: line.data, symbol: line.data.length > 60 ? "none" : "circle", symbolSize: 6,
    lineStyle: { color: colourOf(line), width: 2, type: line.dashed ? "dashed" : "solid" },
  }),

  band: (told, line) => ({
    type: "custom", silent: true, data: line.data, encode: { x: 0, y: [1, 2] }, z: 1, clip: true,
    renderItem({ dataIndex }, api) {
      if (dataIndex) return null; // one shape of all
      const below = line.data.map(([x, low]) => api.coord([x, low]));
      const above = line.data.map(([x, , high]) => api.coord([x, high])).reverse();
      return { type: "polygon", shape: { points: [...below, ...above] }, style: { fill: colourOf(line), opacity: 0.16 } };
    },
  }),

  boxes: (told, line) => ({
    type: "custom", data: line.data, encode: { x: [0, 1], y: 2 }, clip: true,
    renderItem(_, api) {
      const [left, top] = api.coord([api.value(0), api.value(2)]);
      const [right, bottom] = api.coord([api.value(1), told.y.low ?? 0]);
      const shape = { x: left, y: top, width: Math.max(right - left - 0.6, 0.8), height: Math.max(bottom - top, 1) };
      const several = told.lines.filter((one) => one.kind === "boxes").length > 1; // they lie on each other
      return { ...still, type: "rect", shape, style: { fill: colourOf(line), opacity: several ? 0.62 : 0.9 } };
    },
  }),

  bars(told, line) {
    const bars = told.lines.filter((one) => one.kind === "bars"); // beside each other, for each category
    return {
      type: "custom", data: line.data, encode: { x: [1, 2, 3], y: 0 }, clip: true,
      renderItem(_, api) {
        const [row, value, low, high] = [0, 1, 2, 3].map((at) => api.value(at));
        const [right, middle] = api.coord([value, row]);
        const left = api.coord([told.x.low ?? 0, row])[0];
        const room = 0.74 * api.size([0, 1])[1];
        const height = room / bars.length;
        const top = middle - room / 2 + bars.indexOf(line) * height;
        const shape = { x: left, y: top, width: Math.max(right - left, 1), height: Math.max(height - 1, 1) };
        const children = [{ ...still, type: "rect", shape, style: { fill: colourOf(line), opacity: 0.9 } }];
        if (!Number.isNaN(low) && low !== high) {
          const y = top + height / 2 - 0.5;
          children.push(...whisker([api.coord([low, row])[0], y], [api.coord([high, row])[0], y]));
        }
        return { ...still, type: "group", children };
      },
    };
  },

  points: (told, line, narrow) => ({
    type: "custom", data: line.data, encode: { x: 0, y: [1, 2, 3] },
    renderItem({ dataIndex, coordSys }, api) {
      const [x, y, low, high] = [0, 1, 2, 3].map((at) => api.value(at));
      const [cx, cy] = api.coord([x, y]);
      const circle = { fill: colourOf(line), stroke: "var(--card)", lineWidth: 1.2 };
      const children = [{ ...still, type: "circle", shape: { cx, cy, r: 5.5 }, style: circle }];
      if (!Number.isNaN(low)) children.unshift(...whisker(api.coord([x, low]), api.coord([x, high])));
      const side = narrow ? 0 : labelSides(line, api, coordSys)[dataIndex];
      const style = { text: line.labels[dataIndex], fill: "var(--text)", fontSize: 11.5, fontFamily, align: side > 0 ? "left" : "right" };
      if (side) children.push({ type: "text", silent: true, x: cx + 9 * side, y: cy - 14, style });
      return { ...still, type: "group", children };
    },
  }),

  upright: (told, line) =>
    straight(line, "xAxis", ...(told.y.scale === "category" ? ["end", 0, inwards(told, line)] : ["insideEndTop", 90])),
  across: (told, line) => straight(line, "yAxis", "insideStartTop", 0),
};

// To which side the text above an upright line goes, so that no edge of the chart cuts it off.
function inwards(told, line) {
  const bars = told.lines.filter((one) => one.kind === "bars").flatMap((one) => one.data.flatMap(([, ...values]) => values));
  const [low, high] = [told.x.low ?? 0, told.x.high ?? Math.max(line.data[0][0], ...bars)];
  const place = (line.data[0][0] - low) / (high - low);
  return place > 0.8 ? "right" : place < 0.2 ? "left" : "center";
}

function straight(line, axis, position, rotate, align = undefined) {
  const halo = { textBorderColor: "var(--card)", textBorderWidth: 3 };
  return {
    type: "line", data: [],
    markLine: {
      silent: true, symbol: "none", emphasis: { disabled: true }, data: line.data.map(([value]) => ({ [axis]: value })),
      lineStyle: { color: colourOf(line), width: 1.6, type: line.dashed ? "dashed" : "solid" },
      label: { formatter: line.name, color: "var(--text)", fontSize: 11.5, position, rotate, align, ...halo },
    },
  };
}

const seriesOption = (told, line, place, narrow) => ({
  id: String(place), name: line.name, color: colourOf(line), itemStyle: { color: colourOf(line) },
  emphasis: { disabled: true }, legendHoverLink: false, ...DRAWN[line.kind](told, line, narrow),
});
