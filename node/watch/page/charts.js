// Points of a curve in arrays of fixed size, and a chart of them by uPlot, with as many points as it has pixels.
"use strict";

const POINTS_MAX = 12000; // 16 bytes each, twice a wide screen; older ones are merged in pairs beyond

class Curve {
  constructor() {
    this.steps = new Float64Array(POINTS_MAX);
    this.values = new Float64Array(POINTS_MAX);
    this.length = 0;
  }

  // Of a step that is known already the newest word counts.
  put(step, value) {
    if (!Number.isFinite(step) || !Number.isFinite(value)) return;
    if (this.length === POINTS_MAX) this.thin();
    const at = this.find(step);
    if (at < this.length && this.steps[at] === step) {
      this.values[at] = value;
      return;
    }
    this.steps.copyWithin(at + 1, at, this.length);
    this.values.copyWithin(at + 1, at, this.length);
    this.steps[at] = step;
    this.values[at] = value;
    this.length += 1;
  }

  // The first place whose step is not before this one.
  find(step) {
    if (this.length === 0 || this.steps[this.length - 1] < step) return this.length;
    let low = 0, high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low;
  }

  nearest(step) {
    const at = Math.min(this.find(step), this.length - 1);
    return at > 0 && step - this.steps[at - 1] < this.steps[at] - step ? at - 1 : at;
  }

  // The older half keeps the mean of each pair.
  thin() {
    const half = this.length >> 2 << 1;
    for (let i = 0; i < half; i += 2) {
      this.steps[i / 2] = this.steps[i + 1];
      this.values[i / 2] = (this.values[i] + this.values[i + 1]) / 2;
    }
    this.steps.copyWithin(half / 2, half, this.length);
    this.values.copyWithin(half / 2, half, this.length);
    this.length -= half / 2;
  }

  meanOfLast(count) {
    const from = Math.max(0, this.length - count);
    let sum = 0;
    for (let i = from; i < this.length; i++) sum += this.values[i];
    return this.length > from ? sum / (this.length - from) : NaN;
  }
}

function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)} k`;
  return String(+value.toFixed(3));
}

const WHOLE_STEPS = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((times) => times * 10 ** power));
const PIXELS_MIN = 40;

// `says(step)` gives the lines of the tip; `marks` are {step, lost, back}; `dots` is a second curve.
class Chart {
  constructor(box, curve, { dots = null, zero = false, says }) {
    Object.assign(this, { box, curve, dots, zero, says, marks: [], pointed: null, drawing: false, top: 10 });
    this.tip = box.parentElement.querySelector(".tip");
    this.none = box.parentElement.querySelector(".none");
    this.style = getComputedStyle(box);
    this.bands = [[], []];
    this.plot = new uPlot(this.options(), [[], []], box);
    new ResizeObserver(() => this.draw()).observe(box);
  }

  colour(name) {
    return this.style.getPropertyValue(`--${name}`).trim();
  }

  options() {
    const font = `11.5px ${this.style.fontFamily}`, colour = (name) => () => this.colour(name);
    const axis = { font, stroke: colour("quiet"), ticks: { show: false }, values: (plot, all) => all.map(shortNumber) };
    const alone = (plot) => plot.data[0].length === 1;
    return {
      width: PIXELS_MIN, height: PIXELS_MIN, legend: { show: false }, padding: [() => this.top, 18, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 8 }, move: (plot, left, top) => [this.snap(left), top] },
      scales: { x: { time: false, range: () => this.steps() }, y: { range: () => this.values() } },
      axes: [
        { ...axis, grid: { show: false }, size: 22, gap: 4, space: 96, incrs: WHOLE_STEPS },
        { ...axis, grid: { stroke: colour("faint"), width: 1 }, size: 46, gap: 8, space: 52 },
      ],
      series: [{}, { stroke: colour("training"), width: 1.75, points: { show: alone, size: 7, fill: colour("training") } }],
      hooks: { drawAxes: [() => this.paint(this.drawMark, this.marks), () => this.paint(this.drawBand, [this.bands])], draw: [() => this.paint(this.drawDots, [0])], setCursor: [() => this.showTip()] },
    };
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      const { plot, box, marks } = this, width = box.clientWidth, height = box.clientHeight, top = marks.length ? 30 : 10;
      this.none.hidden = this.curve.length > 0;
      if (width < PIXELS_MIN || height < PIXELS_MIN) return;
      plot.batch(() => {
        if (plot.width !== width || plot.height !== height || this.top !== top) {
          this.top = top;
          plot.setSize({ width, height });
        }
        plot.setData(this.columns(width));
      });
    });
  }

  steps() {
    const { steps, length } = this.curve;
    return length ? [steps[0], Math.max(steps[length - 1], steps[0] + 1)] : [null, null];
  }

  values() {
    if (this.curve.length === 0) return [null, null];
    const edge = (this.high - this.low || 1) * 0.06;
    return [this.zero ? 0 : this.low - edge, this.high + edge];
  }

  // Steps and their mean values, as many as there are pixels; the lowest and highest in each become the band.
  columns(width) {
    const { steps, values, length } = this.curve, [first, last] = this.steps();
    const at = [], means = [], lows = [], highs = [], scale = width / (last - first);
    let place = NaN, count = 0;
    for (let i = 0; i < length; i++) {
      const pixel = Math.round((steps[i] - first) * scale);
      if (pixel !== place) {
        at.push(steps[i]);
        lows.push(values[i]);
        highs.push(values[i]);
        means.push(0);
        place = pixel;
        count = 0;
      }
      const column = at.length - 1;
      count += 1;
      at[column] += (steps[i] - at[column]) / count;
      means[column] += (values[i] - means[column]) / count;
      lows[column] = Math.min(lows[column], values[i]);
      highs[column] = Math.max(highs[column], values[i]);
    }
    this.low = Math.min(...lows);
    this.high = Math.max(...highs);
    for (let i = 0; this.dots && i < this.dots.length; i++) {
      this.low = Math.min(this.low, this.dots.values[i]);
      this.high = Math.max(this.high, this.dots.values[i]);
    }
    this.bands = [lows, highs];
    return [at, means];
  }

  // -- what uPlot does not draw: the band, marks, diamonds and the tip

  // Each of `items` by `drawOne(pen, item, box)`, in pixels of the page.
  paint(drawOne, items) {
    const { plot } = this, pen = plot.ctx, ratio = uPlot.pxRatio;
    if (this.curve.length === 0) return;
    const [left, top, width, height] = ["left", "top", "width", "height"].map((side) => plot.bbox[side] / ratio);
    pen.save();
    pen.scale(ratio, ratio);
    for (const item of items) drawOne.call(this, pen, item, { left, top, right: left + width, bottom: top + height });
    pen.restore();
  }

  // By hand: as two more series of uPlot's it leaves two more paths behind at every look.
  drawBand(pen, [lows, highs], { left, top }) {
    const { plot } = this, steps = plot.data[0], x = (i) => left + plot.valToPos(steps[i], "x"), y = (value) => top + plot.valToPos(value, "y");
    pen.fillStyle = this.colour("band");
    pen.beginPath();
    highs.forEach((high, i) => pen.lineTo(x(i), y(high)));
    for (let i = lows.length - 1; i >= 0; i--) pen.lineTo(x(i), y(lows[i]));
    pen.fill();
  }

  drawDots(pen, item, { left, top, right, bottom }) {
    if (!this.dots) return;
    const { steps, values, length } = this.dots, every = Math.ceil(length / 200), last = this.steps()[1];
    pen.beginPath();
    pen.rect(left - 6, top - 4, right - left + 12, bottom - top + 8);
    pen.clip();
    pen.fillStyle = this.colour("validation");
    pen.strokeStyle = this.colour("panel");
    pen.lineWidth = 1.5;
    for (let i = (length - 1) % every; i < length; i += every) {
      const x = left + this.plot.valToPos(Math.min(steps[i], last), "x"), y = top + this.plot.valToPos(values[i], "y");
      pen.beginPath();
      pen.moveTo(x, y - 6);
      pen.lineTo(x + 6, y);
      pen.lineTo(x, y + 6);
      pen.lineTo(x - 6, y);
      pen.closePath();
      pen.fill();
      pen.stroke();
    }
  }

  drawMark(pen, mark, { left, top, bottom }) {
    const [first, last] = this.steps();
    if (mark.step < first || mark.step > last + 1) return;
    const x = Math.round(left + this.plot.valToPos(Math.min(mark.step, last), "x")) + 0.5;
    pen.strokeStyle = this.colour("lost");
    pen.globalAlpha = 0.55;
    pen.setLineDash([3, 3]);
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, top - 4);
    pen.lineTo(x, bottom);
    pen.stroke();
    pen.setLineDash([]);
    pen.globalAlpha = 1;
    pen.lineWidth = 2.25;
    const side = mark.back ? 6 : 0;
    if (mark.lost) {
      pen.beginPath();
      pen.moveTo(x - side - 4, top - 16);
      pen.lineTo(x - side + 4, top - 8);
      pen.moveTo(x - side + 4, top - 16);
      pen.lineTo(x - side - 4, top - 8);
      pen.stroke();
    }
    if (mark.back) {
      pen.fillStyle = this.colour("ready");
      pen.beginPath();
      pen.arc(x + (mark.lost ? 7 : 0), top - 12, 4.5, 0, 2 * Math.PI);
      pen.fill();
    }
  }

  // The cursor stands on a mark, or on the nearest step.
  snap(left) {
    const { plot, curve } = this;
    if (left < 0 || curve.length === 0) return left;
    const x = (step) => plot.valToPos(Math.min(step, this.steps()[1]), "x"), near = this.marks.find((mark) => Math.abs(x(mark.step) - left) < 6);
    const at = curve.nearest(near ? near.step : plot.posToVal(left, "x"));
    this.pointed = { step: near ? near.step : curve.steps[at], value: curve.values[at], near };
    return x(this.pointed.step);
  }

  showTip() {
    const { plot, tip, pointed, box } = this, { left } = plot.cursor;
    tip.hidden = !(left >= 0) || pointed === null || this.curve.length === 0;
    if (tip.hidden) return;
    tip.textContent = this.says(pointed.step, pointed.value, pointed.near);
    const x = plot.bbox.left / uPlot.pxRatio + left, before = x > box.clientWidth / 2;
    tip.style.left = before ? "auto" : `${x + 12}px`;
    tip.style.right = before ? `${box.clientWidth - x + 12}px` : "auto";
  }
}
