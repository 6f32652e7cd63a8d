// Bins from which a lane with more rows than pixels is drawn, in several levels of detail.
//
// A lane is one thread or all threads of a process. Its number of finest bins depends on its number
// of rows; each coarser level has half as many. A bin holds the nanoseconds of each state in it.
// Bins serve drawing alone; every printed number is counted from the rows.

/** The most bins of the finest level. */
const MAX_BINS = 1 << 16;
/** The rows from which on a lane is drawn from bins. */
const MIN_BINNED_ROWS = 1500;

class Lane {
  constructor(profile, threads) {
    this.profile = profile;
    this.threads = threads;
    this.rows = threads.reduce((sum, thread) => sum + profile.first[thread + 1] - profile.first[thread], 0);
    this.dropBins();
  }

  /** Drops the bins: they are for the selected CPUs. */
  dropBins() {
    this.levels = null;
    this.peak = null;
  }

  /**
   * Fills `out` with nanoseconds by pixel column and state (ten numbers a column) of rows in [from,
   * to) on these CPUs.
   */
  columns(from, to, columns, out, cpus) {
    out.fill(0, 0, columns * STATES);
    const width = (to - from) / columns;
    const level = this.rows > MIN_BINNED_ROWS ? this.level(width, cpus) : null;
    if (level) this.fromBins(level, from, width, columns, out);
    else for (const thread of this.threads) this.fromRows(thread, from, to, columns, out, cpus);
  }

  fromRows(thread, from, to, columns, out, cpus) {
    const { first, begin, earliest, end, state, cpu } = this.profile;
    const scale = columns / (to - from);
    for (let row = this.profile.rowAfter(thread, from); row < first[thread + 1] && earliest[row] < to; row++) {
      if (begin[row] >= to || (cpus && !cpus.has(cpu[row]))) continue;
      spread(out, state[row], Math.max(0, (begin[row] - from) * scale), Math.min(columns, (end[row] - from) * scale), 1 / scale);
    }
  }

  fromBins({ bins, width: binWidth, count }, from, width, columns, out) {
    const scale = binWidth / width;
    const last = Math.min(count - 1, Math.floor((from + width * columns) / binWidth));
    for (let bin = Math.max(0, Math.floor(from / binWidth)); bin <= last; bin++) {
      const begin = bin * scale - from / width;
      const column = Math.floor(begin);
      // A bin is at most as wide as a column: it falls into one, or on the border of two.
      const right = Math.max(0, begin + scale - column - 1) / scale;
      for (let state = 0; state < STATES; state++) {
        const ns = bins[bin * STATES + state];
        if (ns === 0) continue;
        if (column >= 0) out[column * STATES + state] += ns * (1 - right);
        if (right > 0 && column + 1 < columns) out[(column + 1) * STATES + state] += ns * right;
      }
    }
  }

  /** Returns the coarsest level whose bins are no wider than `width`, or null. */
  level(width, cpus) {
    this.levels ??= this.fill(cpus);
    let found = null;
    for (const level of this.levels) if (level.width <= width) found = level;
    return found;
  }

  fill(cpus) {
    const { profile } = this;
    let count = 256;
    while (count < MAX_BINS && count < this.rows / 2) count *= 2;
    let width = Math.max(1, profile.duration_ns) / count;
    const bins = new Float32Array((count + 1) * STATES);
    // Rows that cover whole bins are noted where they begin and end, and summed up at the end.
    const whole = new Int32Array((count + 1) * STATES);
    const { first, begin, end, state, cpu } = profile;
    for (const thread of this.threads) {
      for (let row = first[thread]; row < first[thread + 1]; row++) {
        if (cpus && !cpus.has(cpu[row])) continue;
        const left = Math.min(count, Math.max(0, begin[row] / width));
        const right = Math.min(count, Math.max(0, end[row] / width));
        const start = Math.ceil(left), stop = Math.floor(right);
        if (start > stop) {
          bins[stop * STATES + state[row]] += (right - left) * width;
        } else {
          if (start > left) bins[(start - 1) * STATES + state[row]] += (start - left) * width;
          if (right > stop) bins[stop * STATES + state[row]] += (right - stop) * width;
          whole[start * STATES + state[row]]++;
          whole[stop * STATES + state[row]]--;
        }
      }
    }
    for (let at = 0; at < count * STATES; at++) {
      if (at >= STATES) whole[at] += whole[at - STATES];
      bins[at] += whole[at] * width;
    }
    const levels = [{ bins, count, width }];
    for (let fine = levels[0]; fine.count > 64; fine = levels.at(-1)) {
      const coarse = { bins: new Float32Array(fine.bins.length / 2 + STATES), count: fine.count / 2, width: width *= 2 };
      for (let bin = 0; bin < coarse.count; bin++) {
        for (let state = 0; state < STATES; state++) {
          coarse.bins[bin * STATES + state] = fine.bins[2 * bin * STATES + state] + fine.bins[(2 * bin + 1) * STATES + state];
        }
      }
      levels.push(coarse);
    }
    return levels;
  }

  /** Returns the largest number of threads that are awake, averaged over a 256th of the run. */
  mostAwake(states, cpus) {
    const mask = states & ~(1 << SLEEP);
    if (this.peak?.mask !== mask) {
      const columns = 256;
      const out = new Float32Array(columns * STATES);
      this.columns(0, Math.max(1, this.profile.duration_ns), columns, out, cpus);
      let peak = 0;
      for (let column = 0; column < columns; column++) {
        let sum = 0;
        for (let state = 0; state < STATES; state++) if (mask >> state & 1) sum += out[column * STATES + state];
        peak = Math.max(peak, sum);
      }
      this.peak = { mask, threads: peak * columns / Math.max(1, this.profile.duration_ns) };
    }
    return this.peak.threads;
  }
}

/** Adds the time from `left` to `right`, in columns of `width` nanoseconds, to one state. */
function spread(out, state, left, right, width) {
  const last = Math.floor(right);
  let column = Math.floor(left);
  if (column === last) {
    out[column * STATES + state] += (right - left) * width;
    return;
  }
  out[column * STATES + state] += (column + 1 - left) * width;
  while (++column < last) out[column * STATES + state] += width;
  if (right > last) out[last * STATES + state] += (right - last) * width;
}
