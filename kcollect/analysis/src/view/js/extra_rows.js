// Rows of the timeline that are no process: a track of each CPU, and one row of all idle processes.
//
// A track shows the part of a CPU's time in which threads ran, by state. The rest is idle. The row
// of all CPUs is their utilisation. Both show time on a CPU whichever states are selected, and name
// the threads that ran at the pointer.

/** The number of CPUs from which on their tracks are folded at first. */
const MIN_FOLDED_CPUS = 5;
/** The most threads that are named at the pointer, of those that ran on a CPU. */
const MAX_NAMED_THREADS = 6;
/** The most idle processes that have rows of their own. */
const MAX_IDLE_ROWS = 3;
const ON_CPU_MASK = OPENING.states;

/** Returns a process for a row without one. */
const noProcess = (name) => ({ name, pid: "", lineage: "", threads: [] });

class ExtraRows {
  constructor(timeline) {
    this.timeline = timeline;
    this.profile = timeline.profile;
    this.cpus = noProcess("CPUs");
    this.idle = noProcess("");
    this.one = Array.from({ length: this.profile.cpus }, (_, cpu) => ({ set: new Set([cpu]), process: noProcess(`CPU ${cpu}`) }));
    if (this.profile.cpus < MIN_FOLDED_CPUS) timeline.open.add(this.cpus);
  }

  /** Returns the rows of CPUs. */
  ofCpus() {
    const { profile, timeline } = this;
    if (!profile.cpus) return [];
    const all = { cpu: -1, process: this.cpus, thread: -1, seen: 1, lane: timeline.all };
    if (!timeline.open.has(this.cpus)) return [all];
    return [all, ...this.one.map(({ process }, cpu) => ({ cpu, process, thread: -1, seen: 1, lane: timeline.lane(`cpu${cpu}`, timeline.all.threads) }))];
  }

  /** Returns, of sorted processes or groups, those that are shown, and the row of the idle ones. */
  withoutIdle(processes) {
    const { timeline } = this;
    const idle = processes.filter(([, { seen, awake }]) => !seen || !awake);
    if (idle.length <= MAX_IDLE_ROWS) return [processes, []];
    const shown = processes.filter((entry) => !idle.includes(entry));
    const threads = idle.flatMap(([{ process }]) => process.threads);
    const process = Object.assign(this.idle, { name: `${grouped(idle.length)} idle`, threads });
    const row = { process, thread: -1, seen: 0, lane: timeline.lane(`idle ${timeline.app.groupBy} ${timeline.app.selection.states} ${timeline.app.selection.waits} ${threads.length}`, threads) };
    return timeline.open.has(process) ? [[...shown, ...idle], []] : [shown, [row]];
  }

  /** Draws the states of a CPU, or of all of them. */
  shares({ cpu, lane }, view, columns, shares, selection) {
    lane.columns(...view, columns, shares, cpu < 0 ? selection : { cpus: this.one[cpu].set, waits: ALL_WAITS });
    return { states: ON_CPU_MASK, peak: cpu < 0 ? selection.cpus?.size ?? this.profile.cpus : 1 };
  }

  /**
   * Returns the threads that ran on a CPU, or on any if it is negative, from `from` to `to`, each
   * with its nanoseconds, the longest first.
   */
  ran(cpu, from, to) {
    const { profile } = this;
    const ran = [];
    for (let thread = 0; thread < profile.threads.length; thread++) {
      let sum = 0;
      for (let row = profile.rowAfter(thread, from); row < profile.first[thread + 1] && profile.earliest[row] < to; row++) {
        if (!(ON_CPU_MASK >> profile.state[row] & 1) || (cpu >= 0 && profile.cpu[row] !== cpu)) continue;
        sum += Math.max(0, Math.min(to, profile.end[row]) - Math.max(from, profile.begin[row]));
      }
      if (sum > 0) ran.push([thread, sum]);
    }
    return ran.sort((a, b) => b[1] - a[1]);
  }

  /** Returns the threads that ran as lines for a tooltip: names, and parts of a CPU's time. */
  ranLines(cpu, from, to) {
    const { profile } = this;
    const list = element("dl");
    const ran = this.ran(cpu, from, to);
    for (const [thread, ns] of ran.slice(0, MAX_NAMED_THREADS)) {
      const { process, tid } = profile.threads[thread];
      const own = profile.threadName(thread), program = profile.processes[process].name;
      list.append(element("dt", {}, own === program ? own : `${program}: ${own}`), element("dd", {}, share(ns, to - from)), element("dd", {}, String(tid)));
    }
    if (ran.length > MAX_NAMED_THREADS) list.append(element("dt", { class: "quiet" }, `${grouped(ran.length - MAX_NAMED_THREADS)} more`), element("dd"), element("dd"));
    return list;
  }

  /** Selects a CPU, or all of them if it is selected alone. */
  choose(cpu) {
    const { app } = this.timeline;
    const { cpus } = app.selection;
    const alone = cpus?.size === 1 && cpus.has(cpu);
    byId("cpus").value = alone ? "" : String(cpu);
    app.select({ cpus: alone ? null : this.one[cpu].set });
  }
}
