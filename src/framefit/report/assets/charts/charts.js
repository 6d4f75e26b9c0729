// From charts as data to options of Apache ECharts. On paper a chart is scaled, since it is a vector.

const NARROW = 520; // px: a phone
const safe = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

function figureText(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toPrecision(3).replace(/\.?0+e/, "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en").replaceAll(",", "\u2009");
  return String(Number(value.toPrecision(4)));
}

const withUnit = (value, axis) => `${figureText(value)}${axis.unit ? ` ${axis.unit}` : ""}`;
const titled = (axis) => (axis.unit && axis.name ? `${axis.name}, ${axis.unit}` : axis.name || axis.unit);
const isRound = (end) => end === null || Number(end.toPrecision(2)) === end;

// Beginning and end of a long name tell more than its middle.
function shortened(text, letters) {
  if (text.length <= letters) return text;
  const head = Math.floor(letters * 0.38);
  return `${text.slice(0, head)}…${text.slice(text.length - letters + head + 1)}`;
}

function axisOption(axis, vertical, narrow) {
  const label = { color: "var(--soft)", fontSize: 11.5, hideOverlap: true };
  const shared = {
    name: titled(axis), nameLocation: vertical ? "end" : "middle", nameGap: vertical ? 12 : 26,
    nameTextStyle: {
      color: "var(--soft)", fontSize: 12, align: vertical ? "left" : "center", padding: vertical ? [0, 0, 0, -34] : 0,
    },
    axisLine: { show: !vertical, lineStyle: { color: "var(--soft)" } }, axisTick: { show: !vertical },
    splitLine: { show: axis.scale !== "category", lineStyle: { color: "var(--line)" } },
  };
  if (axis.scale === "category") {
    const formatter = (name) => shortened(name, narrow ? 17 : 42);
    return {
      ...shared, type: "category", data: axis.categories, inverse: vertical, axisTick: { show: false }, name: "",
      axisLabel: { ...label, color: "var(--text)", interval: 0, hideOverlap: false, formatter },
    };
  }
  return {
    ...shared, type: axis.scale === "log" ? "log" : "value", scale: true, splitNumber: narrow ? 4 : 6,
    minInterval: axis.whole ? 1 : 0, min: axis.low ?? undefined, max: axis.high ?? undefined, minorTick: { show: false },
    axisLabel: { ...label, formatter: figureText, showMinLabel: isRound(axis.low), showMaxLabel: isRound(axis.high) },
  };
}

// What the tip says of a datum.
function tip(told, line, at) {
  const datum = line.data[at];
  const range = (low, high, axis) => `${figureText(low)} to ${withUnit(high, axis)}`;
  const within = ([low, high], axis) => (low === null || low === undefined || low === high ? [] : [["90 %", range(low, high, axis)]]);
  const category = told.y.scale === "category" ? told.y.categories[datum[line.kind === "bars" ? 0 : 1]] : null;
  const rows = {
    boxes: () => [[told.x.name, range(datum[0], datum[1], told.x)], [told.y.name, withUnit(datum[2], told.y)]],
    bars: () => [["", withUnit(datum[1], told.x)], ...within(datum.slice(2), told.x)],
    band: () => [["least to greatest", range(datum[1], datum[2], told.y)]],
    points: () => [
      [told.x.name, withUnit(datum[0], told.x)], ...(category ? [] : [[told.y.name, withUnit(datum[1], told.y)]]),
      ...within(datum.slice(2), told.y),
    ],
    line: () => [[told.x.name, withUnit(datum[0], told.x)], [told.y.name, withUnit(datum[1], told.y)]],
  }[line.kind]();
  const name = [category, line.name, line.labels[at]].filter(Boolean).join(", ");
  return `<b>${safe(name)}</b>${rows.map(([key, value]) => `<div><span>${safe(key)}</span> ${safe(value)}</div>`).join("")}`;
}

// The legend, and how many lines it takes: letters are about 7 px wide.
function legendOption(told, width, narrow) {
  const shown = told.lines.filter((line) => line.name && !["band", "across", "upright"].includes(line.kind));
  const names = [...new Set(shown.map((line) => line.name))];
  if (names.length < 2) return [undefined, 0];
  const letters = narrow ? 28 : 44;
  let [lines, reached] = [1, 0];
  for (const name of names) {
    const room = 34 + 7 * Math.min(name.length, letters);
    if (reached && reached + room > width) [lines, reached] = [lines + 1, 0];
    reached += room;
  }
  const data = names.map((name) => ({ name, itemStyle: { color: colourOf(shown.find((line) => line.name === name)) } }));
  const option = {
    type: "plain", left: 0, top: 0, icon: "roundRect", itemWidth: 13, itemHeight: 10, itemGap: 14, data,
    inactiveColor: "var(--edge)", formatter: (name) => shortened(name, letters), textStyle: { color: "var(--text)", fontSize: 12 },
  };
  return [option, lines];
}

function chartOption(told, width) {
  const narrow = width < NARROW;
  const [legend, legendLines] = legendOption(told, width, narrow);
  const marked = told.y.scale === "category" && told.lines.some((line) => line.kind === "upright"); // named above
  const onlyLines = told.lines.every((line) => ["line", "band", "across"].includes(line.kind)); // nothing to point at
  return {
    animation: false, textStyle: { fontFamily }, legend,
    grid: {
      left: 2, right: 14, top: 4 + (legend ? 2 + 22 * legendLines : 0) + (marked ? 16 : 0), bottom: 4,
      outerBoundsMode: "same", outerBoundsContain: "all",
    },
    tooltip: {
      trigger: onlyLines ? "axis" : "item", axisPointer: { type: "line", lineStyle: { color: "var(--soft)" } }, confine: true,
      backgroundColor: "var(--card)", borderColor: "var(--edge)", padding: [7, 11],
      textStyle: { color: "var(--text)", fontSize: 12.5 },
      extraCssText: "border-radius:10px;max-width:min(340px,90vw);white-space:normal",
      formatter: (found) => [found].flat().map((one) => tip(told, told.lines[Number(one.seriesId)], one.dataIndex)).join(""),
    },
    xAxis: axisOption(told.x, false, narrow), yAxis: axisOption(told.y, true, narrow),
    series: told.lines.map((line, place) => seriesOption(told, line, place, narrow)),
  };
}

// The data as a table: a row for each datum, and a column for everything that some datum has.
function csvOf(told) {
  const [x, y] = [[told.x, "x"], [told.y, "y"]].map(([axis, other]) => titled(axis) || (axis.categories.length ? "name" : other));
  const columns = {
    line: [x, y], points: [x, y, "low", "high"], boxes: [`${x}, from`, `${x}, to`, y], band: [x, "low", "high"],
    bars: [y, x, "low", "high"], across: [y], upright: [x],
  };
  const rows = told.lines.flatMap((line) => line.data.map((datum, at) => {
    const row = { series: line.name, label: line.labels[at] ?? "" };
    columns[line.kind].forEach((column, place) => {
      const names = { [x]: told.x.categories, [y]: told.y.categories }[column];
      row[column] = names?.[datum[place]] ?? datum[place];
    });
    return row;
  }));
  const used = [...new Set(rows.flatMap(Object.keys))].filter((key) => rows.some((row) => (row[key] ?? "") !== ""));
  const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const line = (cells) => cells.map((cell) => quoted(String(cell ?? ""))).join(",");
  return `${[line(used), ...rows.map((row) => line(used.map((key) => row[key])))].join("\n")}\n`;
}

function offerCsv(host, told) {
  const button = make("button", "CSV", { type: "button", className: "csv" });
  button.setAttribute("aria-label", `Save the data of "${told.title}" as CSV`);
  button.addEventListener("click", () => {
    const href = URL.createObjectURL(new Blob([csvOf(told)], { type: "text/csv" }));
    const name = told.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "chart";
    make("a", [], { href, download: `${name}.csv` }).click();
    URL.revokeObjectURL(href);
  });
  host.querySelector("h3").after(button);
}

function beginChart(host) {
  const told = JSON.parse(host.querySelector("script").textContent);
  const plot = host.querySelector(".plot");
  const height = told.height_px;
  const room = () => Math.max(plot.clientWidth, 200);
  const drawn = echarts.init(plot, null, { renderer: "svg", width: room(), height });
  let width = 0;
  const draw = () => {
    if (room() === width) return;
    width = room();
    drawn.resize({ width, height });
    drawn.setOption(chartOption(told, width), { notMerge: true });
    plot.querySelector("svg").setAttribute("viewBox", `0 0 ${width} ${height}`);
  };
  draw();
  offerCsv(host, told);
  new ResizeObserver(() => matchMedia("print").matches || draw()).observe(plot);
}

function beginCharts() {
  const began = performance.now();
  const charts = document.querySelectorAll(".chart");
  for (const host of charts) beginChart(host);
  Object.assign(root.dataset, { charts: charts.length, chartsMs: (performance.now() - began).toFixed(0) });
}

beginCharts();
