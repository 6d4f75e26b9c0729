// What all pages share: light and dark, tables that sort, and everything unfolded on paper.

const root = document.documentElement;

function make(tag, content = [], settings = {}) {
  const element = Object.assign(document.createElement(tag), settings);
  element.append(...[content].flat());
  return element;
}

// -- light and dark

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

function setTheme(theme) {
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  const button = document.getElementById("theme");
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Show the page ${isDark() ? "light" : "dark"}`);
  dispatchEvent(new Event("theme")); // canvases are drawn anew; all else follows the style
}

function beginTheme() {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  prefersDark.addEventListener("change", () => setTheme(root.dataset.theme));
  setTheme(new URLSearchParams(location.search).get("theme") ?? undefined);
}

// -- paper: light, and nothing folded

function beginPaper() {
  let before = null;
  addEventListener("beforeprint", () => {
    const folded = [...document.querySelectorAll("details:not([open])")];
    before = { theme: root.dataset.theme, folded };
    for (const one of folded) one.open = true;
    setTheme("light");
  });
  addEventListener("afterprint", () => {
    for (const one of before?.folded ?? []) one.open = false;
    setTheme(before?.theme);
  });
}

// -- tables: a click on a heading sorts, another one the other way round; long ones are cut off

function sortBy(table, column, descending) {
  const key = (row) => {
    const cell = row.cells[column];
    const number = cell?.querySelector("data")?.value;
    return number === undefined ? cell?.textContent.trim() ?? "" : Number(number);
  };
  const sign = descending ? -1 : 1;
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const body = table.tBodies[0];
  body.append(...[...body.rows].map((row) => [key(row), row]).sort((a, b) => sign * order(a[0], b[0])).map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    if (at === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function beginTables() {
  for (const table of document.querySelectorAll("table.sorts")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = make("button", head.textContent, { type: "button" });
      button.addEventListener("click", () => {
        const figures = table.tBodies[0].rows[0]?.cells[column]?.querySelector("data");
        const now = head.getAttribute("aria-sort");
        sortBy(table, column, now ? now === "ascending" : Boolean(figures));
      });
      head.replaceChildren(button);
    });
  }
  for (const table of document.querySelectorAll("table.long")) {
    const all = make("button", `All ${table.tBodies[0].rows.length} rows`, { type: "button", className: "all" });
    table.classList.add("cut"); // the first rows of any order
    all.addEventListener("click", () => {
      all.textContent = table.classList.toggle("cut") ? `All ${table.tBodies[0].rows.length} rows` : "The first rows";
    });
    table.parentElement.after(all);
  }
}

beginTheme();
beginPaper();
beginTables();
