// Formats numbers and names.

/** What processes are grouped by, one and several. */
const GROUPS = {
  process: ["Process", "Processes"],
  unit: ["Unit", "Units"],
  container: ["Container", "Containers"],
  pod: ["Pod", "Pods"],
  cgroup: ["Control group", "Control groups"],
  user: ["User", "Users"],
};

/**
 * Formats nanoseconds in a suitable unit with `digits` significant digits: "1.234 s", "56.7 ms".
 */
function duration(ns, digits = 3) {
  const size = Math.abs(ns);
  if (size === 0) return "0 s";
  const [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const value = ns / unit;
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  return grouped(value, Math.max(0, Math.min(3, digits - whole))) + "\u202f" + name;
}

/** Formats an interval with up to six digits, without trailing zeros. */
const intervalText = (ns) => duration(ns, 6).replace(/(\.\d*?)0+(?=\u202f\D)/, "$1").replace(/\.(?=\u202f)/, "");

/** Formats a number with thin spaces between thousands. */
function grouped(value, decimals = 0) {
  const [whole, part] = value.toFixed(decimals).split(".");
  const spaced = whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return part === undefined ? spaced : spaced + "." + part;
}

/**
 * Formats a time since the start of a run of `whole` nanoseconds, precise enough for a step of
 * `step`.
 */
function instant(ns, step, whole) {
  const decimals = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / 1e9) - 1e-9)));
  const seconds = ns / 1e9;
  if (whole < 120e9) return grouped(seconds, decimals) + "\u202fs";
  // Rounded first: 59.99 s in whole seconds is a minute.
  const rounded = Number(seconds.toFixed(decimals));
  const minutes = Math.floor(rounded / 60);
  const rest = (rounded - 60 * minutes).toFixed(decimals).padStart(decimals ? decimals + 3 : 2, "0");
  const hours = Math.floor(minutes / 60);
  return hours ? `${hours}:${String(minutes % 60).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

function share(part, whole) {
  if (!whole) return "0\u202f%";
  const percent = 100 * part / whole;
  if (percent > 0 && percent < 0.01) return "<\u202f0.01\u202f%";
  return percent.toFixed(percent >= 99.995 || percent === 0 ? 0 : percent >= 10 ? 1 : 2) + "\u202f%";
}

function plural(count, one, many = one + "s") {
  return `${grouped(count)} ${count === 1 ? one : many}`;
}

/** Returns a distance of round marks: 1, 2 or 5 times a power of ten, at least `least`. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  for (const factor of [1, 2, 5]) if (factor * power >= least) return factor * power;
  return 10 * power;
}

/** Shortens texts in the middle until they fit, measured with a canvas context and cached. */
class Fitter {
  constructor(context) {
    this.context = context;
    this.font = "";
    this.widths = new Map();
  }
  use(font) {
    if (font !== this.font) this.widths.clear();
    this.font = this.context.font = font;
  }
  width(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > 20000) this.widths.clear();
      this.widths.set(text, width = this.context.measureText(text).width);
    }
    return width;
  }
  /**
   * Returns `text`, or its ends with an ellipsis between, or "" if there is no space for that
   * either.
   */
  fit(text, width) {
    if (width < 12) return "";
    // Template names can be very long; no glyph is narrower than two pixels.
    const long = text.length > width / 2;
    if (!long && this.width(text) <= width) return text;
    const letters = Array.from(long ? text.slice(0, width) + text.slice(-width) : text);
    let low = 0, high = letters.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.width(this.cut(letters, middle)) <= width) low = middle; else high = middle - 1;
    }
    return low < 5 ? "" : this.cut(letters, low);
  }
  cut(letters, keep) {
    const tail = Math.floor(keep * 0.4);
    return letters.slice(0, keep - tail).join("") + "…" + (tail ? letters.slice(-tail).join("") : "");
  }
}

/** Returns an element with attributes and children, which are elements or texts. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/**
 * Makes the head of a table that is sorted by its columns. A column has a `key` and a `title`, and
 * may have what it is `about`, whether it is `text`, which is sorted upwards first, attributes of
 * its `cell`, and an element `before` its title. `order` is called with what a click asks for.
 */
function sortableHead(table, columns, sort, order) {
  const row = element("tr");
  for (const { key, title, about, text, cell, before } of columns) {
    const sorted = sort.column === key;
    const button = element("button", { type: "button", title: about, "data-sort": key }, ...(before ? [before] : []), element("span", {}, title));
    if (sorted) button.append(element("span", { class: "arrow", "aria-hidden": "true" }, sort.down ? "▾" : "▴"));
    button.addEventListener("click", () => {
      order({ column: key, down: sorted ? !sort.down : !text });
      table.querySelector(`[data-sort="${key}"]`).focus();
    });
    row.append(element("th", { scope: "col", ...cell, "aria-sort": sorted ? (sort.down ? "descending" : "ascending") : undefined }, button));
  }
  table.tHead.replaceChildren(row);
}

const byId = (id) => document.getElementById(id);
