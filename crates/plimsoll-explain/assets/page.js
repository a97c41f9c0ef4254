'use strict';
// The page's code. It draws what was prepared: curves in stretches, a raster of the addresses, the largest blocks; and
// where somebody looks closely, the events themselves, unpacked piece by piece.
(() => {
const element = id => document.getElementById(id);
const head = JSON.parse(element('head').textContent);
const UNIT = head.unit, EVENTS = Math.max(head.events, 1);
// Up to so many events in view are drawn block by block.
const EXACT = 60000;

// ---- Unpacking ---------------------------------------------------------------------------------------------------

async function unpack(id) {
  const node = element(id);
  if (!node) return null;
  const text = node.textContent;
  const packed = atob(text), raw = new Uint8Array(packed.length);
  for (let i = 0; i < raw.length; i++) raw[i] = packed.charCodeAt(i);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let at = 0;
  const number = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte >= 128);
    return value;
  };
  const difference = () => {
    const value = number();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  };
  return { number, difference, bytes, more: () => at < bytes.length };
}

// ---- Words and colours -------------------------------------------------------------------------------------------

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (Math.abs(n) >= 1024 && unit < 4) { n /= 1024; unit++; }
  return (unit ? n.toFixed(2) : n.toFixed(0)) + ' ' + units[unit];
}
const count = n => n.toLocaleString('en-US');

const CATEGORY_HUES = {
  'parameters': 212, 'gradients': 265, 'optimizer states': 32, 'activations': 145, 'logits and loss': 188,
  'workspace': 55, 'communication': 320, 'KV cache': 0, 'engine buffers': 290, 'inputs': 95, 'context': 230,
};
const dark = matchMedia('(prefers-color-scheme: dark)');
function hueOf(layer, index) {
  const known = CATEGORY_HUES[layer.category];
  return known === undefined ? (index * 137.5 + 205) % 360 : known;
}
function colourOf(index, light = 0) {
  const layer = head.layers[index];
  const grey = layer.category === 'unknown' || layer.name === 'everything else';
  const lightness = (dark.matches ? 58 : 52) + light;
  return `hsl(${hueOf(layer, index)} ${grey ? 6 : 58}% ${lightness}%)`;
}
// Colours of the layers, and the same as pixels; colours of the page by name.
let palette = [], inks = [], faint = [], theme = {};
function repaintPalette() {
  palette = head.layers.map((_, i) => [-9, -4, 0, 5, 10].map(light => colourOf(i, light)));
  inks = palette.map(shades => shades.map(shade => ink(shade)));
  faint = palette.map(shades => shades.map(shade => ink(shade, 31)));
  const style = getComputedStyle(document.documentElement);
  theme = Object.fromEntries(['--panel', '--ink', '--dim', '--line', '--accent', '--load', '--reserved', '--box']
    .map(name => [name, style.getPropertyValue(name).trim()]));
  rasterImage = overviewImage = null;
}
const css = name => theme[name];

// ---- What is shown -----------------------------------------------------------------------------------------------

const view = { from: 0, to: EVENTS };
let moment = Math.min(head.peak, EVENTS - 1);
let hover = null;
const hidden = new Set();
let wanted = '';
let matching = null;
let curves = null, raster = null, largest = [];
let exact = null;      // blocks and curve of a window of events
let live = null;       // the live set at the moment

const timeAt = event => {
  const times = head.times;
  if (!times.length) return null;
  let low = 0, high = times.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle][0] < event) low = middle + 1; else high = middle;
  }
  const [e1, t1] = times[low], [e0, t0] = times[Math.max(low - 1, 0)];
  return e1 === e0 ? t1 : t0 + (t1 - t0) * Math.min(Math.max((event - e0) / (e1 - e0), 0), 1);
};
const momentWords = event => {
  const time = timeAt(event);
  return `event ${count(event)}` + (time === null ? '' : `, ${time.toFixed(time < 10 ? 4 : 2)} s`);
};

// ---- Events ------------------------------------------------------------------------------------------------------

const pieces = new Map();
async function piece(number) {
  if (pieces.has(number)) return pieces.get(number);
  const data = await unpack('piece-' + number);
  const steps = { group: new Int32Array(head.piece), place: new Int32Array(head.piece), size: new Int32Array(head.piece), length: 0 };
  if (data) {
    let place = 0, at = 0;
    while (data.more()) {
      const tag = data.number();
      if (tag === 0) {
        steps.group[at] = -2;
      } else {
        place += data.difference();
        steps.place[at] = place;
        steps.group[at] = tag - 2;           // -1 for a free
        if (tag > 1) steps.size[at] = data.number();
      }
      at++;
    }
    steps.length = at;
  }
  if (pieces.size > 64) pieces.delete(pieces.keys().next().value);
  pieces.set(number, steps);
  return steps;
}

const keys = new Map();
async function key(number) {
  if (keys.has(number)) return keys.get(number);
  const data = await unpack('key-' + number);
  const from = number * head.piece * head.pieces_per_key;
  const blocks = [];
  if (data) {
    let place = 0;
    for (let left = data.number(); left > 0; left--) {
      place += data.number();
      const size = data.number(), group = data.number(), age = data.number();
      blocks.push([place, size, group, age ? from - age : 0]);
    }
  }
  keys.set(number, blocks);
  return blocks;
}

// Live blocks before an event, by place: [place, size, group, birth].
async function stateBefore(event, each) {
  const span = head.piece * head.pieces_per_key;
  let number = Math.floor(event / span);
  while (number > 0 && !element('key-' + number)) number--;
  const blocks = new Map();
  for (const block of await key(number)) blocks.set(block[0], block.slice());
  await walk(number * span, event, blocks, each);
  return blocks;
}

// Applies the events from one to another, the last one excluded. It lets the page draw between pieces.
async function walk(from, to, blocks, each) {
  let rested = performance.now();
  for (let at = from; at < to;) {
    if (performance.now() - rested > 5) {
      await new Promise(requestAnimationFrame);
      rested = performance.now();
    }
    const number = Math.floor(at / head.piece);
    const steps = await piece(number);
    const first = number * head.piece, last = Math.min(to, first + head.piece);
    for (; at < last; at++) {
      const i = at - first;
      if (i >= steps.length) return;
      const group = steps.group[i];
      if (group >= 0) {
        const block = [steps.place[i], steps.size[i], group, at];
        blocks.set(block[0], block);
        if (each) each(at, block, true);
      } else if (group === -1) {
        const block = blocks.get(steps.place[i]);
        if (block) {
          blocks.delete(block[0]);
          if (each) each(at, block, false);
        }
      }
    }
  }
}

let loading = false;
// Unpacks a window around the view, so that panning has something to draw; one at a time, the newest view last.
async function loadExact() {
  if (loading) return;
  loading = true;
  try {
    while (view.to - view.from <= EXACT && !covers(.5)) await loadWindow();
  } finally {
    loading = false;
  }
  if (view.to - view.from > EXACT) exact = null;
}
// Whether the window holds the view and a share of its width on both sides.
function covers(share) {
  const beside = (view.to - view.from) * share;
  return exact && exact.from <= Math.max(view.from - beside, 0) && exact.to >= Math.min(view.to + beside, head.events);
}
const isFine = () => view.to - view.from <= EXACT && covers(0);

async function loadWindow() {
  const width = view.to - view.from, layers = head.layers.length;
  const from = Math.max(0, Math.floor(view.from - width)), to = Math.min(head.events, Math.ceil(view.to + width));
  const blocks = await stateBefore(from);
  const rows = [], sums = new Float64Array(layers);
  const open = new Map();
  // The sums of the layers after each event that changed them, one row after the other.
  const curve = { at: new Float64Array(to - from + 1), sums: new Float64Array((to - from + 1) * layers), length: 0 };
  const note = at => {
    curve.at[curve.length] = at;
    curve.sums.set(sums, curve.length++ * layers);
  };
  const begin = (at, block) => {
    const row = [at, head.events, block[0], block[1], block[2]];
    rows.push(row);
    open.set(block[0], row);
    sums[head.layer_of[block[2]]] += block[1];
  };
  for (const block of blocks.values()) begin(block[3], block);
  note(from);
  await walk(from, to, blocks, (at, block, begins) => {
    if (begins) {
      begin(at, block);
    } else {
      const row = open.get(block[0]);
      if (row) row[1] = at;
      sums[head.layer_of[block[2]]] -= block[1];
    }
    note(at);
  });
  exact = { from, to, rows, curve };
  draw();
}

// ---- Drawing -----------------------------------------------------------------------------------------------------

function surface(canvas) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = '11px system-ui, sans-serif';
  return { pen, width, height };
}

// Boxes and curves are set pixel by pixel: what a frame costs is bounded by the pixels, however many blocks there are.
const sheets = new Map();
function sheet(canvas) {
  const { width, height } = canvas;
  let own = sheets.get(canvas);
  if (!own || own.width !== width || own.height !== height) {
    const image = new ImageData(Math.max(width, 1), Math.max(height, 1));
    const under = document.createElement('canvas');
    under.width = image.width;
    under.height = image.height;
    own = { image, under, width, height, pixels: new Uint32Array(image.data.buffer) };
    sheets.set(canvas, own);
  }
  own.pixels.fill(0);
  return own;
}
function fillBox(own, left, up, right, down, colour) {
  left = Math.max(left, 0);
  right = Math.min(right, own.width);
  down = Math.min(down, own.height);
  if (left >= right) return;
  for (let row = Math.max(up, 0); row < down; row++) {
    if (right - left === 1) own.pixels[row * own.width + left] = colour;
    else own.pixels.fill(colour, row * own.width + left, row * own.width + right);
  }
}
function lay(pen, own) {
  own.under.getContext('2d').putImageData(own.image, 0, 0);
  pen.save();
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.drawImage(own.under, 0, 0);
  pen.restore();
}
// A colour as one pixel.
const scratch = document.createElement('canvas').getContext('2d');
function ink(colour, alpha = 255) {
  scratch.fillStyle = colour;
  const value = parseInt(scratch.fillStyle.slice(1), 16);
  return (alpha << 24 | (value & 255) << 16 | (value & 0xff00) | value >> 16) >>> 0;
}

const top = () => Math.max(head.reserved_peak, head.peak_bytes, 1) * 1.04;
// The load line is drawn where it is not far above everything else.
const ceiling = () => head.capacity && head.capacity < top() * 2.5 ? Math.max(top(), head.capacity * 1.04) : top();

function ticks(limit, wanted) {
  const raw = limit / wanted;
  let step = 2 ** Math.floor(Math.log2(raw));
  if (limit / step > wanted * 1.6) step *= 2;
  const list = [];
  for (let value = step; value < limit; value += step) list.push(value);
  return list;
}

function drawMemory() {
  const canvas = element('memory');
  const { pen, width, height } = surface(canvas);
  const bottom = height - 16, high = ceiling();
  const x = event => (event - view.from) / (view.to - view.from) * width;
  const y = value => bottom - value / high * (bottom - 6);
  if (!curves) return;
  const own = sheet(canvas), ratio = canvas.height / Math.max(height, 1);
  for (const value of ticks(high, 5)) {
    const at = Math.round(y(value) * ratio);
    fillBox(own, 0, at, own.width, at + 1, ink(css('--line')));
  }
  const shown = head.layers.map((_, i) => i).filter(i => !hidden.has(i));
  for (const column of isFine() ? fineColumns(own.width) : coarseColumns(own.width)) {
    let base = 0, down = Math.round(y(0) * ratio);
    for (const layer of shown) {
      base += column.sums[column.first + layer * column.step];
      const up = Math.round(y(base * UNIT) * ratio);
      fillBox(own, column.left, up, column.right, down, inks[layer][2]);
      down = up;
    }
  }
  line(own, value => y(value) * ratio, curves.reserved, ink(css('--reserved')), ratio, false);
  line(own, value => y(value) * ratio, curves.requested, ink(css('--ink')), ratio, true);
  lay(pen, own);
  pen.fillStyle = css('--dim');
  for (const value of ticks(high, 5)) {
    // The uppermost line is left to the marks.
    if (y(value) > 40) label(pen, bytes(value), 4, y(value) - 3);
  }
  if (head.capacity) {
    if (head.capacity < high) {
      pen.strokeStyle = pen.fillStyle = css('--load');
      pen.setLineDash([7, 4]);
      pen.lineWidth = 1.5;
      pen.beginPath(); pen.moveTo(0, y(head.capacity)); pen.lineTo(width, y(head.capacity)); pen.stroke();
      pen.setLineDash([]);
      // Below its line: above it are the names of the runs.
      label(pen, 'load line ' + bytes(head.capacity), 90, y(head.capacity) + 13);
    }
  }
  pen.fillStyle = css('--dim');
  let free = -1;
  const labels = Math.max(2, Math.floor(width / 150));
  // So many digits that neighbours differ.
  const apart = head.times.length ? (timeAt(view.to) - timeAt(view.from)) / labels : 1;
  const digits = Math.min(Math.max(Math.ceil(1 - Math.log10(Math.max(apart, 1e-9))), 1), 6);
  for (let i = 0; i <= labels; i++) {
    const event = Math.round(view.from + (view.to - view.from) * i / labels);
    const words = !head.events ? '' : head.times.length ? `${timeAt(event).toFixed(digits)} s` : count(event);
    const wide = pen.measureText(words).width;
    const at = Math.min(Math.max(x(event) - wide / 2, 2), width - wide - 2);
    if (at > free) { pen.fillText(words, at, height - 4); free = at + wide + 8; }
  }
  drawMarks(pen, width, bottom, x, true);
}

// Text that can be read on any ground.
function label(pen, words, x, y) {
  pen.save();
  pen.lineWidth = 3;
  pen.lineJoin = 'round';
  pen.strokeStyle = css('--panel');
  pen.setLineDash([]);
  pen.strokeText(words, x, y);
  pen.restore();
  pen.fillText(words, x, y);
}

// The stretches in view, in groups that a point of the picture shows; groups stay the same while the view moves.
function* stretches(width) {
  const from = Math.max(0, Math.floor(view.from / head.stride)), last = Math.min(head.stretches, Math.ceil(view.to / head.stride));
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((last - from) / width)));
  const x = stretch => Math.round((stretch * head.stride - view.from) / (view.to - view.from) * width);
  for (let i = Math.floor(from / step) * step; i < last; i += step) {
    const end = Math.min(i + step, head.stretches);
    yield { first: i, end, left: x(i), right: end === head.stretches ? width : x(end) };
  }
}

// Columns: positions, and where the sums of the layers are.
function coarseColumns(width) {
  const columns = [], layers = curves.layers;
  for (const { first, end, left, right } of stretches(width)) {
    // Of the stretches under one point, the one that held most.
    let best = first;
    for (let j = first + 1; j < end; j++) if (curves.highest[j] > curves.highest[best]) best = j;
    columns.push({ left, right, sums: layers, first: best, step: head.stretches });
  }
  return columns;
}

function fineColumns(width) {
  const { at, sums, length } = exact.curve, layers = head.layers.length;
  const x = event => Math.round((event - view.from) / (view.to - view.from) * width);
  let low = 0, high = length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (at[middle] <= view.from) low = middle; else high = middle - 1;
  }
  const columns = [];
  let column = null, most = -1;
  for (let i = low; i < length && at[i] <= view.to; i++) {
    const left = Math.max(x(at[i]), 0);
    let total = 0;
    for (let layer = 0; layer < layers; layer++) total += sums[i * layers + layer];
    if (!column || left > column.left) {
      if (column) column.right = left;
      columns.push(column = { left, right: width, sums, first: i * layers, step: 1 });
      most = total;
    } else if (total > most) {
      column.first = i * layers;
      most = total;
    }
  }
  return columns;
}

function line(own, y, series, colour, ratio, dotted) {
  const thick = Math.max(1, Math.round(1.5 * ratio)), dot = Math.max(2, Math.round(2 * ratio));
  const dots = (left, up, right, down) => {
    for (let row = Math.max(up, 0); row < Math.min(down, own.height); row++) {
      for (let at = Math.max(left, 0); at < Math.min(right, own.width); at++) {
        if ((at + row) % (2 * dot) < dot) own.pixels[row * own.width + at] = colour;
      }
    }
  };
  const put = dotted ? dots : (left, up, right, down) => fillBox(own, left, up, right, down, colour);
  let before = null;
  for (const { first, end, left, right } of stretches(own.width)) {
    let value = 0;
    for (let j = first; j < end; j++) value = Math.max(value, series[j]);
    const at = Math.round(y(value * UNIT) - thick / 2);
    put(left, at, right, at + thick);
    if (!dotted && before !== null && before !== at) put(left, Math.min(before, at), left + thick, Math.max(before, at) + thick);
    before = at;
  }
}

// The first of rows in order of events that is not before an event.
function after(rows, event) {
  let low = 0, high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((rows[middle][0] ?? rows[middle]) < event) low = middle + 1; else high = middle;
  }
  return low;
}

function drawMarks(pen, width, bottom, x, named) {
  const stroke = (at, colour, alpha, thick) => {
    pen.strokeStyle = pen.fillStyle = colour;
    pen.globalAlpha = alpha;
    pen.lineWidth = thick;
    pen.beginPath(); pen.moveTo(at, 0); pen.lineTo(at, bottom); pen.stroke();
    pen.globalAlpha = 1;
  };
  const name = (words, at, free, row) => {
    const wide = pen.measureText(words).width, left = Math.min(at + 3, width - wide - 3);
    if (left < free) return free;
    label(pen, words, left, row);
    return left + wide + 6;
  };
  // Runs that are at least so many points apart; those between are not even looked at.
  let free = 0;
  for (let i = after(head.runs, view.from); i < head.runs.length && head.runs[i][0] <= view.to;) {
    const at = x(head.runs[i][0]);
    stroke(at, css('--dim'), .6, 1);
    if (named) free = name(head.runs[i][1], at, free, 11);
    i = Math.max(i + 1, after(head.runs, head.runs[i][0] + 40 / width * (view.to - view.from)));
  }
  free = 0;
  let last = -1;
  for (let i = after(head.ooms, view.from); i < head.ooms.length && head.ooms[i] <= view.to; i++) {
    const at = Math.round(x(head.ooms[i]));
    if (at === last) continue;
    last = at;
    stroke(at, css('--load'), 1, 1.5);
    if (named) free = name('out of memory', at, free, 24);
  }
  for (const [event, colour] of [[moment + 1, css('--accent')], [hover === null ? null : hover + .5, css('--dim')]]) {
    if (event === null) continue;
    const at = x(event);
    if (at < 0 || at > width) continue;
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(at, 0); pen.lineTo(at, bottom); pen.stroke();
  }
}

let rasterImage = null;
function drawAddresses() {
  const canvas = element('addresses');
  const { pen, width, height } = surface(canvas);
  if (!raster || !head.row) return;
  const x = event => (event - view.from) / (view.to - view.from) * width;
  const y = place => place / head.row * height;
  if (!rasterImage) {
    const [columns, rows] = head.raster;
    rasterImage = document.createElement('canvas');
    rasterImage.width = columns; rasterImage.height = rows;
    const image = new ImageData(columns, rows);
    const tone = dark.matches ? 170 : 110;
    for (let i = 0; i < raster.length; i++) {
      image.data[4 * i] = image.data[4 * i + 1] = image.data[4 * i + 2] = tone;
      image.data[4 * i + 3] = raster[i] * .55;
    }
    rasterImage.getContext('2d').putImageData(image, 0, 0);
  }
  const [columns, rows] = head.raster;
  const rowUnits = Math.ceil(head.row / rows);
  pen.imageSmoothingEnabled = false;
  const a = view.from / EVENTS * columns, b = view.to / EVENTS * columns;
  const fine = isFine();
  if (!fine) pen.drawImage(rasterImage, a, 0, Math.max(b - a, 1e-6), head.row / rowUnits, 0, 0, width, height);
  shownRows = fine ? exact.rows : largest;
  const own = sheet(canvas), across = own.width / (view.to - view.from), along = own.height / head.row;
  for (const [birth, death, place, size, group] of shownRows) {
    if (birth > view.to || death < view.from) continue;
    // What is never freed lasts to the edge, also where there is no event at all.
    const left = (birth - view.from) * across, right = ((death >= head.events ? EVENTS : death) - view.from) * across;
    const up = place * along, down = (place + size) * along;
    if ((right - left) * (down - up) < .25) continue;
    const layer = head.layer_of[group];
    if (hidden.has(layer)) continue;
    const shades = matching && !matching[group] ? faint : inks;
    // At least one point each way; a gap below where there is room for one.
    const a = Math.round(left), b = Math.max(Math.round(right), a + 1);
    const c = Math.round(up), d = Math.max(Math.round(down) - (down - up > 3 ? 1 : 0), c + 1);
    fillBox(own, a, c, b, d, shades[layer][(group * 7 + birth) % 5]);
  }
  lay(pen, own);
  pen.strokeStyle = css('--line');
  pen.fillStyle = css('--dim');
  for (const range of head.ranges) {
    const at = Math.round(y(range[2])) + .5;
    if (range[1] / UNIT / head.row * height < 3) continue;
    pen.beginPath(); pen.moveTo(0, at); pen.lineTo(width, at); pen.stroke();
  }
  drawMarks(pen, width, height, x, false);
}
let shownRows = [];

let overviewImage = null;
function drawOverview() {
  const canvas = element('overview');
  const { pen, width, height } = surface(canvas);
  // A window that is not laid out yet has no points.
  if (!curves || !canvas.width || !canvas.height) return;
  if (!overviewImage || overviewImage.width !== canvas.width || overviewImage.height !== canvas.height) {
    overviewImage = paintOverview(canvas.width, canvas.height);
  }
  pen.drawImage(overviewImage, 0, 0, width, height);
  const a = view.from / EVENTS * width, b = view.to / EVENTS * width;
  pen.fillStyle = css('--accent');
  pen.globalAlpha = .18;
  pen.fillRect(a, 0, Math.max(b - a, 2), height);
  pen.globalAlpha = 1;
  pen.strokeStyle = css('--accent');
  pen.strokeRect(a + .5, .5, Math.max(b - a, 2) - 1, height - 1);
}

function paintOverview(width, height) {
  const canvas = document.createElement('canvas');
  canvas.width = width; canvas.height = height;
  const pen = canvas.getContext('2d');
  pen.fillStyle = css('--reserved');
  pen.globalAlpha = .55;
  const high = top();
  for (let pixel = 0; pixel < width; pixel++) {
    const first = Math.floor(pixel / width * head.stretches), last = Math.max(first + 1, Math.floor((pixel + 1) / width * head.stretches));
    let value = 0;
    for (let i = first; i < Math.min(last, head.stretches); i++) value = Math.max(value, curves.highest[i]);
    const h = value * UNIT / high * (height - 4);
    pen.fillRect(pixel, height - h, 1, h);
  }
  return canvas;
}

let queued = false, drawing = 0;
function draw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    const began = performance.now();
    drawMemory();
    drawAddresses();
    drawOverview();
    drawing = performance.now() - began;
    const words = !head.events ? 'no events: the state alone' : `events ${count(Math.floor(view.from))} to ${count(Math.ceil(view.to))} of ${count(head.events)}`;
    element('where').textContent = words;
  });
}

// ---- The live set ------------------------------------------------------------------------------------------------

let asking = 0;
async function pick(event) {
  moment = Math.min(Math.max(Math.round(event), 0), EVENTS - 1);
  draw();
  const turn = ++asking;
  const blocks = head.events ? await stateBefore(moment + 1) : await stateBefore(0);
  if (turn !== asking) return;
  const groups = new Map();
  let total = 0;
  for (const [, size, group] of blocks.values()) {
    const entry = groups.get(group) || { bytes: 0, blocks: 0 };
    entry.bytes += size * UNIT;
    entry.blocks++;
    total += size * UNIT;
    groups.set(group, entry);
  }
  live = { groups, total, blocks: blocks.size };
  element('moment').textContent = !head.events ? 'the moment of the dump' : momentWords(moment) + (moment === Math.min(head.peak, EVENTS - 1) ? ' (the peak)' : '');
  element('sums').textContent = `${bytes(total)} allocated in ${count(blocks.size)} blocks`
    + (head.capacity ? `, ${(100 * total / head.capacity).toFixed(1)} % of the load line` : '');
  showTab();
}

let tab = head.layers.some(layer => layer.category) ? 'category' : 'what';
function showTab() {
  for (const button of document.querySelectorAll('[data-tab]')) {
    button.setAttribute('aria-selected', String(button.dataset.tab === tab));
  }
  element('table').hidden = tab === 'flame';
  element('flame').hidden = tab !== 'flame';
  element('flame-path').hidden = tab !== 'flame';
  if (!live) return;
  if (tab === 'flame') drawFlame(); else fillTable();
}

function fillTable() {
  const sums = new Map();
  for (const [group, entry] of live.groups) {
    const name = head.groups[group][tab] || (tab === 'module' ? 'no module' : 'unknown');
    const sum = sums.get(name) || { bytes: 0, blocks: 0, layer: head.layer_of[group], found: false };
    sum.bytes += entry.bytes;
    sum.blocks += entry.blocks;
    if (matching && matching[group]) sum.found = true;
    sums.set(name, sum);
  }
  const rows = [...sums].sort((a, b) => b[1].bytes - a[1].bytes || (a[0] < b[0] ? -1 : 1));
  const table = document.createElement('table');
  const title = { category: 'Category', what: 'Line or operator', module: 'Module' }[tab];
  table.innerHTML = `<thead><tr><th>${title}</th><th>Bytes</th><th>Share</th><th>Blocks</th></tr></thead>`;
  const body = table.createTBody();
  for (const [name, sum] of rows.slice(0, 400)) {
    const row = body.insertRow();
    if (sum.found) row.className = 'found';
    const cell = row.insertCell();
    cell.textContent = name;
    const meter = document.createElement('div');
    meter.className = 'meter';
    meter.style.width = `${Math.max(100 * sum.bytes / live.total, .5)}%`;
    meter.style.background = palette[sum.layer][2];
    cell.append(meter);
    for (const words of [bytes(sum.bytes), (100 * sum.bytes / live.total).toFixed(1) + ' %', count(sum.blocks)]) {
      const number = row.insertCell();
      number.className = 'n';
      number.textContent = words;
    }
  }
  if (rows.length > 400) body.insertRow().insertCell().textContent = `and ${count(rows.length - 400)} more`;
  element('table').replaceChildren(table);
}

// ---- The flame graph ---------------------------------------------------------------------------------------------

let flameRoot = null, flameFocus = null, flameBoxes = [];
function flameTree() {
  const root = { name: 'everything', bytes: 0, children: new Map(), layer: null, parent: null };
  for (const [group, entry] of live.groups) {
    let node = root;
    node.bytes += entry.bytes;
    const info = head.groups[group];
    const chain = info.frames.length ? info.frames.map(f => head.frames[f]) : [info.what];
    for (const name of chain) {
      let child = node.children.get(name);
      if (!child) node.children.set(name, child = { name, bytes: 0, children: new Map(), layer: head.layer_of[group], parent: node });
      child.bytes += entry.bytes;
      node = child;
    }
  }
  return root;
}

function drawFlame() {
  flameRoot = flameTree();
  flameFocus = flameRoot;
  paintFlame();
}

function paintFlame() {
  const box = element('flame');
  const depth = (node, d) => Math.max(d, ...[...node.children.values()].map(child => depth(child, d + 1)));
  const above = [];
  for (let node = flameFocus.parent; node; node = node.parent) above.unshift(node);
  const high = 18, rows = above.length + depth(flameFocus, 1);
  let canvas = box.querySelector('canvas');
  if (!canvas) {
    canvas = document.createElement('canvas');
    canvas.setAttribute('role', 'img');
    box.append(canvas);
    canvas.addEventListener('click', event => {
      const node = flameAt(event);
      if (node) { flameFocus = node === flameFocus && node.parent ? node.parent : node; paintFlame(); }
    });
    canvas.addEventListener('mousemove', event => {
      const node = flameAt(event);
      element('flame-path').textContent = node ? flameWords(node) : '';
    });
  }
  canvas.setAttribute('aria-label', `Flame graph of ${bytes(flameFocus.bytes)} under ${flameFocus.name}`);
  canvas.style.height = `${rows * high}px`;
  const { pen, width } = surface(canvas);
  flameBoxes = [];
  const paint = (node, left, wide, row) => {
    if (wide < .5) return;
    flameBoxes.push([left, left + wide, row, node]);
    pen.fillStyle = node.layer === null ? css('--box') : palette[node.layer][node.name.length % 5];
    pen.fillRect(left, row * high, Math.max(wide - .7, .5), high - 1);
    if (wide > 34) {
      pen.fillStyle = node.layer === null ? css('--ink') : dark.matches ? '#101418' : '#ffffff';
      pen.save();
      pen.beginPath(); pen.rect(left, row * high, wide - 3, high); pen.clip();
      pen.fillText(node.name, left + 4, row * high + 13);
      pen.restore();
    }
  };
  above.forEach((node, row) => paint(node, 0, width, row));
  const grow = (node, left, wide, row) => {
    paint(node, left, wide, row);
    let at = left;
    const children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes || (a.name < b.name ? -1 : 1));
    for (const child of children) {
      const share = wide * child.bytes / node.bytes;
      if (share >= .5) grow(child, at, share, row + 1);
      at += share;
    }
  };
  if (flameFocus.bytes > 0) grow(flameFocus, 0, width, above.length);
  element('flame-path').textContent = flameWords(flameFocus);
}
const flameWords = node => `${bytes(node.bytes)}, ${(100 * node.bytes / Math.max(live.total, 1)).toFixed(1)} %: ${node.name}`;
function flameAt(event) {
  const row = Math.floor(event.offsetY / 18);
  const hit = flameBoxes.find(([left, right, at]) => at === row && event.offsetX >= left && event.offsetX < right);
  return hit && hit[3];
}

// ---- Moving about ------------------------------------------------------------------------------------------------

let settle = 0;
function show(from, to) {
  const width = Math.min(Math.max(to - from, Math.min(12, EVENTS)), EVENTS);
  from = Math.min(Math.max(from, 0), EVENTS - width);
  view.from = from;
  view.to = from + width;
  draw();
  if (view.to - view.from > EXACT) { exact = null; return; }
  if (exact && !covers(.5)) loadExact();
  clearTimeout(settle);
  settle = setTimeout(loadExact, 60);
}
function zoom(factor, at) {
  const width = (view.to - view.from) * factor;
  const share = (at - view.from) / (view.to - view.from);
  show(at - width * share, at + width * (1 - share));
}
const eventAt = (canvas, clientX) => {
  const box = canvas.getBoundingClientRect();
  return view.from + (clientX - box.left) / box.width * (view.to - view.from);
};

for (const canvas of [element('memory'), element('addresses')]) {
  canvas.addEventListener('wheel', event => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = event.deltaX / canvas.clientWidth * (view.to - view.from);
      show(view.from + by, view.to + by);
    } else {
      zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * .0022))), eventAt(canvas, event.clientX));
    }
  }, { passive: false });
  let drag = null;
  canvas.addEventListener('pointerdown', event => {
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, from: view.from, to: view.to, moved: false };
  });
  canvas.addEventListener('pointermove', event => {
    if (drag) {
      const by = (drag.x - event.clientX) / canvas.clientWidth * (drag.to - drag.from);
      if (Math.abs(event.clientX - drag.x) > 3) drag.moved = true;
      if (drag.moved) show(drag.from + by, drag.to + by);
    } else {
      hover = Math.floor(eventAt(canvas, event.clientX));
      draw();
    }
    tip(canvas, event);
  });
  canvas.addEventListener('pointerup', event => {
    if (drag && !drag.moved) pick(eventAt(canvas, event.clientX));
    drag = null;
  });
  canvas.addEventListener('pointerleave', () => { hover = null; element('tip').hidden = true; draw(); });
  canvas.addEventListener('dblclick', event => zoom(.2, eventAt(canvas, event.clientX)));
}

function tip(canvas, event) {
  const box = element('tip');
  const lines = [];
  const at = eventAt(canvas, event.clientX);
  if (canvas.id === 'addresses') {
    const place = event.offsetY / canvas.clientHeight * head.row;
    const hit = shownRows.find(row => row[0] <= at && row[1] > at && row[2] <= place && row[2] + row[3] > place);
    if (hit) {
      const info = head.groups[hit[4]];
      lines.push(`${bytes(hit[3] * UNIT)}: ${info.what}`);
      if (info.module) lines.push(info.module);
      lines.push(`${info.category}; events ${count(hit[0])} to ${hit[1] >= head.events ? 'the end' : count(hit[1])}`);
    }
  } else if (curves && head.events) {
    const stretch = Math.min(Math.max(Math.floor(at / head.stride), 0), head.stretches - 1);
    lines.push(momentWords(Math.floor(at)));
    lines.push(`allocated up to ${bytes(curves.highest[stretch] * UNIT)}, reserved ${bytes(curves.reserved[stretch] * UNIT)}`);
  }
  box.hidden = !lines.length;
  box.replaceChildren(...lines.map(words => Object.assign(document.createElement('div'), { textContent: words })));
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8)}px`;
}

{
  const canvas = element('overview');
  const go = event => {
    const box = canvas.getBoundingClientRect();
    const middle = (event.clientX - box.left) / box.width * EVENTS, half = (view.to - view.from) / 2;
    show(middle - half, middle + half);
  };
  canvas.addEventListener('pointerdown', event => { canvas.setPointerCapture(event.pointerId); go(event); });
  canvas.addEventListener('pointermove', event => { if (event.buttons) go(event); });
}

const whole = () => show(0, EVENTS);
function toPeak() {
  const width = Math.min(view.to - view.from, Math.max(EVENTS / 20, 400));
  show(head.peak - width / 2, head.peak + width / 2);
  pick(head.peak);
}
element('all').addEventListener('click', whole);
element('to-peak').addEventListener('click', toPeak);
element('zoom-in').addEventListener('click', () => zoom(.5, moment));
element('zoom-out').addEventListener('click', () => zoom(2, (view.from + view.to) / 2));
addEventListener('keydown', event => {
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = (view.to - view.from) / 10;
  const act = {
    ArrowLeft: () => show(view.from - by, view.to - by), ArrowRight: () => show(view.from + by, view.to + by),
    '+': () => zoom(.5, moment), '-': () => zoom(2, (view.from + view.to) / 2),
    Enter: () => pick(hover === null ? (view.from + view.to) / 2 : hover),
    Home: whole, p: toPeak, P: toPeak, ',': () => pick(moment - 1), '.': () => pick(moment + 1),
  }[event.key];
  if (!act || (event.key === 'Enter' && !event.target.matches('canvas'))) return;
  event.preventDefault();
  act();
});
for (const button of document.querySelectorAll('[data-tab]')) {
  button.addEventListener('click', () => { tab = button.dataset.tab; showTab(); });
}
element('search').addEventListener('input', event => {
  wanted = event.target.value.trim().toLowerCase();
  matching = wanted ? head.groups.map(group => [group.what, group.module, group.category, ...group.frames.map(f => head.frames[f])]
    .some(text => text.toLowerCase().includes(wanted))) : null;
  draw();
  showTab();
});
addEventListener('resize', () => { draw(); if (tab === 'flame' && flameRoot) paintFlame(); });
dark.addEventListener('change', () => { repaintPalette(); legend(); draw(); showTab(); });

// ---- Beginning ---------------------------------------------------------------------------------------------------

function legend() {
  const entries = head.layers.map((layer, i) => {
    const button = document.createElement('button');
    button.setAttribute('aria-pressed', String(!hidden.has(i)));
    button.title = 'Show or hide';
    const mark = document.createElement('i');
    mark.style.background = palette[i][2];
    button.append(mark, layer.name);
    button.addEventListener('click', () => { if (!hidden.delete(i)) hidden.add(i); legend(); draw(); });
    return button;
  });
  for (const [name, colour, style] of [['reserved', '--reserved', 'solid'], ['requested', '--ink', 'dotted']]) {
    const span = document.createElement('span');
    const mark = document.createElement('i');
    mark.className = 'stroke';
    mark.style.borderTopColor = `var(${colour})`;
    mark.style.borderTopStyle = style;
    span.append(mark, ' ' + name);
    entries.push(span);
  }
  element('legend').replaceChildren(...entries);
}

function words() {
  element('title').textContent = head.title;
  element('subtitle').textContent = head.subtitle;
  for (const [name, value] of head.facts) {
    const box = document.createElement('div');
    box.append(Object.assign(document.createElement('dt'), { textContent: name }), Object.assign(document.createElement('dd'), { textContent: /^\d+$/.test(value) ? count(+value) : value }));
    element('facts').append(box);
  }
  element('findings-box').hidden = !head.findings.length;
  for (const finding of head.findings) {
    const item = document.createElement('li');
    const put = (tag, text, name) => {
      const node = Object.assign(document.createElement(tag), { textContent: text });
      if (name) node.className = name;
      item.append(node);
    };
    put('span', finding.weight, 'weight');
    put('b', finding.title);
    put('div', finding.sentence + '.');
    for (const action of finding.actions) put('div', '→ ' + action);
    if (finding.command) put('code', finding.command);
    element('findings').append(item);
  }
}

async function begin() {
  repaintPalette();
  words();
  legend();
  const data = await unpack('curves');
  const series = (values = new Float64Array(head.stretches), at = 0) => {
    let last = 0;
    for (let i = at; i < at + head.stretches; i++) values[i] = last += data.difference();
    return values;
  };
  curves = { highest: series(), lowest: series(), reserved: series(), requested: series() };
  curves.layers = new Float64Array(head.stretches * head.layers.length);
  head.layers.forEach((_, layer) => series(curves.layers, layer * head.stretches));
  draw();
  raster = (await unpack('raster'));
  const cells = head.raster[0] * head.raster[1], full = new Uint8Array(cells);
  for (let i = 0; i < cells; i++) full[i] = raster.number();
  raster = full;
  const boxes = await unpack('largest');
  let birth = 0;
  for (let left = boxes.number(); left > 0; left--) {
    birth += boxes.number();
    const lived = boxes.number(), place = boxes.number(), size = boxes.number(), group = boxes.number();
    largest.push([birth, birth + lived, place, size, group]);
  }
  draw();
  performance.mark('plimsoll-first-picture');
  document.documentElement.dataset.ready = 'picture';
  // The pieces are still being parsed when this code runs.
  if (document.readyState === 'loading') await new Promise(done => document.addEventListener('DOMContentLoaded', done, { once: true }));
  await pick(moment);
  await loadExact();
  document.documentElement.dataset.ready = 'all';
}
// For tests and for scripts of the curious.
window.plimsoll = { head, view, show, zoom, pick, stateBefore, live: () => live, exact: () => exact, drawing: () => drawing };
begin();
})();
