// The selection's time by function, and by caller: the tree of stacks from their last frames.

/** The most callers of a function in the inverted tree. */
const MAX_CALLERS = 200;

/** Returns the first node of each function in the tree of stacks. */
function firstNodes(profile) {
  if (!profile.firstNode) {
    profile.firstNode = new Int32Array(profile.functions.length).fill(-1);
    for (let node = profile.depth.length - 1; node > 0; node--) profile.firstNode[profile.nodeFunction[node]] = node;
  }
  return profile.firstNode;
}

/** Returns the selection's time from the last frame of each stack to its first. */
function invertedTree(profile, selection) {
  const made = { parent: [-1], function: [-1], states: [new Float64Array(STATES)], self: [0] };
  const known = new Map();
  const under = (parent, what) => {
    const key = parent * profile.functions.length + what;
    let index = known.get(key);
    if (index === undefined) {
      known.set(key, index = made.parent.length);
      made.parent.push(parent);
      made.function.push(what);
      made.states.push(new Float64Array(STATES));
      made.self.push(0);
    }
    return index;
  };
  const paths = new Map();
  const pathOf = (stack) => {
    let path = paths.get(stack);
    if (path) return path;
    path = [0];
    for (let node = stack; node > 0 && path.length <= MAX_CALLERS; node = profile.parent[node]) {
      path.push(under(path.at(-1), profile.nodeFunction[node]));
    }
    paths.set(stack, path);
    return path;
  };
  eachRow(profile, selection, profile.threads.keys(), (row, micros) => {
    const state = profile.state[row];
    if (!(selection.states >> state & 1)) return;
    const path = pathOf(profile.stack[row]);
    for (const index of path) made.states[index][state] += micros;
    made.self[path[1] ?? 0] += micros;
  });
  return preorder(profile, made);
}

/** Returns the frames in preorder, those with most time first. */
function preorder(profile, { parent, function: functions, states, self }) {
  const tree = new FrameTree(parent.length);
  const micros = states.map((one) => one.reduce((sum, value) => sum + value, 0));
  const children = parent.map(() => []);
  for (let index = 1; index < parent.length; index++) children[parent[index]].push(index);
  const nodes = firstNodes(profile);
  const emit = [[0, -1, 0, 0]];
  while (emit.length) {
    const [index, above, depth, from] = emit.pop();
    if (index < 0) { tree.after[above] = tree.length; continue; }
    const frame = tree.length++;
    tree.node[frame] = index ? nodes[functions[index]] : 0;
    tree.parent[frame] = above;
    tree.depth[frame] = depth;
    tree.deepest = Math.max(tree.deepest, depth);
    tree.from[frame] = from;
    tree.micros[frame] = micros[index];
    tree.self[frame] = self[index];
    tree.states.set(states[index], frame * STATES);
    emit.push([-1, frame]);
    const sorted = children[index].sort((a, b) => micros[b] - micros[a] || a - b);
    let right = from;
    const next = sorted.map((child) => { const one = [child, frame, depth + 1, right]; right += micros[child]; return one; });
    emit.push(...next.reverse());
  }
  return tree;
}

/**
 * Returns the time of each function of the selection: `self`, and `total` with callees, in which
 * a function that calls itself counts once. `tree` has the nodes with their time.
 */
function functionTimes(profile, selection) {
  const { nodes, states, self: own } = collect(profile, selection, profile.threads.keys(), null);
  const self = new Float64Array(profile.functions.length);
  const total = new Float64Array(profile.functions.length);
  const micros = new Float64Array(nodes.length);
  const outermost = new Uint8Array(nodes.length);
  const open = new Int32Array(profile.functions.length);
  const path = [];
  nodes.forEach((node, at) => {
    for (let state = 0; state < STATES; state++) micros[at] += states[STATES * at + state];
    if (!node) return;
    while (path.length >= profile.depth[node]) open[path.pop()]--;
    const what = profile.nodeFunction[node];
    self[what] += own[at];
    if (!open[what]) { outermost[at] = 1; total[what] += micros[at]; }
    open[what]++;
    path.push(what);
  });
  return { self, total, tree: { nodes, micros, outermost } };
}

/**
 * Returns the time of a function by its callers and by its callees: two maps from functions, −1
 * for none. A function that calls itself is taken where it was called first.
 */
function neighbours(profile, { nodes, micros, outermost }, what) {
  const callers = new Map(), callees = new Map();
  const add = (map, one, value) => map.set(one, (map.get(one) ?? 0) + value);
  const chosen = new Set();
  nodes.forEach((node, at) => {
    if (!node) return;
    const parent = profile.parent[node];
    if (outermost[at] && profile.nodeFunction[node] === what) {
      chosen.add(node);
      add(callers, parent ? profile.nodeFunction[parent] : -1, micros[at]);
    } else if (chosen.has(parent)) {
      add(callees, profile.nodeFunction[node], micros[at]);
    }
  });
  const sorted = (map) => [...map].sort(([a, x], [b, y]) => y - x || a - b);
  return { callers: sorted(callers), callees: sorted(callees) };
}
