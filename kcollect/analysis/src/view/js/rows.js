// The rows of the timeline and their order: processes, each with its threads below it, or what
// processes belong to, each group with its processes below it.

/**
 * Returns the rows that a timeline shows. A row has its `process`, which may be a group, a `thread`
 * or −1, its `lane`, its `depth` below other rows, and whether it was `seen` in the shown states.
 * It is `single` if it is the only thread of its process.
 */
function timelineRows(timeline) {
  const { profile, app, extra, open } = timeline;
  const { byThread } = app.wholeRunWith(app.selection.waits);
  const suffered = app.selection.waits === SUFFERED_WAITS;
  const rank = (threads) => {
    const states = statesOf(byThread, threads);
    const seen = switchedOn(states, app.selection);
    // Of suffered waits, those with most of them are first, and sleep is among them.
    const cpu = suffered ? seen : states[0] + states[1] + states[2];
    return { seen, cpu, awake: states.reduce((sum, micros) => sum + micros, 0) - (suffered ? 0 : states[SLEEP]) };
  };
  const sorted = (list, threadsOf) => list.map((item) => [item, rank(threadsOf(item))])
    .sort(([a, x], [b, y]) => (y.seen > 0) - (x.seen > 0) || y.cpu - x.cpu || y.awake - x.awake || a.order - b.order);
  const ranked = (processes) => sorted(processes.filter((process) => process.threads.length)
    .map((process) => ({ process, order: process.index })), (item) => item.process.threads);
  const wanted = timeline.filter.toLowerCase();
  const matches = (name, number) => name.toLowerCase().includes(wanted) || String(number) === wanted;
  const rows = wanted ? [] : extra.ofCpus();
  const addProcess = (process, seen, depth, all) => {
    const own = all || matches(process.name, process.pid);
    const threads = process.threads.filter((thread) => own
      || matches(profile.threadName(thread), profile.threads[thread].tid)).map((thread) => ({ thread, order: thread }));
    if (!threads.length) return;
    const single = process.threads.length === 1;
    if (!single) rows.push({ process, thread: -1, seen, depth, lane: timeline.lane(process, process.threads) });
    if (!single && !open.has(process) && !wanted) return;
    for (const [{ thread }, { seen }] of sorted(threads, (item) => [item.thread])) {
      rows.push({ process, thread, single, seen, depth, lane: timeline.lane(thread, [thread]) });
    }
  };
  const addGroup = (group, seen) => {
    const above = rows.push({ process: group, thread: -1, seen, depth: 0, lane: timeline.lane(group, group.threads) });
    if (!open.has(group) && !wanted) return;
    const all = wanted !== "" && matches(group.name, "");
    for (const [{ process }, { seen }] of ranked(group.processes)) addProcess(process, seen, 1, all);
    // Nothing in it has the text of the filter.
    if (rows.length === above) rows.pop();
  };
  const groups = ranked(app.groups());
  const [shown, idle] = wanted ? [groups, []] : extra.withoutIdle(groups);
  for (const [{ process }, { seen }] of shown) {
    if (process.processes) addGroup(process, seen); else addProcess(process, seen, 0, false);
  }
  rows.push(...idle);
  return rows;
}
