// The flame graph of the selection, callers above callees, so that the root is at the top and deep
// frames are reached by scrolling. Siblings keep their order, by the micros of the whole run, so
// that changes of the selection can be compared.

const FRAME_PX = 19;

class Flame {
  constructor(app) {
    this.app = app;
    this.profile = app.profile;
    this.tree = new FrameTree(1);
    this.zoomed = 0;
    this.focus = 0;
    this.hits = null; // for each function, whether it matches the search
    this.byProcess = false;
    this.byState = false;
    this.inverted = false;
    this.scroll = byId("frames-scroll");
    this.surface = new Surface(byId("frames"), this.scroll, (...size) => this.draw(...size));
    this.listen();
  }

  /** Counts the selection. Zoom and focus stay if their frames still exist. */
  count() {
    const [zoomed, focus] = [this.path(this.zoomed), this.path(this.focus)];
    this.below = this.byProcess ? this.app.groups() : null;
    this.tree = this.inverted ? invertedTree(this.profile, this.app.selection) : frameTree(this.profile, this.app.selection, this.below);
    this.zoomed = this.follow(zoomed);
    this.focus = this.follow(focus);
    this.settle();
  }

  /** Returns the nodes from the root to a frame. */
  path(frame) {
    const nodes = [];
    for (; frame > 0 && frame < this.tree.length; frame = this.tree.parent[frame]) nodes.push(this.tree.node[frame]);
    return nodes.reverse();
  }

  follow(nodes) {
    let frame = 0;
    for (const node of nodes) {
      const child = this.children(frame).find((one) => this.tree.node[one] === node);
      if (child === undefined) break;
      frame = child;
    }
    return frame;
  }

  children(frame) {
    const found = [];
    for (let child = frame + 1; child < this.tree.after[frame]; child = this.tree.after[child]) found.push(child);
    return found;
  }

  settle() {
    const { tree } = this;
    const empty = !(tree.length && tree.micros[0]);
    byId("frames-empty").hidden = !empty;
    byId("frames-empty").textContent = empty ? this.app.whyEmpty() : "";
    byId("flame-reset").disabled = this.zoomed === 0;
    byId("frames-spacer").style.height = (tree.deepest + 1) * FRAME_PX + 8 + "px";
    byId("frame-key").hidden = this.byState;
    this.countHits();
    this.surface.later();
  }

  name(frame) {
    const node = this.tree.node[frame];
    if (node < 0) {
      const { name, pid } = this.below[-1 - node];
      return pid === undefined ? name : `${name} ${pid}`;
    }
    if (frame === 0) return this.app.selectionName();
    return this.profile.functions[this.profile.nodeFunction[node]].name;
  }

  function(frame) {
    const node = this.tree.node[frame];
    return node > 0 ? this.profile.functions[this.profile.nodeFunction[node]] : null;
  }

  // Search.

  search(text) {
    const field = byId("search");
    field.setCustomValidity("");
    this.hits = null;
    if (text) {
      try {
        const wanted = new RegExp(text, /[A-Z]/.test(text) ? "u" : "iu");
        this.hits = Uint8Array.from(this.profile.functions, ({ name, object }) => wanted.test(name) || wanted.test(object));
      } catch {
        field.setCustomValidity("This is not a regular expression.");
      }
    }
    field.setAttribute("aria-invalid", String(!field.validity.valid));
    this.countHits();
    this.surface.later();
  }

  hit(frame) {
    const node = this.tree.node[frame];
    return node > 0 && this.hits[this.profile.nodeFunction[node]] === 1;
  }

  /** Shows the share of matching frames. A match below a match is part of it already. */
  countHits() {
    const output = byId("found");
    this.found = 0;
    output.dataset.micros = "";
    if (!byId("search").validity.valid) output.textContent = "not a regular expression";
    else if (!this.hits) output.textContent = "";
    else {
      let frames = 0;
      for (let frame = 0; frame < this.tree.length;) {
        if (!this.hit(frame)) { frame++; continue; }
        this.found += this.tree.micros[frame];
        frames++;
        frame = this.tree.after[frame];
      }
      output.dataset.micros = this.found;
      output.textContent = frames ? `${share(this.found, this.tree.micros[0])} matches` : "no match";
    }
  }

  // Drawing.

  colour(frame) {
    const { colours } = theme;
    if (this.byState) return colours.other;
    const what = this.function(frame);
    // A mark, such as <Truncated-stack>, has no object.
    if (!what?.object) return colours.other;
    return what.kernel ? colours.kernel : what.jit ? colours.jit : colours.user;
  }

  draw(context, width, height) {
    const { colours } = theme;
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, width, height);
    const { tree, zoomed } = this;
    if (!tree.length || !tree.micros[0]) return;
    this.left = 8;
    this.scale = (width - 16) / tree.micros[zoomed];
    const top = this.scroll.scrollTop - 4;
    const shown = (frame) => tree.depth[frame] * FRAME_PX - top;
    this.specks = new Map();
    for (let frame = tree.parent[zoomed]; frame >= 0; frame = tree.parent[frame]) {
      this.frame(context, frame, this.left, width - 16, shown(frame), true);
    }
    for (let frame = zoomed; frame < tree.after[zoomed];) {
      const x = this.left + (tree.from[frame] - tree.from[zoomed]) * this.scale;
      const width = tree.micros[frame] * this.scale;
      const y = shown(frame);
      if (y > height) { frame = tree.after[frame]; continue; }
      if (width < 0.75) {
        this.speck(context, y, x, width);
        frame = tree.after[frame];
        continue;
      }
      if (y > -FRAME_PX) this.frame(context, frame, x, width, y, false);
      frame++;
    }
    for (const [y, speck] of this.specks) this.paintSpeck(context, y, speck);
  }

  /** Draws frames that are too narrow to be drawn one by one. */
  speck(context, y, x, width) {
    const speck = this.specks.get(y);
    if (speck && x - speck.to < 0.5) { speck.to = x + width; return; }
    if (speck) this.paintSpeck(context, y, speck);
    this.specks.set(y, { from: x, to: x + width });
  }

  paintSpeck(context, y, { from, to }) {
    if (to - from < 0.5) return;
    context.fillStyle = theme.colours.line;
    context.fillRect(from, y, Math.max(0.75, to - from - 0.25), FRAME_PX - 1);
  }

  frame(context, frame, x, width, y, above) {
    const { colours } = theme;
    const gap = width > 3 ? 1 : 0.25;
    const [left, right] = [this.surface.snap(x), this.surface.snap(x + width) - gap];
    const wide = Math.max(0.5, right - left);
    const hit = this.hits && this.hit(frame);
    context.globalAlpha = above ? 0.55 : this.hits && !hit ? 0.4 : 1;
    context.fillStyle = hit ? colours.found : this.colour(frame);
    context.fillRect(left, y, wide, FRAME_PX - 1);
    if (this.byState) this.split(context, frame, left, wide, y, hit);
    context.globalAlpha = 1;
    if (frame === this.focus && document.activeElement === this.surface.canvas) {
      context.strokeStyle = colours.strong;
      context.lineWidth = 2;
      context.strokeRect(left + 1, y + 1, Math.max(1, wide - 2), FRAME_PX - 3);
    }
    // A frame that begins left of the window keeps its name visible.
    const text = Math.max(left, 0) + 5;
    if (right - text < 22) return;
    const { fitter } = this.surface;
    fitter.use(`12px ${FONT}`);
    const name = fitter.fit(this.name(frame), right - text - 4);
    if (!name) return;
    context.fillStyle = above || (this.hits && !hit) ? colours.quiet : colours.onFrame;
    if (hit) context.fillStyle = colours.onFrame;
    context.textBaseline = "middle";
    context.fillText(name, text, y + (FRAME_PX - 1) / 2 + (this.byState ? -1.5 : 0.5));
  }

  /** Draws a frame's states: pale after its name, strong in a strip below it. */
  split(context, frame, left, wide, y, hit) {
    const { states, micros } = this.tree;
    const alpha = context.globalAlpha;
    let x = left;
    for (const state of STACKING) {
      const part = wide * states[frame * STATES + state] / micros[frame];
      if (!part) continue;
      context.fillStyle = theme.colours.states[state];
      context.globalAlpha = alpha * 0.3;
      if (!hit) context.fillRect(x, y, part, FRAME_PX - 5);
      context.globalAlpha = alpha;
      context.fillRect(x, y + FRAME_PX - 5, part, 4);
      x += part;
    }
  }

  // Input.

  at(event) {
    const { tree, zoomed } = this;
    if (!tree.length || !tree.micros[0]) return -1;
    const depth = Math.floor((event.offsetY + this.scroll.scrollTop - 4) / FRAME_PX);
    let frame = zoomed;
    while (frame >= 0 && tree.depth[frame] > depth) frame = tree.parent[frame];
    const micros = tree.from[zoomed] + (event.offsetX - this.left) / this.scale;
    if (micros < tree.from[zoomed] || micros >= tree.from[zoomed] + tree.micros[zoomed]) return -1;
    while (frame >= 0 && tree.depth[frame] < depth) {
      let child = frame + 1;
      while (child < tree.after[frame] && tree.from[child] + tree.micros[child] <= micros) child = tree.after[child];
      frame = child < tree.after[frame] && tree.from[child] <= micros ? child : -1;
    }
    return frame;
  }

  zoom(frame) {
    this.zoomed = frame;
    this.focus = frame;
    this.settle();
  }

  /** Shows other groups below the root. */
  regroup() {
    this.zoomed = this.focus = 0;
    byId("by-process-words").textContent = `By ${GROUPS[this.app.groupBy][0].toLowerCase()}`;
    this.count();
  }

  /** Zooms into the frame of a function below the root. */
  zoomTo(what) {
    const found = this.children(0).find((frame) => this.profile.nodeFunction[this.tree.node[frame]] === what);
    if (found !== undefined) this.zoom(found);
  }

  details(frame) {
    const { tree, profile } = this;
    const what = this.function(frame);
    const lines = [element("b", {}, this.name(frame))];
    const kind = what && [what.object, what.kernel ? "kernel" : what.jit ? "JIT code" : "user"].filter(Boolean).join(" · ");
    if (kind) lines.push(element("p", { class: "quiet" }, kind));
    const numbers = element("table");
    for (const [title, micros] of [["with callees", tree.micros[frame]], ["itself", tree.self[frame]]]) {
      numbers.append(element("tr", {}, element("th", { scope: "row" }, title), element("td", {}, duration(1000 * micros)),
        element("td", {}, share(micros, tree.micros[0]))));
    }
    lines.push(numbers, stateLines(tree.states.subarray(frame * STATES, (frame + 1) * STATES), 1000));
    return lines;
  }

  listen() {
    const { canvas } = this.surface;
    this.scroll.addEventListener("scroll", () => { this.surface.later(); tip.hide(); }, { passive: true });
    canvas.addEventListener("pointermove", (event) => {
      const frame = this.at(event);
      canvas.style.cursor = frame > 0 ? "pointer" : "default";
      if (frame < 0) tip.hide(); else tip.show(event.clientX, event.clientY, ...this.details(frame));
    });
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("click", (event) => {
      const frame = this.at(event);
      if (frame >= 0) this.zoom(frame);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.surface.later());
    canvas.addEventListener("blur", () => { this.surface.later(); tip.hide(); });
    byId("search").addEventListener("input", (event) => this.search(event.target.value));
    byId("search").addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.target.value = "";
      this.search("");
      canvas.focus();
      event.stopPropagation();
    });
    byId("flame-reset").addEventListener("click", () => this.zoom(0));
    byId("by-process").addEventListener("change", (event) => { this.byProcess = event.target.checked; this.count(); });
    byId("inverted").addEventListener("change", (event) => {
      this.inverted = event.target.checked;
      byId("by-process").disabled = this.inverted;
      this.zoomed = this.focus = 0;
      this.count();
    });
    byId("by-state").addEventListener("change", (event) => { this.byState = event.target.checked; this.settle(); });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tree, focus } = this;
    const sibling = (by) => {
      const siblings = focus > 0 ? this.children(tree.parent[focus]) : [0];
      return siblings[siblings.indexOf(focus) + by] ?? focus;
    };
    const heaviest = () => this.children(focus).reduce((best, child) => best < 0 || tree.micros[child] > tree.micros[best] ? child : best, -1);
    if (event.key === "Enter" || event.key === "Escape") {
      if (event.key === "Escape" && this.zoomed === 0) return;
      event.preventDefault();
      event.stopPropagation();
      this.zoom(event.key === "Enter" ? focus : Math.max(0, tree.parent[this.zoomed]));
      return;
    }
    const next = { ArrowUp: () => tree.parent[focus], ArrowDown: heaviest, ArrowLeft: () => sibling(-1), ArrowRight: () => sibling(1), Home: () => 0 }[event.key]?.();
    if (next === undefined) return;
    event.preventDefault();
    if (next >= 0 && next < tree.length) this.reach(next);
  }

  /** Moves the keyboard focus to a frame, scrolls to it and announces it. */
  reach(frame) {
    const { tree } = this;
    this.focus = frame;
    while (this.zoomed > 0 && (frame < this.zoomed || frame >= tree.after[this.zoomed])) this.zoomed = tree.parent[this.zoomed];
    const y = tree.depth[frame] * FRAME_PX;
    if (y < this.scroll.scrollTop) this.scroll.scrollTop = y;
    if (y + FRAME_PX + 8 > this.scroll.scrollTop + this.surface.height) this.scroll.scrollTop = y + FRAME_PX + 8 - this.surface.height;
    this.settle();
    this.surface.now();
    const box = this.surface.canvas.getBoundingClientRect();
    const x = this.left + Math.max(0, tree.from[frame] - tree.from[this.zoomed]) * this.scale;
    tip.show(box.left + x, box.top + y - this.scroll.scrollTop + 4, ...this.details(frame));
    announce(`${this.name(frame)}, ${share(tree.micros[frame], tree.micros[0])}, itself ${share(tree.self[frame], tree.micros[0])}`);
  }

  /** Returns the frames in preorder, for tests. */
  frames() {
    const { tree } = this;
    return Array.from({ length: tree.length }, (_, frame) => ({
      depth: tree.depth[frame],
      name: frame === 0 ? "" : this.name(frame),
      object: this.function(frame)?.object ?? "",
      kernel: this.function(frame)?.kernel ?? false,
      micros: tree.micros[frame],
      self: tree.self[frame],
      states: [...tree.states.subarray(frame * STATES, (frame + 1) * STATES)],
    }));
  }
}
