// The table of processes, or of what they belong to, with their seconds in each state. Only visible
// rows are in the document.

const ROW_PX = 26;

class Table {
  constructor(app) {
    this.app = app;
    this.profile = app.profile;
    this.sort = { column: "awake", down: true };
    this.scroll = byId("rows-scroll");
    this.table = this.scroll.querySelector("table");
    this.columns = [
      { key: "name", title: () => GROUPS[app.groupBy][0], text: true, value: (row) => row.process.name.toLowerCase() },
      { key: "pid", title: () => app.groupBy === "process" ? "PID" : "Processes", value: (row) => row.process.pid ?? row.process.processes.length },
      { key: "total", title: "Total", about: "all states", value: (row) => row.total },
      { key: "awake", title: "Not asleep", about: "all states but sleep", value: (row) => row.total - row.ns[SLEEP] },
      { key: "why", title: "Held up by", about: "why threads that had work did not run, seconds of the whole run, exact", text: true, why: true, value: (row) => row.process.heldUp },
      ...SHORT.map((title, state) => ({ key: "s" + state, title, about: this.profile.states[state], state, value: (row) => row.ns[state] })),
    ];
    this.scroll.addEventListener("scroll", () => this.window(), { passive: true });
    new ResizeObserver(() => this.window()).observe(this.scroll);
    this.head();
  }

  head() {
    const columns = this.columns.map((column) => ({
      ...column,
      title: typeof column.title === "function" ? column.title() : column.title,
      cell: { class: column.why ? "why" : column.text ? "name" : undefined },
      before: column.state === undefined ? undefined : swatch(column.state),
    }));
    sortableHead(this.table, columns, this.sort, (sort) => { this.sort = sort; this.head(); this.order(); });
  }

  /** Shows other groups. */
  regroup() {
    this.head();
    this.count();
  }

  /**
   * Shows the sums of the selection. Exact times cover a thread's whole life, so they are shown
   * only if neither a time nor a CPU is selected.
   */
  count() {
    const { profile, app } = this;
    const { selection } = app;
    this.exact = !selection.time && !selection.cpus && selection.waits === ALL_WAITS && profile.threads.length > 0 && profile.threads.every((thread) => thread.exact);
    this.rows = [];
    this.sum = { ns: new Float64Array(STATES), total: 0, micros: 0 };
    for (const process of app.groups()) {
      const states = statesOf(app.sums.byThread, process.threads);
      const chosen = !selection.threads || process.threads.some((thread) => selection.threads.has(thread));
      const threads = chosen && selection.threads ? process.threads.filter((thread) => selection.threads.has(thread)) : process.threads;
      const row = { process, chosen, micros: switchedOn(chosen ? statesOf(app.sums.byThread, threads) : states, selection), ns: new Float64Array(STATES), total: 0 };
      for (let state = 0; state < STATES; state++) {
        if (!(selection.states >> state & 1)) continue;
        if (this.exact) for (const thread of threads) row.ns[state] += profile.threads[thread].exact[state];
        else for (const thread of threads) row.ns[state] += app.sums.byThread[STATES * thread + state] * 1000;
        row.total += row.ns[state];
      }
      if (!row.micros && !row.total) continue;
      this.rows.push(row);
      if (!chosen) continue;
      row.ns.forEach((ns, state) => { this.sum.ns[state] += ns; });
      this.sum.total += row.total;
      this.sum.micros += row.micros;
    }
    byId("table-unit").textContent = `seconds · ${this.exact ? "exact times" : profile.sampling()}`;
    this.order();
  }

  order() {
    const { value, text } = this.columns.find((column) => column.key === this.sort.column);
    const way = this.sort.down ? -1 : 1;
    const keyed = this.rows.map((row) => [value(row), row]);
    keyed.sort(([a, x], [b, y]) => way * (text ? a < b ? -1 : a > b ? 1 : 0 : a - b) || x.process.index - y.process.index);
    this.rows = keyed.map(([, row]) => row);
    const foot = this.cells("tr", { class: "sum", "data-micros": this.sum.micros }, this.sum,
      [`${this.app.selection.threads ? "Selected" : "All"}`, ""]);
    this.table.tFoot.replaceChildren(foot);
    this.table.setAttribute("aria-rowcount", this.rows.length + 2);
    this.window(true);
  }

  cells(name, attributes, row, [title, pid]) {
    const made = element(name, attributes, element("th", { scope: "row", class: "name", title }, element("span", {}, ...middle(title))), element("td", {}, pid));
    const number = (ns, state) => element("td", ns ? {} : { class: "none" }, ns ? grouped(ns / 1e9, ns < 99.95e9 ? 2 : 1) : "–");
    const why = row.process?.heldUp ?? "";
    made.append(number(row.total), number(row.total - row.ns[SLEEP]), element("td", { class: "why", title: why }, why));
    row.ns.forEach((ns, state) => made.append(number(ns, state)));
    return made;
  }

  /** Makes the visible rows. */
  window(anew = false) {
    if (!this.rows) return;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW_PX) - 10);
    const last = Math.min(this.rows.length, first + Math.ceil(this.scroll.clientHeight / ROW_PX) + 20);
    if (!anew && this.made?.[0] === first && this.made[1] === last) return;
    this.made = [first, last];
    const focused = document.activeElement?.closest?.("tbody tr")?.dataset.process;
    const space = (rows) => {
      const cell = element("td", { colspan: this.columns.length });
      cell.style.height = rows * ROW_PX + "px";
      return element("tr", { class: "space", "aria-hidden": "true" }, cell);
    };
    const body = this.rows.slice(first, last).map((row, at) => this.row(row, first + at));
    if (!this.rows.length) body.push(element("tr", {}, element("td", { colspan: this.columns.length, class: "nothing" }, this.app.whyEmpty())));
    this.table.tBodies[0].replaceChildren(...(first ? [space(first)] : []), ...body, ...(last < this.rows.length ? [space(this.rows.length - last)] : []));
    if (focused !== undefined) this.table.querySelector(`tr[data-process="${focused}"]`)?.focus({ preventScroll: true });
  }

  row(row, at) {
    const { process } = row;
    const selected = this.app.selection.threads !== null && row.chosen;
    const made = this.cells("tr", { tabindex: "0", "data-process": process.index, "data-micros": row.micros, "aria-rowindex": at + 2,
      "aria-selected": String(selected), class: row.chosen ? undefined : "off" }, row, [process.name, String(process.pid ?? process.processes.length)]);
    if (process.lineage) made.cells[0].title = `${process.name}\n${process.lineage}`;
    made.addEventListener("click", (event) => this.app.chooseThreads(process.threads, event.ctrlKey || event.metaKey || event.shiftKey));
    made.addEventListener("keydown", (event) => {
      const to = { ArrowUp: made.previousElementSibling, ArrowDown: made.nextElementSibling }[event.key];
      if (event.key === "Enter" || event.key === " ") this.app.chooseThreads(process.threads, event.shiftKey || event.ctrlKey);
      else if (to) to.focus();
      else return;
      event.preventDefault();
    });
    return made;
  }
}

/**
 * Returns a text in two parts. The first is shortened if there is no space, so that the ellipsis is
 * in the middle.
 */
function middle(text) {
  if (text.length < 18) return [text];
  const tail = Array.from(text).slice(-7).join("");
  return [element("span", { class: "head" }, text.slice(0, text.length - tail.length)), element("span", {}, tail)];
}
