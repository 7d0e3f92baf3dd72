// Step an exported model in Node, with its memories fed back.
//
//   node client.mjs demand.onnx calls.json [--after before.json] > forecasts.json
//
// calls.json: [{"start": [1, 1], "x": [[[3.1]], [[null]]]}, …] — one entry per call; x is lanes × rows × channels in raw
// units, null is a missing value; start is 1 for a lane that begins (anew), else 0, and may be left out. Each further
// calls.json is a stream of its own, and one line of JSON is printed per stream. before.json is what an earlier run
// printed: its memories go on; without it, every lane begins.
import { readFileSync } from "node:fs";
import ort from "onnxruntime-node";

const read = (path) => JSON.parse(readFileSync(path, "utf8"));
const [modelPath, ...streams] = process.argv.slice(2);
const at = streams.indexOf("--after");
const before = at < 0 ? null : read(streams.splice(at, 2)[1]).state;
if (!streams.length) throw new Error("usage: node client.mjs MODEL.onnx CALLS.json [--after BEFORE.json]");

const contract = read(modelPath.replace(/\.onnx$/, ".contract.json"));
if (contract.schema.split(".")[0] !== "1") {
  throw new Error(`${modelPath}: contract schema ${contract.schema} found, 1.x expected. Use a newer client.`);
}
const arrays = { float32: Float32Array, int32: Int32Array };

function zeros(state, nLanes) {
  const dims = [nLanes, ...state.dims]; // a contract gives a state's sizes per lane
  return new ort.Tensor(state.dtype, new arrays[state.dtype](dims.reduce((a, b) => a * b, 1)), dims);
}

function kept(state, { dims, data }) {
  return new ort.Tensor(state.dtype, arrays[state.dtype].from(data), dims);
}

function plain(tensor) {
  return { dims: tensor.dims, data: Array.from(tensor.data, (v) => (Number.isFinite(v) ? v : null)) };
}

// One thread: a small graph is slower on many, and their waiting takes a whole core each.
const session = await ort.InferenceSession.create(modelPath, {
  executionProviders: ["cpu"],
  intraOpNumThreads: 1,
  interOpNumThreads: 1,
});

async function runStream(calls) {
  const forecasts = [];
  let past = before && Object.fromEntries(contract.states.map((state) => [state.in, kept(state, before[state.in])]));
  for (const { x, start } of calls) {
    const [nLanes, nRows, nChannels] = [x.length, x[0].length, x[0][0].length];
    past ??= Object.fromEntries(contract.states.map((state) => [state.in, zeros(state, nLanes)]));
    const values = Float32Array.from(x.flat(2), (v) => v ?? NaN);
    const given = await session.run({
      x: new ort.Tensor("float32", values, [nLanes, nRows, nChannels]),
      start: new ort.Tensor("int32", Int32Array.from(start ?? new Array(nLanes).fill(0)), [nLanes, 1]),
      ...past,
    });
    past = Object.fromEntries(contract.states.map((state) => [state.in, given[state.out]]));
    forecasts.push(plain(given.y));
  }
  const state = Object.fromEntries(Object.entries(past ?? {}).map(([name, tensor]) => [name, plain(tensor)]));
  return { quantiles: contract.quantiles, forecasts, state };
}

for (const stream of streams) {
  process.stdout.write(JSON.stringify(await runStream(read(stream))) + "\n");
}
