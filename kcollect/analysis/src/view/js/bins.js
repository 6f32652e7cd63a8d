// Bins from which a lane with more rows than pixels is drawn, in several levels of detail.
//
// A lane is one thread or all threads of a process. Its number of finest bins depends on its number
// of rows; each coarser level has half as many. A bin holds the nanoseconds of each slot in it: of
// each state, with some waits apart.
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

  /** Drops the bins: they are for the selected CPUs and waits. */
  dropBins() {
    this.levels = null;
    this.peak = null;
  }

  /**
   * Fills `out` with nanoseconds by pixel column and slot of rows in [from, to) on the CPUs of
   * `which`, with its waits.
   */
  columns(from, to, columns, out, which) {
    out.fill(0, 0, columns * SLOTS);
    const width = (to - from) / columns;
    const level = this.rows > MIN_BINNED_ROWS ? this.level(width, which) : null;
    if (level) this.fromBins(level, from, width, columns, out);
    else for (const thread of this.threads) this.fromRows(thread, from, to, columns, out, which);
  }

  fromRows(thread, from, to, columns, out, { cpus, waits }) {
    const { first, begin, earliest, end, slot, cpu, kind } = this.profile;
    const scale = columns / (to - from);
    for (let row = this.profile.rowAfter(thread, from); row < first[thread + 1] && earliest[row] < to; row++) {
      if (begin[row] >= to || (cpus && !cpus.has(cpu[row])) || !(waits >> kind[row] & 1)) continue;
      spread(out, slot[row], Math.max(0, (begin[row] - from) * scale), Math.min(columns, (end[row] - from) * scale), 1 / scale);
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
      for (let slot = 0; slot < SLOTS; slot++) {
        const ns = bins[bin * SLOTS + slot];
        if (ns === 0) continue;
        if (column >= 0) out[column * SLOTS + slot] += ns * (1 - right);
        if (right > 0 && column + 1 < columns) out[(column + 1) * SLOTS + slot] += ns * right;
      }
    }
  }

  /** Returns the coarsest level whose bins are no wider than `width`, or null. */
  level(width, which) {
    this.levels ??= this.fill(which);
    let found = null;
    for (const level of this.levels) if (level.width <= width) found = level;
    return found;
  }

  fill({ cpus, waits }) {
    const { profile } = this;
    let count = 256;
    while (count < MAX_BINS && count < this.rows / 2) count *= 2;
    let width = Math.max(1, profile.duration_ns) / count;
    const bins = new Float32Array((count + 1) * SLOTS);
    // Rows that cover whole bins are noted where they begin and end, and summed up at the end.
    const whole = new Int32Array((count + 1) * SLOTS);
    const { first, begin, end, slot, cpu, kind } = profile;
    for (const thread of this.threads) {
      for (let row = first[thread]; row < first[thread + 1]; row++) {
        if ((cpus && !cpus.has(cpu[row])) || !(waits >> kind[row] & 1)) continue;
        const left = Math.min(count, Math.max(0, begin[row] / width));
        const right = Math.min(count, Math.max(0, end[row] / width));
        const start = Math.ceil(left), stop = Math.floor(right);
        if (start > stop) {
          bins[stop * SLOTS + slot[row]] += (right - left) * width;
        } else {
          if (start > left) bins[(start - 1) * SLOTS + slot[row]] += (start - left) * width;
          if (right > stop) bins[stop * SLOTS + slot[row]] += (right - stop) * width;
          whole[start * SLOTS + slot[row]]++;
          whole[stop * SLOTS + slot[row]]--;
        }
      }
    }
    for (let at = 0; at < count * SLOTS; at++) {
      if (at >= SLOTS) whole[at] += whole[at - SLOTS];
      bins[at] += whole[at] * width;
    }
    const levels = [{ bins, count, width }];
    for (let fine = levels[0]; fine.count > 64; fine = levels.at(-1)) {
      const coarse = { bins: new Float32Array(fine.bins.length / 2 + SLOTS), count: fine.count / 2, width: width *= 2 };
      for (let bin = 0; bin < coarse.count; bin++) {
        for (let slot = 0; slot < SLOTS; slot++) {
          coarse.bins[bin * SLOTS + slot] = fine.bins[2 * bin * SLOTS + slot] + fine.bins[(2 * bin + 1) * SLOTS + slot];
        }
      }
      levels.push(coarse);
    }
    return levels;
  }

  /**
   * Returns the largest number of threads that are drawn together, averaged over a 256th of the
   * run.
   */
  mostShown(which) {
    const mask = statesOfGroup(which);
    if (this.peak?.mask !== mask) {
      const columns = 256;
      const out = new Float32Array(columns * SLOTS);
      this.columns(0, Math.max(1, this.profile.duration_ns), columns, out, which);
      let peak = 0;
      for (let column = 0; column < columns; column++) {
        let sum = 0;
        for (let slot = 0; slot < SLOTS; slot++) if (mask >> SLOT_STATE[slot] & 1) sum += out[column * SLOTS + slot];
        peak = Math.max(peak, sum);
      }
      this.peak = { mask, threads: peak * columns / Math.max(1, this.profile.duration_ns) };
    }
    return this.peak.threads;
  }
}

/** Adds the time from `left` to `right`, in columns of `width` nanoseconds, to one slot. */
function spread(out, slot, left, right, width) {
  const last = Math.floor(right);
  let column = Math.floor(left);
  if (column === last) {
    out[column * SLOTS + slot] += (right - left) * width;
    return;
  }
  out[column * SLOTS + slot] += (column + 1 - left) * width;
  while (++column < last) out[column * SLOTS + slot] += width;
  if (right > last) out[last * SLOTS + slot] += (right - last) * width;
}
