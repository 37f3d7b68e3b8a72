"use strict";
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const say = (id, text) => { byId(id).textContent = text; };
  const percent = (share) => {
    const value = 100 * share;
    if (value === 0) return "0 %";
    return value < 0.01 ? "< 0.01 %" : `${value.toFixed(value >= 10 ? 0 : value >= 1 ? 1 : 2)} %`;
  };
  const svg = (name, attributes = {}, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  // Dark or light: the system's choice until the reader makes one.
  {
    const root = document.documentElement, button = byId("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const shown = () => root.dataset.theme || (system.matches ? "dark" : "light");
    const label = () => { button.textContent = shown() === "dark" ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${shown() === "dark" ? "light" : "dark"} colours`); };
    button.hidden = false;
    button.addEventListener("click", () => { root.dataset.theme = shown() === "dark" ? "light" : "dark"; label(); });
    system.addEventListener("change", label);
    label();
  }

  // Folded bounds: the button opens all of them; on paper they are always open.
  {
    const folded = document.querySelectorAll("details"), button = byId("unfold"), bounds = document.querySelectorAll(".theorems details");
    if (button) button.hidden = false;
    button?.addEventListener("click", () => {
      const open = [...bounds].some((one) => !one.open);
      for (const one of bounds) one.open = open;
      button.textContent = open ? "Hide all bounds" : "Show all bounds";
    });
    let before = [];
    addEventListener("beforeprint", () => { before = [...folded].map((one) => one.open); for (const one of folded) one.open = true; });
    addEventListener("afterprint", () => folded.forEach((one, at) => { one.open = before[at]; }));
  }

  // Tables wider than the screen say so.
  {
    const mark = () => { for (const box of document.querySelectorAll(".scroll")) box.classList.toggle("over", box.scrollWidth > box.clientWidth + 1); };
    addEventListener("resize", mark);
    for (const one of document.querySelectorAll("details")) one.addEventListener("toggle", mark);
    mark();
  }

  // A square of cells whose opacity is a share from 0 to 1.
  function heatMap(place, rows, columns) {
    const picture = svg("svg", { class: "map", viewBox: `0 0 ${columns} ${rows}`, role: "img", "shape-rendering": "crispEdges" });
    picture.append(svg("rect", { class: "ground", width: columns, height: rows }));
    const cells = [];
    const frame = svg("rect", { class: "frame", width: columns, height: 1, visibility: "hidden" });
    place.replaceChildren(picture);
    return {
      cell(row, column) {
        const cell = svg("rect", { class: "cell", x: column, y: row, width: 1, height: 1, opacity: 0 });
        cells.push(cell);
        picture.append(cell);
        return cell;
      },
      finish() { picture.append(frame); },
      describe(text) { picture.setAttribute("aria-label", text); },
      frameRow(row) { frame.setAttribute("y", row); frame.setAttribute("visibility", "visible"); },
    };
  }

  // Attention: three pictures, sliders for tables, hashes and the query.
  if (data.attention) {
    const attention = data.attention, n = attention.input.length;
    const corner = (row, column) => row * (row + 1) / 2 + column;
    const unpacked = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const maps = {};
    for (const name of ["softmax", "expected", "hashed"]) {
      const map = heatMap(byId(`map-${name}`), n, n), cells = [];
      for (let row = 0; row < n; row++) for (let column = 0; column <= row; column++) cells.push(map.cell(row, column));
      map.finish();
      maps[name] = { map, cells };
    }
    const strip = byId("strip"), tokens = [];
    for (let at = 0; at < n; at++) {
      const item = document.createElement("li"), above = document.createElement("span"), below = document.createElement("span");
      above.textContent = attention.input[at];
      item.append(above, below);
      strip.append(item);
      tokens.push({ above, below });
    }
    const sliders = { tables: byId("lens-tables"), hashes: byId("lens-hashes"), query: byId("lens-query") };
    let layer = 0;
    attention.layers.forEach((_, number) => {
      const label = document.createElement("label"), radio = document.createElement("input");
      Object.assign(radio, { type: "radio", name: "lens-layer", value: number, checked: number === layer });
      radio.addEventListener("change", () => { layer = number; asTrained(); draw(); });
      label.append(radio, String(number + 1));
      byId("lens-layers").append(label);
    });
    const asTrained = () => {
      const part = attention.layers[layer], used = part.trained;
      sliders.tables.max = part.tables.length - 1;
      sliders.hashes.max = part.hashes.length - 1;
      sliders.tables.value = part.tables.indexOf(used.tables);
      sliders.hashes.value = part.hashes.indexOf(used.hashes);
    };
    const paint = (name, bytes, query) => {
      const { map, cells } = maps[name];
      // The square root makes small weights visible.
      bytes.forEach((byte, at) => cells[at].setAttribute("opacity", Math.sqrt(byte / 255).toFixed(3)));
      map.frameRow(query);
      map.describe(`${name} weights of ${n} queries; query ${query + 1}: ${read(bytes, query)}`);
    };
    const read = (bytes, query) => {
      const found = [];
      for (let key = 0; key <= query; key++) found.push([bytes[corner(query, key)] / 255, key]);
      const met = found.filter(([weight]) => weight > 0.02).sort((one, other) => other[0] - one[0]).slice(0, 3);
      return met.map(([weight, key]) => `${percent(weight)} from position ${key + 1} (${attention.input[key]})`).join(", ") || "from no key";
    };
    const draw = () => {
      const part = attention.layers[layer], t = Number(sliders.tables.value), z = Number(sliders.hashes.value), query = Number(sliders.query.value);
      const row = part.rows[z], cell = row.cells[t], error = data.errors?.[layer][z][t];
      const hashed = unpacked(cell.weights);
      const tables = `${part.tables[t]} table${part.tables[t] > 1 ? "s" : ""} of ${part.hashes[z]} hash${part.hashes[z] > 1 ? "es" : ""}`;
      say("lens-tables-value", part.tables[t]);
      say("lens-hashes-value", part.hashes[z]);
      say("lens-query-value", `position ${query + 1}, ${attention.input[query]}`);
      sliders.tables.setAttribute("aria-valuetext", `${part.tables[t]} tables`);
      sliders.hashes.setAttribute("aria-valuetext", `${part.hashes[z]} hashes`);
      sliders.query.setAttribute("aria-valuetext", `position ${query + 1}, letter ${attention.input[query]}`);
      if (error) {
        say("lens-error", percent(error.mean));
        say("lens-spread", `± ${percent(error.spread)}`);
      }
      say("lens-distance", cell.distance.toFixed(2));
      say("lens-met", `Query ${query + 1} (${attention.input[query]}) reads ${read(hashed, query)}.`);
      say("map-softmax-note", `with β = ${row.beta}, the power of two whose weights are nearest to the expected`);
      say("map-hashed-note", `with ${tables}, as the model runs`);
      paint("softmax", unpacked(row.softmax), query);
      paint("expected", unpacked(row.expected), query);
      paint("hashed", hashed, query);
      const wrong = cell.said.filter((letter, at) => letter !== attention.target[at]).length;
      say("strip-title", `With ${tables} in layer ${layer + 1}, ${wrong === 0 ? "none" : wrong} of the ${n} answers on this word ${wrong === 1 ? "is" : "are"} wrong.`);
      tokens.forEach(({ above, below }, at) => {
        const weight = at <= query ? hashed[corner(query, at)] / 255 : 0;
        above.className = `in${weight > 0.6 ? " heavy" : ""}${at === query ? " asks" : ""}`;
        above.style.setProperty("--w", Math.sqrt(weight).toFixed(3));
        below.textContent = cell.said[at];
        const right = cell.said[at] === attention.target[at];
        below.className = right ? "said" : "said wrong";
        below.title = right ? "" : `should be ${attention.target[at]}`;
      });
    };
    sliders.query.max = n - 1;
    sliders.query.value = Math.floor(0.75 * n);
    for (const slider of Object.values(sliders)) slider.addEventListener("input", draw);
    asTrained();
    draw();
    byId("lens").hidden = false;
  }

  // Rounds of a protocol: words of each machine against the limit, and who sends to whom.
  if (data.theory) {
    const theory = data.theory, machines = theory.machines, limit = theory.memory_words, last = theory.rounds.length - 1;
    const slider = byId("round"), body = byId("round-table").tBodies[0];
    const width = 480, height = 250, left = 30, top = 22, bottom = height - 26;
    const space = (width - left) / machines, bar = Math.max(1.5, (space - 4) / 3);
    const tall = (words) => (bottom - top) * words / limit;
    const bars = svg("svg", { class: "bars", viewBox: `0 0 ${width} ${height}`, role: "img" });
    for (const words of [0, limit / 2, limit]) {
      bars.append(svg("path", { class: "grid", d: `M${left} ${bottom - tall(words)}H${width}` }));
      bars.append(svg("text", { x: left - 6, y: bottom - tall(words) + 4, "text-anchor": "end" }, String(Math.round(words))));
    }
    const rects = ["held", "sent", "received"].map((kind, at) => Array.from({ length: machines }, (_, machine) => {
      const rect = svg("rect", { class: kind, x: left + machine * space + 2 + at * bar, width: bar - 0.5 });
      bars.append(rect);
      return rect;
    }));
    for (let machine = 0; machine < machines; machine += machines > 20 ? 5 : 1) bars.append(svg("text", { x: left + (machine + 0.5) * space, y: height - 8, "text-anchor": "middle" }, String(machine)));
    bars.append(svg("path", { class: "limit", d: `M${left} ${top}H${width}` }));
    bars.append(svg("text", { x: width, y: 13, "text-anchor": "end" }, `limit: ${limit} words per machine`));
    byId("round-bars").replaceChildren(bars);
    const flows = heatMap(byId("round-flows"), machines, machines), pairs = [];
    for (let from = 0; from < machines; from++) for (let to = 0; to < machines; to++) pairs.push(flows.cell(from, to));
    flows.finish();
    say("flows-last", `receiver: machine 0 to ${machines - 1}, left to right`);
    say("flows-down", `sender: machine 0 to ${machines - 1}, top to bottom`);
    const sum = (list) => list.reduce((one, other) => one + other, 0);
    const draw = () => {
      const at = Number(slider.value), round = theory.rounds[at];
      const columns = [round.held, round.sent, round.received];
      say("round-value", `${at + 1} of ${last + 1}`);
      slider.setAttribute("aria-valuetext", `round ${at + 1} of ${last + 1}, ${round.stage}`);
      say("round-stage", `Round ${at + 1}: ${round.stage}.`);
      say("round-what", `Every machine ${round.what}.`);
      const inbox = Math.max(...round.received), busy = round.received.indexOf(inbox);
      say("round-loads", `${sum(round.sent).toLocaleString("en")} words are sent. The fullest inbox, that of machine ${busy}, gets ${inbox} of at most ${limit} words.`);
      say("round-same", round.same ? `After layer ${at + 2} the transformer's tokens hold exactly these messages.` : `After layer ${at + 2} the transformer's tokens hold OTHER messages.`);
      columns.forEach((words, kind) => words.forEach((count, machine) => {
        rects[kind][machine].setAttribute("y", bottom - tall(count));
        rects[kind][machine].setAttribute("height", tall(count));
      }));
      const most = Math.max(1, ...round.flows.flat());
      round.flows.flat().forEach((words, pair) => pairs[pair].setAttribute("opacity", words === 0 ? 0 : (0.15 + 0.85 * words / most).toFixed(3)));
      bars.setAttribute("aria-label", `Words of each machine in round ${at + 1}: at most ${Math.max(...round.sent)} sent and ${inbox} received, limit ${limit}. The table below has all numbers.`);
      flows.describe(`Words from each machine to each other in round ${at + 1}: ${round.flows.flat().filter((words) => words > 0).length} pairs exchange at most ${most} words each.`);
      body.replaceChildren(...round.held.map((_, machine) => {
        const line = document.createElement("tr"), head = document.createElement("th");
        head.scope = "row";
        head.textContent = machine;
        line.append(head, ...columns.map((words) => Object.assign(document.createElement("td"), { textContent: words[machine] })));
        return line;
      }));
      byId("round-back").disabled = at === 0;
      byId("round-next").disabled = at === last;
    };
    const step = (by) => { slider.value = Number(slider.value) + by; draw(); };
    slider.max = last;
    slider.value = 0;
    slider.addEventListener("input", draw);
    byId("round-back").addEventListener("click", () => step(-1));
    byId("round-next").addEventListener("click", () => step(1));
    draw();
    byId("rounds").hidden = false;
  }
}
