// The page: the selection, and the views that show it.

/** The longest that the views may take in each frame while the mouse drags, milliseconds. */
const MAX_VIEWS_MS = 5;
/** How long the mouse rests in a drag until slower views follow, milliseconds. */
const REST_MS = 150;

class App {
  constructor(profile) {
    this.profile = profile;
    this.wholeRun = sums(profile, EVERYTHING);
    this.sums = this.wholeRun;
    this.someWaits = null;
    const onCpu = ON_CPU.some((state) => this.wholeRun.states[state] > 0);
    this.selection = onCpu ? OPENING : EVERYTHING;
    this.groupBy = "process";
    this.asked = 0;
    this.dragging = false;
    this.rest = 0;
    this.chips();
    this.words();
    this.wait = new Wait(this);
    this.timeline = new Timeline(this);
    this.flame = new Flame(this);
    this.functions = new Functions(this);
    this.table = new Table(this);
    this.traced = new Traced(this);
    theme.changed.push(() => { this.timeline.redraw(); this.flame.surface.later(); });
    this.viewChanged();
    this.recount();
    this.listen();
  }

  /** Changes the selection; all views follow in the next frame, or at once. */
  select(change, now = false) {
    const before = this.selection;
    tip.hide();
    this.selection = Object.freeze({ ...before, ...change });
    const changed = (part) => this.selection[part] !== before[part];
    if (changed("cpus") || changed("waits")) this.timeline.dropBins();
    if (changed("states") || changed("waits")) this.timeline.arrange();
    const rows = ["states", "threads", "cpus", "waits"].some(changed);
    if (rows) this.timeline.redraw(); else this.timeline.redrawTime();
    if (now) this.recount(); else this.asked ||= requestAnimationFrame(() => this.recount());
  }

  /** Returns the sums of the whole run with these waits. */
  wholeRunWith(waits) {
    if (waits === ALL_WAITS) return this.wholeRun;
    if (this.someWaits?.waits !== waits) this.someWaits = { waits, sums: sums(this.profile, { ...EVERYTHING, waits }) };
    return this.someWaits.sums;
  }

  /** Returns what the views have a row or a frame for: the processes, or what they belong to. */
  groups() {
    return this.profile.groupedBy(this.groupBy);
  }

  /** Groups the processes by what they belong to, of this kind, or shows each. */
  group(kind) {
    this.groupBy = byId("group-by").value = kind;
    byId("tab-table").textContent = byId("table-title").textContent = GROUPS[kind][1];
    this.timeline.regroup();
    this.flame.regroup();
    this.table.regroup();
  }

  /** Selects the time over which the mouse is dragged. */
  drag(time) {
    this.dragging = true;
    this.select({ time });
  }

  /** Counts what was left for the end of a drag. */
  dragged() {
    this.dragging = false;
    if (this.rest) this.asked ||= requestAnimationFrame(() => this.recount());
  }

  /**
   * Counts the selection. Views that take long don't follow each move of a drag, which would be
   * felt: they are pale until the mouse rests.
   */
  recount() {
    cancelAnimationFrame(this.asked);
    clearTimeout(this.rest);
    this.asked = this.rest = 0;
    this.sums = sums(this.profile, this.selection);
    this.showTotals();
    const wait = this.dragging && this.viewsTook > MAX_VIEWS_MS;
    if (wait) this.rest = setTimeout(() => this.countViews(), REST_MS);
    else this.countViews();
    byId("panels").toggleAttribute("data-after", wait);
  }

  countViews() {
    this.rest = 0;
    this.viewsTook = timed(() => {
      for (const view of [this.flame, this.functions, this.table, this.traced]) view.count();
    });
    byId("panels").removeAttribute("data-after");
  }

  /**
   * Selects these threads alone, or with `more` in addition. Selecting them again deselects them.
   */
  chooseThreads(threads, more) {
    const { threads: before } = this.selection;
    const all = before !== null && threads.every((thread) => before.has(thread));
    let after;
    if (more && before) {
      after = new Set(before);
      for (const thread of threads) if (all) after.delete(thread); else after.add(thread);
    } else {
      after = all && before.size === threads.length ? null : new Set(threads);
    }
    this.select({ threads: after?.size ? after : null });
  }

  // Totals and states.

  chips() {
    const chips = this.profile.states.map((label, state) => {
      const chip = element("button", { type: "button", class: "chip", "aria-pressed": "true", "data-state": state, title: `${label}: click switches it, double click leaves it alone` },
        swatch(state), element("span", { class: "label" }, SHORT[state]), element("span", { class: "value" }), element("span", { class: "part" }));
      chip.addEventListener("click", (event) => {
        const one = 1 << state;
        this.select({ states: event.shiftKey || event.altKey ? this.alone(one) : this.selection.states ^ one });
      });
      chip.addEventListener("dblclick", () => this.select({ states: this.alone(1 << state) }));
      return chip;
    });
    byId("chips").replaceChildren(...chips);
    byId("shares").replaceChildren(...STACKING.map((state) => element("i", { class: "s" + state, "data-state": state })));
  }

  /** Shows these states alone, or all states if that is so already. */
  alone(states) {
    return this.selection.states === states ? EVERYTHING.states : states;
  }

  showTotals() {
    const { profile, selection, sums: { micros, states } } = this;
    const total = byId("total");
    total.dataset.micros = micros;
    total.dataset.states = [...states].map((one, state) => selection.states >> state & 1 ? one : 0).join(",");
    byId("total-time").textContent = duration(1000 * micros, 5);
    byId("total-words").textContent = `of thread time · ${this.load()}`;
    byId("selection").textContent = this.selectionWords();
    byId("clear").disabled = this.isEverything();
    byId("zoom-range").disabled = !selection.time;
    for (const preset of byId("presets").children) preset.setAttribute("aria-pressed", String(this.isPreset(preset)));
    byId("idle-waits").checked = (selection.waits >> IDLE & 1) === 1;
    for (const chip of byId("chips").children) {
      const state = Number(chip.dataset.state);
      const on = (selection.states >> state & 1) === 1;
      chip.dataset.micros = states[state];
      chip.setAttribute("aria-pressed", String(on));
      chip.querySelector(".value").textContent = states[state] ? duration(1000 * states[state]) : "–";
      chip.querySelector(".part").textContent = on && states[state] ? share(states[state], micros) : "";
    }
    for (const part of byId("shares").children) {
      const state = Number(part.dataset.state);
      part.style.flexGrow = selection.states >> state & 1 ? states[state] / Math.max(1, micros) : 0;
    }
  }

  /**
   * Returns averages of the selected time: "1.99 of 2 CPUs busy, 0.35 threads waiting for one".
   * Stolen time is known of the whole run alone.
   */
  load() {
    const { profile, selection } = this;
    const [from, to] = selection.time ?? [0, profile.duration_ns];
    const states = statesOf(this.sums.byThread, profile.threads.keys());
    const average = (some) => some.reduce((sum, state) => sum + states[state], 0) * 1000 / Math.max(1, to - from);
    const cpus = selection.cpus?.size ?? profile.cpus;
    const stolen = profile.stolen && !selection.time && !selection.cpus ? `, ${share(profile.stolen, 1)} stolen by the hypervisor` : "";
    return `${average(ON_CPU).toFixed(2)} of ${plural(cpus, "CPU")} busy, ${average([WAIT_CPU]).toFixed(2)} threads waiting for one${stolen}`;
  }

  isEverything() {
    const { time, states, threads, cpus, waits } = this.selection;
    return !time && states === EVERYTHING.states && !threads && !cpus && waits === ALL_WAITS;
  }

  /** Returns what a button of the presets selects. */
  presetOf({ dataset: { states, waits } }) {
    return { states: Number(states), waits: waits === undefined ? ALL_WAITS : Number(waits) };
  }

  isPreset(button) {
    const { states, waits } = this.presetOf(button);
    return this.selection.states === states && (button.dataset.waits === undefined || this.selection.waits === waits);
  }

  /**
   * Returns the selected threads in words: "nginx 812", "nginx.service", "3 processes",
   * "2 threads", or nothing.
   */
  threadWords() {
    const { profile, selection: { threads } } = this;
    if (!threads) return "";
    const group = this.groups().find((one) => one.processes && one.threads.length === threads.size && one.threads.every((thread) => threads.has(thread)));
    if (group) return group.name;
    const processes = new Set([...threads].map((thread) => profile.threads[thread].process));
    const whole = [...processes].every((index) => profile.processes[index].threads.every((thread) => threads.has(thread)));
    const [one] = processes;
    if (whole && processes.size === 1) return `${profile.processes[one].name} ${profile.processes[one].pid}`;
    if (whole) return plural(processes.size, "process", "processes");
    if (threads.size === 1) return `thread ${profile.threads[[...threads][0]].tid} of ${profile.processes[one].name}`;
    return plural(threads.size, "thread");
  }

  selectionName() {
    return this.threadWords() || "all";
  }

  selectionWords() {
    const { time, states, cpus, waits } = this.selection;
    const parts = [];
    if (time) {
      const step = Math.max(1, (time[1] - time[0]) / 100);
      const whole = this.timeline.whole;
      parts.push(`${instant(time[0], step, whole)} – ${instant(time[1], step, whole)} (${duration(time[1] - time[0])})`);
    }
    const name = this.threadWords();
    if (name) parts.push(name);
    if (cpus) parts.push(`CPU ${byId("cpus").value.trim()}`);
    const on = [...Array(STATES).keys()].filter((state) => states >> state & 1);
    const preset = [...byId("presets").children].find((one) => this.isPreset(one));
    if (waits !== ALL_WAITS && preset?.dataset.waits === undefined) parts.push(`only ${KINDS.filter((_, kind) => kind && waits >> kind & 1).join(" and ") || "no"} waits`);
    if (preset) parts.push(preset.textContent);
    else if (on.length < STATES) parts.push(on.length === 0 ? "no state" : on.length <= 3 ? on.map((state) => SHORT[state]).join(", ") : `${on.length} states`);
    return parts.join(" · ");
  }

  whyEmpty() {
    if (!this.profile.length) return "This profile has no ticks: nothing was recorded.";
    if (!this.selection.states) return "All states are switched off. Switch one on above.";
    return "Nothing was recorded in this selection. Escape selects everything.";
  }

  viewChanged() {
    const [from, to] = this.timeline?.view ?? [0, 1];
    const whole = this.timeline?.whole ?? 1;
    const step = (to - from) / 200;
    byId("view-range").textContent = `${instant(from, step, whole)} – ${instant(to, step, whole)}`;
    byId("zoom-out").disabled = byId("zoom-all").disabled = to - from >= whole;
  }

  // Constant texts.

  words() {
    const { profile } = this;
    document.title = `${profile.title} – kcollect`;
    byId("title").textContent = profile.title;
    const start = new Date(profile.start_unix_ms);
    const when = profile.start_unix_ms ? start.toISOString().replace("T", " ").slice(0, 19) + " UTC" : "";
    const about = [profile.machine, when, duration(profile.duration_ns, 4)].filter(Boolean);
    byId("about").textContent = about.join(" · ");
    byId("about").title = about.join("\n");
    byId("interval").textContent = `Interval ${intervalText(profile.interval)}`;
    const { losses } = profile;
    const button = byId("losses");
    button.textContent = losses.length ? `Losses: ${losses[0]}${losses.length > 1 ? `, and ${losses.length - 1} more` : ""}` : "Losses: none";
    button.disabled = !losses.length;
    button.classList.toggle("some", losses.length > 0);
    byId("losses-text").replaceChildren(...losses.map((line) => element("li", {}, line)));
    const code = profile.functions.some(({ jit }) => jit) ? ["user", "kernel", "JIT"] : ["user", "kernel"];
    byId("frame-key").replaceChildren(...code.map((kind) => element("span", {}, element("i", { class: "swatch " + kind.toLowerCase() }), kind)));
    const keys = [
      ["/", "search functions"], ["?", "this help"], ["Esc", "undo: zoom, then selection"],
      ["Timeline"], ["drag", "select a range of time"], ["wheel, + −", "zoom"], ["Shift and drag, ← →", "move"], ["click a name", "select it; with Ctrl or Shift, more of them"],
      ...(profile.hasCauses ? [["click a wait", "its cause, and the thread that ended it"]] : []),
      ["↑ ↓, Enter, Space", "move through the lanes, select, expand"],
      ["Flame graph"], ["click, Enter", "zoom into a frame"], ["Inverted", "functions above their callers"], ["← → ↑ ↓", "siblings, caller, heaviest callee"],
      ["States"], ["click", "switch a state on or off"], ["double or Shift-click", "this state alone"],
    ];
    byId("help-text").replaceChildren(...keys.map(([key, text]) => text === undefined ? element("h3", {}, key)
      : element("p", {}, element("kbd", {}, key), element("span", {}, text))));
  }

  listen() {
    for (const preset of byId("presets").children) {
      preset.addEventListener("click", () => this.select(this.isPreset(preset) ? { states: EVERYTHING.states, waits: ALL_WAITS } : this.presetOf(preset)));
    }
    byId("suffered").hidden = byId("idle-waits").parentElement.hidden = !this.profile.hasCauses;
    byId("idle-waits").addEventListener("change", () => this.select({ waits: this.selection.waits ^ 1 << IDLE }));
    byId("clear").addEventListener("click", () => this.clear());
    byId("help-open").addEventListener("click", () => byId("help").showModal());
    byId("losses").addEventListener("click", () => byId("losses-all").showModal());
    byId("cpus").addEventListener("input", ({ target }) => {
      const cpus = cpuList(target.value, this.profile.cpus);
      target.setAttribute("aria-invalid", String(cpus === undefined));
      if (cpus !== undefined) this.select({ cpus });
    });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.matches("input[type=text], input[type=search]");
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.key === "Escape") {
        if (typing) event.target.blur();
        else if (this.wait.row >= 0) this.wait.hide();
        else if (this.flame.zoomed) this.flame.zoom(0);
        else this.clear();
      } else if (!typing && event.key === "/") {
        event.preventDefault();
        byId("tab-flame").click();
        byId("search").focus();
      } else if (!typing && event.key === "?") {
        byId("help").showModal();
      } else if (!typing && (event.key === "+" || event.key === "-")) {
        if (!event.defaultPrevented) this.timeline.zoom(event.key === "+" ? 0.5 : 2);
      }
    });
    const kinds = ["process", ...this.profile.groupings];
    byId("group-by").replaceChildren(...kinds.map((kind) => element("option", { value: kind }, GROUPS[kind][0].toLowerCase())));
    byId("group-by").parentElement.hidden = kinds.length === 1;
    byId("group-by").addEventListener("change", ({ target }) => this.group(target.value));
    this.listenTabs();
    this.listenSplitter();
  }

  clear() {
    byId("cpus").value = "";
    byId("cpus").setAttribute("aria-invalid", "false");
    this.select(EVERYTHING);
  }

  listenTabs() {
    const tabs = ["flame", "functions", "table", "traced"].map((name) => byId("tab-" + name));
    const choose = (chosen) => {
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", String(tab === chosen));
        tab.tabIndex = tab === chosen ? 0 : -1;
      }
      byId("panels").dataset.tab = chosen.id.slice("tab-".length);
      if (chosen.id === "tab-functions") this.functions.show();
      if (chosen.id === "tab-traced") this.traced.show();
    };
    tabs.forEach((tab, at) => {
      tab.addEventListener("click", () => choose(tab));
      tab.addEventListener("keydown", (event) => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
        const shown = tabs.filter((tab) => !tab.hidden);
        const to = shown[(at + (event.key === "ArrowRight" ? 1 : shown.length - 1)) % shown.length];
        choose(to);
        to.focus();
      });
    });
    choose(tabs[0]);
  }

  listenSplitter() {
    const splitter = byId("splitter");
    const set = (percent) => {
      const bounded = Math.min(80, Math.max(15, percent));
      byId("panels").style.setProperty("--above", `${bounded}fr`);
      byId("panels").style.setProperty("--below", `${100 - bounded}fr`);
      splitter.setAttribute("aria-valuenow", String(Math.round(bounded)));
    };
    splitter.addEventListener("pointerdown", (event) => { splitter.setPointerCapture(event.pointerId); event.preventDefault(); });
    splitter.addEventListener("pointermove", (event) => {
      if (!splitter.hasPointerCapture(event.pointerId)) return;
      const { top, height } = byId("panels").getBoundingClientRect();
      set(100 * (event.clientY - top) / height);
    });
    splitter.addEventListener("keydown", (event) => {
      const by = { ArrowUp: -4, ArrowDown: 4 }[event.key];
      if (!by) return;
      event.preventDefault();
      set(Number(splitter.getAttribute("aria-valuenow")) + by);
    });
  }
}

/** Returns how many milliseconds `work` takes. */
function timed(work) {
  const begin = performance.now();
  work();
  return performance.now() - begin;
}

/**
 * The page's programming interface, for tests and for the browser's console. Times are in
 * nanoseconds since the start.
 *
 * ready      resolves when everything was drawn for the first time, to milliseconds since
 *            navigation began: { decoded, counted, painted }
 * totals()   of the selection, in microseconds: { micros, states: ten sums, processes: [{ process,
 *            micros, states }] }
 * select({ time: [a, b], states: [..], processes: [..], threads: [..], cpus: [..], waits: [..] })
 *            selects by numbers and indices; what is left out is not restricted. Returns totals().
 *            A tick counts if it ended in (a, b]; 0 and the end of the run are no bounds. `waits`:
 *            kinds of waits, "suffered", …, with what is none
 * selection()  the selection in the same form; null where it is not restricted
 * view(a, b) shows this time
 * wait(thread, time)  shows the wait of a thread at a time; returns { cause, kind, waker: index, −1
 *            or null }, or null if the thread was not blocked then
 * flame({ byProcess, by })  the frames in preorder: { depth, name, object, kernel, micros, self,
 *            states }; `by` a kind of what processes belong to: "unit", …, or "process"
 * lanes()    the rows of the timeline: { name, depth, group, threads: indices }
 * traced(kind)  sums of the traced events of the selection: { name, process, count, ns, bytes } of
 *            each lock (0), file (1) or function that allocated memory (2); the last three by kind
 *            of event, as payload.rs numbers them
 * redraw()   draws everything now; returns how many milliseconds each view took
 * counted()  resolves when all views show the selection, to the milliseconds that this took
 * rows       rows of ticks
 */
function tools(app, ready) {
  const totals = () => {
    const { profile, selection, sums: { micros, states, byThread } } = app;
    const on = (sum) => Array.from(sum, (one, state) => selection.states >> state & 1 ? one : 0);
    const processes = profile.processes.map(({ index, threads }) => {
      const own = on(statesOf(byThread, threads.filter((thread) => !selection.threads || selection.threads.has(thread))));
      return { process: index, micros: own.reduce((sum, one) => sum + one, 0), states: own };
    });
    return { micros, states: on(states), processes: processes.filter((process) => process.micros) };
  };
  return Object.freeze({
    ready,
    totals,
    select({ time = null, states, processes, threads, cpus, waits } = {}) {
      const chosen = processes || threads ? new Set([...(threads ?? []), ...(processes ?? []).flatMap((index) => app.profile.processes[index].threads)]) : null;
      byId("cpus").value = cpus ? cpus.join(",") : "";
      app.select({ time, states: states ? states.reduce((mask, state) => mask | 1 << state, 0) : EVERYTHING.states, threads: chosen, cpus: cpus ? new Set(cpus) : null, waits: waits ? waits.reduce((mask, kind) => mask | 1 << KINDS.indexOf(kind), 1 << NO_WAIT) : ALL_WAITS }, true);
      return totals();
    },
    selection() {
      const { time, states, threads, cpus } = app.selection;
      return { time, states: [...Array(STATES).keys()].filter((state) => states >> state & 1), threads: threads && [...threads], cpus: cpus && [...cpus] };
    },
    view: (from, to) => app.timeline.show(from, to),
    wait(thread, time) {
      const row = app.profile.rowAfter(thread, time);
      const cause = row < app.profile.first[thread + 1] && app.profile.begin[row] <= time ? app.profile.causeOf(row) : null;
      if (!cause) return null;
      app.wait.show(row, thread, innerWidth / 2, innerHeight / 2);
      return { cause: cause.title, kind: KINDS[cause.kind], waker: app.wait.waker };
    },
    ran: (cpu, from, to) => app.timeline.extra.ran(cpu, from, to),
    flame({ byProcess = false, by = app.groupBy } = {}) {
      if (app.groupBy !== by) app.group(by);
      if (app.flame.byProcess !== byProcess) byId("by-process").click();
      return app.flame.frames();
    },
    lanes: () => app.timeline.rows.map(({ process, thread, single, depth = 0 }) => ({
      name: thread < 0 || single ? process.name : app.profile.threadName(thread), depth, group: process.processes !== undefined,
      threads: thread < 0 ? [...process.threads] : [thread],
    })),
    traced: (kind) => app.traced.sums(kind).map(({ subject: { name, process }, count, ns, bytes }) => ({ name, process, count: [...count], ns: [...ns], bytes: [...bytes] })),
    redraw: () => ({
      timeline: timed(() => { app.timeline.surface.now(); app.timeline.overview.now(); }),
      flame: timed(() => app.flame.surface.now()),
      count: timed(() => app.recount()),
    }),
    counted() {
      const begin = performance.now();
      return new Promise((resolve) => {
        const look = () => { if (app.asked || app.rest) requestAnimationFrame(look); else resolve(performance.now() - begin); };
        look();
      });
    },
    rows: app.profile.length,
  });
}

async function start() {
  theme.start();
  const profile = await load();
  const decoded = performance.now();
  const app = new App(profile);
  const counted = performance.now();
  window.kcollect = tools(app, new Promise((resolve) => {
    requestAnimationFrame(() => requestAnimationFrame(() => resolve({ decoded, counted, painted: performance.now() })));
  }));
  document.documentElement.dataset.ready = "";
}

start().catch((error) => {
  document.documentElement.dataset.ready = "";
  const trouble = byId("trouble");
  trouble.hidden = false;
  trouble.textContent = `This page can't show its profile: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
