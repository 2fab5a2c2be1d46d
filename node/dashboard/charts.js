// Points of a curve in arrays of fixed size, and a chart on a canvas that draws as many of them as it has pixels.
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

function tickStep(span, count) {
  const rough = Math.max(span, 1e-12) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
}

function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)} k`;
  return String(+value.toFixed(3));
}

// `says(step)` gives the lines of the tip; `marks` are {step, lost, back}; `dots` is a second curve.
class Chart {
  constructor(canvas, curve, { dots = null, zero = false, says }) {
    Object.assign(this, { canvas, curve, dots, zero, says, marks: [], hover: null, drawing: false });
    this.tip = canvas.parentElement.querySelector(".tip");
    canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  point(x) {
    this.hover = x;
    this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.paint();
    });
  }

  paint() {
    const { canvas, curve } = this;
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (width < 40 || height < 40) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = `11.5px ${style.fontFamily}`;
    this.box = { left: 46, right: width - 10, top: this.marks.length ? 30 : 10, bottom: height - 22 };
    const { left, right, top, bottom } = this.box;
    if (curve.length === 0) {
      pen.fillStyle = colour("quiet");
      pen.fillText("No step is committed yet.", left, (top + bottom) / 2);
      return;
    }
    const columns = this.scale();
    this.axes(pen, colour);
    for (const mark of this.marks) this.drawMark(pen, colour, mark);
    pen.save();
    pen.beginPath();
    pen.rect(left - 4, top - 4, right - left + 8, bottom - top + 8);
    pen.clip();
    this.line(pen, colour, columns);
    if (this.dots) this.drawDots(pen, colour);
    pen.restore();
    this.drawHover(pen, colour);
  }

  // Extent, and the curve by columns of pixels: [x, lowest, mean, highest].
  scale() {
    const { curve, box } = this, { steps, values, length } = curve;
    this.first = steps[0];
    this.last = Math.max(steps[length - 1], this.first + 1);
    this.x = (step) => box.left + (step - this.first) / (this.last - this.first) * (box.right - box.left);
    const columns = [];
    let at = -1, count = 0;
    for (let i = 0; i < length; i++) {
      const x = Math.round(this.x(steps[i]));
      if (x !== at) {
        columns.push([x, values[i], 0, values[i]]);
        at = x;
        count = 0;
      }
      const column = columns[columns.length - 1];
      count += 1;
      column[1] = Math.min(column[1], values[i]);
      column[2] += (values[i] - column[2]) / count;
      column[3] = Math.max(column[3], values[i]);
    }
    let low = Infinity, high = -Infinity;
    for (const column of columns) {
      low = Math.min(low, column[1]);
      high = Math.max(high, column[3]);
    }
    for (let i = 0; this.dots && i < this.dots.length; i++) {
      low = Math.min(low, this.dots.values[i]);
      high = Math.max(high, this.dots.values[i]);
    }
    const edge = (high - low || 1) * 0.06;
    this.low = this.zero ? 0 : low - edge;
    this.high = high + edge;
    this.y = (value) => box.bottom - (value - this.low) / (this.high - this.low) * (box.bottom - box.top);
    return columns;
  }

  axes(pen, colour) {
    const { left, right, top, bottom } = this.box;
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const rise = tickStep(this.high - this.low, Math.max(2, (bottom - top) / 52));
    for (let value = Math.ceil(this.low / rise) * rise; value <= this.high; value += rise) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.strokeStyle = colour("faint");
      pen.beginPath();
      pen.moveTo(left, y);
      pen.lineTo(right, y);
      pen.stroke();
      pen.fillStyle = colour("quiet");
      pen.fillText(shortNumber(value), left - 8, y);
    }
    pen.textBaseline = "alphabetic";
    const run = Math.max(1, tickStep(this.last - this.first, (right - left) / 96));
    for (let step = Math.ceil(this.first / run) * run; step <= this.last; step += run) {
      const x = this.x(step);
      pen.textAlign = x > right - 24 ? "right" : "center";
      pen.fillText(shortNumber(step), Math.min(x, right), bottom + 17);
    }
  }

  line(pen, colour, columns) {
    pen.fillStyle = colour("band");
    pen.beginPath();
    columns.forEach(([x, , , high], i) => (i ? pen.lineTo(x, this.y(high)) : pen.moveTo(x, this.y(high))));
    for (let i = columns.length - 1; i >= 0; i--) pen.lineTo(columns[i][0], this.y(columns[i][1]));
    pen.fill();
    pen.strokeStyle = colour("training");
    pen.lineWidth = 1.75;
    pen.lineJoin = "round";
    pen.beginPath();
    columns.forEach(([x, , mean], i) => (i ? pen.lineTo(x, this.y(mean)) : pen.moveTo(x, this.y(mean))));
    pen.stroke();
  }

  drawDots(pen, colour) {
    const { steps, values, length } = this.dots;
    const every = Math.ceil(length / 200);
    pen.fillStyle = colour("validation");
    pen.strokeStyle = colour("panel");
    pen.lineWidth = 1.5;
    for (let i = (length - 1) % every; i < length; i += every) {
      const x = this.x(Math.min(steps[i], this.last)), y = this.y(values[i]);
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

  drawMark(pen, colour, mark) {
    if (mark.step < this.first || mark.step > this.last + 1) return;
    const x = Math.round(this.x(Math.min(mark.step, this.last))) + 0.5, { top, bottom } = this.box;
    pen.strokeStyle = colour("lost");
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
      pen.fillStyle = colour("ready");
      pen.beginPath();
      pen.arc(x + (mark.lost ? 7 : 0), top - 12, 4.5, 0, 2 * Math.PI);
      pen.fill();
    }
  }

  drawHover(pen, colour) {
    const { left, right, top, bottom } = this.box;
    const hidden = this.hover === null || this.hover < left - 8 || this.hover > right + 8;
    this.tip.hidden = hidden;
    if (hidden) return;
    const wanted = this.first + (this.hover - left) / (right - left) * (this.last - this.first);
    let at = Math.min(this.curve.find(wanted), this.curve.length - 1);
    if (at > 0 && wanted - this.curve.steps[at - 1] < this.curve.steps[at] - wanted) at -= 1;
    const near = this.marks.find((mark) => Math.abs(this.x(mark.step) - this.hover) < 6);
    const step = near ? near.step : this.curve.steps[at];
    const x = this.x(Math.min(step, this.last));
    pen.strokeStyle = colour("quiet");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, bottom);
    pen.stroke();
    pen.fillStyle = colour("training");
    pen.beginPath();
    pen.arc(this.x(this.curve.steps[at]), this.y(this.curve.values[at]), 4, 0, 2 * Math.PI);
    pen.fill();
    this.tip.textContent = this.says(step, this.curve.values[at], near);
    const room = this.canvas.clientWidth;
    if (x > room / 2) {
      this.tip.style.left = "auto";
      this.tip.style.right = `${room - x + 12}px`;
    } else {
      this.tip.style.right = "auto";
      this.tip.style.left = `${x + 12}px`;
    }
  }
}
