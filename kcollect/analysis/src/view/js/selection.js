// The selection and its time: by state, by process, by stack, in microseconds from the rows.

/** The selection of everything. */
const EVERYTHING = Object.freeze({ time: null, states: (1 << STATES) - 1, threads: null, cpus: null, waits: ALL_WAITS });
/** The selection with which the page opens: time on a CPU. */
const OPENING = Object.freeze({ ...EVERYTHING, states: ON_CPU.reduce((mask, state) => mask | 1 << state, 0) });

/**
 * Returns the time of those ticks of a row that are in (from, to]. Ticks are one interval apart,
 * the last at the end of the row, and all stand for the same time. Parts of a row add up to it.
 */
function microsWithin({ end, ticks, micros, interval }, row, from, to) {
  const count = ticks[row];
  if (!count) return end[row] > from && end[row] <= to ? micros[row] : 0;
  const until = Math.min(count, Math.ceil((end[row] - from) / interval));
  const since = Math.max(0, Math.ceil((end[row] - to) / interval));
  if (until <= since) return 0;
  return Math.floor(micros[row] * until / count) - Math.floor(micros[row] * since / count);
}

/**
 * Returns the bounds of a selection's time; a range that touches an end of the run is open there.
 */
function bounds(profile, time) {
  if (!time) return [-Infinity, Infinity];
  return [time[0] <= 0 ? -Infinity : time[0], time[1] >= profile.duration_ns ? Infinity : time[1]];
}

/**
 * Returns which rows of a thread may have ticks in (from, to]: from `begin` to `stop`. All ticks of
 * the rows from `left` to `right` are in it.
 */
function rowsWithin(profile, thread, from, to) {
  const begin = profile.rowAfter(thread, from), stop = profile.rowFrom(thread, to);
  const left = Math.max(begin, profile.rowFrom(thread, from)), right = profile.rowAfter(thread, to);
  // A row that covers all of the time is neither left nor right of it.
  return left < right ? { begin, left, right, stop } : { begin, left: stop, right: stop, stop };
}

/**
 * Calls `visit(row, micros)` for each row of these threads with time in the selection, whatever its
 * state.
 */
function eachRow(profile, selection, threads, visit) {
  const { micros, cpu, kind } = profile;
  const [from, to] = bounds(profile, selection.time);
  for (const thread of threads) {
    if (selection.threads && !selection.threads.has(thread)) continue;
    const { begin, left, right, stop } = rowsWithin(profile, thread, from, to);
    for (let row = begin; row < stop; row++) {
      if ((selection.cpus && !selection.cpus.has(cpu[row])) || !(selection.waits >> kind[row] & 1)) continue;
      const whole = row >= left && row < right;
      const time = whole ? micros[row] : microsWithin(profile, row, from, to);
      if (time) visit(row, time);
    }
  }
}

/** The number of rows of a block. */
const BLOCK_ROWS = 64;

/**
 * The time by state of all rows before each block of rows. So the sums of a range of rows take two
 * blocks and a few rows, however long the range is.
 */
class BlockSums {
  constructor(profile, cpus, waits) {
    this.profile = profile;
    this.cpus = cpus;
    this.waits = waits;
    this.before = new Float64Array((Math.floor(profile.length / BLOCK_ROWS) + 1) * STATES);
    for (let row = BLOCK_ROWS; row <= profile.length; row += BLOCK_ROWS) {
      const at = row / BLOCK_ROWS * STATES;
      this.before.copyWithin(at, at - STATES, at);
      this.rows(row - BLOCK_ROWS, row, 1, this.before, at);
    }
  }

  /** Adds the time of some rows, times `sign`, to ten numbers at `at`. */
  rows(from, to, sign, out, at) {
    const { cpus, waits, profile: { state, micros, cpu, kind } } = this;
    for (let row = from; row < to; row++) {
      if ((!cpus || cpus.has(cpu[row])) && waits >> kind[row] & 1) out[at + state[row]] += sign * micros[row];
    }
  }

  /** Adds the time of all rows from `from` to `to` to ten numbers at `at`. */
  add(from, to, out, at) {
    const first = Math.floor(from / BLOCK_ROWS), last = Math.floor(to / BLOCK_ROWS);
    if (first === last) return this.rows(from, to, 1, out, at);
    for (let state = 0; state < STATES; state++) {
      out[at + state] += this.before[last * STATES + state] - this.before[first * STATES + state];
    }
    this.rows(first * BLOCK_ROWS, from, -1, out, at);
    this.rows(last * BLOCK_ROWS, to, 1, out, at);
  }
}

/**
 * Returns the sums of a selection: `byThread`, the ten states of each thread one after the other,
 * whether it is selected or not (so that another can be chosen); `states` of the selected threads;
 * `micros` in the states that are switched on.
 */
function sums(profile, selection) {
  const byThread = new Float64Array(STATES * profile.threads.length);
  const { state, cpu, kind } = profile;
  const [from, to] = bounds(profile, selection.time);
  const blocks = profile.blockSums(selection);
  const parts = (first, last, at) => {
    for (let row = first; row < last; row++) {
      if ((selection.cpus && !selection.cpus.has(cpu[row])) || !(selection.waits >> kind[row] & 1)) continue;
      byThread[at + state[row]] += microsWithin(profile, row, from, to);
    }
  };
  for (let thread = 0; thread < profile.threads.length; thread++) {
    const { begin, left, right, stop } = rowsWithin(profile, thread, from, to);
    parts(begin, left, STATES * thread);
    blocks.add(left, right, byThread, STATES * thread);
    parts(right, stop, STATES * thread);
  }
  const states = statesOf(byThread, selection.threads ?? profile.threads.keys());
  return { micros: switchedOn(states, selection), states, byThread };
}

/** Returns the ten states of some threads together. */
function statesOf(byThread, threads) {
  const states = new Float64Array(STATES);
  for (const thread of threads) for (let one = 0; one < STATES; one++) states[one] += byThread[STATES * thread + one];
  return states;
}

function switchedOn(states, selection) {
  return states.reduce((sum, micros, state) => selection.states >> state & 1 ? sum + micros : sum, 0);
}

/** A tree of frames in preorder, as columns with a value for each frame. */
class FrameTree {
  constructor(capacity) {
    this.length = 0;
    this.node = new Int32Array(capacity); // of the stack tree; −1 − index for a process or a group
    this.depth = new Uint32Array(capacity);
    this.parent = new Int32Array(capacity);
    this.after = new Int32Array(capacity); // the first frame after its descendants
    this.from = new Float64Array(capacity); // microseconds to its left
    this.micros = new Float64Array(capacity);
    this.self = new Float64Array(capacity);
    this.states = new Float64Array(capacity * STATES);
    this.deepest = 0;
  }
}

/**
 * Returns the selection's time by stack. `below`: processes, or what they belong to. Each of them
 * with time has a frame below the root, the one with most time first.
 */
function frameTree(profile, selection, below) {
  const groups = below
    ? below.map((process) => collect(profile, selection, process.threads, process))
        .filter((group) => group.total).sort((a, b) => b.total - a.total || a.process.index - b.process.index)
    : [collect(profile, selection, profile.threads.keys(), null)];
  const frames = groups.reduce((sum, group) => sum + group.nodes.length, 1);
  const tree = new FrameTree(frames);
  const next = new Float64Array(frames); // where the next child of a frame begins
  const where = new Int32Array(profile.depth.length);
  const add = (parent, node, depth, group, at) => {
    const frame = tree.length++;
    tree.node[frame] = node;
    tree.parent[frame] = parent;
    tree.depth[frame] = depth;
    tree.deepest = Math.max(tree.deepest, depth);
    tree.from[frame] = parent < 0 ? 0 : next[parent];
    for (let state = 0; state < STATES; state++) {
      const micros = group.states[STATES * at + state];
      tree.states[STATES * frame + state] = micros;
      tree.micros[frame] += micros;
    }
    tree.self[frame] = group.self[at];
    next[frame] = tree.from[frame];
    if (parent >= 0) next[parent] += tree.micros[frame];
    return frame;
  };
  if (below) add(-1, 0, 0, rootOf(groups), 0);
  for (const group of groups) {
    group.nodes.forEach((node, at) => {
      if (node === 0) where[0] = below ? add(0, -1 - group.process.index, 1, group, at) : add(-1, 0, 0, group, at);
      else where[node] = add(where[profile.parent[node]], node, profile.depth[node] + (below ? 1 : 0), group, at);
    });
  }
  const open = [];
  for (let frame = 0; frame < tree.length; frame++) {
    while (open.length > tree.depth[frame]) tree.after[open.pop()] = frame;
    open.push(frame);
  }
  for (const frame of open) tree.after[frame] = tree.length;
  return tree;
}

function rootOf(groups) {
  const states = new Float64Array(STATES);
  for (const group of groups) for (let state = 0; state < STATES; state++) states[state] += group.states[state];
  return { states, self: [0] };
}

/** Buffers for one pass over the stack tree, reused. */
const scratch = { states: new Float64Array(0), self: new Float64Array(0), seen: new Int32Array(0), pass: 0 };

/**
 * Returns the nodes with time of these threads, ascending, with their states (descendants
 * included) and their own time.
 */
function collect(profile, selection, threads, process) {
  const count = profile.depth.length;
  if (scratch.self.length !== count) {
    Object.assign(scratch, { states: new Float64Array(count * STATES), self: new Float64Array(count), seen: new Int32Array(count) });
  }
  const pass = ++scratch.pass;
  const { states, self, seen } = scratch;
  const { stack, state, parent } = profile;
  const touched = [0];
  seen[0] = pass;
  eachRow(profile, selection, threads, (row, micros) => {
    if (!(selection.states >> state[row] & 1)) return;
    const at = stack[row];
    for (let node = at; seen[node] !== pass; node = parent[node]) {
      seen[node] = pass;
      touched.push(node);
    }
    states[STATES * at + state[row]] += micros;
    self[at] += micros;
  });
  const nodes = Int32Array.from(touched).sort();
  const sum = new Float64Array(nodes.length * STATES);
  const own = new Float64Array(nodes.length);
  for (let at = nodes.length - 1; at >= 0; at--) {
    const node = nodes[at];
    const up = STATES * parent[node];
    for (let one = 0; one < STATES; one++) {
      const micros = states[STATES * node + one];
      sum[STATES * at + one] = micros;
      if (node) states[up + one] += micros;
      states[STATES * node + one] = 0;
    }
    own[at] = self[node];
    self[node] = 0;
  }
  let total = 0;
  for (let one = 0; one < STATES; one++) total += sum[one];
  return { process, nodes, states: sum, self: own, total };
}

/** Parses CPUs such as "0-3,7"; null for all, undefined if the text is not valid. */
function cpuList(text, count) {
  if (text.trim() === "") return null;
  const cpus = new Set();
  for (const part of text.split(",")) {
    const range = /^\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?$/.exec(part);
    if (!range) return undefined;
    const last = Math.min(Number(range[2] ?? range[1]), count - 1);
    for (let cpu = Number(range[1]); cpu <= last; cpu++) cpus.add(cpu);
  }
  return cpus;
}
