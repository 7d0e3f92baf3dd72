// Replay a stream through the exported graph and compare every number with those that Python wrote at build time.
//
// ?speed=max goes as fast as it can; ?report also sends the figures to the server at the end (the tests do that).
import * as ort from "./ort/ort.wasm.min.mjs";
import { draw } from "./chart.mjs";

const SHOWN_MS = 12 * 3.6e6, FRAME_MS = 14;
const arrays = { float32: Float32Array, int32: Int32Array };
const $ = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);

async function load(name, form) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}. Build the page first, with build.py.`);
  return answer[form]();
}

async function main() {
  const [contract, stream, numbers] = await Promise.all([
    load("model.contract.json", "json"),
    load("stream.json", "json"),
    load("expected.bin", "arrayBuffer"),
  ]);
  if (contract.schema.split(".")[0] !== "1") {
    throw new Error(`contract schema ${contract.schema} found, 1.x expected. Use a newer page.`);
  }
  const expected = new Float32Array(numbers);
  ort.env.wasm.numThreads = 1; // more need the headers of cross-origin isolation, and a small graph gains nothing
  // The graph of one row of one lane; model.onnx takes any number of both, in twice the time.
  const session = await ort.InferenceSession.create("model.step.onnx", { executionProviders: ["wasm"] });

  const levels = contract.quantiles, nLevels = levels.length;
  const [low, median, high] = [0.1, 0.5, 0.9].map((level) => levels.indexOf(level));
  const size = contract.horizon * nLevels;
  let past = Object.fromEntries(
    contract.states.map(({ in: name, dtype, dims }) => [
      name,
      new ort.Tensor(dtype, new arrays[dtype](dims.reduce((a, b) => a * b, 1)), [1, ...dims]),
    ]),
  );

  const said = []; // forecasts by row: Float32Array of steps × levels
  const rows = [];
  let busyMs = 0, apart = 0, largest = 0, nanApart = 0;

  async function step() {
    const i = rows.length, value = stream.values[i] ?? NaN;
    const begin = performance.now();
    const given = await session.run({
      x: new ort.Tensor("float32", Float32Array.of(value), [1, 1, 1]),
      start: new ort.Tensor("int32", Int32Array.of(0), [1, 1]),
      ...past,
    });
    busyMs += performance.now() - begin;
    past = Object.fromEntries(contract.states.map((state) => [state.in, given[state.out]]));
    const y = given.y.data;
    for (let k = 0; k < size; k++) {
      const wanted = expected[i * size + k];
      if (Number.isNaN(wanted) !== Number.isNaN(y[k])) nanApart++;
      else if (!Number.isNaN(wanted)) {
        apart = Math.max(apart, Math.abs(y[k] - wanted));
        largest = Math.max(largest, Math.abs(wanted));
      }
    }
    const early = said[i - contract.horizon], last = (contract.horizon - 1) * nLevels;
    const before = early ? [low, median, high].map((q) => early[last + q]) : [NaN, NaN, NaN];
    const one = said[i - 1];
    const score = one ? Math.abs(value - one[median]) / ((one[high] - one[low]) / 2) : NaN;
    said.push(y.slice());
    said[i - contract.horizon - 1] = null; // only the last hour's are looked at again
    rows.push({ time: stream.first_ms + i * stream.step_ms, value, before, score });
  }

  function show() {
    const now = rows.at(-1).time, y = said.at(-1);
    const next = Array.from({ length: contract.horizon }, (_, k) => ({
      time: now + (k + 1) * stream.step_ms,
      low: y[k * nLevels + low],
      median: y[k * nLevels + median],
      high: y[k * nLevels + high],
    }));
    const shown = rows.slice(-Math.ceil(SHOWN_MS / stream.step_ms) - 1);
    draw({ value: $("value"), score: $("score") }, { rows: shown, next, span: SHOWN_MS, unit: stream.unit, lead: stream.lead });
    $("rows").textContent = `${rows.length.toLocaleString("en")} of ${stream.values.length.toLocaleString("en")}`;
    $("rate").textContent = busyMs ? Math.round((1000 * rows.length) / busyMs).toLocaleString("en") : "–";
    $("apart").textContent = nanApart ? "NaN at other places" : (apart / largest).toExponential(1);
  }

  $("title").textContent = `${stream.name}, forecast ${stream.lead} ahead as it comes in`;
  $("state").textContent = `${(contract.state_nbytes / 1024).toFixed(1)} KiB`;
  $("apart-of").textContent = "largest difference from Python, of the largest value";
  let paused = false;
  $("pause").onclick = () => ($("pause").textContent = (paused = !paused) ? "Go on" : "Pause");
  if (query.has("speed")) $("speed").value = query.get("speed");

  const begun = performance.now();
  while (rows.length < stream.values.length) {
    const frame = performance.now(), speed = $("speed").value;
    for (let n = 0; !paused && rows.length < stream.values.length; n++) {
      if (speed === "max" ? performance.now() - frame > FRAME_MS : n >= Number(speed)) break;
      await step();
    }
    if (rows.length) show();
    await new Promise((done) => requestAnimationFrame(done));
  }
  const report = {
    rows: rows.length,
    largest_difference: nanApart ? null : apart / largest,
    graph_rows_per_s: (1000 * rows.length) / busyMs,
    page_rows_per_s: (1000 * rows.length) / (performance.now() - begun),
    scored: rows.filter((row) => Number.isFinite(row.score)).length,
  };
  document.body.dataset.report = JSON.stringify(report);
  if (query.has("report")) await fetch("report", { method: "POST", body: JSON.stringify(report) });
}

main().catch((error) => {
  $("trouble").textContent = String(error.message ?? error);
  document.body.dataset.trouble = String(error.stack ?? error);
  if (query.has("report")) fetch("report", { method: "POST", body: JSON.stringify({ trouble: String(error.stack ?? error) }) });
});
