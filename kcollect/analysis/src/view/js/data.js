// Reads the payload that encode.rs writes.

async function load() {
  const bytes = await inflate(base64(byId("payload").textContent));
  byId("payload").remove();
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = {};
  let at = 4 + length;
  for (const [name, width, rows] of header.columns) {
    columns[name] = column(bytes.subarray(at, at += width * rows), width, rows);
  }
  return new Profile(header, columns);
}

function base64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Returns a column from its byte planes, the lowest first; eight bytes become doubles, exact below
 * 2⁵³.
 */
function column(planes, width, rows) {
  if (width === 1) return planes.slice();
  const numbers = new { 2: Uint16Array, 4: Uint32Array, 8: Float64Array }[width](rows);
  for (let plane = 0, scale = 1; plane < width; plane++, scale *= 256) {
    const from = plane * rows;
    for (let row = 0; row < rows; row++) {
      const byte = planes[from + row];
      if (byte) numbers[row] += byte * scale;
    }
  }
  return numbers;
}

/** A profile, ready to be counted and drawn. Ticks are rows sorted by thread, then time. */
class Profile {
  constructor(header, columns) {
    Object.assign(this, header);
    this.interval = header.interval_us * 1000;
    this.groupsBy = [];
    this.causes = header.causes.map(([title, kind, reason]) => ({ title, kind: KINDS.indexOf(kind), reason }));
    const text = (index) => header.strings[index];
    this.functions = header.functions.map(([name, object, flags]) => (
      { name: text(name), object: text(object), kernel: (flags & 1) !== 0, jit: (flags & 2) !== 0 }));
    this.threads = header.threads.map(([process, tid, name, known], index) => (
      { process, tid, name: text(name), exact: known ? columns.exact.subarray(STATES * index, STATES * (index + 1)) : null }));
    this.processes = header.processes.map(([name, lineage, heldUp, pid, groups], index) => (
      { index, name: text(name), lineage: text(lineage), heldUp: text(heldUp), pid, groups: groups.map(text), threads: [] }));
    this.threads.forEach((thread, index) => this.processes[thread.process].threads.push(index));
    this.subjects = header.subjects.map(([kind, name, process, library, caller], index) => (
      { index, kind, name: text(name), process: text(process), library: text(library), caller: text(caller) }));
    this.events = { subject: columns.event_subject, kind: columns.event_kind, end: columns.event_end, thread: columns.event_thread,
      count: columns.event_count, ns: columns.event_ns, bytes: columns.event_bytes };
    this.stackTree(columns.stack_depth, columns.stack_function);
    this.rows(columns);
  }

  /**
   * Returns the processes, or what they belong to by a kind of `groupings`: groups, each with its
   * name, processes and threads. They are the same objects each time.
   */
  groupedBy(kind) {
    const at = this.groupings.indexOf(kind);
    if (at < 0) return this.processes;
    return this.groupsBy[at] ??= this.makeGroups(at);
  }

  makeGroups(at) {
    const groups = new Map();
    for (const process of this.processes) {
      if (!process.threads.length) continue;
      const name = process.groups[at];
      if (!groups.has(name)) groups.set(name, { index: groups.size, name, lineage: "", heldUp: "", processes: [], threads: [] });
      const group = groups.get(name);
      group.processes.push(process);
      for (const thread of process.threads) group.threads.push(thread);
    }
    return [...groups.values()];
  }

  /** Computes the parents of nodes from preorder and depths. */
  stackTree(depth, functions) {
    this.depth = depth;
    this.nodeFunction = functions;
    this.parent = new Uint32Array(depth.length);
    const last = [];
    for (let node = 0; node < depth.length; node++) {
      this.parent[node] = depth[node] ? last[depth[node] - 1] : 0;
      last[depth[node]] = node;
    }
  }

  rows({ first, end, ticks, micros, stack, cpu, state, cause, waker }) {
    Object.assign(this, { first, end, ticks, micros, stack, cpu, state, cause, waker, length: end.length });
    const kinds = [NO_WAIT, ...this.causes.map(({ kind }) => kind)];
    this.kind = cause.map((number) => kinds[number]);
    this.slot = state.map((one, row) => slotOf(one, this.kind[row]));
    this.hasCauses = this.kind.some((kind) => kind === SUFFERED || kind === IDLE);
    // Where a row is drawn from. Rows meet within a tick at best: less than one between them is
    // neither a gap nor an overlap.
    this.begin = new Float64Array(end.length);
    // The earliest beginning of a row and those after it in its thread: where drawing may stop.
    this.earliest = new Float64Array(end.length);
    this.cpuTicks = new Float64Array(this.threads.length);
    this.cpus = 0;
    for (let thread = 0; thread < this.threads.length; thread++) {
      for (let row = first[thread], time = 0; row < first[thread + 1]; row++) {
        const before = time;
        end[row] = time += end[row];
        const begin = time - ticks[row] * this.interval;
        this.begin[row] = ticks[row] && row > first[thread] && Math.abs(begin - before) < this.interval ? before : begin;
        if (state[row] <= 2) this.cpuTicks[thread] += ticks[row];
        if (cpu[row] !== 0xffff && cpu[row] >= this.cpus) this.cpus = cpu[row] + 1;
      }
      for (let row = first[thread + 1] - 1, least = Infinity; row >= first[thread]; row--) {
        this.earliest[row] = least = Math.min(least, this.begin[row]);
      }
    }
  }

  /** Returns why the thread of a row was blocked, or null. */
  causeOf(row) {
    return this.cause[row] ? this.causes[this.cause[row] - 1] : null;
  }

  /**
   * Returns the thread that ended the wait of a row, −1 if it has no ticks. A tid may be of several
   * threads one after the other: it is the one with ticks at that time, or nearest to it.
   */
  wakerOf(row) {
    const { first, begin, end } = this;
    const distance = (thread) => {
      const last = first[thread + 1] - 1;
      return last < first[thread] ? Infinity : Math.max(0, begin[first[thread]] - end[row], end[row] - end[last]);
    };
    let best = -1;
    this.threads.forEach(({ tid }, thread) => {
      if (tid === this.waker[row] && distance(thread) < (best < 0 ? Infinity : distance(best))) best = thread;
    });
    return best;
  }

  /** Returns the first row of a thread that ends after `time`. */
  rowAfter(thread, time) {
    let low = this.first[thread], high = this.first[thread + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  /** Returns the first row of a thread from which on all rows begin at `time` or later. */
  rowFrom(thread, time) {
    let low = this.first[thread], high = this.first[thread + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.earliest[middle] >= time) high = middle; else low = middle + 1;
    }
    return low;
  }

  /** Returns how the times were found that are not exact for each thread and selection. */
  sampling() {
    const ticks = `ticks × ${intervalText(this.interval)}`;
    return this.weighed ? `exact times, shared out by ${ticks}` : ticks;
  }

  /** Returns the time by state of whole rows on these CPUs (null: any), with these waits. */
  blockSums({ cpus, waits }) {
    if (this.blocks?.cpus !== cpus || this.blocks.waits !== waits) this.blocks = new BlockSums(this, cpus, waits);
    return this.blocks;
  }

  threadName(index) {
    const thread = this.threads[index];
    return thread.name || this.processes[thread.process].name;
  }
}
