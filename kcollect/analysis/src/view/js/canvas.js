// A canvas with the resolution of the screen, redrawn at most once a frame.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";

class Surface {
  /**
   * Draws with `draw(context, width, height)`, in CSS pixels, on request and when its box changes.
   * `over` draws in the same way what lies on top of that and changes with every move of the mouse:
   * what is below it is kept, and not drawn again.
   */
  constructor(canvas, box, draw, over = null) {
    this.canvas = canvas;
    this.box = box;
    this.draw = draw;
    this.over = over;
    this.kept = over && document.createElement("canvas");
    this.stale = true;
    this.context = canvas.getContext("2d", { alpha: false });
    this.fitter = new Fitter(this.context);
    this.width = this.height = 0;
    this.asked = 0;
    new ResizeObserver(() => this.later()).observe(box);
  }
  later() {
    this.stale = true;
    this.overLater();
  }
  overLater() {
    this.asked ||= requestAnimationFrame(() => this.frame());
  }
  now() {
    this.stale = true;
    this.frame();
  }
  frame() {
    cancelAnimationFrame(this.asked);
    this.asked = 0;
    const width = this.box.clientWidth, height = this.box.clientHeight;
    this.ratio = Math.min(4, devicePixelRatio || 1);
    const pixels = [Math.round(width * this.ratio), Math.round(height * this.ratio)];
    if (!pixels[0] || !pixels[1]) return;
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) {
      [this.canvas.width, this.canvas.height] = pixels;
      this.canvas.style.width = width + "px";
      this.canvas.style.height = height + "px";
      this.fitter.font = "";
      this.stale = true;
    }
    this.width = width;
    this.height = height;
    const { context, kept, ratio } = this;
    if (!this.stale) {
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.drawImage(kept, 0, 0);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (this.stale) this.draw(context, width, height);
    if (!this.over) return;
    if (this.stale) {
      // Also clears it.
      [kept.width, kept.height] = pixels;
      kept.getContext("2d", { alpha: false }).drawImage(this.canvas, 0, 0);
      this.stale = false;
    }
    this.over(context, width, height);
  }
  /** Rounds a length in CSS pixels to whole pixels of the screen. */
  snap(length) {
    return Math.round(length * this.ratio) / this.ratio;
  }
}

/** The tooltip at the pointer, or at the frame focused by the keyboard. */
const tip = {
  show(x, y, ...children) {
    const box = byId("tip");
    box.replaceChildren(...children);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 14 + width > innerWidth - 8 ? Math.max(8, x - 14 - width) : x + 14;
    const top = y + 18 + height > innerHeight - 8 ? Math.max(8, y - 14 - height) : y + 18;
    box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};

/** Announces a text to screen readers. */
function announce(text) {
  byId("spoken").textContent = text;
}

const swatch = (state) => element("i", { class: "swatch s" + state });

/** Returns the states of a total as lines for a tooltip, the largest first. */
function stateLines(states, unit) {
  const total = states.reduce((sum, micros) => sum + micros, 0);
  const list = element("dl");
  [...states.keys()].filter((state) => states[state]).sort((a, b) => states[b] - states[a]).slice(0, 6).forEach((state) => {
    list.append(element("dt", {}, swatch(state), SHORT[state]),
      element("dd", {}, duration(states[state] * unit)), element("dd", {}, share(states[state], total)));
  });
  return list;
}
