// Two panels over the same hours: values with the forecasts for them, and how surprising each value was.

const INK = "#1d2733", FAINT = "#dfe4ea", QUIET = "#4d5a68";
const VALUE = "#1d2733", BEFORE = "rgba(37, 99, 168, .16)", MEDIAN = "#2563a8";
const NEXT = "rgba(214, 120, 20, .30)", NEXT_MEDIAN = "#c2660b", ALARM = "#c0341d";
const CUT = 5; // surprise
const MARGIN = { left: 58, right: 16, top: 30, bottom: 30 };

function sheet(canvas) {
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "13px system-ui, sans-serif";
  return { pen, width, height };
}

// A step of 1, 2 or 5 times a power of ten that gives about n ticks.
function roundStep(span, n) {
  const raw = span / n, power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
}

function clock(ms) {
  return new Date(ms).toISOString().slice(11, 16);
}

function day(ms) {
  return new Date(ms).toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short", timeZone: "UTC" });
}

function axes(pen, { x, y, width, height, label, times, low, high }) {
  pen.lineWidth = 1;
  pen.fillStyle = QUIET;
  pen.strokeStyle = FAINT;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const step = roundStep(high - low, height > 200 ? 6 : 5);
  for (let tick = Math.ceil(low / step) * step; tick <= high + 1e-9; tick += step) {
    pen.beginPath();
    pen.moveTo(MARGIN.left, y(tick));
    pen.lineTo(width - MARGIN.right, y(tick));
    pen.stroke();
    pen.fillText(String(+tick.toFixed(6)), MARGIN.left - 8, y(tick));
  }
  pen.textBaseline = "alphabetic";
  const hour = 3.6e6;
  for (let tick = Math.ceil(times.first / (2 * hour)) * 2 * hour; tick <= times.last; tick += 2 * hour) {
    pen.beginPath();
    pen.moveTo(x(tick), MARGIN.top);
    pen.lineTo(x(tick), height - MARGIN.bottom);
    pen.stroke();
    const text = tick % (24 * hour) === 0 ? day(tick) : clock(tick);
    pen.textAlign = "center";
    pen.fillText(text, Math.min(x(tick), width - MARGIN.right - pen.measureText(text).width / 2), height - MARGIN.bottom + 17);
  }
  pen.textAlign = "left";
  pen.fillStyle = INK;
  pen.fillText(label, 4, 15);
}

function line(pen, points, colour, { width = 1.6, dash = [] } = {}) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.setLineDash(dash);
  pen.beginPath();
  let down = false;
  for (const [px, py] of points) {
    if (!Number.isFinite(py)) down = false;
    else if (down) pen.lineTo(px, py);
    else (pen.moveTo(px, py), (down = true));
  }
  pen.stroke();
  pen.setLineDash([]);
}

function band(pen, points, colour) {
  const known = points.filter(([, low, high]) => Number.isFinite(low + high));
  if (!known.length) return;
  pen.fillStyle = colour;
  pen.beginPath();
  known.forEach(([px, low], i) => (i ? pen.lineTo(px, low) : pen.moveTo(px, low)));
  known.reverse().forEach(([px, , high]) => pen.lineTo(px, high));
  pen.fill();
}

function legend(pen, width, entries) {
  let right = width - MARGIN.right;
  pen.textAlign = "right";
  for (const { text, colour, kind, dash } of [...entries].reverse()) {
    pen.fillStyle = INK;
    pen.fillText(text, right, 15);
    const left = right - pen.measureText(text).width - 30;
    if (kind === "band") {
      pen.fillStyle = colour;
      pen.fillRect(left, 4, 22, 13);
    } else {
      line(pen, [[left, 11], [left + 22, 11]], colour, { width: 2, dash });
    }
    right = left - 18;
  }
}

// rows: { time, value, before: [low, median, high] said an hour earlier, score } of the hours that are shown;
// next: { time, low, median, high } of the steps to come.
export function draw(canvases, { rows, next, span, unit, lead }) {
  const last = rows.at(-1).time, times = { first: last - span, last: next.at(-1)?.time ?? last };
  const across = (width) => (ms) =>
    MARGIN.left + ((ms - times.first) / (times.last - times.first)) * (width - MARGIN.left - MARGIN.right);

  const upper = sheet(canvases.value);
  const shown = [...rows.flatMap((row) => [row.value, ...row.before]), ...next.flatMap((s) => [s.low, s.high])];
  const finite = shown.filter(Number.isFinite);
  const pad = 0.06 * (Math.max(...finite) - Math.min(...finite)) + 1e-6;
  const [low, high] = [Math.min(...finite) - pad, Math.max(...finite) + pad];
  const down = (height, from, to) => (v) =>
    height - MARGIN.bottom - ((v - from) / (to - from)) * (height - MARGIN.top - MARGIN.bottom);
  const x = across(upper.width), y = down(upper.height, low, high);
  axes(upper.pen, { x, y, ...upper, label: unit, times, low, high });
  band(upper.pen, rows.map((row) => [x(row.time), y(row.before[0]), y(row.before[2])]), BEFORE);
  line(upper.pen, rows.map((row) => [x(row.time), y(row.before[1])]), MEDIAN, { dash: [5, 4] });
  const now = [{ time: last, low: rows.at(-1).value, median: rows.at(-1).value, high: rows.at(-1).value }];
  const fan = (Number.isFinite(now[0].low) ? now : []).concat(next);
  band(upper.pen, fan.map((step) => [x(step.time), y(step.low), y(step.high)]), NEXT);
  line(upper.pen, fan.map((step) => [x(step.time), y(step.median)]), NEXT_MEDIAN, { width: 2.2 });
  line(upper.pen, rows.map((row) => [x(row.time), y(row.value)]), VALUE, { width: 2 });
  legend(upper.pen, upper.width, [
    { text: "value", colour: VALUE },
    { text: `median said ${lead} before`, colour: MEDIAN, dash: [5, 4] },
    { text: "its 80 % band", colour: BEFORE, kind: "band" },
    { text: "forecast from now, 80 % band", colour: NEXT, kind: "band" },
  ]);

  const lower = sheet(canvases.score);
  const top = CUT + 0.4; // a jump of thirty would flatten all others
  const xs = across(lower.width), ys = down(lower.height, 0, top);
  axes(lower.pen, { x: xs, y: ys, ...lower, label: "surprise, in half band widths", times, low: 0, high: top });
  const bar = Math.max(1.5, (0.7 * (lower.width - MARGIN.left - MARGIN.right) * 3e5) / (times.last - times.first));
  for (const row of rows) {
    if (!Number.isFinite(row.score) || row.time < times.first) continue;
    lower.pen.fillStyle = row.score > 1 ? ALARM : MEDIAN;
    const shownScore = Math.min(row.score, top);
    lower.pen.fillRect(xs(row.time) - bar / 2, ys(shownScore), bar, ys(0) - ys(shownScore));
  }
  line(lower.pen, [[MARGIN.left, ys(1)], [lower.width - MARGIN.right, ys(1)]], INK, { width: 1, dash: [3, 3] });
  legend(lower.pen, lower.width, [
    { text: "inside the band said one row before", colour: MEDIAN, kind: "band" },
    { text: `outside (cut at ${CUT})`, colour: ALARM, kind: "band" },
  ]);
}
