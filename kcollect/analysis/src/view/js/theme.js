// The colours in light and dark. States and kinds of code have theirs from palette.rs: COLOURS.

const STATES = 10;
const LOCK = 6;
const SLEEP = 7;
const WAIT_CPU = 8;
const ON_CPU = [0, 1, 2];
const SHORT = ["User", "System", "Trap", "Text fault", "Data fault", "Kernel fault", "Lock", "Sleep", "Wait CPU", "Stopped"];
/** The order from the bottom of a lane to its top, and from left to right in a bar. */
const STACKING = [0, 1, 2, 8, 6, 5, 4, 3, 9, 7];

// What a wait was for its thread. A selection has those that it shows as a mask; what is no wait of
// a blocked thread is always shown.
const NO_WAIT = 0;
const SUFFERED = 1;
const IDLE = 2;
const UNDECIDED = 3;
const KINDS = ["", "suffered", "idle", "undecided"];
const ALL_WAITS = 1 << NO_WAIT | 1 << SUFFERED | 1 << IDLE | 1 << UNDECIDED;
const SUFFERED_WAITS = 1 << NO_WAIT | 1 << SUFFERED;

// The timeline draws states, and some waits apart from the others in their state: idle ones are
// pale; sleep that was suffered is strong, since sleep itself is faint. Each is a slot of a lane.
const IDLE_SLEEP = STATES;
const IDLE_LOCK = STATES + 1;
const SUFFERED_SLEEP = STATES + 2;
const SLOTS = STATES + 3;
/** The state of each slot. */
const SLOT_STATE = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, SLEEP, LOCK, SLEEP];
/** The order of the slots, as `STACKING`. */
const SLOT_STACKING = [0, 1, 2, 8, LOCK, IDLE_LOCK, 5, 4, 3, 9, SUFFERED_SLEEP, SLEEP, IDLE_SLEEP];

/** Returns the slot of a state and the kind of its wait. */
function slotOf(state, kind) {
  if (kind === IDLE) return state === SLEEP ? IDLE_SLEEP : state === LOCK ? IDLE_LOCK : state;
  return kind === SUFFERED && state === SLEEP ? SUFFERED_SLEEP : state;
}

/** Returns the sums of slots by state. */
function byState(slots) {
  const states = new Float64Array(STATES);
  for (let slot = 0; slot < SLOTS; slot++) states[SLOT_STATE[slot]] += slots[slot];
  return states;
}

/**
 * Returns the states that are drawn of several threads together: not sleep, unless only what was
 * suffered is shown.
 */
function statesOfGroup({ states, waits }) {
  return waits === SUFFERED_WAITS ? states : states & ~(1 << SLEEP);
}

const PALETTE = {
  light: {
    ...COLOURS.light,
    ground: "#ffffff", raised: "#f6f7f9", text: "#1b1f24", quiet: "#626a75", line: "#e1e4e9", strong: "#1f5fd0",
    found: "#f7d774", onFrame: "#1b1f24", shade: "rgba(31,95,208,.10)", veil: "rgba(255,255,255,.72)",
  },
  dark: {
    ...COLOURS.dark,
    ground: "#14171c", raised: "#1b1f26", text: "#e6e9ee", quiet: "#98a1ae", line: "#2b313a", strong: "#7fb0ff",
    found: "#b58a1d", onFrame: "#eef1f5", shade: "rgba(127,176,255,.14)", veil: "rgba(20,23,28,.66)",
  },
};

/** The colours in use, with callbacks for their changes. */
const theme = {
  colours: PALETTE.light,
  mode: "auto",
  changed: [],
  system: matchMedia("(prefers-color-scheme: dark)"),
  start() {
    this.system.addEventListener("change", () => this.apply());
    try { this.mode = localStorage.getItem("kcollect.theme") ?? "auto"; } catch { /* a file may have no storage */ }
    byId("theme").addEventListener("click", () => {
      this.mode = { auto: "light", light: "dark" }[this.mode] ?? "auto";
      try { localStorage.setItem("kcollect.theme", this.mode); } catch { /* then it is asked again */ }
      this.apply();
    });
    this.apply();
  },
  apply() {
    const dark = this.mode === "auto" ? this.system.matches : this.mode === "dark";
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    this.colours = dark ? PALETTE.dark : PALETTE.light;
    const root = document.documentElement.style;
    for (const [name, colour] of Object.entries(this.colours)) {
      if (typeof colour === "string") root.setProperty("--" + name, colour);
    }
    this.colours.states.forEach((colour, state) => root.setProperty("--state-" + state, colour));
    const button = byId("theme");
    button.textContent = { auto: "◐", light: "○", dark: "●" }[this.mode];
    button.setAttribute("aria-label", "Colours: " + { auto: "as the system", light: "light", dark: "dark" }[this.mode]);
    button.title = button.getAttribute("aria-label");
    for (const tell of this.changed) tell();
  },
};

const rgb = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
