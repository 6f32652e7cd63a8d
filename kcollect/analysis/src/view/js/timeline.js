// The timeline: a lane for each thread, below its process. A column of a lane is stacked by the
// shares of the states with CPU time at the bottom, so that it reads as a load when zoomed out and
// as a sequence when zoomed in. The lane of a process shows how many of its threads are awake.

const LANE_PX = 20;
const RULER_PX = 24;
/** How far what is below a row is indented. */
const INDENT_PX = 14;
/** The shortest time that the view can show. */
const MIN_VIEW_NS = 20_000;

class Timeline {
  constructor(app) {
    this.app = app;
    this.profile = app.profile;
    this.whole = Math.max(1, this.profile.duration_ns);
    this.view = [0, this.whole];
    this.focus = -1;
    this.filter = "";
    this.shares = new Float32Array(0);
    this.lanes = new Map();
    this.all = new Lane(this.profile, [...this.profile.threads.keys()]);
    const many = this.profile.threads.length > 80;
    // The expanded rows: processes, groups of them, the CPUs.
    this.open = new Set(many ? [] : this.profile.processes);
    this.extra = new ExtraRows(this);
    this.scroll = byId("lanes-scroll");
    this.surface = new Surface(byId("lanes"), this.scroll, (...size) => this.draw(...size), (...size) => this.drawOver(...size));
    this.overview = new Surface(byId("overview"), byId("overview-box"), (...size) => this.drawOverview(...size), (...size) => this.drawOverOverview(...size));
    this.arrange();
    this.listen();
  }

  get gutter() {
    return this.surface.width >= 1900 ? 320 : this.surface.width >= 1200 ? 260 : 210;
  }

  lane(key, threads) {
    let lane = this.lanes.get(key);
    if (!lane) this.lanes.set(key, lane = new Lane(this.profile, threads));
    return lane;
  }

  // The rows and their order.

  /**
   * Sorts processes, or what they belong to, by CPU time, then by time awake; those without time in
   * the shown states last.
   */
  arrange() {
    this.rows = timelineRows(this);
    this.focus = Math.min(this.focus, this.rows.length - 1);
    byId("lanes-spacer").style.height = RULER_PX + this.rows.length * LANE_PX + 6 + "px";
    byId("lanes-empty").hidden = this.rows.length > 0;
    byId("lanes-empty").textContent = this.filter ? `No process or thread has “${this.filter}” in its name or number.` : "No thread was recorded.";
    const foldable = this.foldable();
    byId("fold").textContent = foldable.every((one) => this.open.has(one)) ? "Collapse all" : "Expand all";
    byId("fold").disabled = !foldable.length;
    this.redraw();
  }

  /** Returns what has rows below it: groups, and processes with several threads. */
  foldable() {
    const groups = this.app.groups().filter((group) => group.processes);
    return [...groups, ...this.profile.processes.filter((process) => process.threads.length > 1)];
  }

  /** Shows other groups. */
  regroup() {
    this.focus = -1;
    this.scroll.scrollTop = 0;
    this.arrange();
  }

  redraw() {
    this.surface.later();
    this.overview.later();
  }

  /** Draws the selected time anew, and nothing else. */
  redrawTime() {
    this.surface.overLater();
    this.overview.overLater();
  }

  /** Drops the bins of all lanes. */
  dropBins() {
    for (const lane of this.lanes.values()) lane.dropBins();
    this.all.dropBins();
  }

  /** Shows [from, to), within the bounds of the run. */
  show(from, to) {
    const span = Math.min(this.whole, Math.max(MIN_VIEW_NS, to - from));
    const begin = Math.min(this.whole - span, Math.max(0, from));
    this.view = [begin, begin + span];
    this.app.viewChanged();
    this.surface.later();
    this.overview.overLater();
  }

  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const span = Math.min(this.whole, Math.max(MIN_VIEW_NS, (this.view[1] - this.view[0]) * factor));
    const share = (at - this.view[0]) / (this.view[1] - this.view[0]);
    this.show(at - share * span, at + (1 - share) * span);
  }

  pan(share) {
    const by = share * (this.view[1] - this.view[0]);
    this.show(this.view[0] + by, this.view[1] + by);
  }

  // Drawing.

  timeAt(x) {
    const share = (x - this.gutter) / Math.max(1, this.surface.width - this.gutter);
    return this.view[0] + Math.min(1, Math.max(0, share)) * (this.view[1] - this.view[0]);
  }

  xOf(time, [from, to] = this.view) {
    return this.gutter + (time - from) / (to - from) * (this.surface.width - this.gutter);
  }

  draw(context, width, height) {
    const { colours } = theme;
    const { snap, gutter } = { snap: (x) => this.surface.snap(x), gutter: this.gutter };
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, width, height);
    const top = this.scroll.scrollTop;
    const first = Math.max(0, Math.floor(top / LANE_PX));
    const last = Math.min(this.rows.length, Math.ceil((top + height - RULER_PX) / LANE_PX));
    for (let index = first; index < last; index++) {
      const y = snap(RULER_PX + index * LANE_PX - top);
      this.label(context, this.rows[index], index, y, gutter);
      this.bars(context, this.rows[index], y, gutter, width);
    }
    this.ruler(context, gutter, width);
    context.fillStyle = colours.line;
    context.fillRect(snap(gutter) - 1 / this.surface.ratio, 0, 1 / this.surface.ratio, height);
  }

  /** Draws the selected time, in the lanes and in the ruler. */
  drawOver(context, width, height) {
    const { gutter } = this;
    this.range(context, gutter, width, RULER_PX, height, this.view);
    this.shownWait(context, gutter, width, height);
    const { time } = this.app.selection;
    if (!time) return;
    const [begin, end] = time.map((at) => Math.min(width, Math.max(gutter, this.xOf(at))));
    context.fillStyle = theme.colours.strong;
    context.fillRect(begin, RULER_PX - 3, Math.max(1, end - begin), 3);
  }

  /** Draws a frame around the wait whose cause is shown, and an arrow from its waker. */
  shownWait(context, gutter, width, height) {
    const { row, thread, waker } = this.app.wait;
    if (row < 0) return;
    const { begin, end } = this.profile;
    const middle = (index) => RULER_PX + (index + 0.5) * LANE_PX - this.scroll.scrollTop;
    const at = this.rowOf(thread);
    if (at < 0) return;
    context.save();
    context.beginPath();
    context.rect(gutter, RULER_PX, width - gutter, height - RULER_PX);
    context.clip();
    context.strokeStyle = context.fillStyle = theme.colours.strong;
    context.lineWidth = 1.5;
    const left = this.xOf(begin[row]), right = this.xOf(end[row]);
    const to = middle(at);
    context.strokeRect(left, to - LANE_PX / 2 + 1.5, Math.max(2, right - left), LANE_PX - 3);
    const from = waker === null || waker < 0 ? at : this.rowOf(waker);
    if (from >= 0 && from !== at) {
      const down = Math.sign(at - from);
      const tip = to - down * LANE_PX / 2;
      context.beginPath();
      context.moveTo(right, middle(from));
      context.lineTo(right, tip - down * 4);
      context.stroke();
      context.beginPath();
      context.arc(right, middle(from), 3, 0, 2 * Math.PI);
      context.moveTo(right, tip);
      context.lineTo(right - 4, tip - down * 7);
      context.lineTo(right + 4, tip - down * 7);
      context.fill();
    }
    context.restore();
  }

  /** Returns the index of the row of a thread, of its process or group if that is folded, or −1. */
  rowOf(thread) {
    const own = this.rows.findIndex((row) => row.thread === thread);
    if (own >= 0) return own;
    return this.rows.findLastIndex(({ process, cpu }) => cpu === undefined && process.threads.includes(thread));
  }

  /** Scrolls to the row of a thread, which is unfolded, and shows this time. */
  reveal(thread, time) {
    const process = this.profile.processes[this.profile.threads[thread].process];
    const has = () => this.rows.some((row) => row.thread === thread);
    this.filter = byId("filter").value = "";
    this.arrange();
    if (!has()) {
      const groups = this.app.groups().filter((group) => group.threads.includes(thread));
      for (const one of [...groups, process]) this.open.add(one);
      this.arrange();
    }
    if (!has()) {
      this.open.add(this.extra.idle);
      this.arrange();
    }
    const [from, to] = this.view;
    if (time < from || time > to) this.show(time - (to - from) / 2, time + (to - from) / 2);
    this.focus = this.rowOf(thread);
    this.move(0);
  }

  label(context, { process, thread, single, seen, cpu, depth = 0 }, index, y, gutter) {
    const { colours } = theme;
    const { fitter } = this.surface;
    const group = thread < 0;
    const chosen = this.app.selection.threads;
    const whole = group ? process.threads : [thread];
    const selected = cpu >= 0 ? this.app.selection.cpus?.has(cpu) : chosen && whole.some((one) => chosen.has(one));
    if (group) {
      context.fillStyle = colours.raised;
      context.fillRect(0, y, this.surface.width, LANE_PX);
    }
    if (selected || index === this.focus) {
      context.fillStyle = selected ? colours.shade : colours.raised;
      context.fillRect(0, y, gutter, LANE_PX);
    }
    if (index === this.focus && document.activeElement === this.surface.canvas) {
      context.strokeStyle = colours.strong;
      context.lineWidth = 1.5;
      context.strokeRect(1.5, y + 1.5, gutter - 4, LANE_PX - 3);
    }
    context.textBaseline = "middle";
    const middle = y + LANE_PX / 2 + 0.5;
    const number = String(group || single ? process.pid ?? "" : this.profile.threads[thread].tid);
    fitter.use(`11px ${FONT}`);
    const right = gutter - 10;
    context.fillStyle = colours.quiet;
    context.textAlign = "right";
    context.fillText(number, right, middle);
    context.textAlign = "left";
    if (group && !(cpu >= 0)) {
      const open = this.open.has(process) || this.filter !== "";
      context.beginPath();
      const [x, h] = [11 + depth * INDENT_PX, middle - 0.5];
      if (open) { context.moveTo(x - 1, h - 2); context.lineTo(x + 7, h - 2); context.lineTo(x + 3, h + 3); }
      else { context.moveTo(x + 1, h - 4); context.lineTo(x + 6, h); context.lineTo(x + 1, h + 4); }
      context.fill();
    }
    const left = 24 + INDENT_PX * (depth + (cpu >= 0 || !(group || single)));
    let width = right - fitter.width("00000000") - left;
    const name = group || single ? process.name : this.profile.threadName(thread);
    fitter.use(`${depth === 0 && ((group && !(cpu >= 0)) || single) ? 600 : 400} 12px ${FONT}`);
    const shown = fitter.fit(name, width);
    context.fillStyle = (seen || selected) && !(chosen && !selected) ? colours.text : colours.quiet;
    context.fillText(shown, left, middle);
    if (!group || cpu >= 0) return;
    width -= fitter.width(shown) + 8;
    const count = cpu !== undefined ? "utilisation" : this.countWords(process);
    const after = left + fitter.width(shown) + 8;
    fitter.use(`11px ${FONT}`);
    context.fillStyle = colours.quiet;
    if (fitter.width(count) <= width) context.fillText(count, after, middle);
  }

  /** Returns how many threads a process has, or how many processes a group. */
  countWords({ processes, threads }) {
    return processes ? plural(processes.length, "process", "processes") : plural(threads.length, "thread");
  }

  /** Draws one lane. */
  bars(context, row, y, gutter, width) {
    const { lane, thread, process } = row;
    const { ratio } = this.surface;
    const group = thread < 0;
    const left = Math.round(gutter * ratio), columns = Math.round(width * ratio) - left;
    if (columns <= 0) return;
    const from = Math.round((y + (group ? 2 : 1.5)) * ratio), height = Math.round((LANE_PX - (group ? 3 : 3)) * ratio);
    if (this.shares.length < columns * SLOTS) this.shares = new Float32Array(columns * SLOTS);
    const full = (this.view[1] - this.view[0]) / columns;
    if (row.cpu !== undefined) {
      const { states, peak } = this.extra.shares(row, this.view, columns, this.shares, this.app.selection);
      stack(this.image(context, columns, height), columns, height, this.shares, states, full * peak, true, this.paint(true, true));
      context.putImageData(this.picture, left, from, 0, 0, columns, height);
      return;
    }
    const { selection } = this.app;
    const { threads } = selection;
    lane.columns(...this.view, columns, this.shares, selection);
    const lit = !threads || (group ? process.threads.some((one) => threads.has(one)) : threads.has(thread));
    const paint = this.paint(lit, group);
    const peak = group ? Math.max(1e-9, lane.mostShown(selection)) : 1;
    const states = group ? statesOfGroup(selection) : selection.states;
    stack(this.image(context, columns, height), columns, height, this.shares, states, full * peak, group, paint);
    context.putImageData(this.picture, left, from, 0, 0, columns, height);
  }

  image(context, columns, height) {
    if (this.picture?.width !== columns || this.picture.height !== height) {
      this.picture = context.createImageData(columns, height);
      this.pixels = new Uint32Array(this.picture.data.buffer);
    }
    return this.pixels;
  }

  /** Returns the colours of the slots as pixels, followed by the background's. */
  paint(lit, group) {
    const { colours } = theme;
    const back = group ? colours.raised : colours.ground;
    const ground = rgb(back);
    const mixed = (colour, part, other) => rgb(colour).map((value, at) => value * part + other[at] * (1 - part));
    const idle = [SLEEP, LOCK].map((state) => mixed(colours.states[state], 0.3, ground));
    const suffered = mixed(colours.states[SLEEP], 0.6, rgb(colours.text));
    return [...colours.states.map(rgb), ...idle, suffered, ground].map((colour) => {
      const [r, g, b] = colour.map((value, at) => Math.round(lit ? value : value * 0.22 + ground[at] * 0.78));
      return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    });
  }

  /** Dims what is outside of the selected time. */
  range(context, left, right, top, bottom, view) {
    const { time } = this.app.selection;
    if (!time) return;
    const { colours } = theme;
    const [begin, end] = time.map((at) => Math.min(right, Math.max(left, this.xOf(at, view))));
    context.fillStyle = colours.veil;
    context.fillRect(left, top, begin - left, bottom - top);
    context.fillRect(end, top, right - end, bottom - top);
    context.fillStyle = colours.strong;
    for (const at of [begin, end]) {
      if (at > left && at < right) context.fillRect(this.surface.snap(at) - 0.5, top, 1, bottom - top);
    }
  }

  ruler(context, gutter, width) {
    const { colours } = theme;
    const { fitter } = this.surface;
    context.fillStyle = colours.raised;
    context.fillRect(0, 0, width, RULER_PX);
    context.fillStyle = colours.line;
    context.fillRect(0, RULER_PX - 1, width, 1);
    fitter.use(`11px ${FONT}`);
    context.textBaseline = "middle";
    const [from, to] = this.view;
    const step = clockStep((to - from) * 96 / Math.max(1, width - gutter));
    for (let mark = Math.ceil(from / step); mark * step <= to; mark++) {
      const x = this.surface.snap(this.xOf(mark * step));
      context.fillStyle = colours.line;
      context.fillRect(x, RULER_PX - 7, 1, 6);
      context.fillStyle = colours.quiet;
      const text = instant(mark * step, step, this.whole);
      if (x + 4 + fitter.width(text) < width) context.fillText(text, x + 4, RULER_PX / 2);
    }
    context.fillStyle = colours.quiet;
    context.fillText(plural(this.profile.threads.length, "thread") + " of " + plural(this.profile.processes.length, "process", "processes"), 10, RULER_PX / 2);
  }

  drawOverview(context, width, height) {
    const { colours } = theme;
    const gutter = this.gutter;
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, width, height);
    const ratio = this.overview.ratio;
    const left = Math.round(gutter * ratio), columns = Math.round(width * ratio) - left, pixels = Math.round((height - 8) * ratio);
    if (columns <= 0) return;
    const { selection } = this.app;
    const states = statesOfGroup(selection);
    const shares = new Float32Array(columns * SLOTS);
    this.all.columns(0, this.whole, columns, shares, selection);
    const peak = Math.max(1e-9, this.all.mostShown(selection));
    const picture = context.createImageData(columns, pixels);
    stack(new Uint32Array(picture.data.buffer), columns, pixels, shares, states, this.whole / columns * peak, true, this.paint(true, false));
    context.putImageData(picture, left, Math.round(4 * ratio));
    const { fitter } = this.overview;
    context.textBaseline = "middle";
    fitter.use(`600 12px ${FONT}`);
    context.fillStyle = colours.text;
    context.fillText("Whole machine", 24, height / 2 - 7);
    fitter.use(`11px ${FONT}`);
    context.fillStyle = colours.quiet;
    context.fillText(`≤ ${peak < 10 ? peak.toFixed(1) : Math.round(peak)} threads`, 24, height / 2 + 9);
  }

  /** Draws the selected time, and the one that is shown below. */
  drawOverOverview(context, width, height) {
    const { gutter } = this;
    this.range(context, gutter, width, 0, height, [0, this.whole]);
    const [begin, end] = this.view.map((time) => this.xOf(time, [0, this.whole]));
    if (end - begin < width - gutter - 0.5) {
      context.strokeStyle = theme.colours.text;
      context.lineWidth = 1.5;
      context.beginPath();
      context.roundRect(begin + 0.75, 1.75, Math.max(3, end - begin - 1.5), height - 3.5, 3);
      context.stroke();
    }
  }

  // Input.

  rowAt(y) {
    const index = Math.floor((y - RULER_PX + this.scroll.scrollTop) / LANE_PX);
    return y < RULER_PX || index < 0 || index >= this.rows.length ? -1 : index;
  }

  /** Selects a row's threads, alone or together with what is selected already. */
  choose(index, more) {
    const { process, thread, cpu } = this.rows[index];
    if (cpu >= 0) return this.extra.choose(cpu);
    if (cpu !== undefined) return this.fold(index);
    this.app.chooseThreads(thread < 0 || this.rows[index].single ? process.threads : [thread], more);
  }

  fold(index) {
    const { process, cpu } = this.rows[index];
    if (cpu >= 0 || (process.threads.length === 1 && !process.processes)) return;
    if (!this.open.delete(process)) this.open.add(process);
    this.arrange();
    this.focus = this.rows.findIndex((row) => row.process === process);
  }

  foldAll() {
    const foldable = this.foldable();
    this.open = new Set(foldable.every((one) => this.open.has(one)) ? [] : foldable);
    this.arrange();
  }

  listen() {
    const { canvas } = this.surface;
    let drag = null;
    this.scroll.addEventListener("scroll", () => { this.surface.later(); tip.hide(); }, { passive: true });
    canvas.addEventListener("wheel", (event) => {
      if (event.offsetX < this.gutter) return;
      event.preventDefault();
      const scale = event.deltaMode === 1 ? 16 : 1;
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (event.shiftKey || sideways) this.pan((sideways ? event.deltaX : event.deltaY) * scale / (this.surface.width - this.gutter));
      else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * scale * 0.002))), this.timeAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const index = this.rowAt(event.offsetY);
      if (index >= 0) this.focus = index;
      if (event.offsetX < this.gutter) {
        if (index < 0 || event.button) return;
        const { thread, depth = 0 } = this.rows[index];
        if (thread < 0 && event.offsetX < 22 + depth * INDENT_PX) this.fold(index);
        else this.choose(index, event.ctrlKey || event.metaKey || event.shiftKey);
        return;
      }
      if (event.button > 1) return;
      canvas.setPointerCapture(event.pointerId);
      drag = { x: event.offsetX, from: this.timeAt(event.offsetX), pan: event.shiftKey || event.button === 1, moved: false, view: this.view };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.hover(event);
      drag.moved ||= Math.abs(event.offsetX - drag.x) > 3;
      if (!drag.moved) return;
      tip.hide();
      if (drag.pan) {
        const by = (drag.x - event.offsetX) / (this.surface.width - this.gutter) * (drag.view[1] - drag.view[0]);
        this.show(drag.view[0] + by, drag.view[1] + by);
      } else {
        const to = this.timeAt(event.offsetX);
        this.app.drag([Math.round(Math.min(drag.from, to)), Math.round(Math.max(drag.from, to))]);
      }
    });
    const done = (event) => {
      if (drag && !drag.moved) {
        if (this.app.selection.time) this.app.select({ time: null });
        this.click(event);
      }
      drag = null;
      this.app.dragged();
    };
    canvas.addEventListener("pointerup", done);
    canvas.addEventListener("pointercancel", () => { drag = null; this.app.dragged(); });
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.surface.later());
    canvas.addEventListener("blur", () => this.surface.later());
    this.listenOverview(byId("overview"));
    byId("zoom-in").addEventListener("click", () => this.zoom(0.5));
    byId("zoom-out").addEventListener("click", () => this.zoom(2));
    byId("zoom-all").addEventListener("click", () => this.show(0, this.whole));
    byId("zoom-range").addEventListener("click", () => this.app.selection.time && this.show(...this.app.selection.time));
    byId("fold").addEventListener("click", () => this.foldAll());
    byId("filter").addEventListener("input", (event) => { this.filter = event.target.value.trim(); this.arrange(); });
  }

  /** Shows the cause of the wait at the pointer, if there is one. */
  click(event) {
    const index = this.rowAt(event.offsetY);
    const thread = index < 0 ? -1 : this.rows[index].thread;
    if (thread < 0) return this.app.wait.hide();
    const { profile } = this;
    const time = this.timeAt(event.offsetX);
    const row = profile.rowAfter(thread, time);
    const pixel = (this.view[1] - this.view[0]) / (this.surface.width - this.gutter);
    const covers = row < profile.first[thread + 1] && profile.begin[row] <= time + pixel;
    if (covers && profile.causeOf(row)) this.app.wait.show(row, thread, event.clientX, event.clientY);
    else this.app.wait.hide();
  }

  /** Listens to the overview: dragging shows that range below, a click moves the range there. */
  listenOverview(canvas) {
    const timeAt = (event) => Math.min(1, Math.max(0, (event.offsetX - this.gutter) / (canvas.clientWidth - this.gutter))) * this.whole;
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.offsetX < this.gutter) return;
      canvas.setPointerCapture(event.pointerId);
      from = { time: timeAt(event), x: event.offsetX };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from || Math.abs(event.offsetX - from.x) < 4) return;
      const to = timeAt(event);
      this.show(Math.min(from.time, to), Math.max(from.time, to));
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from && Math.abs(event.offsetX - from.x) < 4) {
        const half = (this.view[1] - this.view[0]) / 2;
        this.show(from.time - half, from.time + half);
      }
      from = null;
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
      ArrowUp: () => this.move(-1), ArrowDown: () => this.move(1), PageUp: () => this.move(-10), PageDown: () => this.move(10),
      Home: () => this.show(0, this.whole), End: () => this.show(this.whole - (this.view[1] - this.view[0]), this.whole),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      Enter: () => this.focus >= 0 && this.choose(this.focus, event.shiftKey), " ": () => this.focus >= 0 && this.fold(this.focus),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  move(by) {
    if (!this.rows.length) return;
    this.focus = Math.min(this.rows.length - 1, Math.max(0, this.focus + by));
    const y = this.focus * LANE_PX;
    const height = this.surface.height - RULER_PX - LANE_PX;
    if (y < this.scroll.scrollTop) this.scroll.scrollTop = y;
    if (y > this.scroll.scrollTop + height) this.scroll.scrollTop = y - height;
    const { process, thread, cpu } = this.rows[this.focus];
    const kind = process.processes ? GROUPS[this.app.groupBy][0].toLowerCase() : `process ${process.pid}`;
    announce(cpu !== undefined ? `${process.name}, utilisation` : thread < 0 ? `${process.name}, ${kind}, ${this.countWords(process)}`
      : `${this.profile.threadName(thread)}, thread ${this.profile.threads[thread].tid} of ${process.name}`);
    this.surface.later();
  }

  hover(event) {
    const index = this.rowAt(event.offsetY);
    if (index < 0) return tip.hide();
    const row = this.rows[index];
    const { process, thread, lane } = row;
    const { profile } = this;
    const title = thread < 0 ? `${process.name} ${process.pid ?? ""}` : `${profile.threadName(thread)} ${profile.threads[thread].tid}`;
    const lines = [element("b", {}, title)];
    if (thread >= 0 && process.threads.length > 1) lines.push(element("p", { class: "quiet" }, `thread of ${process.name} ${process.pid}`));
    if (event.offsetX < this.gutter) {
      if (row.cpu !== undefined) return tip.show(event.clientX, event.clientY, ...lines);
      if (process.processes) lines.push(element("p", { class: "quiet" }, `${this.countWords(process)}, ${plural(process.threads.length, "thread")}`));
      if (process.lineage) lines.push(element("p", { class: "quiet" }, process.lineage));
      if (process.heldUp) lines.push(element("p", {}, `held up: ${process.heldUp}`));
      lines.push(stateLines(statesOf(this.app.wholeRun.byThread, thread < 0 ? process.threads : [thread]), 1000));
      return tip.show(event.clientX, event.clientY, ...lines);
    }
    const time = this.timeAt(event.offsetX);
    const pixel = (this.view[1] - this.view[0]) / (this.surface.width - this.gutter);
    lines.push(element("p", { class: "quiet" }, instant(time, pixel, this.whole)));
    lines.push(...(thread < 0 ? [] : this.moment(thread, time, pixel)));
    if (thread < 0) {
      const slots = new Float32Array(SLOTS);
      const { states } = row.cpu === undefined ? { states: EVERYTHING.states } : this.extra.shares(row, [time - pixel, time + pixel], 1, slots, this.app.selection);
      if (row.cpu === undefined) lane.columns(time - pixel, time + pixel, 1, slots, this.app.selection);
      const out = byState(slots);
      const list = element("dl");
      STACKING.filter((state) => out[state] > 0 && states >> state & 1).forEach((state) => list.append(element("dt", {}, swatch(state), SHORT[state]),
        element("dd", {}, (out[state] / (2 * pixel)).toFixed(1)), element("dd", {}, "threads")));
      lines.push(list);
      if (row.cpu !== undefined) lines.push(this.extra.ranLines(row.cpu, time - pixel, time + pixel));
    }
    tip.show(event.clientX, event.clientY, ...lines);
  }

  /**
   * Returns what a thread did at `time`: the row that covers it, or the shares of several rows in
   * that pixel.
   */
  moment(thread, time, pixel) {
    const { profile } = this;
    const row = profile.rowAfter(thread, time);
    const begin = row < profile.first[thread + 1] ? profile.begin[row] : Infinity;
    if (begin > time + pixel) return [element("p", {}, "nothing recorded")];
    if (profile.interval * profile.ticks[row] < 2 * pixel) {
      const slots = new Float32Array(SLOTS);
      this.lane(thread, [thread]).columns(time - pixel, time + pixel, 1, slots, this.app.selection);
      return [stateLines(byState(slots), 1)];
    }
    const count = profile.ticks[row];
    const state = profile.state[row];
    const cpu = profile.cpu[row] === 0xffff ? "" : ` · CPU ${profile.cpu[row]}`;
    const list = element("ol", { class: "stack" });
    for (let node = profile.stack[row], shown = 0; node && shown < 8; node = profile.parent[node], shown++) {
      const { name, kernel } = profile.functions[profile.nodeFunction[node]];
      list.append(element("li", { class: kernel ? "kernel" : "user" }, name));
    }
    const wait = profile.causeOf(row) ? [element("p", {}, waitWords(profile, row))] : [];
    return [element("p", {}, swatch(state), `${profile.states[state]} · ${plural(count, "tick")}, ${duration(count * profile.interval)}${cpu}`), ...wait, list];
  }
}

/**
 * Paints columns of `height` pixels: slots from the bottom, with `full` nanoseconds as the whole
 * height. Every slot with time is at least one pixel high, unless it is sleep. The rows of a
 * `group` may be at the same time.
 */
function stack(pixels, columns, height, shares, states, full, group, paint) {
  const ground = paint[SLOTS];
  pixels.fill(ground);
  for (let column = 0; column < columns; column++) {
    const at = column * SLOTS;
    let sum = 0;
    if (!group) for (let slot = 0; slot < SLOTS; slot++) sum += shares[at + slot];
    // Rows that overlap by an interval's jitter must not push others out.
    const scale = height / Math.max(full, sum);
    let below = 0;
    for (const slot of SLOT_STACKING) {
      const ns = shares[at + slot];
      if (ns <= 0 || !(states >> SLOT_STATE[slot] & 1)) continue;
      const above = Math.min(height, Math.max(below + ns * scale, SLOT_STATE[slot] === SLEEP ? 0 : Math.floor(below) + 1));
      for (let y = height - Math.round(below); y-- > height - Math.round(above);) pixels[y * columns + column] = paint[slot];
      below = above;
    }
  }
}

/** Returns the distance of marks on a clock: round seconds, then round minutes. */
function clockStep(least) {
  if (least < 10e9) return roundStep(least);
  for (const seconds of [10, 15, 30, 60, 120, 300, 600, 900, 1800]) if (seconds * 1e9 >= least) return seconds * 1e9;
  return Math.ceil(least / 3600e9) * 3600e9;
}
