// The wait that was clicked: why its thread was blocked, and which thread ended that.

/** Returns for what a thread waited, in words: "waits for a lock", or "waits: not known". */
const causeWords = ({ title, kind }) => kind === UNDECIDED ? `waits: ${title}` : `waits for ${title}`;

/** Returns why a thread was blocked in a row, and what ended it, in words. */
function waitWords(profile, row) {
  const cause = profile.causeOf(row);
  const waker = profile.waker[row] ? `, woken by ${wakerName(profile, row)}` : "";
  return `${causeWords(cause)} (${KINDS[cause.kind]})${waker}`;
}

/** Returns the name of the thread that ended the wait of a row, with its process. */
function wakerName(profile, row) {
  const thread = profile.wakerOf(row);
  if (thread < 0) return `thread ${profile.waker[row]}, which was not sampled`;
  const { name, pid } = profile.processes[profile.threads[thread].process];
  const own = profile.threadName(thread);
  return own === name ? `${name} ${profile.waker[row]}` : `${own} ${profile.waker[row]} of ${name} ${pid}`;
}

class Wait {
  constructor(app) {
    this.app = app;
    this.profile = app.profile;
    this.box = byId("wait");
    this.row = this.thread = -1;
    /** The thread that ended the wait; −1 if it has no ticks, null if it is not known. */
    this.waker = null;
  }

  /** Shows the wait of a row of a thread, next to a place in the window. */
  show(row, thread, x, y) {
    const { profile, box } = this;
    Object.assign(this, { row, thread, waker: profile.waker[row] ? profile.wakerOf(row) : null });
    const cause = profile.causeOf(row);
    const state = profile.state[row];
    const close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    close.addEventListener("click", () => this.hide());
    const lines = [
      close,
      element("b", {}, `${profile.threadName(thread)} ${profile.threads[thread].tid} ${causeWords(cause)}`),
      element("p", {}, swatch(state), `${profile.states[state]} · ${duration(profile.ticks[row] * profile.interval)} · `, element("strong", {}, KINDS[cause.kind])),
      element("p", { class: "quiet" }, cause.reason),
      element("p", {}, profile.waker[row] ? `Woken by ${wakerName(profile, row)}.` : "No thread is known that ended it."),
    ];
    if (this.waker !== null && this.waker >= 0) {
      const go = element("button", { type: "button", id: "wait-waker" }, "Show the waker in the timeline");
      go.addEventListener("click", () => this.app.timeline.reveal(this.waker, profile.end[row]));
      lines.push(go);
    }
    tip.hide();
    box.replaceChildren(...lines);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = Math.max(8, Math.min(x + 14, innerWidth - 8 - width));
    const top = y + 22 + height > innerHeight - 8 ? Math.max(8, y - 22 - height) : y + 22;
    box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
    announce(`${waitWords(profile, row)}. ${cause.reason}`);
    this.app.timeline.surface.overLater();
  }

  hide() {
    if (this.row < 0) return;
    this.row = this.thread = -1;
    this.waker = null;
    this.box.hidden = true;
    this.app.timeline.surface.overLater();
  }
}
