// The table of what traced events are about: locks, files, functions that allocated memory.

/** The most rows of the table. A filter finds the others. */
const MAX_SUBJECTS = 300;

/** Kinds of subjects, and of events, as payload.rs numbers them. */
const LOCKS = 0, FILES = 1, MEMORY = 2;
const WAITS = 0, READS = 1, WRITES = 2, OTHER_CALLS = 3, FAILED_CALLS = 4, ALLOCATED = 5, LIVE = 6;
const EVENT_KINDS = 7;

const seconds = (ns) => grouped(ns / 1e9, 3);
const number = (value) => grouped(value);

/** The columns of each kind: key, title, what it is, value of a row's sums, how it is shown. */
const TRACED_COLUMNS = [
  [
    ["waited", "Waited", "seconds for which threads waited, exact", (of) => of.ns[WAITS], seconds],
    ["waits", "Waits", "waits", (of) => of.count[WAITS], number],
    ["mean", "Mean ms", "milliseconds of a wait", (of) => of.count[WAITS] ? of.ns[WAITS] / of.count[WAITS] : 0, (ns) => grouped(ns / 1e6, 3)],
  ],
  [
    ["io", "Time", "seconds of all calls on the file, exact", (of) => of.ns.reduce((sum, ns) => sum + ns, 0), seconds],
    ["reads", "Reads", "reads", (of) => of.count[READS], number],
    ["read", "Bytes read", "bytes that were read", (of) => of.bytes[READS], number],
    ["writes", "Writes", "writes", (of) => of.count[WRITES], number],
    ["written", "Bytes written", "bytes that were written", (of) => of.bytes[WRITES], number],
    ["others", "Others", "other calls", (of) => of.count[OTHER_CALLS], number],
    ["failed", "Failed", "calls that failed", (of) => of.count[FAILED_CALLS], number],
  ],
  [
    ["live", "Live bytes", "bytes that were allocated in the selection, and not freed by the end of the run", (of) => of.bytes[LIVE], number],
    ["allocated", "Allocated", "bytes that were allocated in the selection", (of) => of.bytes[ALLOCATED], number],
    ["allocations", "Allocations", "allocations, by what sampled ones stand for", (of) => of.count[ALLOCATED], number],
  ],
];

/** The texts of a row of each kind: title, and value of a subject. */
const TRACED_TEXTS = [
  [["Lock", (of) => of.name], ["Process", (of) => of.process], ["Function", (of) => of.library], ["On behalf of", (of) => of.caller]],
  [["File", (of) => of.name]],
  [["Function", (of) => of.name], ["Process", (of) => of.process]],
];

class Traced {
  constructor(app) {
    this.app = app;
    this.profile = app.profile;
    this.kinds = [LOCKS, FILES, MEMORY].filter((kind) => this.profile.subjects.some((subject) => subject.kind === kind));
    this.kind = this.kinds[0];
    this.filter = "";
    this.table = byId("subjects");
    byId("tab-traced").hidden = !this.kinds.length;
    document.documentElement.toggleAttribute("data-traced", this.kinds.length > 0);
    byId("traced-filter").addEventListener("input", ({ target }) => { this.filter = target.value.toLowerCase(); this.show(); });
    const buttons = [...byId("traced-kinds").children];
    buttons.forEach((button, kind) => {
      button.hidden = !this.kinds.includes(kind);
      button.addEventListener("click", () => this.choose(kind));
    });
    if (this.kinds.length) this.choose(this.kind);
  }

  choose(kind) {
    this.kind = kind;
    this.sort = { column: TRACED_COLUMNS[kind][0][0], down: true };
    [...byId("traced-kinds").children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === kind)));
    this.stale = true;
    if (byId("traced").offsetParent !== null) this.show();
  }

  /** Counts the selection, at once if the table is seen and otherwise when it is. */
  count() {
    this.stale = true;
    if (this.kinds.length && byId("traced").offsetParent !== null) this.show();
  }

  /** Returns the sums of each subject of a kind in the selected time and threads. */
  sums(kind) {
    const { profile, app: { selection } } = this;
    const { subject, kind: of, end, thread, count, ns, bytes } = profile.events;
    const [from, to] = bounds(profile, selection.time);
    const found = new Map();
    for (let event = 0; event < end.length; event++) {
      if (profile.subjects[subject[event]].kind !== kind || end[event] <= from || end[event] > to) continue;
      if (selection.threads && !selection.threads.has(thread[event])) continue;
      let sums = found.get(subject[event]);
      if (!sums) {
        sums = { subject: profile.subjects[subject[event]], ns: new Float64Array(EVENT_KINDS), count: new Float64Array(EVENT_KINDS), bytes: new Float64Array(EVENT_KINDS) };
        found.set(subject[event], sums);
      }
      sums.ns[of[event]] += ns[event];
      sums.count[of[event]] += count[event];
      sums.bytes[of[event]] += bytes[event];
    }
    return [...found.values()];
  }

  show() {
    if (this.stale) this.found = this.sums(this.kind);
    this.stale = false;
    const texts = TRACED_TEXTS[this.kind];
    const columns = TRACED_COLUMNS[this.kind];
    const at = texts.findIndex(([title]) => title === this.sort.column);
    const value = at < 0 ? columns.find(([key]) => key === this.sort.column)[3] : ({ subject }) => texts[at][1](subject).toLowerCase();
    const way = this.sort.down ? -1 : 1;
    const named = ({ subject }) => !this.filter || texts.some(([, text]) => text(subject).toLowerCase().includes(this.filter));
    const rows = this.found.filter(named).sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return way * (x < y ? -1 : x > y ? 1 : 0) || a.subject.index - b.subject.index;
    });
    this.head();
    const body = rows.slice(0, MAX_SUBJECTS).map((row) => element("tr", { "data-subject": row.subject.index },
      ...columns.map(([, , , value, shown]) => element("td", value(row) ? {} : { class: "none" }, value(row) ? shown(value(row)) : "–")),
      ...texts.map(([, text]) => element("td", { class: "text", title: text(row.subject) }, text(row.subject)))));
    const nothing = this.filter ? "Nothing has this in its name." : "Nothing of this was traced in the selection.";
    if (!rows.length) body.push(element("tr", {}, element("td", { colspan: columns.length + texts.length, class: "nothing" }, nothing)));
    this.table.tBodies[0].replaceChildren(...body);
    byId("traced-unit").textContent = "of the selected time and threads · "
      + (rows.length > MAX_SUBJECTS ? `${MAX_SUBJECTS} of ${grouped(rows.length)}` : grouped(rows.length));
  }

  head() {
    const columns = [
      ...TRACED_COLUMNS[this.kind].map(([key, title, about]) => ({ key, title, about })),
      ...TRACED_TEXTS[this.kind].map(([title]) => ({ key: title, title, text: true, cell: { class: "text" } })),
    ];
    sortableHead(this.table, columns, this.sort, (sort) => { this.sort = sort; this.show(); });
  }
}
