// Details on touch, and labels where there is room; all figures and words stand in the page already.

const tip = host.querySelector(".tip");
const page = JSON.parse(host.querySelector("script").textContent);
const pen = document.createElement("canvas").getContext("2d");
const PAD = 6;

function duration(ns) {
  const [value, unit] = Math.abs(ns) < 999_500 ? [ns / 1e3, "us"] : [ns / 1e6, "ms"];
  return `${value.toFixed(Math.max(0, 3 - String(Math.trunc(Math.abs(value))).length))} ${unit}`;
}

// The longest text that fits: of each label there are variants, the last one usually empty.
function fit() {
  const labels = [...host.querySelectorAll("[data-texts]")];
  const rooms = labels.map((label) => label.parentNode.width.baseVal.value);
  let shown = 0;
  labels.forEach((label, i) => {
    const style = getComputedStyle(label);
    const font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    if (pen.font !== font) pen.font = font;
    const room = rooms[i] - (label.getAttribute("text-anchor") ? PAD / 2 : Number(label.getAttribute("x")) + PAD / 2);
    const variants = label.dataset.texts.split("|");
    const text = variants.find((variant) => pen.measureText(variant).width <= room) ?? "";
    if (label.textContent !== text) label.textContent = text;
    shown += text !== "";
  });
  host.dataset.labels = shown;
}

function slotFacts(slot) {
  const [window, start, length, model, segment, frame] = slot.dataset.slot.split(",").map(Number);
  const told = page.models[model];
  const part = told.parts[segment];
  const rows = [
    ["planned", `${duration(start)} to ${duration(start + length)} in window ${window}`],
    ["frame", String(frame)],
  ];
  if (part) {
    rows.push(["duration", `${part.planned} (${page.percentile}), ${part.median} (p50)`]);
    rows.push(["fill layer", part.fill], ["last layer", part.last]);
    if (part.out && part.out !== part.last) rows.push(["output layers", part.out]);
    rows.push(["hands on", part.bytes], ["unit", part.unit]);
  }
  const count = told.parts.length;
  return [count > 1 ? `${told.name}, segment ${segment} (${segment + 1} of ${count})` : told.name, rows];
}

function wayFacts(way) {
  const [model, frame] = way.dataset.way.split("/").map(Number);
  const [released, start, result, age] = way.dataset.flight.split(",").map(Number);
  const told = page.models[model];
  const release = result - age;
  const rows = [
    ["released", `with window ${released}`],
    ["starts", `${duration(start - release)} after its release`],
    ["result", `${duration(age)} after its release`],
    ["bound", told.bound === "no bound" ? told.bound : `${told.bound} windows, for any frame`],
  ];
  return [`${told.name}, frame ${frame}`, rows];
}

function tell(element, event) {
  const [name, rows] = element.dataset.slot ? slotFacts(element) : wayFacts(element);
  const cells = rows.flatMap(([key, value]) => [make("dt", key), make("dd", value)]);
  tip.replaceChildren(make("p", name, { className: "title" }), make("dl", cells));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8));
  const below = event.clientY + 18 + height < innerHeight;
  tip.style.left = `${x}px`;
  tip.style.top = `${below ? event.clientY + 18 : Math.max(8, event.clientY - height - 14)}px`;
  host.dataset.tip = name;
}

// A frame's whole way stands out while one of its parts is looked at.
let picked = null;
function pick(way) {
  if (way === picked) return;
  for (const old of host.querySelectorAll(".lit")) old.classList.remove("lit");
  picked = way;
  host.classList.toggle("picking", way !== null);
  if (way !== null) for (const part of host.querySelectorAll(`[data-way="${way}"]`)) part.classList.add("lit");
}

function hovered(event) {
  const part = event.target.closest?.("[data-way]");
  if (!part || !host.contains(part)) {
    tip.hidden = true;
    return pick(null);
  }
  pick(part.dataset.way);
  tell(part, event);
}

function begin() {
  for (const part of host.querySelectorAll("[data-way]")) { // the tooltip says more than a title
    const title = part.querySelector("title");
    part.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  addEventListener("pointermove", hovered);
  addEventListener("pointerdown", hovered);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      tip.hidden = true;
      pick(null);
    }
  });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  addEventListener("beforeprint", fit);
  for (const folded of host.querySelectorAll("details")) folded.addEventListener("toggle", fit);
  new ResizeObserver(fit).observe(host);
  fit();
  // An address such as #way=1/0 opens the page with that frame's way picked out.
  const way = new URLSearchParams(location.hash.slice(1)).get("way");
  if (/^\d+\/\d+$/.test(way ?? "")) pick(way);
  Object.assign(host.dataset, {
    slots: host.querySelectorAll(".slot").length, windows: host.querySelectorAll(".cell").length,
    lit: host.querySelectorAll(".lit").length, wide: root.scrollWidth > innerWidth, state: "ready",
  });
}

begin();
