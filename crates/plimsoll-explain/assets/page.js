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
  const raw = Uint8Array.from(atob(text), c => c.charCodeAt(0));
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
let palette = [];
function repaintPalette() {
  palette = head.layers.map((_, i) => [-9, -4, 0, 5, 10].map(light => colourOf(i, light)));
}
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

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

// Applies the events from one to another, the last one excluded.
async function walk(from, to, blocks, each) {
  for (let at = from; at < to;) {
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

let loading = 0;
// Unpacks a window around the view, so that panning has something to draw.
async function loadExact() {
  const width = view.to - view.from;
  if (width > EXACT) { exact = null; return; }
  if (exact && exact.from <= view.from && exact.to >= view.to) return;
  const turn = ++loading;
  const from = Math.max(0, Math.floor(view.from - width)), to = Math.min(head.events, Math.ceil(view.to + width));
  const blocks = await stateBefore(from);
  if (turn !== loading) return;
  const rows = [], sums = head.layers.map(() => 0);
  const open = new Map();
  for (const block of blocks.values()) {
    const row = [block[3], head.events, block[0], block[1], block[2]];
    rows.push(row);
    open.set(block[0], row);
    sums[head.layer_of[block[2]]] += block[1];
  }
  const curve = { at: [from], sums: [sums.slice()] };
  await walk(from, to, blocks, (at, block, begins) => {
    if (begins) {
      const row = [at, head.events, block[0], block[1], block[2]];
      rows.push(row);
      open.set(block[0], row);
      sums[head.layer_of[block[2]]] += block[1];
    } else {
      const row = open.get(block[0]);
      if (row) row[1] = at;
      sums[head.layer_of[block[2]]] -= block[1];
    }
    curve.at.push(at);
    curve.sums.push(sums.slice());
  });
  if (turn !== loading) return;
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
  const { pen, width, height } = surface(element('memory'));
  const bottom = height - 16, high = ceiling();
  const x = event => (event - view.from) / (view.to - view.from) * width;
  const y = value => bottom - value / high * (bottom - 6);
  pen.lineWidth = 1;
  pen.strokeStyle = css('--line');
  pen.fillStyle = css('--dim');
  for (const value of ticks(high, 5)) {
    const at = Math.round(y(value)) + .5;
    pen.beginPath(); pen.moveTo(0, at); pen.lineTo(width, at); pen.stroke();
  }
  if (!curves) return;
  const shown = head.layers.map((_, i) => i).filter(i => !hidden.has(i));
  const fine = exact && exact.from <= view.from && exact.to >= view.to && view.to - view.from <= EXACT;
  // Columns: positions with the stacked sums.
  const columns = fine ? fineColumns(width, x) : coarseColumns(width);
  const base = new Float64Array(columns.length);
  for (const layer of shown) {
    pen.fillStyle = palette[layer][2];
    pen.beginPath();
    let begun = false;
    for (let i = 0; i < columns.length; i++) {
      const value = base[i] + columns[i].sums[layer] * UNIT;
      const next = i + 1 < columns.length ? columns[i + 1].x : width;
      const at = y(value);
      if (begun) pen.lineTo(columns[i].x, at); else { pen.moveTo(columns[i].x, at); begun = true; }
      pen.lineTo(next, at);
    }
    for (let i = columns.length - 1; i >= 0; i--) {
      const next = i + 1 < columns.length ? columns[i + 1].x : width;
      pen.lineTo(next, y(base[i]));
      pen.lineTo(columns[i].x, y(base[i]));
      base[i] += columns[i].sums[layer] * UNIT;
    }
    pen.fill();
  }
  line(pen, width, x, y, curves.reserved, css('--reserved'), []);
  line(pen, width, x, y, curves.requested, css('--ink'), [2, 3]);
  pen.fillStyle = css('--dim');
  for (const value of ticks(high, 5)) label(pen, bytes(value), 4, Math.max(y(value) - 3, 10));
  if (head.capacity) {
    if (head.capacity < high) {
      pen.strokeStyle = pen.fillStyle = css('--load');
      pen.setLineDash([7, 4]);
      pen.lineWidth = 1.5;
      pen.beginPath(); pen.moveTo(0, y(head.capacity)); pen.lineTo(width, y(head.capacity)); pen.stroke();
      pen.setLineDash([]);
      label(pen, 'load line ' + bytes(head.capacity), width - 130, Math.max(y(head.capacity) - 4, 10));
    }
  }
  pen.fillStyle = css('--dim');
  let free = -1;
  const labels = Math.max(2, Math.floor(width / 150));
  for (let i = 0; i <= labels; i++) {
    const event = Math.round(view.from + (view.to - view.from) * i / labels);
    const words = head.times.length ? `${timeAt(event).toFixed(3)} s` : count(event);
    const wide = pen.measureText(words).width;
    const at = Math.min(Math.max(x(event) - wide / 2, 2), width - wide - 2);
    if (at > free) { pen.fillText(words, at, height - 4); free = at + wide + 8; }
  }
  drawMarks(pen, width, bottom, x);
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

function coarseColumns(width) {
  const columns = [];
  const first = Math.max(0, Math.floor(view.from / head.stride)), last = Math.min(head.stretches, Math.ceil(view.to / head.stride));
  const step = Math.max(1, Math.floor((last - first) / (width * 1.5)));
  for (let i = first; i < last; i += step) {
    // Of the stretches under one point, the one that held most.
    let best = i;
    for (let j = i + 1; j < Math.min(i + step, last); j++) if (curves.highest[j] > curves.highest[best]) best = j;
    const x = (i * head.stride - view.from) / (view.to - view.from) * width;
    columns.push({ x, sums: curves.layers.map(series => series[best]) });
  }
  return columns;
}

function fineColumns(width, x) {
  const { at, sums } = exact.curve;
  const columns = [];
  let low = 0, high = at.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (at[middle] <= view.from) low = middle; else high = middle - 1;
  }
  let best = null, bestTotal = -1, pixel = -Infinity;
  for (let i = low; i < at.length && at[i] <= view.to; i++) {
    const position = x(at[i]);
    const total = sums[i].reduce((a, b) => a + b, 0);
    if (position - pixel < .7) {
      if (total > bestTotal) { best.sums = sums[i]; bestTotal = total; }
    } else {
      best = { x: Math.max(position, 0), sums: sums[i] };
      bestTotal = total;
      pixel = position;
      columns.push(best);
    }
  }
  return columns;
}

function line(pen, width, x, y, series, colour, dash) {
  const first = Math.max(0, Math.floor(view.from / head.stride)), last = Math.min(head.stretches, Math.ceil(view.to / head.stride));
  const step = Math.max(1, Math.floor((last - first) / (width * 1.5)));
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.setLineDash(dash);
  pen.beginPath();
  for (let i = first; i < last; i += step) {
    let value = 0;
    for (let j = i; j < Math.min(i + step, last); j++) value = Math.max(value, series[j]);
    const a = x(i * head.stride), b = x(Math.min((i + step) * head.stride, EVENTS)), at = y(value * UNIT);
    if (i === first) pen.moveTo(a, at); else pen.lineTo(a, at);
    pen.lineTo(b, at);
  }
  pen.stroke();
  pen.setLineDash([]);
}

function drawMarks(pen, width, bottom, x) {
  let lastX = -1e9;
  for (const mark of head.marks) {
    const at = x(mark.event);
    if (at < 0 || at > width) continue;
    const oom = mark.kind === 'oom';
    if (!oom && at - lastX < 40) continue;
    if (!oom) lastX = at;
    pen.strokeStyle = pen.fillStyle = oom ? css('--load') : css('--dim');
    pen.globalAlpha = oom ? 1 : .6;
    pen.lineWidth = oom ? 1.5 : 1;
    pen.beginPath(); pen.moveTo(at, 0); pen.lineTo(at, bottom); pen.stroke();
    pen.globalAlpha = 1;
    label(pen, oom ? 'out of memory' : mark.text, Math.min(at + 3, width - 90), 11);
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

let rasterImage = null, rasterColour = '';
function drawAddresses() {
  const { pen, width, height } = surface(element('addresses'));
  if (!raster || !head.row) return;
  const x = event => (event - view.from) / (view.to - view.from) * width;
  const y = place => place / head.row * height;
  if (!rasterImage || rasterColour !== css('--dim')) {
    rasterColour = css('--dim');
    const [columns, rows] = head.raster;
    const canvas = document.createElement('canvas');
    canvas.width = columns; canvas.height = rows;
    const ink = canvas.getContext('2d');
    const image = ink.createImageData(columns, rows);
    const tone = dark.matches ? 170 : 110;
    for (let i = 0; i < raster.length; i++) {
      image.data[4 * i] = image.data[4 * i + 1] = image.data[4 * i + 2] = tone;
      image.data[4 * i + 3] = raster[i] * .55;
    }
    ink.putImageData(image, 0, 0);
    rasterImage = canvas;
  }
  const [columns, rows] = head.raster;
  const rowUnits = Math.ceil(head.row / rows);
  pen.imageSmoothingEnabled = false;
  const a = view.from / EVENTS * columns, b = view.to / EVENTS * columns;
  pen.drawImage(rasterImage, a, 0, Math.max(b - a, 1e-6), head.row / rowUnits, 0, 0, width, height);
  const fine = exact && exact.from <= view.from && exact.to >= view.to && view.to - view.from <= EXACT;
  const rows_ = fine ? exact.rows : largest;
  shownRows = rows_;
  for (const row of rows_) {
    if (row[0] > view.to || row[1] < view.from) continue;
    const left = Math.max(x(row[0]), -1), right = Math.min(x(row[1]), width + 1);
    const w = right - left, up = y(row[2]), h = y(row[2] + row[3]) - up;
    if (w * h < .25) continue;
    const layer = head.layer_of[row[4]];
    if (hidden.has(layer)) continue;
    const dim = matching && !matching[row[4]];
    pen.globalAlpha = dim ? .12 : 1;
    pen.fillStyle = palette[layer][(row[4] * 7 + row[0]) % 5];
    pen.fillRect(left, up, Math.max(w, .6), Math.max(h - (h > 3 ? .6 : 0), .5));
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = css('--line');
  pen.fillStyle = css('--dim');
  for (const range of head.ranges) {
    const at = Math.round(y(range[2])) + .5;
    if (range[1] / UNIT / head.row * height < 3) continue;
    pen.beginPath(); pen.moveTo(0, at); pen.lineTo(width, at); pen.stroke();
  }
  drawMarks(pen, width, height, x);
}
let shownRows = [];

function drawOverview() {
  const { pen, width, height } = surface(element('overview'));
  if (!curves) return;
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
  pen.globalAlpha = 1;
  const a = view.from / EVENTS * width, b = view.to / EVENTS * width;
  pen.fillStyle = css('--accent');
  pen.globalAlpha = .18;
  pen.fillRect(a, 0, Math.max(b - a, 2), height);
  pen.globalAlpha = 1;
  pen.strokeStyle = css('--accent');
  pen.strokeRect(a + .5, .5, Math.max(b - a, 2) - 1, height - 1);
}

let queued = false;
function draw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    drawMemory();
    drawAddresses();
    drawOverview();
    const words = `events ${count(Math.floor(view.from))} to ${count(Math.ceil(view.to))} of ${count(head.events)}`;
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
  element('moment').textContent = momentWords(moment) + (moment === Math.min(head.peak, EVENTS - 1) ? ' (the peak)' : '');
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
  const root = { name: 'everything', bytes: 0, children: new Map(), layer: 0, parent: null };
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
    pen.fillStyle = palette[node.layer][node.name.length % 5];
    pen.fillRect(left, row * high, Math.max(wide - .7, .5), high - 1);
    if (wide > 34) {
      pen.fillStyle = dark.matches ? '#101418' : '#ffffff';
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
    Home: whole, p: toPeak, ',': () => pick(moment - 1), '.': () => pick(moment + 1),
  }[event.key];
  if (act) { event.preventDefault(); act(); }
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
    box.append(Object.assign(document.createElement('dt'), { textContent: name }), Object.assign(document.createElement('dd'), { textContent: value }));
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
  const series = () => {
    const values = new Float64Array(head.stretches);
    let last = 0;
    for (let i = 0; i < head.stretches; i++) values[i] = last += data.difference();
    return values;
  };
  curves = { highest: series(), lowest: series(), reserved: series(), requested: series(), layers: head.layers.map(series) };
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
window.plimsoll = { head, view, show, zoom, pick, stateBefore, live: () => live, exact: () => exact };
begin();
})();
