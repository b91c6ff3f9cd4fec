// The page: an input x in, the net's answer and its certified radius out. What is shown is what is certified:
// the very numbers of `x` are drawn, sent and attacked. The verdict at ε is made here: an answer ⇔ radius > ε.

const at = (id) => document.getElementById(id);
const short = (v) => (v >= 1000 ? v.toExponential(1) : v.toFixed(3));
const proved = (v) => short(v >= 1000 ? v : Math.floor(v * 1000) / 1000);  // a radius is never rounded up

let model;               // what /v1/model says
let grid;                // { channels, height, width }, or null where inputs are no pictures
let base;                // the input before anything was drawn on it
let x;                   // the input: base, with the ink on top
let answer = null;       // of the service, for x
let adversary = null;    // of the attack on x
let epsilon = 0;
const ink = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const FINE = 16;         // pixels of ink for each of x
const pen = { x: 0, y: 0, shown: false };

start();

async function start() {
  try {
    model = await ask("v1/model");
  } catch (e) {
    return complain(e);
  }
  const [channels, height, width] = model.input_shape;
  grid = model.input_shape.length === 3 && (channels === 1 || channels === 3) ? { channels, height, width } : null;
  base = new Float32Array(model.input_shape.reduce((a, b) => a * b, 1));
  x = base.slice();
  describe();
  setUpInput();
  setUpSlider();
  at("attack").onclick = attack;
  if (model.samples) await showSample(0);
  else if (!grid) certify();
  document.body.dataset.ready = "true";
}

function describe() {
  const norm = model.norm === "l2" ? "ℓ2" : "ℓ∞";
  const claims = { float32: "about the float32 network as it runs", real: "about the exact function of its weights" };
  at("name").textContent = `· ${model.name}`;
  document.title = `${model.name} · gloronet`;
  at("about").textContent = `${model.classes.length} classes, inputs of ${model.input_shape.join("×")}, trained to hold ` +
    `against every change of ${norm} norm up to ε\u00a0=\u00a0${short(model.epsilon)}. Where it cannot prove that, it says ⊥.`;
  at("claim").textContent = `Certified radius r: no input closer than r, measured in the ${norm} norm with pixels in [0, 1], ` +
    `is answered with another class. The claim is ${claims[model.semantics] || model.semantics}.`;
  at("digest").textContent = `net ${model.digest.slice(0, 16)}, ${model.engine}, gloronet ${model.version}`;
  at("attack-part").hidden = !model.attack;
  at("samples").hidden = !model.samples;
  at("sample").max = model.samples - 1;
}

// The input

function setUpInput() {
  const canvas = at("draw");
  at("clear").onclick = () => setInput(new Float32Array(base.length), "");
  at("samples").onsubmit = (e) => e.preventDefault();
  at("sample").onchange = () => showSample(Number(at("sample").value));
  at("random").onclick = () => showSample(Math.floor(Math.random() * model.samples));
  if (!grid) return setUpNumbers();
  canvas.width = grid.width;
  canvas.height = grid.height;
  ink.canvas.width = grid.width * FINE;
  ink.canvas.height = grid.height * FINE;
  Object.assign(pen, { x: grid.width / 2, y: grid.height / 2 });
  setUpFiles();
  if (grid.channels === 1) setUpDrawing(canvas);
  else {
    canvas.classList.add("fixed");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "The input");
    canvas.removeAttribute("tabindex");
    at("hint").textContent = "Drop an image here, choose one, or pick a test sample.";
  }
  paint(canvas, x);
}

function setUpDrawing(canvas) {
  let last = null;
  const place = (e) => {
    const box = canvas.getBoundingClientRect();
    return [(e.clientX - box.left) / box.width * grid.width, (e.clientY - box.top) / box.height * grid.height];
  };
  canvas.onpointerdown = (e) => { canvas.setPointerCapture(e.pointerId); last = place(e); stroke(last, last); };
  canvas.onpointermove = (e) => { if (last) { const here = place(e); stroke(last, here); last = here; } };
  canvas.onpointerup = canvas.onpointercancel = () => { last = null; };
  canvas.onfocus = () => { pen.shown = canvas.matches(":focus-visible"); show(); };
  canvas.onblur = () => { pen.shown = false; show(); };
  canvas.onkeydown = (e) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (step) {
      const from = [pen.x, pen.y];
      pen.x = Math.min(Math.max(pen.x + step[0], 0.5), grid.width - 0.5);
      pen.y = Math.min(Math.max(pen.y + step[1], 0.5), grid.height - 0.5);
      pen.shown = true;
      if (e.shiftKey) stroke(from, [pen.x, pen.y]);
      show();
    } else if (e.key === " ") stroke([pen.x, pen.y], [pen.x, pen.y]);
    else if (e.key === "Backspace") at("clear").click();
    else return;
    e.preventDefault();
  };
}

function stroke(from, to) {
  ink.lineCap = ink.lineJoin = "round";
  ink.strokeStyle = "#fff";
  ink.lineWidth = (1 + 0.054 * grid.height) * FINE;
  ink.beginPath();
  ink.moveTo(from[0] * FINE, from[1] * FINE);
  ink.lineTo(to[0] * FINE, to[1] * FINE + 0.01);
  ink.stroke();
  const fine = ink.getImageData(0, 0, ink.canvas.width, ink.canvas.height).data;
  x = base.slice();
  for (let row = 0; row < grid.height; row++) for (let column = 0; column < grid.width; column++) {
    let sum = 0;  // the share of the pixel that is covered
    for (let i = 0; i < FINE; i++) for (let j = 0; j < FINE; j++) {
      sum += fine[4 * ((row * FINE + i) * ink.canvas.width + column * FINE + j) + 3];
    }
    const k = row * grid.width + column;
    x[k] = Math.max(x[k], sum / (255 * FINE * FINE));
  }
  at("truth").hidden = true;
  show();
  certify();
}

function setInput(values, truth) {
  base = Float32Array.from(values);
  x = base.slice();
  ink.clearRect(0, 0, ink.canvas.width, ink.canvas.height);
  at("truth").textContent = truth;
  at("truth").hidden = !truth;
  at("sample").value = "";
  at("numbers").value = grid ? "" : Array.from(x, (v) => String(v)).join(", ");
  show();
  certify();
}

async function showSample(index) {
  try {
    const sample = await ask(`v1/samples/${index}`);
    setInput(sample.input.flat(Infinity), `Test sample ${index} of ${sample.count}; its true class is ${sample.class}.`);
    at("sample").value = index;
  } catch (e) {
    complain(e);
  }
}

function setUpFiles() {
  const drop = at("drop");
  at("file").onchange = () => { if (at("file").files.length) readImage(at("file").files[0]); at("file").value = ""; };
  drop.ondragover = (e) => { e.preventDefault(); drop.classList.add("over"); };
  drop.ondragleave = () => drop.classList.remove("over");
  drop.ondrop = (e) => {
    e.preventDefault();
    drop.classList.remove("over");
    if (e.dataTransfer.files.length) readImage(e.dataTransfer.files[0]);
  };
}

async function readImage(file) {
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    return complain(new Error(`${file.name || "This file"} is not an image that can be read.`));
  }
  const small = Object.assign(document.createElement("canvas"), { width: grid.width, height: grid.height });
  const context = small.getContext("2d");
  context.imageSmoothingQuality = "high";
  const side = Math.min(image.width / grid.width, image.height / grid.height);  // the largest part of the net's shape
  const [w, h] = [side * grid.width, side * grid.height];
  context.drawImage(image, (image.width - w) / 2, (image.height - h) / 2, w, h, 0, 0, grid.width, grid.height);
  const pixels = context.getImageData(0, 0, grid.width, grid.height).data;
  const area = grid.width * grid.height;
  const values = new Float32Array(base.length);
  for (let k = 0; k < area; k++) {
    const [r, g, b] = pixels.slice(4 * k, 4 * k + 3);
    if (grid.channels === 1) values[k] = (0.299 * r + 0.587 * g + 0.114 * b) / 255;
    else [r, g, b].forEach((v, c) => { values[c * area + k] = v / 255; });
  }
  setInput(values, `${file.name || "The image"}, made ${grid.width}×${grid.height}.`);
}

function setUpNumbers() {
  for (const id of ["draw", "clear", "file-label", "file", "hint", "centre"]) at(id).hidden = true;
  at("centre").setAttribute("visibility", "hidden");
  at("attacked").classList.add("plain");
  at("numbers-line").hidden = false;
  at("numbers").value = Array.from(x, (v) => String(v)).join(", ");
  at("numbers").oninput = () => {
    x = Float32Array.from(at("numbers").value.split(/[\s,]+/).filter(Boolean), Number);
    show();
    certify();
  };
}

// What the service says

async function ask(path, body) {
  let reply;
  try {
    reply = await fetch(path, body && {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The service does not answer. Is it still running?");
  }
  const told = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(told.detail || `The service answered ${reply.status}.`);
  return told;
}

let busy = false;
let again = false;
function working(yes) {  // meanwhile the answer shown is about an earlier input: it fades
  busy = yes;
  for (const id of ["verdict", "ring", "scores"]) at(id).setAttribute("aria-busy", yes);
}

async function certify() {  // one request at a time; what changed meanwhile is asked for next
  adversary = null;
  at("attacked").hidden = true;
  if (busy) { again = true; return; }
  working(true);
  do {
    again = false;
    try {
      answer = grid && x.every((v) => v === 0) ? null : (await ask("v1/certify", { inputs: Array.from(x) })).results[0];
      complain(null);
    } catch (e) {
      answer = null;
      complain(e);
    }
    show();
  } while (again);
  working(false);
}

let attacking = false;
async function attack() {
  const button = at("attack"), attacked = x;
  button.disabled = attacking = true;
  button.textContent = "Attacking…";
  try {
    const found = await ask("v1/attack", { inputs: Array.from(attacked) });
    if (attacked !== x) return;  // drawn on meanwhile
    complain(null);
    adversary = found.adversarial;
    showAttack(found);
    show();
  } catch (e) {
    complain(e);
  } finally {
    attacking = false;
    button.disabled = !answer;
    button.textContent = "Attack this input";
  }
}

// What is shown

function complain(error) {
  at("error").hidden = !error;
  at("error").textContent = error ? error.message : "";
}

function setUpSlider() {
  epsilon = model.epsilon;
  at("epsilon").oninput = () => { epsilon = Number(at("epsilon").value); show(); };
  show();
}

function show() {
  const most = Math.max(3 * model.epsilon || 1, epsilon, answer && answer.radius < 1e6 ? 1.25 * answer.radius : 0);
  Object.assign(at("epsilon"), { max: most, value: epsilon });
  if (grid) {
    paint(at("draw"), x);
    if (pen.shown) outline(at("draw"));
  }
  const state = !answer ? "empty" : answer.radius > epsilon ? "proved" : "bottom";
  for (const id of ["verdict", "ring", "scores"]) at(id).dataset.state = state;
  at("attack").disabled = attacking || !answer;
  document.body.dataset.prediction = state === "empty" ? "" : state === "proved" ? answer.label : -1;
  const big = { empty: "·", bottom: "⊥", proved: answer && answer.class }[state];
  at("big").textContent = big;
  at("big").classList.toggle("word", big.length > 2);
  say(at("says"), verdict(state));
  showRing(state);
  showEpsilon(state);
  showScores();
}

function verdict(state) {
  if (state === "empty") return `Nothing yet: ${!grid ? "type the numbers" : grid.channels === 1 ? "draw something" : "choose an image"}.`;
  const r = proved(answer.radius);
  if (state === "bottom") {
    return `⊥, I abstain. My guess would be ${answer.class}, but I can prove it only within ${r}, and you ask for more than ` +
      `${short(epsilon)}.`;
  }
  return `${answer.class}, proved within ${r}: ${inPixels(answer.radius)} and I still say ${answer.class}.`;
}

function inPixels(radius) {
  const every = 255 * (model.norm === "l2" ? radius / Math.sqrt(x.length) : radius);
  if (!grid || every >= 255) return "move anywhere closer than that";
  const levels = Math.ceil(every) - 1, one = Math.min(Math.ceil(radius * 100) - 1, 100);  // less, not as much
  if (levels < 1) return `change any one pixel by ${one} %`;
  return `change every pixel by ${levels} of 255 levels, or any one by ${one} %,`;
}

function say(element, text) {  // a screen reader hears only what is new
  if (element.textContent !== text) element.textContent = text;
}

const HEART = 58, RIM = 146, ANGLE = -0.62;
function showRing(state) {
  const far = Math.max(Number(at("epsilon").max), adversary ? adversary.distance : 0);
  const ring = (v) => HEART + (RIM - HEART) * Math.min(v / far, 1.08);
  const r = answer ? answer.radius : 0;
  for (const id of ["zone", "edge"]) at(id).setAttribute("r", ring(r));
  at("line").setAttribute("r", ring(epsilon));
  const outer = Math.abs(ring(r) - ring(epsilon)) < 24 ? Math.max(ring(r), ring(epsilon)) : ring(r);
  set(at("edge-text"), { x: 0, y: -outer - 8 });  // not under the dashes of ε
  set(at("line-text"), { x: 0, y: ring(epsilon) + 17 });
  at("edge-text").textContent = answer ? `r = ${proved(r)}` : "";
  at("line-text").textContent = `ε = ${short(epsilon)}`;
  if (grid) at("centre").setAttribute("href", picture(x));
  at("enemy").setAttribute("visibility", adversary ? "visible" : "hidden");
  at("key-enemy").hidden = !adversary;
  if (adversary) showEnemy(ring(adversary.distance));
  const enemy = adversary ? ` An attack found ${adversary.class} at distance ${short(adversary.distance)}.` : "";
  at("ring").setAttribute("aria-label", state === "empty" ? "No input yet" :
    `Certified radius ${proved(r)} around the input; epsilon is ${short(epsilon)}.${enemy}`);
}

function showEnemy(distance) {  // a point where it lies, its picture beyond
  const out = (d) => [d * Math.cos(ANGLE), d * Math.sin(ANGLE)];
  const [[x1, y1], [cx, cy], [x2, y2]] = [out(HEART), out(distance), out(distance + 40)];
  set(at("way"), { x1, y1, x2, y2 });
  set(at("point"), { cx, cy });
  set(at("frame"), { x: x2 - 27, y: y2 - 27 });
  set(at("other"), { x: x2 - 23, y: y2 - 23 });
  set(at("other-text"), { x: x2, y: y2 + 42 });
  at("other-text").textContent = short(adversary.distance);
  if (grid) at("other").setAttribute("href", picture(adversary.input.flat(Infinity)));
}

function showEpsilon(state) {
  const most = Number(at("epsilon").max);
  at("epsilon-value").textContent = short(epsilon);
  at("answers").style.width = `${100 * Math.min(answer ? answer.radius / most : 0, 1)}%`;
  const says = { empty: "", proved: `It answers: ${proved(answer?.radius ?? 0)} is proved, and that is more.`,
    bottom: `It abstains: only ${proved(answer?.radius ?? 0)} is proved.` }[state];
  at("epsilon-says").textContent = says;
  at("epsilon").setAttribute("aria-valuetext", `${short(epsilon)}. ${says}`);
}

function showScores() {
  const list = at("scores");
  const scores = answer ? answer.logits.map((v, i) => [v ?? -Infinity, i]) : model.classes.map((_, i) => [0, i]);
  const top = scores.length > 10 ? [...scores].sort((a, b) => b[0] - a[0]).slice(0, 10) : scores;
  const values = top.map(([v]) => v).filter(Number.isFinite);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  list.classList.toggle("short", model.classes.every((name) => name.length < 3));
  list.replaceChildren(...top.map(([v, i]) => {
    const row = document.createElement("li"), bar = document.createElement("span"), fill = document.createElement("i");
    row.className = answer && i === answer.label ? "first" : "";
    bar.className = "bar";
    fill.style.width = `${high > low ? 4 + 96 * (v - low) / (high - low) : 0}%`;
    bar.append(fill);
    row.append(words(model.classes[i]), bar, words(answer ? v.toFixed(1) : "–"));
    return row;
  }));
}

function words(text) {
  return Object.assign(document.createElement("span"), { textContent: text });
}

function showAttack(found) {
  at("attacked").hidden = false;
  at("attacked").dataset.radius = found.radius;
  at("attacked").dataset.distance = found.adversarial ? found.adversarial.distance : "";
  document.querySelector(".three").hidden = !found.adversarial || !grid;
  if (!found.adversarial) return say(at("attack-says"), "The search found no input that is answered differently.");
  const { distance, input } = found.adversarial, there = Float32Array.from(input.flat(Infinity));
  const times = found.radius > 0 ? `, ${(distance / found.radius).toFixed(2)} times as far` : "";
  say(at("attack-says"), `The nearest adversarial input found is ${short(distance)} away and answered ` +
    `${found.adversarial.class}. Certified is ${proved(found.radius)}: the attack stayed outside${times}.`);
  if (!grid) return;
  paint(at("before"), x);
  paint(at("after"), there);
  const most = Math.max(...there.map((v, k) => Math.abs(v - x[k])), 1e-9);
  paintChange(at("change"), there.map((v, k) => (v - x[k]) / most));
  at("before-says").textContent = `your input: ${found.class}`;
  at("change-says").textContent = `the change, ${(1 / most).toFixed(1)} times enlarged`;
  at("after-says").textContent = `answered ${found.adversarial.class}`;
}

// Pictures

function paint(canvas, values) {
  const area = grid.width * grid.height;
  pixels(canvas, (k) => [0, 1, 2].map((c) => 255 * values[k + (grid.channels === 3 ? c * area : 0)]));
}

function paintChange(canvas, values) {  // more: vermillion, less: blue, none: white
  const area = grid.width * grid.height;
  pixels(canvas, (k) => {
    let v = 0;
    for (let c = 0; c < grid.channels; c++) v += values[k + c * area] / grid.channels;
    const ends = v > 0 ? [213, 94, 0] : [0, 114, 178];
    return ends.map((end) => 255 + (end - 255) * Math.min(Math.abs(v), 1));
  });
}

function pixels(canvas, colour) {
  if (canvas.width !== grid.width || canvas.height !== grid.height) Object.assign(canvas, { width: grid.width, height: grid.height });
  const context = canvas.getContext("2d"), image = context.createImageData(grid.width, grid.height);
  for (let k = 0; k < grid.width * grid.height; k++) image.data.set([...colour(k), 255], 4 * k);
  context.putImageData(image, 0, 0);
}

function outline(canvas) {
  const context = canvas.getContext("2d");
  context.fillStyle = "#56B4E9";
  context.fillRect(Math.floor(pen.x), Math.floor(pen.y), 1, 1);
}

const scratch = document.createElement("canvas");
function picture(values) {
  paint(scratch, values);
  return scratch.toDataURL();
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}
