// The table of functions, with the callers and the callees of one of them.

/** The most rows of a table. A filter finds the others. */
const MAX_FUNCTIONS = 300;

class Functions {
  constructor(app) {
    this.app = app;
    this.profile = app.profile;
    this.sort = { column: "self", down: true };
    this.chosen = -1;
    this.filter = "";
    this.table = byId("functions-all");
    this.columns = [
      { key: "self", title: "Self", about: "time in the function itself", value: (what) => this.micros.self[what] },
      { key: "total", title: "Total", about: "time with all functions that it called", value: (what) => this.micros.total[what] },
      { key: "name", title: "Function", text: true, value: (what) => this.profile.functions[what].name.toLowerCase() },
      { key: "object", title: "Object", text: true, value: (what) => this.profile.functions[what].object.toLowerCase() },
    ];
    byId("function-filter").addEventListener("input", ({ target }) => { this.filter = target.value.toLowerCase(); this.show(); });
    byId("function-flame").addEventListener("click", () => this.inFlame(false));
    byId("function-callers").addEventListener("click", () => this.inFlame(true));
  }

  /** Counts the selection, at once if the table is seen and otherwise when it is. */
  count() {
    this.stale = true;
    if (byId("functions").offsetParent !== null) this.show();
  }

  show() {
    if (this.stale) {
      this.micros = functionTimes(this.profile, this.app.selection);
      this.all = this.app.sums.micros;
      this.found = [...this.micros.total.keys()].filter((what) => this.micros.total[what] > 0);
      this.stale = false;
    }
    const { profile } = this;
    const { value, text } = this.columns.find(({ key }) => key === this.sort.column);
    const way = this.sort.down ? -1 : 1;
    const rows = this.found.filter((what) => !this.filter || profile.functions[what].name.toLowerCase().includes(this.filter))
      .sort((a, b) => { const [x, y] = [value(a), value(b)]; return way * (text ? (x < y ? -1 : x > y ? 1 : 0) : x - y) || a - b; });
    this.rows = rows;
    if (!this.micros.total[this.chosen]) this.chosen = rows[0] ?? -1;
    this.head();
    const body = rows.slice(0, MAX_FUNCTIONS).map((what) => this.row(what));
    if (!rows.length) body.push(element("tr", {}, element("td", { colspan: 6, class: "nothing" }, this.filter ? "No function has this in its name." : this.app.whyEmpty())));
    this.table.tBodies[0].replaceChildren(...body);
    byId("functions-unit").textContent = `seconds · ${profile.sampling()} · `
      + (rows.length > MAX_FUNCTIONS ? `${MAX_FUNCTIONS} of ${plural(rows.length, "function")}` : plural(rows.length, "function"));
    this.showNeighbours();
  }

  head() {
    const columns = this.columns.map((column) => ({ ...column, cell: column.text ? { class: "text" } : { colspan: 2 } }));
    sortableHead(this.table, columns, this.sort, (sort) => { this.sort = sort; this.show(); });
  }

  time(micros) {
    return [element("td", micros ? {} : { class: "none" }, micros ? grouped(micros / 1e6, 3) : "–"),
      element("td", { class: "quiet" }, micros ? share(micros, this.all) : "")];
  }

  name(what) {
    const { name, kernel, jit } = this.profile.functions[what];
    return element("td", { class: "text", title: name }, element("i", { class: "swatch " + (kernel ? "kernel" : jit ? "jit" : "user") }), element("span", {}, name));
  }

  row(what) {
    const made = element("tr", { tabindex: "0", "data-function": what, "data-self": this.micros.self[what], "data-total": this.micros.total[what], "aria-selected": String(what === this.chosen) },
      ...this.time(this.micros.self[what]), ...this.time(this.micros.total[what]), this.name(what), element("td", { class: "text quiet" }, this.profile.functions[what].object));
    return this.listen(made, what);
  }

  /** Makes a row choose its function by click and by key. */
  listen(row, what) {
    row.addEventListener("click", () => this.choose(what));
    row.addEventListener("keydown", (event) => {
      const to = { ArrowUp: row.previousElementSibling, ArrowDown: row.nextElementSibling }[event.key];
      if (event.key === "Enter" || event.key === " ") this.choose(what);
      else if (to) to.focus();
      else return;
      event.preventDefault();
    });
    return row;
  }

  choose(what) {
    this.chosen = what;
    for (const row of this.table.tBodies[0].rows) row.setAttribute("aria-selected", String(Number(row.dataset.function) === what));
    this.showNeighbours();
  }

  showNeighbours() {
    const { chosen, profile } = this;
    const none = chosen < 0;
    byId("function-name").textContent = none ? "" : profile.functions[chosen].name;
    byId("function-flame").disabled = byId("function-callers").disabled = none;
    const { callers, callees } = none ? { callers: [], callees: [] } : neighbours(profile, this.micros.tree, chosen);
    const fill = (id, list, empty) => {
      const rows = list.slice(0, MAX_FUNCTIONS).map(([what, micros]) => {
        const made = element("tr", { "data-function": what, "data-micros": micros }, ...this.time(micros), what < 0 ? element("td", { class: "text quiet" }, "none: the first frame") : this.name(what));
        if (what < 0) return made;
        made.tabIndex = 0;
        return this.listen(made, what);
      });
      if (!rows.length) rows.push(element("tr", {}, element("td", { colspan: 3, class: "nothing" }, empty)));
      byId(id).tBodies[0].replaceChildren(...rows);
    };
    fill("callers", callers, "No caller.");
    fill("callees", callees, "It called nothing.");
    if (!none) announce(`${profile.functions[chosen].name}: ${plural(callers.length, "caller")}, ${plural(callees.length, "callee")}`);
  }

  /** Shows the function in the flame graph, from its callers or from the root. */
  inFlame(inverted) {
    const { name } = this.profile.functions[this.chosen];
    byId("tab-flame").click();
    if (byId("inverted").checked !== inverted) byId("inverted").click();
    byId("search").value = "^" + name.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&") + "$";
    this.app.flame.search(byId("search").value);
    if (inverted) this.app.flame.zoomTo(this.chosen);
  }
}
