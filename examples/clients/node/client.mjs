// Step an exported model in Node, with its memories fed back.
//
//   node client.mjs demand.onnx calls.json > forecasts.json
//
// calls.json: [{"start": [1, 1], "x": [[[3.1]], [[null]]]}, …] — one entry per call; x is lanes × rows × channels in raw
// units, null is a missing value; start is 1 for a lane that begins (anew), else 0, and may be left out.
import { readFileSync } from "node:fs";
import ort from "onnxruntime-node";

const [modelPath, callsPath] = process.argv.slice(2);
if (!callsPath) throw new Error("usage: node client.mjs MODEL.onnx CALLS.json");

const contract = JSON.parse(readFileSync(modelPath.replace(/\.onnx$/, ".contract.json"), "utf8"));
if (contract.schema.split(".")[0] !== "1") {
  throw new Error(`${modelPath}: contract schema ${contract.schema} found, 1.x expected. Use a newer client.`);
}
const arrays = { float32: Float32Array, int32: Int32Array };

function zeros(state, nLanes) {
  const dims = [nLanes, ...state.dims]; // a contract gives a state's sizes per lane
  return new ort.Tensor(state.dtype, new arrays[state.dtype](dims.reduce((a, b) => a * b, 1)), dims);
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

const forecasts = [];
let past = null;
for (const { x, start } of JSON.parse(readFileSync(callsPath, "utf8"))) {
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
process.stdout.write(JSON.stringify({ quantiles: contract.quantiles, forecasts, state }));
